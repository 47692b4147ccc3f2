//! The model's own blocks of drafts, on the last stage: they read what a sequence reads, and draft what it may say next.
//!
//! Drafts are advice. Nothing of it changes what the model computes, draws or keeps. Their entries lie in pages of
//! their own, under the ids of the sequence's, each at the position of the token that it embeds. They are in no
//! snapshot, checkpoint or record: where a state comes from elsewhere, blocks begin anew at the next page.

mod block;
mod chain;
mod load;
mod on_stage;
mod readings;
mod ring;

use std::ops::Range;

use super::head::Head;
use crate::batch::{SeqOp, SlotId, UBatch};
use crate::block::RowAdapters;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::{KV_PAGE, RopeParams};
use crate::spec::{DraftInput, KEPT_HIDDEN};
use crate::state::{Applied, PartRows, Sequence, Sequences, StateAction};
use block::Input;
use readings::{Readings, Step};
use ring::{Ring, copy_rows};

pub(super) use block::DraftBlock;
pub use load::check_own_drafts;
pub(super) use on_stage::LeftRows;

/// The blocks with what they remember.
pub(super) struct OwnDrafts {
    blocks: Vec<DraftBlock>,
    pub(super) reads: DraftInput,
    /// Tokens that are drafted behind one at most.
    depth: usize,
    /// Positions that a sequence has at most.
    n_ctx: u32,
    ring: Ring,
    /// Whether a block keeps entries of the last positions only.
    has_rings: bool,
    readings: Readings,
    /// Sequences as blocks see them: from their first entry on.
    seen: Sequences,
    /// Logits of all rows, while they are watched.
    watched: Option<Vec<DraftRow>>,
}

/// Logits that a block of drafts gave: of the token behind the one at a position.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftRow {
    /// Slot of the sequence.
    pub slot: SlotId,
    /// Position of the token that was read last.
    pub pos: u32,
    /// Number of the block.
    pub block: usize,
    /// `[n_vocab]`.
    pub logits: Vec<f32>,
}

/// Device, memory and rotations that blocks of drafts share with the stage.
pub(super) struct Tools<'a> {
    pub(super) device: &'a Device,
    pub(super) scratch: &'a Scratch,
    /// The model's, and that of layers with windows.
    pub(super) ropes: [Option<&'a RopeParams>; 2],
    pub(super) sequences: &'a Sequences,
}

impl OwnDrafts {
    /// Tokens that can be drafted behind one.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes of weights, and of what is remembered.
    pub(super) fn nbytes(&self) -> [u64; 2] {
        let states = self.blocks.iter().flat_map(|block| &block.blocks);
        let states: u64 = states.map(|block| block.state.nbytes()).sum();
        [self.blocks.iter().map(DraftBlock::nbytes).sum(), states + self.ring.nbytes()]
    }

    /// Bytes of weights among these of experts that lie elsewhere than the device that computes the rest.
    pub(super) fn nbytes_beside(&self) -> u64 {
        self.blocks.iter().map(DraftBlock::nbytes_beside).sum()
    }

    /// Keeps the logits of all rows from here on, or no longer; gives those since then.
    pub(super) fn watch(&mut self, is_on: bool) -> Vec<DraftRow> {
        std::mem::replace(&mut self.watched, is_on.then(Vec::new)).unwrap_or_default()
    }

    /// The entries in pages that blocks made of the rows of a sequence, and their positions.
    pub(super) fn entries(
        &self,
        sequences: &Sequences,
        slot: SlotId,
    ) -> Option<(Range<u32>, Vec<Vec<u8>>)> {
        let (sequence, made) = (sequences.get(slot)?, self.readings.entries(slot)?);
        let blocks = sequence.blocks.get(made.start as usize / KV_PAGE..)?.into();
        let len = made.end.checked_sub(made.start)?;
        let seen = Sequence { len, sure: len, plane: slot, blocks, ..sequence.clone() };
        let states = self.blocks.iter().flat_map(|block| &block.blocks);
        let states = states.filter(|block| block.state.paged() == Some(true));
        Some((made, states.filter_map(|block| block.state.read(&seen)).collect()))
    }

    /// Follows the ops of a ubatch, which have been applied.
    pub(super) fn follow(&mut self, tools: &Tools<'_>, ub: &UBatch, applied: &Applied) {
        let copies = applied.actions.iter().filter_map(|action| match action {
            StateAction::Copy(copy) => Some(copy),
            StateAction::Zero(_) | StateAction::CopySlot { .. } => None,
        });
        let mut copies = copies.fuse();
        let len = |slot: SlotId| match ub.parts.iter().find(|part| part.slot == slot) {
            Some(part) => part.pos,
            None => tools.sequences.get(slot).map_or(0, |sequence| sequence.len),
        };
        for op in &ub.ops {
            if let SeqOp::Truncate { slot, len, .. } = op
                && self.is_lost(*slot, *len)
            {
                self.readings.replaced(*slot, *len);
            }
            let is_copied = self.readings.follow(op, len);
            let SeqOp::Copy { src, dst, len, .. } = op else { continue };
            let Some(copy) = copies.next().filter(|_| is_copied) else { continue };
            if self.is_lost(*src, *len) {
                self.readings.replaced(*dst, *len);
                continue;
            }
            self.ring.copy(tools.device, tools.scratch, *src, *dst);
            // The entry behind the copy's end is there too, where more was read of the source.
            let behind = copy.behind.iter().map(|[src, dst]| (src, dst));
            let pages = copy.src_blocks.iter().zip(&copy.dst_blocks).chain(behind);
            let pages: Vec<_> = pages.map(|(src, dst)| (*src, *dst)).collect();
            let states = self.blocks.iter_mut().flat_map(|block| &mut block.blocks);
            for block in states {
                match block.state.paged() {
                    Some(true) => {
                        pages.iter().for_each(|(src, dst)| block.state.kv().copy_page(*src, *dst));
                    }
                    _ => block.state.copy_slot(*src, *dst),
                }
            }
        }
    }

    /// Whether what blocks need for the position behind the first `len` of a sequence may be written over.
    fn is_lost(&self, slot: SlotId, len: u32) -> bool {
        let taken_back = self.readings.len(slot).saturating_sub(len);
        self.has_rings && taken_back as usize > KEPT_HIDDEN
    }

    /// Whether a sequence is read.
    pub(super) fn has(&self, slot: SlotId) -> bool {
        self.readings.has(slot)
    }

    /// A sequence got its state from elsewhere.
    pub(super) fn replaced(&mut self, slot: SlotId, len: u32) {
        self.readings.replaced(slot, len);
    }

    /// Forgets all sequences.
    pub(super) fn clear(&mut self) {
        self.readings.clear();
        let states = self.blocks.iter_mut().flat_map(|block| &mut block.blocks);
        states.for_each(|block| block.state.clear());
    }

    /// Goes on with the rows of `parts`, which have these tokens and hidden rows. A few wait until drafts are wanted.
    pub(super) fn read(
        &mut self,
        tools: &Tools<'_>,
        head: &Head,
        parts: &[PartRows],
        tokens: &[u32],
        hidden: &Rows,
    ) {
        let go_on =
            |part: &PartRows| self.readings.go_on(part.slot, part.pos, &tokens[part.rows.clone()]);
        let due: Vec<Option<Step>> = parts.iter().map(go_on).collect();
        let of_parts = parts.iter().zip(due).filter_map(|(part, step)| Some((part, step?)));
        let of_parts: Vec<_> = of_parts.collect();
        let input = match of_parts[..] {
            [] => None,
            _ => Some(self.input(tools, &of_parts, hidden)),
        };
        for PartRows { slot, pos, rows, .. } in parts {
            self.ring.keep(tools.device, *slot, *pos, hidden, rows.clone());
        }
        if let Some(input) = input {
            self.run_all(tools, head, &input);
        }
    }

    /// Has all blocks read what waits of a sequence before position `end`.
    fn read_waiting(&mut self, tools: &Tools<'_>, head: &Head, slot: SlotId, end: u32) {
        if let Some(step) = self.readings.take_waiting(slot, end) {
            let input = self.kept_input(tools, &[(slot, step)]);
            self.run_all(tools, head, &input);
        }
    }

    /// Inputs of blocks for steps all of whose previous rows are kept.
    fn kept_input(&mut self, tools: &Tools<'_>, steps: &[(SlotId, Step)]) -> Input {
        let n = steps.iter().map(|(_, step)| step.tokens.len()).sum();
        let hidden = tools.scratch.zeros(n, self.ring.cols());
        let mut input = Input { parts: Vec::new(), tokens: Vec::with_capacity(n), hidden };
        for (slot, step) in steps {
            self.show(tools.sequences, *slot, step.base);
            let (at, end) = (input.tokens.len(), step.from + step.tokens.len() as u32);
            input.tokens.extend_from_slice(&step.tokens);
            input.parts.push(Input::part(*slot, step.from - step.base, at..input.tokens.len()));
            self.ring.put_before(tools, *slot, step.from..end, &mut input.hidden, at);
        }
        input
    }

    /// Has all blocks read rows.
    fn run_all(&mut self, tools: &Tools<'_>, head: &Head, input: &Input) {
        for i in 0..self.blocks.len() {
            if self.watched.is_none() {
                self.blocks[i].remember(tools, &self.seen, input);
                continue;
            }
            let rows = self.blocks[i].run(tools, &self.seen, input);
            self.see_rows(tools, head, i, &input.parts, &rows);
        }
    }

    /// Inputs of blocks for parts, with the rows that waited before them.
    fn input(&mut self, tools: &Tools<'_>, of_parts: &[(&PartRows, Step)], hidden: &Rows) -> Input {
        let n = of_parts.iter().map(|(_, step)| step.tokens.len()).sum();
        let hidden_rows = tools.scratch.zeros(n, hidden.cols());
        let mut input =
            Input { parts: Vec::new(), tokens: Vec::with_capacity(n), hidden: hidden_rows };
        for (part, step) in of_parts {
            self.show(tools.sequences, part.slot, step.base);
            let at = input.tokens.len();
            input.tokens.extend_from_slice(&step.tokens);
            let end = input.tokens.len();
            input.parts.push(Input::part(part.slot, step.from - step.base, at..end));
            // The rows before: those that are kept, and then the part's own.
            let of_kept = step.from..(part.pos + 1).max(step.from);
            let n_kept = self.ring.put_before(tools, part.slot, of_kept, &mut input.hidden, at);
            let own = part.rows.end - 1 - (end - at - n_kept)..part.rows.end - 1;
            copy_rows(tools.device, hidden, own, &mut input.hidden, at + n_kept);
        }
        input
    }

    /// Has blocks see a sequence from its first entry on.
    fn show(&mut self, sequences: &Sequences, slot: SlotId, base: u32) {
        let Some(sequence) = sequences.get(slot) else { return };
        let blocks = sequence.blocks[base as usize / KV_PAGE..].into();
        let len = sequence.len.saturating_sub(base);
        self.seen.show(slot, Sequence { len, sure: len, plane: slot, blocks, ..sequence.clone() });
    }

    /// Keeps the logits of rows that a block gave for who watches.
    fn see_rows(
        &mut self,
        tools: &Tools<'_>,
        head: &Head,
        block: usize,
        parts: &[PartRows],
        rows: &Rows,
    ) {
        if self.watched.is_none() {
            return;
        }
        let numbers = parts.iter().flat_map(|part| part.rows.clone());
        let picked: Vec<u32> = numbers.clone().map(|row| row as u32).collect();
        let rows = tools.device.picked_rows(tools.scratch, rows, &picked);
        let adapters = &RowAdapters::of_parts(parts, &self.seen).picked(numbers);
        let [_, logits] = self.blocks[block].logits(tools, head, &rows, adapters);
        let n_vocab = logits.cols();
        let mut values = logits.into_vec();
        let Some(watched) = &mut self.watched else { return };
        for part in parts {
            let first = self.readings.base(part.slot).unwrap_or(0) + part.pos;
            for pos in first..first + part.rows.len() as u32 {
                let logits = values.drain(..n_vocab).collect();
                watched.push(DraftRow { slot: part.slot, pos, block, logits });
            }
        }
    }
}
