//! Checkpoints of a sequence on one stage: what is new of its state out, and all of it back in.

use super::Stage;
use crate::batch::{PageId, SlotId};
use crate::error::{BatchError, SnapshotError};
use crate::kernels::KV_PAGE;
use crate::spec::RopeFactors;
use crate::state::{
    BlockCopy, BlockPart, BlockSize, BlockSource, BlockState, CopyOf, CopyRoom, LayerPrint,
    StageCopy, Written,
};

/// Numbers from one state of a block to its next: more than a layer has blocks.
const STATES_APART: usize = 1 << 8;

/// The number in its layer of a block's state: the block's own, and for its second state another.
fn number_of(block: usize, part: usize) -> u32 {
    (block + part * STATES_APART) as u32
}

impl Stage {
    /// Identity of copies of this stage's states: model, cache type, numerics, and the factors of a rotation that
    /// depends on the context. A copy fits only stages of the same identity. Weights are told apart layer by layer, by
    /// their fingerprints.
    pub fn copy_kind(&self) -> String {
        let ropes = self.spec.rope.iter().chain(&self.spec.local_rope);
        let chosen = ropes.filter_map(|rope| match rope.factors? {
            RopeFactors::Always => None,
            by_context @ RopeFactors::LongAbove(_) => Some(by_context.tensor(self.config.n_ctx)),
        });
        let factors: String = chosen.map(|tensor| format!(", {tensor}")).collect();
        // States of other numerics would go on with other bits.
        format!("{}, numerics {}{factors}", self.identity(), self.device.numerics())
    }

    /// Fingerprints of its layers' weights.
    pub fn prints(&self) -> &[LayerPrint] {
        &self.prints
    }

    /// Pages and positions of an open sequence.
    pub fn places(&self, slot: SlotId) -> Option<(&[PageId], u32)> {
        self.sequences.get(slot).map(|sequence| (&*sequence.blocks, sequence.len))
    }

    /// Whether a block has a recurrent state.
    pub fn has_slots(&self) -> bool {
        self.states().any(|(_, _, state)| state.paged() == Some(false))
    }

    /// All states that are copied by themselves, each with its layer and its number there.
    fn states(&self) -> impl Iterator<Item = (u32, u32, &BlockState)> {
        self.blocks.iter().flat_map(|block| {
            let parts = block.state.parts().iter().enumerate();
            parts.map(|(part, state)| (block.layer as u32, number_of(block.number, part), state))
        })
    }

    /// Copies the new state of the first `len` positions of a sequence, whose first `first_page` pages have been copied
    /// already. It copies as much as there is room for, so that a copy may be incomplete. `plane` is the place of the
    /// recurrent states of so many positions, if it is not the sequence's present one.
    ///
    /// # Errors
    /// The slot is not open, has fewer positions, or, with recurrent layers in the model, more; or the device failed.
    pub fn copy_new(
        &self,
        slot: SlotId,
        len: u32,
        plane: Option<SlotId>,
        first_page: u32,
        to: CopyRoom<'_>,
    ) -> Result<StageCopy, SnapshotError> {
        let sequence = &*self.sequences.with_prefix(slot, len, plane)?;
        let page_bytes: usize = self.states().map(|(_, _, state)| state.page_bytes()).sum();
        let rest_bytes: usize = self.states().map(|(_, _, state)| state.rest_bytes(len)).sum();
        let wanted = (len / KV_PAGE as u32).saturating_sub(first_page);
        let room = to.max_bytes.checked_div(page_bytes).unwrap_or(usize::MAX);
        let n_pages = wanted.min(u32::try_from(room).unwrap_or(u32::MAX));
        let left = to.max_bytes.saturating_sub(n_pages as usize * page_bytes);
        let complete = n_pages == wanted && rest_bytes <= left;
        let stateful = self
            .states()
            .filter_map(|(layer, block, state)| Some((layer, block, state, state.paged()?)));
        let blocks = stateful.map(|(layer, block, state, paged)| BlockCopy {
            layer,
            block,
            paged,
            pages: state.copy_pages(sequence, first_page, n_pages, to),
            rest: if complete { state.copy_rest(sequence, len, to) } else { Vec::new() },
        });
        let (prints, blocks) = (self.prints.clone(), blocks.collect());
        // What was read of a device that failed is anything.
        self.device.finish().map_err(BatchError::from)?;
        Ok(StageCopy { prints, first_page, n_pages, complete, blocks })
    }

    /// Bytes of each block's state at position `len`.
    pub fn block_sizes(&self, len: u32) -> Vec<BlockSize> {
        let size = |(layer, block, state): (u32, u32, &BlockState)| {
            let (page_bytes, rest_bytes) = (state.page_bytes(), state.rest_bytes(len));
            Some(BlockSize { layer, block, paged: state.paged()?, page_bytes, rest_bytes })
        };
        self.states().filter_map(size).collect()
    }

    /// Copies a part of the state of the first `len` positions of a sequence.
    ///
    /// # Errors
    /// As [`Self::copy_new`]; pages behind that position.
    pub fn copy_part(
        &self,
        slot: SlotId,
        len: u32,
        of: &CopyOf,
    ) -> Result<Vec<BlockCopy>, SnapshotError> {
        let sequence = &*self.sequences.with_prefix(slot, len, None)?;
        let (CopyOf { layers, pages, rest }, room) = (of, CopyRoom::fresh(0));
        if pages.end > len / KV_PAGE as u32 || pages.start > pages.end {
            let why = format!("pages {pages:?} of {len} positions");
            return Err(SnapshotError::Damaged(why));
        }
        let n_pages = pages.end - pages.start;
        let wanted = self.states().filter(|(layer, ..)| layers.contains(layer));
        let copy = |(layer, block, state): (u32, u32, &BlockState)| {
            let (paged, first) = (state.paged()?, pages.start);
            let pages = state.copy_pages(sequence, first, n_pages, room);
            let rest = if *rest { state.copy_rest(sequence, len, room) } else { Vec::new() };
            Some(BlockCopy { layer, block, paged, pages, rest })
        };
        let blocks = wanted.filter_map(copy).collect();
        // What was read of a device that failed is anything.
        self.device.finish().map_err(BatchError::from)?;
        Ok(blocks)
    }

    /// Writes a part of the state of an open sequence's first `len` positions; what it held before is lost. `part` has the
    /// part of a layer's block, if it is of any. Returns for each of those how much of it is there then. Other sequences may
    /// be computed before the next part. The sequence is whole with [`Self::put_back`]; until then it can only be closed.
    ///
    /// # Errors
    /// A part of another size; a slot that is not open or has too few pages. Or the device failed.
    pub fn put_part<'a>(
        &mut self,
        slot: SlotId,
        len: u32,
        part: impl Fn(&LayerPrint, u32) -> Option<BlockPart<'a>>,
    ) -> Result<Vec<(u32, u32, Written)>, SnapshotError> {
        let sequence = self.sequences.get(slot).ok_or(BatchError::NotOpen(slot))?.clone();
        sequence.check_room(slot, len)?;
        let mut parts = Vec::new();
        for (layer, index, state) in self.states().filter(|(_, _, s)| s.paged().is_some()) {
            let print = self.prints.iter().find(|(of, _)| *of == layer);
            let found = print.and_then(|print| part(print, index));
            if found.as_ref().is_some_and(|part| !state.fits_part(part, len)) {
                let why =
                    format!("a part of the copy of layer {layer}, block {index} has another size");
                return Err(SnapshotError::Damaged(why));
            }
            parts.push((layer, index, found));
        }
        // Layers with windows keep what a row at that position sees, also while others are computed.
        self.sequences.set_restored(slot, len, Vec::new());
        let states = self.blocks.iter_mut().flat_map(|block| block.state.parts_mut());
        let stateful = states.filter(|state| state.paged().is_some());
        let mut written = Vec::new();
        for (state, (layer, index, part)) in stateful.zip(parts) {
            let Some(part) = part else { continue };
            written.push((layer, index, state.put_part(slot, &sequence, &part, len)));
        }
        self.device.finish().map_err(BatchError::from)?;
        Ok(written)
    }

    /// Gives an open sequence the state of its first `len` positions; what it held before is lost. `source` says
    /// where a layer's block is to be had.
    ///
    /// # Errors
    /// A block without a source, or with one of another size; tokens that are missing on the last stage; a slot
    /// that is not open or has too few pages. Nothing has changed then, beyond parts that were written before. Or the
    /// device failed.
    pub fn put_back<'a>(
        &mut self,
        slot: SlotId,
        len: u32,
        tokens: &[u32],
        source: impl Fn(&LayerPrint, u32) -> Option<BlockSource<'a>>,
    ) -> Result<(), SnapshotError> {
        let sequence = self.sequences.get(slot).ok_or(BatchError::NotOpen(slot))?.clone();
        sequence.check_room(slot, len)?;
        if self.head.is_some() && tokens.len() != len as usize {
            let why = format!("{} tokens for {len} positions on the last stage", tokens.len());
            return Err(SnapshotError::Damaged(why));
        }
        let mut sources = Vec::new();
        for (layer, index, state) in self.states().filter(|(_, _, s)| s.paged().is_some()) {
            let print = self.prints.iter().find(|(of, _)| *of == layer);
            let found = print.and_then(|print| source(print, index)).ok_or_else(|| {
                SnapshotError::Foreign(format!("there is no copy of layer {layer}, block {index}"))
            })?;
            if !state.fits(&found, len) {
                let why = format!("the copy of layer {layer}, block {index} has another size");
                return Err(SnapshotError::Damaged(why));
            }
            sources.push(found);
        }
        let states = self.blocks.iter_mut().flat_map(|block| block.state.parts_mut());
        let stateful = states.filter(|state| state.paged().is_some());
        for (state, source) in stateful.zip(sources) {
            state.put_back(slot, &sequence, &source, len);
        }
        self.device.finish().map_err(BatchError::from)?;
        self.sequences.set_restored(slot, len, tokens.to_vec());
        self.own_drafts.iter_mut().for_each(|drafts| drafts.replaced(slot, len));
        Ok(())
    }
}
