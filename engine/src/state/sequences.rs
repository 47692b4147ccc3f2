//! The sequences of a stage, their lengths and their pages.
//!
//! [`Sequences::apply`] checks a whole ubatch before it changes anything. So a refused ubatch leaves every
//! sequence as it was. This file knows pages and lengths, not what lies in them.

mod borrowed;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::marks::Marks;
use crate::batch::{
    AdapterUse, Ahead, PageId, Planes, SamplerSetup, SeqOp, SeqPart, SlotId, UBatch, Want,
};
use crate::error::BatchError;
use crate::kernels::KV_PAGE;
use crate::spec::Prefixes;

/// An open sequence of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Positions computed so far (the applied ubatch included).
    pub len: u32,
    /// Positions among these that are never taken back. Rows to come see no less than the first row behind them.
    pub sure: u32,
    /// The slot whose place has its recurrent states: its own, unless it runs ahead, or is a copy without rows of its own
    /// ([`borrowed`]).
    pub plane: SlotId,
    /// Page `i` holds positions `i * KV_PAGE ..`.
    pub blocks: Arc<[PageId]>,
    /// Settings for drawing its tokens; `None`: none are drawn.
    pub sampler: Option<Arc<SamplerSetup>>,
    /// Adapters that its rows pass through besides the model's own weights.
    pub adapters: Arc<[AdapterUse]>,
}

impl Sequence {
    /// The pages that hold its positions so far.
    pub fn used_blocks(&self) -> &[PageId] {
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
    /// Slot of the sequence.
    pub slot: SlotId,
    /// Position of the first row.
    pub pos: u32,
    /// Rows within the ubatch.
    pub rows: Range<usize>,
    /// Results that are wanted of the rows.
    pub want: Want,
    /// Mirostat's state, as in [`SeqPart::mu`](crate::batch::SeqPart::mu).
    pub mu: Option<f32>,
    /// Rows that were read before, as in [`Ahead::known`].
    pub known: usize,
    /// The slots in whose places the sequence's recurrent states are read and written.
    pub planes: Planes,
}

/// Pages to copy for a sequence that begins as a copy of another.
#[derive(Clone, Debug, PartialEq)]
pub struct StateCopy {
    /// Pages to copy from, in position order: of those that hold the first `len` positions, all that
    /// the two do not share.
    pub src_blocks: Vec<PageId>,
    /// Pages to copy to, as many.
    pub dst_blocks: Vec<PageId>,
    /// The pages of the position behind them, from and to, where these are none of them, and not shared.
    pub behind: Option<[PageId; 2]>,
}

/// A change of state that the ops of a ubatch ask of the pages' and slots' owners.
#[derive(Clone, Debug, PartialEq)]
pub enum StateAction {
    /// The slot's fixed-size state starts at zero.
    Zero(SlotId),
    /// A sequence starts as a copy of another.
    Copy(StateCopy),
    /// A slot's place gets the fixed-size state of another's.
    CopySlot {
        /// Slot whose place is read.
        from: SlotId,
        /// Slot whose place is written.
        to: SlotId,
    },
}

/// Actions and parts that [`Sequences::apply`] leaves to the stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// Changes of state, to be made in this order before any row is computed.
    pub actions: Vec<StateAction>,
    /// The parts with their rows.
    pub parts: Vec<PartRows>,
}

/// All sequences of a stage.
#[derive(Debug)]
pub struct Sequences {
    slots: Vec<Option<Sequence>>,
    marks: Marks,
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
        let (slots, marks) = (vec![None; n_slots], Marks::new(n_slots));
        Self { slots, marks, histories, n_blocks, prefixes }
    }

    /// Gives a slot what is to be seen there, whatever it had: for who reads sequences that others open and close.
    pub(crate) fn show(&mut self, slot: SlotId, sequence: Sequence) {
        if let Some(place) = self.slots.get_mut(slot.0 as usize) {
            *place = Some(sequence);
        }
    }

    /// Number of slots, open or not.
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// The sequence in a slot.
    pub fn get(&self, slot: SlotId) -> Option<&Sequence> {
        self.slots.get(slot.0 as usize)?.as_ref()
    }

    /// Number of open sequences.
    pub fn n_open(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Every open sequence, with the position of its first row to come: of a ubatch's parts, or behind all that is sure.
    pub(super) fn next_rows<'a>(
        &'a self,
        parts: &'a [PartRows],
    ) -> impl Iterator<Item = (u32, &'a Sequence)> {
        (0..).map(SlotId).zip(&self.slots).filter_map(|(slot, sequence)| {
            let sequence = sequence.as_ref()?;
            let part = parts.iter().find(|part| part.slot == slot);
            let next = part.map_or(sequence.len, |part| part.pos);
            Some((next.min(sequence.sure), sequence))
        })
    }

    /// Every token of a sequence so far (prompt and generated), empty where none are kept.
    pub fn history(&self, slot: SlotId) -> &[u32] {
        self.histories.as_ref().map_or(&[], |all| &all[slot.0 as usize])
    }

    /// The sequence in a slot, if the state of its first `len` positions can be copied; its recurrent state is in `plane`,
    /// or where the sequence has it.
    ///
    /// # Errors
    /// The slot is not open, has fewer positions, or another state than that.
    pub(crate) fn with_prefix(
        &self,
        slot: SlotId,
        len: u32,
        plane: Option<SlotId>,
    ) -> Result<Cow<'_, Sequence>, BatchError> {
        let sequence = self.get(slot).ok_or(BatchError::NotOpen(slot))?;
        let Some(plane) = plane else {
            check_prefix(self.prefixes, slot, len, sequence.len)?;
            return Ok(Cow::Borrowed(sequence));
        };
        self.marks.check(plane, slot, len)?;
        // The state of a copy that is named by its own place may still be where it was.
        let is_own = plane == slot && self.marks.is_borrowed(sequence.plane, slot);
        let plane = if is_own { sequence.plane } else { plane };
        Ok(Cow::Owned(Sequence { len, plane, ..sequence.clone() }))
    }

    /// Applies the ops and reserves the rows of `ub`; lengths include its rows afterwards.
    ///
    /// # Errors
    /// The error says what is wrong with the ubatch; then nothing has changed.
    pub fn apply(&mut self, ub: &UBatch) -> Result<Applied, BatchError> {
        let mut draft = Draft { base: self, changed: BTreeMap::new(), marks: self.marks.clone() };
        let mut applied = Applied::default();
        for op in &ub.ops {
            draft.apply_op(op, &mut applied)?;
        }
        draft.before_parts(&ub.parts, &mut applied);
        let mut row = 0;
        for part in &ub.parts {
            let rows = row..row + part.tokens.len();
            row = rows.end;
            if applied.parts.iter().any(|p| p.slot == part.slot) {
                let slot = part.slot.0;
                return Err(BatchError::Malformed(format!("two parts for slot {slot}")));
            }
            let planes = draft.extend(part)?;
            check_apart(planes, &applied.parts)?;
            let SeqPart { slot, pos, want, mu, .. } = *part;
            let known = part.ahead.map_or(0, |ahead| ahead.known as usize);
            applied.parts.push(PartRows { slot, pos, rows, want, mu, known, planes });
        }
        draft.check_companions(&ub.parts)?;
        let Draft { changed, marks, .. } = draft;
        for (slot, sequence) in changed {
            self.slots[slot.0 as usize] = sequence;
        }
        self.marks = marks;
        if let Some(histories) = &mut self.histories {
            record(histories, ub);
        }
        Ok(applied)
    }

    /// Closes all sequences.
    pub(crate) fn clear(&mut self) {
        self.slots.fill(None);
        self.marks.clear();
        self.histories.iter_mut().flatten().for_each(Vec::clear);
    }

    /// Replaces what is known of an open sequence by a restored length and history. Its states are in its own place.
    pub(crate) fn set_restored(&mut self, slot: SlotId, len: u32, history: Vec<u32>) {
        if let Some(sequence) = self.slots[slot.0 as usize].as_mut() {
            (sequence.len, sequence.sure, sequence.plane) = (len, len, slot);
            self.marks.set(slot, slot, len);
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
            SeqOp::Truncate { slot, len, .. } => histories[slot.0 as usize].truncate(*len as usize),
            SeqOp::Adapt { .. } | SeqOp::Draw { .. } | SeqOp::Draft { .. } => {}
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
    marks: Marks,
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

    fn check_blocks(&self, blocks: &[PageId]) -> Result<(), BatchError> {
        let n_blocks = self.base.n_blocks;
        let beyond = blocks.iter().find(|b| b.0 >= n_blocks);
        beyond.map_or(Ok(()), |b| Err(BatchError::NoSuchBlock { block: b.0, n_blocks }))
    }

    fn open(
        &mut self,
        slot: SlotId,
        sequence: Sequence,
        applied: &mut Applied,
    ) -> Result<(), BatchError> {
        self.check_blocks(&sequence.blocks)?;
        self.before_writing(slot, slot, applied);
        let place = self.slot(slot)?;
        if place.is_some() {
            return Err(BatchError::AlreadyOpen(slot));
        }
        if self.is_of_another(slot, slot) {
            let why = format!("slot {}: its place has another sequence's states", slot.0);
            return Err(BatchError::Malformed(why));
        }
        let place = self.slot(slot)?;
        let len = sequence.len;
        *place = Some(sequence);
        self.marks.forget(slot);
        self.marks.set(slot, slot, len);
        Ok(())
    }

    /// Whether a slot's place has the recurrent states of another open sequence than that of `slot`.
    fn is_of_another(&mut self, plane: SlotId, slot: SlotId) -> bool {
        let (base, changed) = (&self.base.slots, &self.changed);
        let mut all = (0..).map(SlotId).zip(base).filter(|(other, _)| *other != slot);
        all.any(|(other, base)| {
            let now = changed.get(&other).unwrap_or(base);
            now.as_ref().is_some_and(|sequence| sequence.plane == plane || other == plane)
        })
    }

    fn check_prefix(&self, slot: SlotId, len: u32, have: u32) -> Result<(), BatchError> {
        check_prefix(self.base.prefixes, slot, len, have)
    }

    fn apply_op(&mut self, op: &SeqOp, applied: &mut Applied) -> Result<(), BatchError> {
        match op {
            SeqOp::Open { slot, blocks, sampler, .. } => {
                let (blocks, sampler) = (blocks.as_slice().into(), sampler.clone());
                let (adapters, plane) = (Arc::from([]), *slot);
                let empty = Sequence { len: 0, sure: 0, plane, blocks, sampler, adapters };
                self.open(*slot, empty, applied)?;
                applied.actions.push(StateAction::Zero(*slot));
            }
            SeqOp::Copy { src, dst, len, blocks, sampler, .. } => {
                let source = self.sequence(*src)?.clone();
                self.check_prefix(*src, *len, source.len)?;
                check_room(*dst, *len, blocks.len())?;
                let pages = source.blocks.iter().zip(blocks).take(pages_of(*len));
                let (src_blocks, dst_blocks) = pages.filter(|(src, dst)| src != dst).unzip();
                let plane = match self.base.prefixes {
                    Prefixes::Whole => source.plane,
                    Prefixes::All | Prefixes::None => *dst,
                };
                let behind = pages_behind(*len, &source.blocks, blocks);
                let copied = StateAction::Copy(StateCopy { src_blocks, dst_blocks, behind });
                let (blocks, sampler) = (blocks.as_slice().into(), sampler.clone());
                let (adapters, sure) = (source.adapters, *len);
                let copy = Sequence { len: *len, sure, plane, blocks, sampler, adapters };
                self.open(*dst, copy, applied)?;
                applied.actions.push(copied);
            }
            SeqOp::Truncate { slot, len, planes } => {
                if let Some(Planes { to, .. }) = planes {
                    self.bring_home(*slot, applied);
                    self.before_writing(*to, *slot, applied);
                }
                if let Some(action) = self.truncate(*slot, *len, *planes)? {
                    applied.actions.push(action);
                }
            }
            SeqOp::Close { slot } => {
                self.sequence(*slot)?;
                *self.slot(*slot)? = None;
                self.marks.forget(*slot);
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
            SeqOp::Name { slot, .. } | SeqOp::Draw { slot } | SeqOp::Draft { slot } => {
                self.sequence(*slot)?;
            }
            SeqOp::Checkpoint { slot, len, plane, .. } => {
                drop(self.base.with_prefix(*slot, *len, *plane)?);
            }
        }
        Ok(())
    }

    /// Takes a sequence back to its first `len` positions, whose recurrent state is in one of `planes` and is to be in the
    /// other.
    fn truncate(
        &mut self,
        slot: SlotId,
        len: u32,
        planes: Option<Planes>,
    ) -> Result<Option<StateAction>, BatchError> {
        let Sequence { len: have, sure, plane, .. } = *self.sequence(slot)?;
        let Some(planes) = planes else {
            self.check_prefix(slot, len, have)?;
            let is_borrowed = self.is_borrowed(slot);
            let sequence = self.sequence(slot)?;
            (sequence.len, sequence.sure) = (len, sure.min(len));
            if !is_borrowed {
                self.marks.set(plane, slot, len);
            }
            return Ok(None);
        };
        self.check_planes(slot, len, planes)?;
        if len < sure {
            let why = format!("slot {}: {len} positions, {sure} are sure", slot.0);
            return Err(BatchError::Malformed(why));
        }
        let sequence = self.sequence(slot)?;
        let Planes { from, to } = planes;
        (sequence.len, sequence.plane) = (len, to);
        self.marks.set(to, slot, len);
        Ok((from != to).then_some(StateAction::CopySlot { from, to }))
    }

    /// Adds a part's rows to its sequence; says where their states are read and written.
    fn extend(&mut self, part: &SeqPart) -> Result<Planes, BatchError> {
        let SeqPart { slot, pos, tokens, want, ahead, .. } = part;
        let (slot, pos, want) = (*slot, *pos, *want);
        if tokens.is_empty() {
            return Err(BatchError::Malformed(format!("slot {}: a part without tokens", slot.0)));
        }
        let is_borrowed = self.is_borrowed(slot);
        let sequence = self.sequence(slot)?;
        if sequence.len != pos {
            return Err(BatchError::WrongPosition { slot, expected: sequence.len, found: pos });
        }
        let end = u32::try_from(pos as usize + tokens.len())
            .map_err(|_| BatchError::Malformed(format!("slot {}: position overflows", slot.0)))?;
        check_room(slot, end, sequence.blocks.len())?;
        let sampler = sequence.sampler.as_deref();
        if matches!(want, Want::Sample | Want::Verify) && sampler.is_none() {
            return Err(BatchError::NoSampler(slot));
        }
        if ahead.is_some_and(|ahead| ahead.known as usize >= tokens.len()) {
            let why = format!("slot {}: a part of rows that were all read before", slot.0);
            return Err(BatchError::Malformed(why));
        }
        let waits = |setup: &SamplerSetup| setup.constraint.as_ref().is_some_and(|c| !c.later);
        let can_verify = sampler.is_some_and(|setup| setup.can_verify() && !waits(setup));
        if want == Want::Verify && !can_verify {
            let why = "drafts of a sequence that waits for masks, or has a companion or mirostat";
            return Err(BatchError::Malformed(format!("slot {}: {why}", slot.0)));
        }
        let plane = sequence.plane;
        let own = Planes { from: plane, to: if is_borrowed { slot } else { plane } };
        let (sure, planes) = match ahead {
            Some(Ahead { sure, planes, .. }) => (*sure, planes.unwrap_or(own)),
            None => (end, own),
        };
        if sure < sequence.sure || (ahead.is_some() && sure > pos) {
            let why = format!(
                "slot {}: a part at position {pos} with {sure} sure ones behind {}",
                slot.0, sequence.sure
            );
            return Err(BatchError::Malformed(why));
        }
        (sequence.len, sequence.sure, sequence.plane) = (end, sure, planes.to);
        if planes != own {
            self.check_planes(slot, pos, planes)?;
        }
        self.marks.set(planes.to, slot, end);
        Ok(planes)
    }

    /// Refuses to read another state than that before position `pos`, and to write over that of another sequence.
    fn check_planes(&mut self, slot: SlotId, pos: u32, planes: Planes) -> Result<(), BatchError> {
        self.marks.check(planes.from, slot, pos)?;
        self.marks.check_slot(planes.to)?;
        if planes.to != slot && self.is_of_another(planes.to, slot) {
            let why = format!(
                "slot {}: its states would be written over those of slot {}",
                slot.0, planes.to.0
            );
            return Err(BatchError::Malformed(why));
        }
        Ok(())
    }

    /// A companion stands right before the part that is drawn with it, and a draw that wants one has it.
    fn check_companions(&mut self, parts: &[SeqPart]) -> Result<(), BatchError> {
        let bad = |slot: SlotId, what: &str| {
            Err(BatchError::Malformed(format!("slot {}: {what}", slot.0)))
        };
        let mut companion = None;
        for SeqPart { slot, want, .. } in parts {
            let sampler = self.sequence(*slot)?.sampler.as_ref();
            let has_companion =
                *want == Want::Sample && sampler.is_some_and(|s| s.companion.is_some());
            match (companion.take(), has_companion) {
                (Some(companion), false) => {
                    return bad(companion, "a companion before no draw that wants it");
                }
                (None, true) => {
                    return bad(*slot, "a draw without the companion before it that it wants");
                }
                _ => {}
            }
            companion = (*want == Want::Companion).then_some(*slot);
        }
        companion
            .map_or(Ok(()), |companion| bad(companion, "a companion before no draw that wants it"))
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

/// Refuses to read where another part of the ubatch writes, and to write where it reads: parts are computed side by side.
fn check_apart(planes: Planes, parts: &[PartRows]) -> Result<(), BatchError> {
    let meets = |part: &&PartRows| part.planes.to == planes.from || part.planes.from == planes.to;
    let Some(part) = parts.iter().find(meets) else { return Ok(()) };
    let why = format!("slot {}: its states are read where another part writes", part.slot.0);
    Err(BatchError::Malformed(why))
}

/// The pages that position `len` begins, of a copy's source and of the copy, where they are two.
fn pages_behind(len: u32, source: &[PageId], copy: &[PageId]) -> Option<[PageId; 2]> {
    let page = (len as usize).is_multiple_of(KV_PAGE).then_some(len as usize / KV_PAGE)?;
    let (src, dst) = source.get(page).zip(copy.get(page))?;
    (src != dst).then_some([*src, *dst])
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
