//! Blocks of drafts: their logits against llama.cpp's, the same bits for every cut and ubatch, and that they change nothing.
//!
//! `tests/oracle/drafts.cpp` made the logits, with llama.cpp at commit 0c1e57098bba43ac29e6e3b677cdceebdd22334f: of some rows
//! of a prompt, and of a chain of drafts behind it. Those of every second token are kept. They are within 1e-4 (relative 2-norm over all of them).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_engine::batch::{
    Ahead, MAX_DRAFTED, PageId, Planes, RowOutput, RowValue, SampledToken, SamplerSetup,
    SamplingParams, SeqOp, SeqPart, SlotId, Want,
};
use brigade_engine::kernels::KV_PAGE;
use brigade_engine::stage::{DraftRow, check_own_drafts};
use brigade_gguf::{Gguf, npy};
use brigade_model_tests::each::each;
use brigade_model_tests::golden::{Golden, Recipe};
use brigade_model_tests::line::{Line, LineConfig, N_SLOTS, SLOT_POSITIONS, into_token};
use brigade_model_tests::places::of_tests;
use brigade_spec::{KEPT_HIDDEN, Prefixes};
use serde::Deserialize;

const LIMIT: f64 = 1e-4;
/// Logits of every so many tokens are kept.
const EVERY: usize = 2;

/// Golden results of one model.
#[derive(Clone, Debug, Deserialize)]
struct Entry {
    synth: Recipe,
    /// Positions of the kept rows, before those of the chain.
    positions: Vec<u32>,
    /// The model's most probable token behind the prompt.
    greedy: u32,
    /// Tokens drafted behind that one.
    chain: Vec<u32>,
}

fn entries() -> Vec<(String, Entry)> {
    let path = of_tests("data/drafts/manifest.json");
    let all: BTreeMap<String, Entry> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    all.into_iter().collect()
}

fn model(name: &str) -> PathBuf {
    let all = entries();
    all.iter().find(|(known, _)| known == name).unwrap().1.synth.make()
}

fn tokens() -> Vec<u32> {
    Golden::repository().manifest.tokens
}

fn setup(temperature: f32) -> SamplerSetup {
    let params = SamplingParams { temperature, ..SamplingParams::greedy() };
    SamplerSetup { params, seed: 7, ..SamplerSetup::default() }
}

fn part(slot: u32, pos: u32, tokens: &[u32], want: Want, drafts: u32) -> SeqPart {
    let ahead = Some(Ahead { sure: pos, known: 0, planes: None, drafts });
    SeqPart { slot: SlotId(slot), pos, tokens: tokens.to_vec(), want, mu: None, ahead }
}

fn draft(slot: u32) -> SeqOp {
    SeqOp::Draft { slot: SlotId(slot) }
}

/// Reads a prompt in ubatches of `n_ubatch` rows, and drafts behind it. Returns the token that was drawn, and the logits of all
/// rows of all blocks.
fn read(
    line: &mut Line,
    tokens: &[u32],
    n_ubatch: usize,
    drafts: u32,
) -> (SampledToken, Vec<DraftRow>) {
    let last = |line: &mut Line, is_on| line.stages().last_mut().unwrap().watch_own_drafts(is_on);
    last(line, true);
    let mut drawn = None;
    for (i, chunk) in tokens.chunks(n_ubatch).enumerate() {
        let ops = match i {
            0 => vec![Line::open_slot(0, Some(setup(0.0))), draft(0)],
            _ => Vec::new(),
        };
        let pos = (i * n_ubatch) as u32;
        let is_last = pos as usize + chunk.len() == tokens.len();
        let (want, n) = if is_last { (Want::Sample, drafts) } else { (Want::Nothing, 0) };
        drawn = line.run(ops, vec![part(0, pos, chunk, want, n)]).pop();
    }
    let rows = last(line, false);
    line.run(vec![SeqOp::Close { slot: SlotId(0) }], Vec::new());
    (into_token(drawn.unwrap()), rows)
}

fn drafting() -> LineConfig {
    LineConfig { own_drafts: true, ..LineConfig::default() }
}

/// Rows of the prompt in the first block, and rows of the chain.
fn split(rows: Vec<DraftRow>, n: u32) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let (prompt, chain): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.pos < n);
    let first = prompt.into_iter().filter(|row| row.block == 0);
    (first.map(|row| row.logits).collect(), chain.into_iter().map(|row| row.logits).collect())
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|x| x.to_bits()).collect()
}

fn logits_of_blocks_match_llama_cpp() {
    let tokens = tokens();
    each(&entries(), |(name, entry)| {
        let path = entry.synth.make();
        let mut line = Line::open(&path, &drafting());
        let (token, rows) = read(&mut line, &tokens, tokens.len(), entry.chain.len() as u32);
        let (prompt, chain) = split(rows, tokens.len() as u32);
        let npy::Npy { shape, data: wanted } =
            npy::read(of_tests(&format!("data/drafts/{name}.npy"))).unwrap();
        let n_kept = shape[1];
        let found = entry.positions.iter().map(|&pos| &prompt[pos as usize]).chain(&chain);
        let found: Vec<f32> = found.flat_map(|row| row.iter().step_by(EVERY)).copied().collect();
        assert_eq!(found.len(), wanted.len(), "{name}");
        let square = |x: f64| x * x;
        let off: f64 = found.iter().zip(&wanted).map(|(a, b)| square(f64::from(a - b))).sum();
        let all: f64 = wanted.iter().map(|b| square(f64::from(*b))).sum();
        let error = (off / all).sqrt();
        let n = found.len() / n_kept;
        let drafted: Vec<u32> = token.drafted.iter().map(|draft| draft.id).collect();
        println!("{name:16} {n} rows  error {error:.2e}  drafted {drafted:?}");
        assert!(error <= LIMIT, "{name}: error {error:e}");
        assert_eq!((token.id, &drafted), (entry.greedy, &entry.chain), "{name}");
        assert!(token.drafted.iter().all(|draft| (0.0..=1.0).contains(&draft.odds)), "{name}");
    });
}

fn cuts_and_ubatches_do_not_change_a_bit_of_a_draft() {
    let tokens: Vec<u32> = tokens().iter().cycle().take(150).copied().collect();
    each(&entries(), |(name, entry)| {
        let path = entry.synth.make();
        let whole = read(&mut Line::open(&path, &drafting()), &tokens, tokens.len(), 5);
        let (prompt, chain) = split(whole.1, tokens.len() as u32);
        for (cuts, n_ubatch) in [(vec![], 1), (vec![2], 7), (vec![1, 3], 64)] {
            let mut line = Line::open(&path, &LineConfig { cuts, ..drafting() });
            let (token, rows) = read(&mut line, &tokens, n_ubatch, 5);
            let (other, others) = split(rows, tokens.len() as u32);
            assert!(bits(&other) == bits(&prompt), "{name}: prompt in {n_ubatch}");
            assert!(bits(&others) == bits(&chain), "{name}: chain in {n_ubatch}");
            assert_eq!(token, whole.0, "{name} in {n_ubatch}");
        }
    });
}

/// Places of the recurrent state of the sequence in slot 0: the present one, and the next. `None`: each of its prefixes
/// has a state.
struct States(Option<[SlotId; 2]>);

impl States {
    fn of(line: &mut Line) -> Self {
        let prefixes = line.stages()[0].spec().prefixes(false);
        Self((prefixes == Prefixes::Whole).then_some([SlotId(0), SlotId(N_SLOTS as u32 - 1)]))
    }

    fn here(&self) -> Option<Planes> {
        self.0.map(|[from, _]| Planes { from, to: from })
    }

    fn next(&self) -> Option<Planes> {
        self.0.map(|[from, to]| Planes { from, to })
    }

    /// Keeps the rows that were read: the next place becomes the present one.
    fn go_on(&mut self) {
        self.0.iter_mut().for_each(|planes| planes.reverse());
    }
}

/// A window of the sequence in slot 0, which reads its first `known` tokens again.
fn window(
    pos: u32,
    tokens: Vec<u32>,
    known: usize,
    planes: Option<Planes>,
    drafts: u32,
) -> SeqPart {
    let ahead = Some(Ahead { sure: pos, known: known as u32, planes, drafts });
    SeqPart { slot: SlotId(0), pos, tokens, want: Want::Verify, mu: None, ahead }
}

/// Greedy or seeded tokens behind a prompt, and the counts of drafts that were right and of all.
///
/// Where `drafts` are wanted, each window verifies those that were drafted beside the last token of the window before. Blocks of
/// random weights are hardly ever right. So the first drafts of a window are replaced by the tokens of `truth`: none in the
/// first window, one in the next, then two, then three, and so on from none.
fn generated(
    line: &mut Line,
    prompt: &[u32],
    n: usize,
    temperature: f32,
    drafts: u32,
    truth: &[u32],
) -> (Vec<u32>, [usize; 2]) {
    let slot = SlotId(0);
    let mut states = States::of(line);
    let mut ops = vec![Line::open_slot(0, Some(setup(temperature)))];
    ops.extend((drafts > 0).then(|| draft(0)));
    let mut first = part(0, 0, prompt, Want::Sample, drafts);
    first.ahead.iter_mut().for_each(|ahead| ahead.planes = states.here());
    let mut rows = line.run(ops, vec![first]);
    let (mut text, mut counts, mut at) = (Vec::new(), [0, 0], prompt.len() as u32);
    let (mut guessed, mut sent): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for round in 0.. {
        // A window's rows are drawn from in order, up to the first one behind a wrong draft.
        let is_drawn = |row: &RowOutput| matches!(row.value, RowValue::Sampled(_));
        let drawn: Vec<_> = rows.drain(..).filter(is_drawn).map(into_token).collect();
        let right = drawn.len() - 1;
        counts = [counts[0] + right, counts[1] + guessed.len()];
        text.extend(drawn.iter().map(|token| token.id));
        let wrong = guessed.len() - right;
        guessed = drawn.last().unwrap().drafted.iter().map(|draft| draft.id).collect();
        let from_truth = truth[text.len().min(truth.len())..].iter().take(round % 4);
        guessed.iter_mut().zip(from_truth).for_each(|(guess, truth)| *guess = *truth);
        if text.len() >= n {
            break;
        }
        // The last token that was drawn is not read yet.
        let sure = (prompt.len() + text.len() - 1) as u32;
        // Where only the whole has a state, what was right in a window that was wrong is read again.
        let (known, back) = match (wrong, states.here()) {
            (0, _) => {
                let is_first = sent.is_empty();
                (!is_first).then(|| states.go_on());
                (Vec::new(), None)
            }
            (_, None) => (Vec::new(), Some((sure, None))),
            (_, here) => (sent[..sent.len() - wrong].to_vec(), Some((at, here))),
        };
        at = sure - known.len() as u32;
        let back = back.map(|(len, planes)| SeqOp::Truncate { slot, len, planes });
        let new = text.last().copied().into_iter().chain(guessed.iter().copied());
        sent = known.iter().copied().chain(new).collect();
        let part = match drafts {
            0 => SeqPart { ahead: None, ..part(0, at, &sent, Want::Sample, 0) },
            _ => window(at, sent.clone(), known.len(), states.next(), drafts),
        };
        rows = line.run(back.into_iter().collect(), vec![part]);
    }
    line.run(vec![SeqOp::Close { slot }], Vec::new());
    text.truncate(n);
    (text, counts)
}

fn drafts_change_no_token() {
    let prompt = &tokens()[..40];
    each(&entries(), |(name, entry)| {
        let path = entry.synth.make();
        let open = |config| Line::open(&path, &config);
        for temperature in [0.0, 0.8] {
            let plain = &mut open(LineConfig::default());
            let (truth, _) = generated(plain, prompt, 93, temperature, 0, &[]);
            for cuts in [vec![], vec![2], vec![1, 3]] {
                let mut line = open(LineConfig { cuts, ..drafting() });
                let (text, [right, all]) = generated(&mut line, prompt, 90, temperature, 3, &truth);
                assert_eq!(text, truth[..90], "{name} at {temperature}");
                assert!(
                    (10..all - 10).contains(&right),
                    "{name} at {temperature}: {right} of {all}"
                );
                println!("{name} at {temperature}: {right} of {all} drafts right");
            }
        }
    });
}

/// Positions of entries, and the entries of each block.
type Entries = Option<(Range<u32>, Vec<Vec<u8>>)>;

/// The token behind `tokens` with its drafts, and the entries that the blocks have made, where nothing else happened.
fn of_nothing_else(path: &Path, tokens: &[u32]) -> (SampledToken, Entries) {
    let mut line = Line::open(path, &drafting());
    let open = vec![Line::open_slot(0, Some(setup(0.0))), draft(0)];
    let (token, _) = go_on(&mut line, open, 0, 0, tokens);
    (token, line.stages()[0].own_draft_entries(SlotId(0)))
}

fn entries_are_those_of_a_sequence_without_drafts_or_grafts() {
    let tokens: Vec<u32> = tokens().iter().cycle().take(160).copied().collect();
    let per_slot = (SLOT_POSITIONS / KV_PAGE) as u32;
    each(&entries(), |(name, entry)| {
        let path = entry.synth.make();
        for len in [62, 63, 64, 65, 66, 127, 128, 129, 150] {
            let (before, rest) = (&tokens[..len], &tokens[len..len + 4]);
            let (wanted, whole) = of_nothing_else(&path, &tokens[..len + 4]);
            let (range, bytes) = whole.as_ref().unwrap();
            assert_eq!(range, &(0..len as u32 + 4), "{name} at {len}");
            // The blocks of deepseek4 keep their entries in rings, which cannot be compared: only its drafts are.
            assert_eq!(bytes.is_empty(), entry.synth.arch == "deepseek4", "{name} at {len}");
            let mut line = Line::open(&path, &drafting());
            let states = States::of(&mut line);
            let open = vec![Line::open_slot(0, Some(setup(0.0))), draft(0)];
            let mut prompt = part(0, 0, before, Want::Sample, 3);
            prompt.ahead.iter_mut().for_each(|ahead| ahead.planes = states.here());
            line.run(open, vec![prompt]);
            // A copy of the whole.
            let is_same = |line: &mut Line, ops, slot: u32, what: &str| {
                let (token, _) = go_on(line, ops, slot, len as u32, rest);
                let entries = line.stages()[0].own_draft_entries(SlotId(slot));
                assert!(entries == whole, "{name} at {len}, {what}");
                assert_eq!((token.id, &token.drafted), (wanted.id, &wanted.drafted), "{name}");
            };
            let copy = |first_own: u32| {
                let own = |page: u32| {
                    if page < first_own { PageId(page) } else { PageId(per_slot + page) }
                };
                let (src, dst, len) = (SlotId(0), SlotId(1), len as u32);
                let (blocks, sampler) =
                    ((0..per_slot).map(own).collect(), Some(Arc::new(setup(0.0))));
                vec![SeqOp::Copy { src, dst, len, blocks, sampler, request: "r".into() }, draft(1)]
            };
            let n_full = (len / KV_PAGE) as u32;
            is_same(&mut line, copy(n_full), 1, "graft");
            line.run(vec![SeqOp::Close { slot: SlotId(1) }], Vec::new());
            // Windows with wrong drafts; of a longer sequence a part can be copied.
            let wrong = window(len as u32, vec![tokens[len], 7, 9, 8], 0, states.next(), 3);
            line.run(Vec::new(), vec![wrong]);
            if states.0.is_none() {
                is_same(&mut line, copy(0), 1, "graft of a part");
            }
            let (slot, len, planes) = (SlotId(0), len as u32, states.here());
            is_same(&mut line, vec![SeqOp::Truncate { slot, len, planes }], 0, "truncated");
        }
    });
}

/// Reads the next rows of a sequence in `slot`. Returns the token that was drawn, with its drafts, and the logits of the
/// blocks' rows.
fn go_on(
    line: &mut Line,
    ops: Vec<SeqOp>,
    slot: u32,
    pos: u32,
    tokens: &[u32],
) -> (SampledToken, Vec<DraftRow>) {
    line.stages().last_mut().unwrap().watch_own_drafts(true);
    let row = line.run(ops, vec![part(slot, pos, tokens, Want::Sample, 4)]).pop().unwrap();
    (into_token(row), line.stages().last_mut().unwrap().watch_own_drafts(false))
}

/// The logits alone, by position and block.
fn of_rows(rows: &[DraftRow], from: u32) -> Vec<(u32, usize, Vec<u32>)> {
    let rows = rows.iter().filter(|row| row.pos >= from);
    rows.map(|row| (row.pos, row.block, row.logits.iter().map(|x| x.to_bits()).collect())).collect()
}

fn copies_at_every_length_draft_as_if_there_were_none() {
    let tokens: Vec<u32> = tokens().iter().cycle().take(200).copied().collect();
    let per_slot = (SLOT_POSITIONS / KV_PAGE) as u32;
    each(&["mimo2", "step35-2", "glm4moe", "deepseek2"], |name| {
        let mut line = Line::open(&model(name), &drafting());
        let open = vec![Line::open_slot(0, Some(setup(0.0))), draft(0)];
        let (_, all) = go_on(&mut line, open, 0, 0, &tokens);
        for len in [1, 62, 63, 64, 65, 66, 127, 128, 129, 150, 199, 200] {
            for shares in [false, true] {
                let own = |page: u32| {
                    PageId(if shares && page < len / KV_PAGE as u32 {
                        page
                    } else {
                        per_slot + page
                    })
                };
                let blocks = (0..per_slot).map(own).collect();
                let (src, dst, sampler) = (SlotId(0), SlotId(1), Some(Arc::new(setup(0.0))));
                let copy = SeqOp::Copy { src, dst, len, blocks, sampler, request: "r".into() };
                let rest: Vec<u32> = match len {
                    200 => vec![9, 8, 7],
                    // A row is read again, and others follow than in the source.
                    _ => [tokens[len as usize], 9, 8, 7].to_vec(),
                };
                let (token, rows) = go_on(&mut line, vec![copy, draft(1)], 1, len, &rest);
                let (mut whole, mut fresh) =
                    (tokens[..len as usize].to_vec(), Line::open(&model(name), &drafting()));
                whole.extend(&rest);
                let open = vec![Line::open_slot(0, Some(setup(0.0))), draft(0)];
                let (wanted, wanted_rows) = go_on(&mut fresh, open, 0, 0, &whole);
                // The block makes the entry at `len` of the hidden row before it. Where the source still keeps that row, the copy
                // makes the entry anew, with logits. Where it does not, the entry was copied, and has none.
                let is_kept = len as usize + KEPT_HIDDEN > tokens.len();
                let first = if is_kept { len } else { len + 1 };
                assert!(
                    of_rows(&rows, first) == of_rows(&wanted_rows, first),
                    "{name} at {len}, shares: {shares}"
                );
                assert_eq!(
                    (token.id, &token.drafted),
                    (wanted.id, &wanted.drafted),
                    "{name} at {len}"
                );
                assert!(!token.drafted.is_empty(), "{name} at {len}");
                line.run(vec![SeqOp::Close { slot: dst }], Vec::new());
            }
        }
        // The source was not changed by any of them.
        let ops = vec![SeqOp::Truncate { slot: SlotId(0), len: 190, planes: None }];
        let (_, again) = go_on(&mut line, ops, 0, 190, &tokens[190..]);
        assert!(of_rows(&again, 190) == of_rows(&all, 190), "{name}");
    });
}

/// Opens a sequence in slot 0 of 200 tokens. Nothing is drafted behind it, so that its blocks have not read the last 20 yet: so
/// few rows wait until drafts are wanted.
fn with_waiting(name: &str, tokens: &[u32]) -> Line {
    let mut line = Line::open(&model(name), &drafting());
    let open = vec![Line::open_slot(0, Some(setup(0.0))), draft(0)];
    line.run(open, vec![part(0, 0, &tokens[..180], Want::Nothing, 0)]);
    line.run(Vec::new(), vec![part(0, 180, &tokens[180..], Want::Nothing, 0)]);
    line
}

fn what_waits_is_copied_and_drafted_from_as_if_it_had_been_read() {
    let tokens: Vec<u32> = tokens().iter().cycle().take(200).copied().collect();
    let per_slot = (SLOT_POSITIONS / KV_PAGE) as u32;
    let rest = [9, 8, 7];
    each(&["mimo2", "step35-2", "glm4moe", "deepseek2"], |name| {
        let mut line = with_waiting(name, &tokens);
        let same = |line: &mut Line, ops: Vec<SeqOp>, slot: u32, len: usize| {
            let (token, rows) = go_on(line, ops, slot, len as u32, &rest);
            let mut fresh = Line::open(&model(name), &drafting());
            let open = vec![Line::open_slot(0, Some(setup(0.0))), draft(0)];
            let whole = [&tokens[..len], &rest].concat();
            let (wanted, wanted_rows) = go_on(&mut fresh, open, 0, 0, &whole);
            assert_eq!((token.id, &token.drafted), (wanted.id, &wanted.drafted), "{name} at {len}");
            assert!(of_rows(&rows, 180) == of_rows(&wanted_rows, 180), "{name} at {len}");
            assert_eq!(token.drafted.is_empty(), rows.is_empty(), "{name} at {len}");
        };
        for len in [180, 181, 190, 199, 200] {
            let blocks = (per_slot..2 * per_slot).map(PageId).collect();
            let (src, dst, sampler) = (SlotId(0), SlotId(1), Some(Arc::new(setup(0.0))));
            let (len_there, request) = (len as u32, "r".into());
            let copy = SeqOp::Copy { src, dst, len: len_there, blocks, sampler, request };
            same(&mut line, vec![copy, draft(1)], 1, len);
            line.run(vec![SeqOp::Close { slot: dst }], Vec::new());
        }
        // The source has all that it had, and so it has what is taken back before it was read.
        let back = SeqOp::Truncate { slot: SlotId(0), len: 195, planes: None };
        same(&mut line, vec![back], 0, 195);
    });
}

fn a_sequence_that_was_not_read_begins_anew_at_a_page() {
    let tokens: Vec<u32> = tokens().iter().cycle().take(200).copied().collect();
    let mut line = Line::open(&model("glm4moe"), &drafting());
    let open = vec![Line::open_slot(0, Some(setup(0.0)))];
    line.run(open, vec![part(0, 0, &tokens[..70], Want::Sample, 4)]);
    let (token, rows) = go_on(&mut line, vec![draft(0)], 0, 70, &tokens[70..100]);
    assert!(token.drafted.is_empty() && rows.is_empty());
    let (token, rows) = go_on(&mut line, Vec::new(), 0, 100, &tokens[100..140]);
    assert_eq!((token.drafted.len(), rows[0].pos), (4, 128));
    // A state that was put back is as one that was not read.
    let stage = &mut line.stages()[0];
    let state = stage.snapshot(SlotId(0)).unwrap();
    stage.restore(SlotId(0), &state).unwrap();
    let (token, _) = go_on(&mut line, Vec::new(), 0, 140, &tokens[140..150]);
    assert!(token.drafted.is_empty());
    let (token, rows) = go_on(&mut line, Vec::new(), 0, 150, &tokens[150..]);
    assert_eq!((token.drafted.len(), rows[0].pos), (4, 192));
}

fn what_a_ring_has_lost_begins_anew() {
    let tokens: Vec<u32> = tokens().iter().cycle().take(240).copied().collect();
    let mut line = Line::open(&model("deepseek4"), &drafting());
    let states = States::of(&mut line);
    let mut open = part(0, 0, &tokens[..70], Want::Sample, 4);
    open.ahead.iter_mut().for_each(|ahead| ahead.planes = states.here());
    line.run(vec![Line::open_slot(0, Some(setup(0.0))), draft(0)], vec![open]);
    // More rows than any window has are taken back: keys that rows see may be gone.
    let long = window(70, tokens[70..200].to_vec(), 0, states.next(), 3);
    line.run(Vec::new(), vec![long]);
    let back = SeqOp::Truncate { slot: SlotId(0), len: 70, planes: states.here() };
    let (token, rows) = go_on(&mut line, vec![back], 0, 70, &tokens[70..110]);
    assert!(token.drafted.is_empty() && rows.is_empty());
    let (token, rows) = go_on(&mut line, Vec::new(), 0, 110, &tokens[110..200]);
    assert_eq!((token.drafted.len(), rows[0].pos), (4, 128));
}

fn snapshots_are_the_same_with_and_without_blocks_that_read() {
    let prompt = &tokens()[..40];
    for name in ["mimo2", "glm4moe", "qwen35", "deepseek4"] {
        let state = |drafts: u32| {
            let mut line = Line::open(
                &model(name),
                &LineConfig { own_drafts: drafts > 0, ..LineConfig::default() },
            );
            let mut ops = vec![Line::open_slot(0, Some(setup(0.0)))];
            ops.extend((drafts > 0).then(|| draft(0)));
            line.run(ops, vec![part(0, 0, prompt, Want::Sample, drafts)]);
            line.stages()[0].snapshot(SlotId(0)).unwrap()
        };
        assert!(state(0) == state(4), "{name}");
    }
}

fn headers_of_all_blocks_pass_and_stages_say_how_far_they_draft() {
    for (name, entry) in entries() {
        let file = Gguf::open(entry.synth.make()).unwrap();
        let described = brigade_models::described(&file).unwrap();
        check_own_drafts(&described).unwrap_or_else(|error| panic!("{name}: {error}"));
        let drafts = described.spec.own_drafts.as_ref().unwrap_or_else(|| panic!("{name}: none"));
        let depth = match drafts.n_blocks() {
            1 => MAX_DRAFTED,
            n => n,
        };
        let mut line = Line::open(&entry.synth.make(), &drafting());
        assert_eq!(line.stages()[0].own_drafts() as usize, depth, "{name}");
        let mut line = Line::open(&entry.synth.make(), &LineConfig::default());
        assert_eq!(line.stages()[0].own_drafts(), 0, "{name}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        logits_of_blocks_match_llama_cpp,
        cuts_and_ubatches_do_not_change_a_bit_of_a_draft,
        drafts_change_no_token,
        entries_are_those_of_a_sequence_without_drafts_or_grafts,
        copies_at_every_length_draft_as_if_there_were_none,
        what_waits_is_copied_and_drafted_from_as_if_it_had_been_read,
        a_sequence_that_was_not_read_begins_anew_at_a_page,
        what_a_ring_has_lost_begins_anew,
        snapshots_are_the_same_with_and_without_blocks_that_read,
        headers_of_all_blocks_pass_and_stages_say_how_far_they_draft;
];
