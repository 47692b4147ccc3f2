//! Changes to sequences that ubatches may ask for, and those that are refused.

use super::*;
use crate::batch::{Companion, SamplerSetup};
use proptest::prelude::*;

const N_SLOTS: u32 = 3;
const N_BLOCKS: u32 = 8;

fn blocks(ids: &[u32]) -> Vec<PageId> {
    ids.iter().map(|&b| PageId(b)).collect()
}

fn sequences(prefixes: Prefixes, keep_history: bool) -> Sequences {
    Sequences::new(N_SLOTS as usize, N_BLOCKS, prefixes, keep_history)
}

fn copy(src: u32, dst: u32, len: u32, ids: &[u32]) -> SeqOp {
    let (src, dst) = (SlotId(src), SlotId(dst));
    let (blocks, request) = (blocks(ids), "r".into());
    SeqOp::Copy { src, dst, len, blocks, sampler: None, request }
}

fn open(slot: u32, ids: &[u32]) -> SeqOp {
    let (blocks, request) = (blocks(ids), "r".into());
    SeqOp::Open { slot: SlotId(slot), blocks, sampler: None, request }
}

fn part(slot: u32, pos: u32, n: usize) -> SeqPart {
    SeqPart {
        slot: SlotId(slot),
        pos,
        tokens: vec![7; n],
        want: Want::Nothing,
        mu: None,
        ahead: None,
    }
}

fn apply(
    sequences: &mut Sequences,
    ops: Vec<SeqOp>,
    parts: Vec<SeqPart>,
) -> Result<Applied, BatchError> {
    sequences.apply(&UBatch { id: 0, ops, parts })
}

#[test]
fn a_slot_can_be_reused_within_one_ubatch_and_copies_keep_the_order_of_ops() {
    let mut s = sequences(Prefixes::All, true);
    apply(&mut s, vec![open(0, &[4, 5])], vec![part(0, 0, 70)]).unwrap();
    let ops = vec![copy(0, 1, 65, &[1, 2, 3]), SeqOp::Close { slot: SlotId(0) }, open(0, &[4])];
    let applied = apply(&mut s, ops, vec![part(1, 65, 1), part(0, 0, 3)]).unwrap();
    let copy = StateCopy { src_blocks: blocks(&[4, 5]), dst_blocks: blocks(&[1, 2]), behind: None };
    let actions = [StateAction::Copy(copy), StateAction::Zero(SlotId(0))];
    assert_eq!(applied.actions, actions);
    assert_eq!(applied.parts[1].rows, 1..4);
    assert_eq!(s.history(SlotId(1)).len(), 66);
    assert_eq!(s.history(SlotId(0)).len(), 3);
}

#[test]
fn each_wrong_ubatch_is_refused_with_its_reason() {
    let mut s = sequences(Prefixes::All, false);
    apply(&mut s, vec![open(0, &[0])], vec![part(0, 0, 60)]).unwrap();
    let slot = SlotId(0);
    let cases = [
        (vec![], vec![part(1, 0, 1)], BatchError::NotOpen(SlotId(1))),
        (vec![open(0, &[])], vec![], BatchError::AlreadyOpen(slot)),
        (vec![open(1, &[8])], vec![], BatchError::NoSuchBlock { block: 8, n_blocks: 8 }),
        (vec![], vec![part(9, 0, 1)], BatchError::NoSuchSlot { slot: SlotId(9), n_slots: 3 }),
        (vec![], vec![part(0, 59, 1)], BatchError::WrongPosition { slot, expected: 60, found: 59 }),
        (vec![], vec![part(0, 60, 5)], BatchError::BeyondBlocks { slot, end: 65, n_blocks: 1 }),
    ];
    for (ops, parts, reason) in cases {
        assert_eq!(apply(&mut s, ops, parts), Err(reason));
    }
    let twice = apply(&mut s, vec![], vec![part(0, 60, 1), part(0, 61, 1)]);
    assert!(matches!(twice, Err(BatchError::Malformed(_))));
    let empty = apply(&mut s, vec![], vec![part(0, 60, 0)]);
    assert!(matches!(empty, Err(BatchError::Malformed(_))));
    let sample = SeqPart { want: Want::Sample, ..part(0, 60, 1) };
    assert_eq!(apply(&mut s, vec![], vec![sample]), Err(BatchError::NoSampler(slot)));
    assert_eq!(s.get(slot).map(|s| s.len), Some(60));
}

#[test]
fn a_guide_stands_right_before_its_draw() {
    let mut s = sequences(Prefixes::All, false);
    let setup = |companion| Arc::new(SamplerSetup { companion, ..SamplerSetup::default() });
    let with = |slot, companion| match open(slot, &[slot]) {
        SeqOp::Open { slot, blocks, request, .. } => {
            SeqOp::Open { slot, blocks, sampler: Some(setup(companion)), request }
        }
        other => other,
    };
    let ops = vec![with(0, Some(Companion { scale: 2.0 })), with(1, None), open(2, &[2])];
    apply(&mut s, ops, vec![]).unwrap();
    let wanting = |slot, want| SeqPart { want, ..part(slot, 0, 1) };
    let (wants, plain) = (wanting(0, Want::Sample), wanting(1, Want::Sample));
    let companion = wanting(2, Want::Companion);
    for (parts, says) in [
        (vec![wants.clone()], "slot 0: a draw without the companion"),
        (vec![companion.clone()], "slot 2: a companion before no"),
        (vec![companion.clone(), plain.clone()], "slot 2: a companion before no"),
        (vec![wants.clone(), companion.clone()], "slot 0: a draw without the companion"),
        (vec![companion.clone(), plain.clone(), wants.clone()], "slot 2: a companion before no"),
    ] {
        let error = apply(&mut s, vec![], parts).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    apply(&mut s, vec![], vec![plain, companion, wants]).unwrap();
}

#[test]
fn where_only_the_whole_has_a_state_nothing_else_is_copied_or_kept() {
    for (prefixes, whole_only) in [(Prefixes::All, false), (Prefixes::Whole, true)] {
        let mut s = sequences(prefixes, true);
        apply(&mut s, vec![open(0, &[0, 1])], vec![part(0, 0, 70)]).unwrap();
        let slot = SlotId(0);
        let refused = || Err(BatchError::WholeOnly { slot, len: 70, found: 69 });
        for op in [copy(0, 1, 69, &[2, 3]), SeqOp::Truncate { slot, len: 69, planes: None }] {
            // What came before the refused op in its ubatch is not done either.
            let ops = vec![open(2, &[4]), op, SeqOp::Close { slot: SlotId(2) }];
            let result = apply(&mut s, ops, vec![]).map(|_| ());
            assert_eq!(result, if whole_only { refused() } else { Ok(()) });
            assert_eq!(s.get(SlotId(2)), None);
        }
        if whole_only {
            assert_eq!((s.n_open(), s.get(slot).map(|s| s.len)), (1, Some(70)));
            assert_eq!(s.history(slot).len(), 70);
            apply(&mut s, vec![copy(0, 1, 70, &[2, 3])], vec![part(1, 70, 1)]).unwrap();
            assert_eq!(s.history(SlotId(1)).len(), 71);
        }
    }
}

#[test]
fn adapters_are_named_before_the_first_row_and_copies_have_their_sources() {
    let mut s = sequences(Prefixes::All, false);
    let uses: Arc<[_]> = [AdapterUse { adapter: 1, scale: 0.5 }].into();
    let adapt = |slot| SeqOp::Adapt { slot: SlotId(slot), adapters: uses.clone() };
    apply(&mut s, vec![open(0, &[0]), adapt(0)], vec![part(0, 0, 3)]).unwrap();
    apply(&mut s, vec![copy(0, 1, 2, &[1]), open(2, &[2])], vec![]).unwrap();
    let of = |s: &Sequences, slot| s.get(SlotId(slot)).unwrap().adapters.clone();
    assert_eq!((of(&s, 1), of(&s, 2).len()), (uses.clone(), 0));
    let late = apply(&mut s, vec![adapt(0)], vec![]);
    assert!(matches!(late, Err(BatchError::Malformed(why)) if why.contains("3 rows")));
    let closed = apply(&mut s, vec![SeqOp::Close { slot: SlotId(2) }, adapt(2)], vec![]);
    assert_eq!(closed, Err(BatchError::NotOpen(SlotId(2))));
    // The next sequence in the slot has none.
    let ops = vec![SeqOp::Close { slot: SlotId(0) }, open(0, &[0])];
    apply(&mut s, ops, vec![]).unwrap();
    assert_eq!(of(&s, 0).len(), 0);
}

#[test]
fn shared_pages_are_not_copied() {
    let mut s = sequences(Prefixes::All, false);
    apply(&mut s, vec![open(0, &[0, 1, 2])], vec![part(0, 0, 150)]).unwrap();
    let applied = apply(&mut s, vec![copy(0, 1, 150, &[0, 1, 3, 4])], vec![]).unwrap();
    let copy = StateCopy { src_blocks: blocks(&[2]), dst_blocks: blocks(&[3]), behind: None };
    assert_eq!(applied.actions, [StateAction::Copy(copy)]);
}

/// A window of `n` rows behind `pos` positions, with its planes.
fn window(slot: u32, pos: u32, n: usize, sure: u32, planes: Option<(u32, u32)>) -> SeqPart {
    let planes = planes.map(|(from, to)| Planes { from: SlotId(from), to: SlotId(to) });
    let ahead = Some(Ahead { sure, known: 0, planes, drafts: 0 });
    SeqPart { want: Want::Verify, ahead, ..part(slot, pos, n) }
}

fn drawing(slot: u32, ids: &[u32], setup: SamplerSetup) -> SeqOp {
    let (blocks, request) = (blocks(ids), "r".into());
    SeqOp::Open { slot: SlotId(slot), blocks, sampler: Some(Arc::new(setup)), request }
}

#[test]
fn a_window_leaves_its_state_in_another_plane_and_is_taken_back_from_there() {
    let mut s = sequences(Prefixes::Whole, true);
    let slot = SlotId(0);
    let prompt = vec![drawing(0, &[0, 1], SamplerSetup::default())];
    apply(&mut s, prompt, vec![part(0, 0, 60)]).unwrap();
    let applied = apply(&mut s, vec![], vec![window(0, 60, 3, 60, Some((0, 1)))]).unwrap();
    // The state comes along when the window is computed.
    assert_eq!(applied.actions, []);
    assert_eq!(applied.parts[0].planes, Planes { from: slot, to: SlotId(1) });
    // Behind it another, in the third plane; the first has the state before both.
    apply(&mut s, vec![], vec![window(0, 63, 3, 60, Some((1, 2)))]).unwrap();
    let sequence = s.get(slot).unwrap();
    assert_eq!((sequence.len, sequence.sure, sequence.plane), (66, 60, SlotId(2)));
    // A row to come may be the one behind all that is sure.
    assert_eq!(s.next_rows(&[]).next().map(|(pos, _)| pos), Some(60));
    let at = |plane| Some(Planes { from: SlotId(plane), to: SlotId(plane) });
    let back = |len, planes| SeqOp::Truncate { slot, len, planes };
    for (op, why) in [
        (back(63, at(2)), "has not its state after 63"),
        (back(61, at(1)), "has not its state after 61"),
        (back(63, None), "a state at its end only"),
        (back(63, at(9)), "out of range"),
    ] {
        let refused = apply(&mut s, vec![op], vec![]).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // A copy may be taken of the state before them, too.
    assert_eq!(s.with_prefix(slot, 60, Some(slot)).unwrap().plane, slot);
    assert!(s.with_prefix(slot, 60, None).is_err() && s.with_prefix(slot, 61, Some(slot)).is_err());
    // It stays where it is, and what comes goes on from there.
    let applied = apply(&mut s, vec![back(63, at(1))], vec![part(0, 63, 1)]).unwrap();
    assert_eq!(applied.actions, []);
    assert_eq!(applied.parts[0].planes, Planes { from: SlotId(1), to: SlotId(1) });
    let sequence = s.get(slot).unwrap();
    assert_eq!((sequence.len, sequence.sure, sequence.plane), (64, 64, SlotId(1)));
    assert_eq!(s.history(slot).len(), 64);
    // What is sure is not taken back.
    let refused = apply(&mut s, vec![back(60, at(0))], vec![]).unwrap_err().to_string();
    assert!(refused.contains("60 positions, 64 are sure"), "{refused}");
    // It comes back to its own place where that is asked for.
    let home = Some(Planes { from: SlotId(1), to: slot });
    let applied = apply(&mut s, vec![back(64, home)], vec![]).unwrap();
    assert_eq!(applied.actions, [StateAction::CopySlot { from: SlotId(1), to: slot }]);
    assert_eq!(s.get(slot).unwrap().plane, slot);
}

#[test]
fn nobody_writes_over_the_state_of_another_sequence() {
    let mut s = sequences(Prefixes::Whole, false);
    let open = |slot, page| drawing(slot, &[page], SamplerSetup::default());
    apply(&mut s, vec![open(0, 0), open(1, 1)], vec![part(0, 0, 5), part(1, 0, 5)]).unwrap();
    let why = |s: &mut Sequences, ops, part| apply(s, ops, vec![part]).unwrap_err().to_string();
    let refused = why(&mut s, vec![], window(0, 5, 2, 5, Some((0, 1))));
    assert!(refused.contains("written over those of slot 1"), "{refused}");
    let refused = why(&mut s, vec![], window(0, 5, 2, 5, Some((1, 2))));
    assert!(refused.contains("slot 1 has not its state after 5"), "{refused}");
    apply(&mut s, vec![], vec![window(0, 5, 2, 5, Some((0, 2)))]).unwrap();
    let refused = why(&mut s, vec![open(2, 2)], part(2, 0, 1));
    assert!(refused.contains("another sequence's states"), "{refused}");
    // A copy is of the state as it is, wherever that lies.
    apply(&mut s, vec![SeqOp::Close { slot: SlotId(1) }], vec![]).unwrap();
    let applied = apply(&mut s, vec![copy(0, 1, 7, &[1])], vec![]).unwrap();
    assert!(matches!(applied.actions[..], [StateAction::Copy(_)]), "{applied:?}");
    assert_eq!(s.get(SlotId(1)).unwrap().plane, SlotId(2));
    // Once it is closed, its planes are free, and none of its states is left for the next sequence.
    apply(&mut s, vec![SeqOp::Close { slot: SlotId(0) }, open(0, 0)], vec![]).unwrap();
    let refused = why(&mut s, vec![], window(0, 0, 2, 0, Some((2, 0))));
    assert!(refused.contains("slot 2 has not its state after 0"), "{refused}");
}

#[test]
fn a_copy_reads_where_its_source_is_until_it_has_rows_of_its_own() {
    let sequence = |slot, len| drawing(slot, &[slot, 3 + slot, len], SamplerSetup::default());
    let copied = |src, dst| match copy(src, dst, 5, &[dst]) {
        SeqOp::Copy { src, dst, len, blocks, request, .. } => {
            let sampler = Some(Arc::default());
            SeqOp::Copy { src, dst, len, blocks, request, sampler }
        }
        other => other,
    };
    let start = || {
        let mut s = sequences(Prefixes::Whole, false);
        apply(&mut s, vec![sequence(0, 6)], vec![part(0, 0, 5)]).unwrap();
        let applied = apply(&mut s, vec![copied(0, 1), copied(1, 2)], vec![]).unwrap();
        assert!(applied.actions.iter().all(|a| matches!(a, StateAction::Copy(_))), "{applied:?}");
        s
    };
    let home = |slot| StateAction::CopySlot { from: SlotId(0), to: SlotId(slot) };
    let reads = |from, to| Planes { from: SlotId(from), to: SlotId(to) };
    // Two copies read the same place, and leave their states in their own.
    let mut s = start();
    let applied = apply(&mut s, vec![], vec![part(1, 5, 1), part(2, 5, 3)]).unwrap();
    assert_eq!(applied.actions, []);
    let planes: Vec<Planes> = applied.parts.iter().map(|part| part.planes).collect();
    assert_eq!(planes, [reads(0, 1), reads(0, 2)]);
    let applied = apply(&mut s, vec![], vec![part(1, 6, 1), part(0, 5, 1)]).unwrap();
    assert_eq!((applied.actions, applied.parts[0].planes), (vec![], reads(1, 1)));
    // The source goes on first, also in the same ubatch: its copies get their states.
    let mut s = start();
    let applied = apply(&mut s, vec![], vec![part(1, 5, 1), part(0, 5, 1)]).unwrap();
    assert_eq!(applied.actions, [home(1), home(2)]);
    assert_eq!(applied.parts[0].planes, reads(1, 1));
    // The source is closed, and its place is another's from then on.
    let mut s = start();
    let close = SeqOp::Close { slot: SlotId(0) };
    let applied = apply(&mut s, vec![close, sequence(0, 6)], vec![]).unwrap();
    assert_eq!(applied.actions, [home(1), home(2), StateAction::Zero(SlotId(0))]);
    // Its place is lent to one that runs ahead.
    let mut s = start();
    apply(&mut s, vec![SeqOp::Close { slot: SlotId(0) }], vec![part(2, 5, 1)]).unwrap();
    let applied = apply(&mut s, vec![], vec![window(2, 6, 2, 6, Some((2, 0)))]).unwrap();
    assert_eq!((applied.actions, applied.parts[0].planes), (vec![home(1)], reads(2, 0)));
    // A copy that runs ahead names its own place.
    let mut s = start();
    assert_eq!(s.with_prefix(SlotId(1), 5, Some(SlotId(1))).unwrap().plane, SlotId(0));
    let applied = apply(&mut s, vec![], vec![window(1, 5, 2, 5, Some((1, 3)))]);
    assert!(applied.unwrap_err().to_string().contains("out of range"), "there are three places");
    let back = SeqOp::Truncate { slot: SlotId(1), len: 5, planes: Some(reads(1, 1)) };
    assert_eq!(apply(&mut s, vec![back], vec![]).unwrap().actions, [home(1)]);
    assert_eq!(s.get(SlotId(1)).unwrap().plane, SlotId(1));
}

#[test]
fn only_what_can_be_verified_is() {
    let mut s = sequences(Prefixes::All, true);
    let held = SamplerSetup { constraint: Some(Arc::default()), ..SamplerSetup::default() };
    let ops = vec![drawing(0, &[0], held), drawing(1, &[1], SamplerSetup::default())];
    apply(&mut s, ops, vec![]).unwrap();
    let why = |s: &mut Sequences, part| apply(s, vec![], vec![part]).unwrap_err().to_string();
    assert!(why(&mut s, window(0, 0, 2, 0, None)).contains("waits for masks"));
    let known = |known| Some(Ahead { sure: 0, known, planes: None, drafts: 0 });
    let all_known = SeqPart { ahead: known(2), ..window(1, 0, 2, 0, None) };
    assert!(why(&mut s, all_known).contains("read before"));
    assert!(why(&mut s, window(1, 0, 2, 1, None)).contains("sure ones"));
    apply(&mut s, vec![], vec![window(1, 0, 4, 0, None)]).unwrap();
    apply(&mut s, vec![], vec![window(1, 4, 2, 3, None)]).unwrap();
    assert!(why(&mut s, window(1, 6, 2, 2, None)).contains("sure ones"), "what is sure stays so");
}

fn any_op() -> impl Strategy<Value = SeqOp> {
    let slot = 0..N_SLOTS + 1;
    let ids = prop::collection::vec(0..N_BLOCKS + 1, 0..4);
    prop_oneof![
        (slot.clone(), ids.clone()).prop_map(|(slot, ids)| open(slot, &ids)),
        (slot.clone(), slot.clone(), 0..200u32, ids)
            .prop_map(|(src, dst, len, ids)| { copy(src, dst, len, &ids) }),
        (slot.clone(), 0..200u32).prop_map(|(slot, len)| SeqOp::Truncate {
            slot: SlotId(slot),
            len,
            planes: None
        }),
        slot.prop_map(|slot| SeqOp::Close { slot: SlotId(slot) }),
    ]
}

proptest! {
    #[test]
    fn a_refused_ubatch_changes_nothing_and_lengths_match_histories(
        whole in any::<bool>(),
        steps in prop::collection::vec(
            (
                prop::collection::vec(any_op(), 0..4),
                prop::collection::vec((0..N_SLOTS + 1, 0..80usize), 0..3),
            ),
            1..12,
        )
    ) {
        let prefixes = if whole { Prefixes::Whole } else { Prefixes::All };
        let mut s = sequences(prefixes, true);
        for (ops, wanted) in steps {
            let len = |slot: u32| s.get(SlotId(slot)).map_or(0, |s| s.len);
            let parts = wanted.iter().map(|&(slot, n)| part(slot, len(slot), n)).collect();
            let before: Vec<_> = (0..N_SLOTS)
                .map(|i| (s.get(SlotId(i)).cloned(), s.history(SlotId(i)).to_vec()))
                .collect();
            let refused = apply(&mut s, ops, parts).is_err();
            for i in 0..N_SLOTS {
                let slot = SlotId(i);
                if refused {
                    prop_assert_eq!(s.get(slot).cloned(), before[i as usize].0.clone());
                    prop_assert_eq!(s.history(slot), before[i as usize].1.as_slice());
                }
                if let Some(sequence) = s.get(slot) {
                    prop_assert_eq!(sequence.len as usize, s.history(slot).len());
                    prop_assert!(sequence.used_blocks().len() <= sequence.blocks.len());
                }
            }
        }
    }
}
