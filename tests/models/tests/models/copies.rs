//! Copies and snapshots of sequences on real stages, with KV pages, recurrent states, or both.
//!
//! - A copy goes on bit for bit as its source would.
//! - A refused ubatch leaves every sequence as it was.
//! - A snapshot depends on the sequence alone.

use brigade_engine::batch::{PageId, SeqOp, SeqPart, SlotId, UBatch, Want};
use brigade_engine::device::DeviceName;
use brigade_engine::kernels::KV_PAGE;
use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::kinds::{Named, one_of_each_memory, unquantised};
use brigade_model_tests::line::{Line, LineConfig, SLOT_POSITIONS, device_name, into_logits};
use brigade_spec::Prefixes;

/// Longer than a page, and not a whole number of them.
const LEN: usize = KV_PAGE + 13;

/// All models, or on a GPU, which may be one in software, one of each kind of memory.
fn models(golden: &Golden) -> Vec<Named<'_>> {
    match device_name() {
        DeviceName::Cpu(_) => unquantised(golden).collect(),
        DeviceName::Accelerator { .. } => one_of_each_memory(golden),
    }
}

/// A copy of the first `len` positions of slot 0 to slot 1. Full pages are slot 0's own.
fn copy(len: usize) -> SeqOp {
    let per_slot = (SLOT_POSITIONS / KV_PAGE) as u32;
    let shared = (len / KV_PAGE) as u32;
    let blocks = (0..shared).chain(per_slot + shared..2 * per_slot).map(PageId).collect();
    let (src, dst) = (SlotId(0), SlotId(1));
    SeqOp::Copy { src, dst, len: len as u32, blocks, sampler: None, request: "copy".into() }
}

fn part(slot: u32, pos: usize, tokens: &[u32]) -> SeqPart {
    let (slot, pos) = (SlotId(slot), pos as u32);
    SeqPart { slot, pos, tokens: tokens.to_vec(), want: Want::Logits, mu: None, ahead: None }
}

fn close(slot: u32) -> SeqOp {
    SeqOp::Close { slot: SlotId(slot) }
}

/// Logits of the parts, in their order.
fn rows(line: &mut Line, ops: Vec<SeqOp>, parts: Vec<SeqPart>) -> Vec<Vec<f32>> {
    line.run(ops, parts).into_iter().map(into_logits).collect()
}

/// State of slot 0 on every stage, and the number of its sequences.
fn held(line: &mut Line) -> Vec<(Vec<u8>, usize)> {
    let stages = line.stages().iter();
    stages.map(|s| (s.snapshot(SlotId(0)).unwrap(), s.n_open())).collect()
}

fn copies_go_on_as_their_sources_and_what_is_refused_changes_nothing() {
    let golden = Golden::repository();
    let (prompt, later) = golden.manifest.tokens.split_at(LEN);
    let mut kinds = Vec::new();
    for (name, entry) in models(&golden) {
        let path = golden.model(entry);
        let spec = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap();
        let prefixes = spec.prefixes(false);
        kinds.push(prefixes);
        // A layer a stage: in hybrids some have recurrent states and some have none.
        let cuts = Line::even_cuts(spec.n_layer(), spec.n_layer());
        let mut line = Line::open(&path, &LineConfig { cuts, ..LineConfig::default() });
        let fresh = line.logits(&[prompt, later].concat(), 32);
        rows(&mut line, vec![Line::open_slot(0, None)], vec![part(0, 0, prompt)]);

        let before = held(&mut line);
        let mut wrong = vec![
            (vec![copy(LEN), close(0)], vec![part(1, LEN - 1, &later[..1])]),
            (vec![copy(LEN + 1)], vec![]),
            (vec![Line::open_slot(1, None), copy(LEN)], vec![]),
        ];
        if prefixes == Prefixes::Whole {
            let cut = SeqOp::Truncate { slot: SlotId(0), len: LEN as u32 - 1, planes: None };
            wrong.push((vec![copy(LEN - 1)], vec![]));
            wrong.push((vec![Line::open_slot(2, None), cut], vec![]));
        }
        for (ops, parts) in wrong {
            let ub = UBatch { id: 0, ops, parts };
            // Each stage by itself: none relies on the one before it. Rows are refused first for want of
            // their input on all but the first.
            for stage in line.stages() {
                let refused = stage.forward(&ub, None);
                assert!(refused.is_err(), "{name}: {:?}", ub.ops);
            }
            assert_eq!(held(&mut line), before, "{name}: {:?}", ub.ops);
        }

        // Both go on in one ubatch, then the source elsewhere, then the copy as the source would have.
        let next = [part(0, LEN, &later[..1]), part(1, LEN, &later[..1])];
        let got = rows(&mut line, vec![copy(LEN)], next.to_vec());
        assert!(got[0] == fresh[LEN] && got[1] == fresh[LEN], "{name}");
        let other = [later[5], later[3], later[1]];
        rows(&mut line, vec![], vec![part(0, LEN + 1, &other)]);
        let got = rows(&mut line, vec![close(0)], vec![part(1, LEN + 1, &later[1..])]);
        assert!(got == fresh[LEN + 1..], "{name}");
        line.run(vec![close(1)], vec![]);
    }
    assert!(kinds.contains(&Prefixes::All) && kinds.contains(&Prefixes::Whole), "{kinds:?}");
}

fn snapshots_of_a_sequence_are_the_same_bytes_whatever_was_around_it() {
    let golden = Golden::repository();
    let prompt = &golden.manifest.tokens[..LEN];
    let mut n_models = 0;
    for (name, entry) in models(&golden) {
        let path = golden.model(entry);
        let alone = {
            let mut line = Line::open(&path, &LineConfig::default());
            rows(&mut line, vec![Line::open_slot(0, None)], vec![part(0, 0, prompt)]);
            held(&mut line)
        };
        let mut line = Line::open(&path, &LineConfig::default());
        // A longer sequence was in its pages and its slot.
        let longer: Vec<u32> = prompt.iter().rev().chain(prompt).copied().collect();
        rows(&mut line, vec![Line::open_slot(0, None)], vec![part(0, 0, &longer)]);
        // Two neighbours, one of them ahead of it in each ubatch, and the prompt in pieces.
        let ops = vec![close(0), Line::open_slot(1, None), Line::open_slot(0, None)];
        let (first, second) = prompt.split_at(LEN - 9);
        rows(&mut line, ops, vec![part(1, 0, &prompt[5..20]), part(0, 0, first)]);
        let ops = vec![Line::open_slot(2, None)];
        let parts = vec![
            part(2, 0, &prompt[..7]),
            part(0, first.len(), second),
            part(1, 15, &prompt[..30]),
        ];
        rows(&mut line, ops, parts);
        let [(before, _), (among, n_open)] = [&alone, &held(&mut line)].map(|held| held[0].clone());
        assert_eq!(n_open, 3);
        assert!(before == among, "{name}: two snapshots of one sequence differ");
        n_models += 1;
    }
    assert!(n_models > 5, "{n_models} models");
}

fn states_of_other_rope_factors_are_told_apart_and_other_contexts_are_not() {
    let kind = |name: &str, n_ctx: u32| {
        let config = LineConfig { n_ctx, ..LineConfig::default() };
        Line::open(&Golden::repository().named(name), &config).stages()[0].copy_kind()
    };
    // Long factors above 16 positions.
    let [short, edge, long, longer] = [8, 16, 17, 64].map(|n_ctx| kind("phi3", n_ctx));
    assert_eq!((&short, &long), (&edge, &longer));
    assert!(short != long && long.contains("rope_factors_long"), "{short} {long}");
    assert_eq!(kind("llama", 16), kind("llama", 64));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        copies_go_on_as_their_sources_and_what_is_refused_changes_nothing,
        snapshots_of_a_sequence_are_the_same_bytes_whatever_was_around_it,
        states_of_other_rope_factors_are_told_apart_and_other_contexts_are_not;
];
