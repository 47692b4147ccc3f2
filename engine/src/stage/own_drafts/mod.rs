//! The model's own blocks of drafts, on the last stage: they read what a sequence reads, and draft what it may say next.
//!
//! What they give is advice. Nothing of it changes what the model computes, draws or keeps. Their entries lie in pages of their
//! own, under the ids of the sequence's, each at the position of the token that it embeds. They are in no snapshot, checkpoint
//! or record: where a state comes from elsewhere, blocks begin anew at the next page.

mod block;
mod chain;
mod load;
mod on_stage;
mod readings;
mod ring;

use super::head::Head;
use crate::batch::{SeqOp, SlotId, UBatch};
use crate::block::RowAdapters;
use crate::device::{Device, Rows, Scratch};
use crate::kernels::{KV_PAGE, RopeParams};
use crate::spec::DraftInput;
use crate::state::{Applied, PartRows, Sequence, Sequences, StateAction};
use block::{DraftBlock, Input};
use readings::{Before, Readings};
use ring::{Ring, copy_rows};

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
    readings: Readings,
    /// Sequences as blocks see them: from their first entry on.
    seen: Sequences,
    /// Logits of all rows, where somebody wants to see them.
    watched: Option<Vec<DraftRow>>,
}

/// Logits that a block of drafts gave: of the token behind the one at a position.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftRow {
    /// The sequence.
    pub slot: SlotId,
    /// Position of the token that was read last.
    pub pos: u32,
    /// Number of the block.
    pub block: usize,
    /// `[n_vocab]`.
    pub logits: Vec<f32>,
}

/// What blocks compute with besides what is theirs.
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

    /// Of the weights, bytes of experts that lie elsewhere than what computes the rest.
    pub(super) fn nbytes_beside(&self) -> u64 {
        self.blocks.iter().map(DraftBlock::nbytes_beside).sum()
    }

    /// Keeps the logits of all rows from here on, or no longer; gives those since then.
    pub(super) fn watch(&mut self, is_on: bool) -> Vec<DraftRow> {
        std::mem::replace(&mut self.watched, is_on.then(Vec::new)).unwrap_or_default()
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
            let is_copied = self.readings.follow(op, len);
            let SeqOp::Copy { src, dst, .. } = op else { continue };
            let Some(copy) = copies.next().filter(|_| is_copied) else { continue };
            self.ring.copy(tools.device, tools.scratch, *src, *dst);
            // The entry behind the copy's end is there too, where more was read of the source.
            let behind = copy.behind.iter().map(|[src, dst]| (src, dst));
            let pages = copy.src_blocks.iter().zip(&copy.dst_blocks).chain(behind);
            let pages: Vec<_> = pages.map(|(src, dst)| (*src, *dst)).collect();
            let states = self.blocks.iter_mut().flat_map(|block| &mut block.blocks);
            for block in states.filter(|block| block.state.paged().is_some()) {
                pages.iter().for_each(|(src, dst)| block.state.kv().copy_page(*src, *dst));
            }
        }
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

    /// Reads the rows of `parts`, which have these tokens and hidden rows.
    pub(super) fn read(
        &mut self,
        tools: &Tools<'_>,
        head: &Head,
        (parts, tokens, hidden): (&[PartRows], &[u32], &Rows),
    ) {
        let input = self.input(tools, (parts, tokens, hidden));
        for PartRows { slot, pos, rows, .. } in parts {
            self.ring.keep(tools.device, (*slot, *pos), (hidden, rows.clone()));
        }
        if input.tokens.is_empty() {
            return;
        }
        for i in 0..self.blocks.len() {
            let rows = self.blocks[i].run(tools, &self.seen, &input);
            if self.watched.is_some() {
                let adapters = &RowAdapters::of_parts(&input.parts, &self.seen);
                let [_, logits] = self.blocks[i].logits(tools, head, (&rows, adapters));
                self.see(i, &input.parts, logits);
            }
        }
    }

    /// What blocks read of parts: all rows whose entries can be made.
    fn input(
        &mut self,
        tools: &Tools<'_>,
        (parts, tokens, hidden): (&[PartRows], &[u32], &Rows),
    ) -> Input {
        let (mut steps, mut kept, mut n) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let PartRows { slot, pos, rows, .. } = part;
            let Some(step) = self.readings.go_on(*slot, *pos, &tokens[rows.clone()]) else {
                continue;
            };
            let left = rows.start + step.skip..rows.end;
            if left.is_empty() {
                continue;
            }
            if let Before::Kept(pos) = step.before {
                kept.push((*slot, pos));
            }
            self.show(tools.sequences, *slot, step.base);
            n += left.len();
            steps.push((part, step, left));
        }
        let Tools { device, scratch, .. } = *tools;
        let kept_rows = match kept[..] {
            [] => Rows::default(),
            _ => self.ring.picked(device, scratch, &kept),
        };
        let mut input = Input {
            parts: Vec::new(),
            tokens: Vec::new(),
            hidden: scratch.zeros(n, hidden.cols()),
        };
        let (mut at, mut next_kept) = (0, 0);
        for (part, step, left) in steps {
            let pos = part.pos + step.skip as u32 - step.base;
            input.parts.push(Input::part(part.slot, pos, at..at + left.len()));
            input.tokens.extend_from_slice(&tokens[left.clone()]);
            if let Before::Kept(_) = step.before {
                let of_it = (&kept_rows, next_kept..next_kept + 1);
                copy_rows(device, of_it, (&mut input.hidden, at));
                next_kept += 1;
            }
            let (from, to) = match step.before {
                Before::Own => (left.start - 1, at),
                Before::Nothing | Before::Kept(_) => (left.start, at + 1),
            };
            copy_rows(device, (hidden, from..left.end - 1), (&mut input.hidden, to));
            at += left.len();
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

    /// Keeps logits for who watches.
    fn see(&mut self, block: usize, parts: &[PartRows], logits: Rows) {
        let Some(watched) = &mut self.watched else { return };
        let n_vocab = logits.cols();
        let values = logits.into_vec();
        for part in parts {
            let base = self.readings.base(part.slot).unwrap_or(0);
            for (row, pos) in part.rows.clone().zip(base + part.pos..) {
                let logits = values[row * n_vocab..(row + 1) * n_vocab].to_vec();
                watched.push(DraftRow { slot: part.slot, pos, block, logits });
            }
        }
    }
}
