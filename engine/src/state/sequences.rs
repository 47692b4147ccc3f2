//! Which sequences a stage holds, how long they are, and which pages are theirs.
//!
//! [`Sequences::apply`] checks a whole ubatch before it changes anything. So a refused ubatch leaves every
//! sequence as it was. This file knows pages and lengths, not what lies in them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::batch::{AdapterUse, BlockId, SamplerSetup, SeqOp, SeqPart, SlotId, UBatch, Want};
use crate::error::BatchError;
use crate::kernels::KV_PAGE;
use crate::spec::Prefixes;

/// One live sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Positions computed so far (the applied ubatch included).
    pub len: u32,
    /// Page `i` holds positions `i * KV_PAGE ..`.
    pub blocks: Arc<[BlockId]>,
    /// How to draw its tokens.
    pub sampler: Option<Arc<SamplerSetup>>,
    /// What its rows pass through besides the model's own weights.
    pub adapters: Arc<[AdapterUse]>,
}

impl Sequence {
    /// The pages that hold its positions so far.
    pub fn used_blocks(&self) -> &[BlockId] {
        &self.blocks[..pages_of(self.len)]
    }

    /// Whether its pages hold `len` positions.
    ///
    /// # Errors
    /// [`BatchError::BeyondBlocks`].
    pub fn check_room(&self, slot: SlotId, len: u32) -> Result<(), BatchError> {
        check_room(slot, len, self.blocks.len())
    }
}

/// Rows of the ubatch that belong to one part.
#[derive(Clone, Debug, PartialEq)]
pub struct PartRows {
    /// The sequence.
    pub slot: SlotId,
    /// Position of the first row.
    pub pos: u32,
    /// Rows within the ubatch.
    pub rows: Range<usize>,
    /// What is wanted of them.
    pub want: Want,
    /// As in [`SeqPart::mu`](crate::batch::SeqPart::mu).
    pub mu: Option<f32>,
}

/// Where one sequence's state is copied from and to.
#[derive(Clone, Debug, PartialEq)]
pub struct StateCopy {
    /// Pages to copy from, in position order: of those that hold the first `len` positions, all that
    /// the two do not share.
    pub src_blocks: Vec<BlockId>,
    /// Pages to copy to, as many.
    pub dst_blocks: Vec<BlockId>,
    /// Slots, for state of a fixed size.
    pub slots: (SlotId, SlotId),
}

/// A change of state that the ops of a ubatch ask of the pages' and slots' owners.
#[derive(Clone, Debug, PartialEq)]
pub enum StateAction {
    /// The slot's fixed-size state starts at zero.
    Zero(SlotId),
    /// A sequence starts as a copy of another.
    Copy(StateCopy),
}

/// What [`Sequences::apply`] leaves to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// To be done in this order, before any row is computed.
    pub actions: Vec<StateAction>,
    /// The parts with their rows.
    pub parts: Vec<PartRows>,
}

/// All sequences of a stage.
#[derive(Debug)]
pub struct Sequences {
    slots: Vec<Option<Sequence>>,
    /// Every token of each slot's sequence, for penalties; `None` where nothing is sampled.
    histories: Option<Vec<Vec<u32>>>,
    n_blocks: u32,
    prefixes: Prefixes,
}

impl Sequences {
    /// `n_slots` empty slots over `n_blocks` pages; the last stage keeps the tokens as well.
    /// `prefixes` is the model's, not the stage's: all stages must refuse the same.
    pub fn new(n_slots: usize, n_blocks: u32, prefixes: Prefixes, keep_history: bool) -> Self {
        let histories = keep_history.then(|| vec![Vec::new(); n_slots]);
        Self { slots: vec![None; n_slots], histories, n_blocks, prefixes }
    }

    /// Number of slots, open or not.
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// The sequence in a slot.
    pub fn get(&self, slot: SlotId) -> Option<&Sequence> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// Live sequences.
    pub fn n_open(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Every open sequence, with the position of its first row to come: of a ubatch's parts, or behind all.
    pub(super) fn next_rows<'a>(
        &'a self,
        parts: &'a [PartRows],
    ) -> impl Iterator<Item = (u32, &'a Sequence)> {
        (0..).map(SlotId).zip(&self.slots).filter_map(|(slot, sequence)| {
            let sequence = sequence.as_ref()?;
            let part = parts.iter().find(|part| part.slot == slot);
            Some((part.map_or(sequence.len, |part| part.pos), sequence))
        })
    }

    /// Every token of a sequence so far (prompt and generated), empty where none are kept.
    pub fn history(&self, slot: SlotId) -> &[u32] {
        self.histories.as_ref().map_or(&[], |all| &all[slot.0 as usize])
    }

    /// The sequence in a slot, if the state of its first `len` positions can be copied.
    ///
    /// # Errors
    /// The slot is not open, has fewer positions, or another state than that.
    pub(crate) fn with_prefix(&self, slot: SlotId, len: u32) -> Result<&Sequence, BatchError> {
        let sequence = self.get(slot).ok_or(BatchError::NotOpen(slot))?;
        check_prefix(self.prefixes, slot, len, sequence.len)?;
        Ok(sequence)
    }

    /// Applies the ops and reserves the rows of `ub`; lengths include its rows afterwards.
    ///
    /// # Errors
    /// What is wrong with the ubatch; then nothing has changed.
    pub fn apply(&mut self, ub: &UBatch) -> Result<Applied, BatchError> {
        let mut draft = Draft { base: self, changed: BTreeMap::new() };
        let mut applied = Applied::default();
        for op in &ub.ops {
            draft.apply_op(op, &mut applied)?;
        }
        let mut row = 0;
        for part in &ub.parts {
            let rows = row..row + part.tokens.len();
            row = rows.end;
            if applied.parts.iter().any(|p| p.slot == part.slot) {
                let slot = part.slot.0;
                return Err(BatchError::Malformed(format!("two parts for slot {slot}")));
            }
            draft.extend(part.slot, part.pos, &part.tokens, part.want)?;
            let SeqPart { slot, pos, want, mu, .. } = *part;
            applied.parts.push(PartRows { slot, pos, rows, want, mu });
        }
        draft.check_guides(&ub.parts)?;
        let changed = draft.changed;
        for (slot, sequence) in changed {
            self.slots[slot.0 as usize] = sequence;
        }
        if let Some(histories) = &mut self.histories {
            record(histories, ub);
        }
        Ok(applied)
    }

    /// Closes every sequence.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(None);
        self.histories.iter_mut().flatten().for_each(Vec::clear);
    }

    /// Replaces what is known of an open sequence by a restored length and history.
    pub(crate) fn set_restored(&mut self, slot: SlotId, len: u32, history: Vec<u32>) {
        if let Some(sequence) = self.slots[slot.0 as usize].as_mut() {
            sequence.len = len;
        }
        if let Some(histories) = &mut self.histories {
            histories[slot.0 as usize] = history;
        }
    }
}

/// Follows an accepted ubatch in the token histories.
fn record(histories: &mut [Vec<u32>], ub: &UBatch) {
    for op in &ub.ops {
        match op {
            SeqOp::Open { slot, .. } | SeqOp::Close { slot } => histories[slot.0 as usize].clear(),
            SeqOp::Truncate { slot, len } => histories[slot.0 as usize].truncate(*len as usize),
            SeqOp::Adapt { .. } | SeqOp::Draw { .. } => {}
            SeqOp::Name { .. } | SeqOp::Checkpoint { .. } | SeqOp::Grow { .. } => {}
            SeqOp::Copy { src, dst, len, .. } => {
                let kept = histories[src.0 as usize].get(..*len as usize).unwrap_or(&[]).to_vec();
                histories[dst.0 as usize] = kept;
            }
        }
    }
    for part in &ub.parts {
        histories[part.slot.0 as usize].extend_from_slice(&part.tokens);
    }
}

/// The sequences as they would be, over those that are.
struct Draft<'a> {
    base: &'a Sequences,
    changed: BTreeMap<SlotId, Option<Sequence>>,
}

impl Draft<'_> {
    /// The slot's content, copied into the draft on first use.
    fn slot(&mut self, slot: SlotId) -> Result<&mut Option<Sequence>, BatchError> {
        let slots = &self.base.slots;
        let base = slots
            .get(slot.0 as usize)
            .ok_or(BatchError::NoSuchSlot { slot, n_slots: slots.len() })?;
        Ok(self.changed.entry(slot).or_insert_with(|| base.clone()))
    }

    fn sequence(&mut self, slot: SlotId) -> Result<&mut Sequence, BatchError> {
        self.slot(slot)?.as_mut().ok_or(BatchError::NotOpen(slot))
    }

    fn check_blocks(&self, blocks: &[BlockId]) -> Result<(), BatchError> {
        let n_blocks = self.base.n_blocks;
        let beyond = blocks.iter().find(|b| b.0 >= n_blocks);
        beyond.map_or(Ok(()), |b| Err(BatchError::NoSuchBlock { block: b.0, n_blocks }))
    }

    fn open(&mut self, slot: SlotId, sequence: Sequence) -> Result<(), BatchError> {
        self.check_blocks(&sequence.blocks)?;
        let place = self.slot(slot)?;
        if place.is_some() {
            return Err(BatchError::AlreadyOpen(slot));
        }
        *place = Some(sequence);
        Ok(())
    }

    fn check_prefix(&self, slot: SlotId, len: u32, have: u32) -> Result<(), BatchError> {
        check_prefix(self.base.prefixes, slot, len, have)
    }

    fn apply_op(&mut self, op: &SeqOp, applied: &mut Applied) -> Result<(), BatchError> {
        match op {
            SeqOp::Open { slot, blocks, sampler, .. } => {
                let (blocks, sampler) = (blocks.as_slice().into(), sampler.clone());
                let adapters = Arc::from([]);
                self.open(*slot, Sequence { len: 0, blocks, sampler, adapters })?;
                applied.actions.push(StateAction::Zero(*slot));
            }
            SeqOp::Copy { src, dst, len, blocks, sampler, .. } => {
                let source = self.sequence(*src)?.clone();
                self.check_prefix(*src, *len, source.len)?;
                check_room(*dst, *len, blocks.len())?;
                let pages = source.blocks.iter().zip(blocks).take(pages_of(*len));
                let (src_blocks, dst_blocks) = pages.filter(|(src, dst)| src != dst).unzip();
                let slots = (*src, *dst);
                applied.actions.push(StateAction::Copy(StateCopy {
                    src_blocks,
                    dst_blocks,
                    slots,
                }));
                let (blocks, sampler) = (blocks.as_slice().into(), sampler.clone());
                let adapters = source.adapters;
                self.open(*dst, Sequence { len: *len, blocks, sampler, adapters })?;
            }
            SeqOp::Truncate { slot, len } => {
                let have = self.sequence(*slot)?.len;
                self.check_prefix(*slot, *len, have)?;
                self.sequence(*slot)?.len = *len;
            }
            SeqOp::Close { slot } => {
                self.sequence(*slot)?;
                *self.slot(*slot)? = None;
            }
            SeqOp::Adapt { slot, adapters } => {
                let sequence = self.sequence(*slot)?;
                if sequence.len > 0 {
                    let (slot, len) = (slot.0, sequence.len);
                    let why = format!("slot {slot}: adapters for a sequence that has {len} rows");
                    return Err(BatchError::Malformed(why));
                }
                sequence.adapters = adapters.clone();
            }
            SeqOp::Grow { slot, blocks } => {
                self.check_blocks(blocks)?;
                let n_blocks = self.base.n_blocks as usize;
                let sequence = self.sequence(*slot)?;
                if sequence.blocks.len() + blocks.len() > n_blocks {
                    let why = format!("slot {}: more pages than the {n_blocks} there are", slot.0);
                    return Err(BatchError::Malformed(why));
                }
                sequence.blocks = [&sequence.blocks, &blocks[..]].concat().into();
            }
            SeqOp::Name { slot, .. } | SeqOp::Draw { slot } => drop(self.sequence(*slot)?),
            SeqOp::Checkpoint { slot, len, .. } => {
                let have = self.base.get(*slot).ok_or(BatchError::NotOpen(*slot))?.len;
                self.check_prefix(*slot, *len, have)?;
            }
        }
        Ok(())
    }

    fn extend(
        &mut self,
        slot: SlotId,
        pos: u32,
        tokens: &[u32],
        want: Want,
    ) -> Result<(), BatchError> {
        if tokens.is_empty() {
            return Err(BatchError::Malformed(format!("slot {}: a part without tokens", slot.0)));
        }
        let sequence = self.sequence(slot)?;
        if sequence.len != pos {
            return Err(BatchError::WrongPosition { slot, expected: sequence.len, found: pos });
        }
        let end = u32::try_from(pos as usize + tokens.len())
            .map_err(|_| BatchError::Malformed(format!("slot {}: position overflows", slot.0)))?;
        check_room(slot, end, sequence.blocks.len())?;
        if want == Want::Sample && sequence.sampler.is_none() {
            return Err(BatchError::NoSampler(slot));
        }
        sequence.len = end;
        Ok(())
    }

    /// A guide stands right before the part that is drawn with it, and a guided draw has one.
    fn check_guides(&mut self, parts: &[SeqPart]) -> Result<(), BatchError> {
        let bad = |slot: SlotId, what: &str| {
            Err(BatchError::Malformed(format!("slot {}: {what}", slot.0)))
        };
        let mut guide = None;
        for SeqPart { slot, want, .. } in parts {
            let sampler = self.sequence(*slot)?.sampler.as_ref();
            let is_guided = *want == Want::Sample && sampler.is_some_and(|s| s.guidance.is_some());
            match (guide.take(), is_guided) {
                (Some(guide), false) => return bad(guide, "a guide before no guided draw"),
                (None, true) => return bad(*slot, "a guided draw without the guide before it"),
                _ => {}
            }
            guide = (*want == Want::Guide).then_some(*slot);
        }
        guide.map_or(Ok(()), |guide| bad(guide, "a guide before no guided draw"))
    }
}

/// Whether the state of the first `len` of `have` positions is there.
fn check_prefix(prefixes: Prefixes, slot: SlotId, len: u32, have: u32) -> Result<(), BatchError> {
    if len > have {
        return Err(BatchError::WrongPosition { slot, expected: have, found: len });
    }
    if len < have && prefixes != Prefixes::All {
        return Err(BatchError::WholeOnly { slot, len: have, found: len });
    }
    Ok(())
}

/// Pages that hold `len` positions.
fn pages_of(len: u32) -> usize {
    (len as usize).div_ceil(KV_PAGE)
}

fn check_room(slot: SlotId, end: u32, n_blocks: usize) -> Result<(), BatchError> {
    if pages_of(end) > n_blocks {
        return Err(BatchError::BeyondBlocks { slot, end, n_blocks });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Guidance, SamplerSetup};
    use proptest::prelude::*;

    const N_SLOTS: u32 = 3;
    const N_BLOCKS: u32 = 8;

    fn blocks(ids: &[u32]) -> Vec<BlockId> {
        ids.iter().map(|&b| BlockId(b)).collect()
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
        SeqPart { slot: SlotId(slot), pos, tokens: vec![7; n], want: Want::Nothing, mu: None }
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
        let copy = StateCopy {
            src_blocks: blocks(&[4, 5]),
            dst_blocks: blocks(&[1, 2]),
            slots: (SlotId(0), SlotId(1)),
        };
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
            (
                vec![],
                vec![part(0, 59, 1)],
                BatchError::WrongPosition { slot, expected: 60, found: 59 },
            ),
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
        let setup = |guidance| Arc::new(SamplerSetup { guidance, ..SamplerSetup::default() });
        let with = |slot, guidance| match open(slot, &[slot]) {
            SeqOp::Open { slot, blocks, request, .. } => {
                SeqOp::Open { slot, blocks, sampler: Some(setup(guidance)), request }
            }
            other => other,
        };
        let ops = vec![with(0, Some(Guidance { scale: 2.0 })), with(1, None), open(2, &[2])];
        apply(&mut s, ops, vec![]).unwrap();
        let wanting = |slot, want| SeqPart { want, ..part(slot, 0, 1) };
        let (guided, plain) = (wanting(0, Want::Sample), wanting(1, Want::Sample));
        let guide = wanting(2, Want::Guide);
        for (parts, says) in [
            (vec![guided.clone()], "slot 0: a guided draw without"),
            (vec![guide.clone()], "slot 2: a guide before no"),
            (vec![guide.clone(), plain.clone()], "slot 2: a guide before no"),
            (vec![guided.clone(), guide.clone()], "slot 0: a guided draw without"),
            (vec![guide.clone(), plain.clone(), guided.clone()], "slot 2: a guide before no"),
        ] {
            let error = apply(&mut s, vec![], parts).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        apply(&mut s, vec![], vec![plain, guide, guided]).unwrap();
    }

    #[test]
    fn where_only_the_whole_has_a_state_nothing_else_is_copied_or_kept() {
        for (prefixes, whole_only) in [(Prefixes::All, false), (Prefixes::Whole, true)] {
            let mut s = sequences(prefixes, true);
            apply(&mut s, vec![open(0, &[0, 1])], vec![part(0, 0, 70)]).unwrap();
            let slot = SlotId(0);
            let refused = || Err(BatchError::WholeOnly { slot, len: 70, found: 69 });
            for op in [copy(0, 1, 69, &[2, 3]), SeqOp::Truncate { slot, len: 69 }] {
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
        // Whoever has the slot next has none.
        let ops = vec![SeqOp::Close { slot: SlotId(0) }, open(0, &[0])];
        apply(&mut s, ops, vec![]).unwrap();
        assert_eq!(of(&s, 0).len(), 0);
    }

    #[test]
    fn shared_pages_are_not_copied() {
        let mut s = sequences(Prefixes::All, false);
        apply(&mut s, vec![open(0, &[0, 1, 2])], vec![part(0, 0, 150)]).unwrap();
        let applied = apply(&mut s, vec![copy(0, 1, 150, &[0, 1, 3, 4])], vec![]).unwrap();
        let slots = (SlotId(0), SlotId(1));
        let copy = StateCopy { src_blocks: blocks(&[2]), dst_blocks: blocks(&[3]), slots };
        assert_eq!(applied.actions, [StateAction::Copy(copy)]);
    }

    fn any_op() -> impl Strategy<Value = SeqOp> {
        let slot = 0..N_SLOTS + 1;
        let ids = prop::collection::vec(0..N_BLOCKS + 1, 0..4);
        prop_oneof![
            (slot.clone(), ids.clone()).prop_map(|(slot, ids)| open(slot, &ids)),
            (slot.clone(), slot.clone(), 0..200u32, ids)
                .prop_map(|(src, dst, len, ids)| { copy(src, dst, len, &ids) }),
            (slot.clone(), 0..200u32)
                .prop_map(|(slot, len)| SeqOp::Truncate { slot: SlotId(slot), len }),
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
}
