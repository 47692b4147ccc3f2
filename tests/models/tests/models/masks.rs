//! Answers that are held to a grammar: no ubatch waits for a mask. Here the masks of a stage are held open by the test, as
//! those of a hostile schema would be, and what is beside them goes on.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use brigade_engine::batch::{
    Constraint, Grammar, RowValue, SamplerSetup, SeqOp, SeqPart, SlotId, Want,
};
use brigade_engine::constraint::Vocabulary;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig, into_token};

const N_TOKENS: usize = 12;
const END: u32 = 2;

/// A line of two stages, whose masks are made once the sender has sent.
fn line() -> (Line, Sender<()>) {
    let golden = Golden::repository();
    let (_, entry) = golden.manifest.models.iter().next().expect("there are golden models");
    let config = LineConfig { cuts: vec![1], ..LineConfig::default() };
    let mut line = Line::open(&golden.model(entry), &config);
    let (open, gate) = channel();
    let last = line.stages().last_mut().expect("a line has stages");
    let n_vocab = last.spec().n_vocab as u32;
    let source = move || {
        // A test that failed has dropped its end.
        let _ = gate.recv();
        let letter = |id: u32| vec![b'a' + (id % 26) as u8];
        Vocabulary::new((0..n_vocab).map(letter).collect(), |id| id == END, &[END])
    };
    last.set_vocabulary(Box::new(source));
    (line, open)
}

fn held(later: bool) -> SamplerSetup {
    let grammars = vec![Grammar { text: "start: /[a-m]+/".to_owned(), then_free: false }];
    let rule =
        Constraint { answer_at: 1, grammars, first: Some(0), later, ..Constraint::default() };
    SamplerSetup { constraint: Some(Arc::new(rule)), ..Line::greedy() }
}

fn part(slot: u32, pos: usize, token: u32) -> SeqPart {
    let (slot, pos, tokens) = (SlotId(slot), pos as u32, vec![token]);
    SeqPart { slot, pos, tokens, want: Want::Sample, mu: None, ahead: None }
}

/// `N_TOKENS` tokens of a sequence alone, as a ubatch that waits draws them.
fn alone(setup: SamplerSetup) -> Vec<u32> {
    let (mut line, open) = line();
    open.send(()).unwrap();
    let mut tokens = vec![7];
    for pos in 0..N_TOKENS {
        let ops = if pos == 0 { vec![Line::open_slot(0, Some(setup.clone()))] } else { Vec::new() };
        let rows = line.run(ops, vec![part(0, pos, tokens[pos])]);
        tokens.extend(rows.into_iter().map(|row| into_token(row).id));
    }
    tokens
}

fn a_stream_goes_on_while_the_mask_of_another_is_held_open() {
    let (mut line, open) = line();
    let mut free = vec![7];
    for pos in 0..N_TOKENS {
        let (ops, mut parts) = match pos {
            0 => (
                vec![
                    Line::open_slot(0, Some(held(true))),
                    Line::open_slot(1, Some(Line::greedy())),
                ],
                vec![part(0, 0, 7)],
            ),
            _ => (vec![SeqOp::Draw { slot: SlotId(0) }], Vec::new()),
        };
        parts.push(part(1, pos, free[pos]));
        let mut rows = line.run(ops, parts).into_iter();
        let late = rows.next().unwrap();
        assert_eq!((late.slot, late.pos, &late.value), (SlotId(0), 0, &RowValue::NotYet));
        free.push(into_token(rows.next().unwrap()).id);
    }
    assert_eq!(free, alone(Line::greedy()), "all tokens of the other came, and are its own");
    open.send(()).unwrap();
    let mut tokens = vec![7];
    let (mut n_put_off, mut mask_us) = (0, 0);
    let mut ops = vec![SeqOp::Draw { slot: SlotId(0) }];
    let mut parts = Vec::new();
    while tokens.len() <= N_TOKENS {
        let row = line.run(std::mem::take(&mut ops), std::mem::take(&mut parts)).remove(0);
        mask_us += row.mask_us;
        if row.value == RowValue::NotYet {
            n_put_off += 1;
            ops = vec![SeqOp::Draw { slot: SlotId(0) }];
        } else {
            assert_eq!(row.pos as usize, tokens.len() - 1);
            tokens.push(into_token(row).id);
            parts = vec![part(0, tokens.len() - 1, tokens[tokens.len() - 1])];
        }
    }
    println!("{n_put_off} more draws were put off; masks took {mask_us} us");
    assert_eq!(tokens, alone(held(false)), "a draw does not depend on when it is made");
    assert!(mask_us > 0, "what masks took is told");
}

fn a_sequence_that_ends_with_its_draw_put_off_leaves_nothing_behind() {
    let (mut line, open) = line();
    let rows = line.run(vec![Line::open_slot(0, Some(held(true)))], vec![part(0, 0, 7)]);
    assert_eq!(rows[0].value, RowValue::NotYet);
    line.run(vec![SeqOp::Close { slot: SlotId(0) }], Vec::new());
    let rows = line.run(vec![Line::open_slot(0, Some(Line::greedy()))], vec![part(0, 0, 7)]);
    let first = into_token(rows.into_iter().next().unwrap()).id;
    assert_eq!(first, alone(Line::greedy())[1]);
    let rows = line.run(vec![SeqOp::Draw { slot: SlotId(0) }], Vec::new());
    assert!(matches!(&rows[0].value, RowValue::Failed(_)), "{rows:?}");
    drop(open);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_stream_goes_on_while_the_mask_of_another_is_held_open,
        a_sequence_that_ends_with_its_draw_put_off_leaves_nothing_behind;
];
