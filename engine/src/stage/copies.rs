//! Checkpoints of a sequence on one stage: what is new of its state out, and all of it back in.

use super::Stage;
use crate::batch::{BlockId, SlotId};
use crate::error::{BatchError, SnapshotError};
use crate::kernels::KV_PAGE;
use crate::state::{BlockCopy, BlockSource, CopyRoom, LayerPrint, StageCopy};

impl Stage {
    /// What copies of this stage's states belong to: model, cache type and numerics. Weights are told apart layer by
    /// layer, by their fingerprints.
    pub fn copy_kind(&self) -> String {
        // States of other numerics would go on with other bits.
        format!("{}, numerics {}", self.identity(), self.compute.kernels().numerics)
    }

    /// Fingerprints of its layers' weights.
    pub fn prints(&self) -> &[LayerPrint] {
        &self.prints
    }

    /// Pages and positions of an open sequence.
    pub fn places(&self, slot: SlotId) -> Option<(&[BlockId], u32)> {
        self.sequences.get(slot).map(|sequence| (&*sequence.blocks, sequence.len))
    }

    /// Whether a block has a recurrent state.
    pub fn has_slots(&self) -> bool {
        self.blocks.iter().any(|block| block.state.paged() == Some(false))
    }

    /// What is new of the first `len` positions of a sequence, whose first `first_page` pages have been copied
    /// already: as much as there is room for, so that a copy may be incomplete.
    ///
    /// # Errors
    /// The slot is not open, has fewer positions, or, with recurrent layers in the model, more.
    pub fn copy_new(
        &self,
        slot: SlotId,
        len: u32,
        first_page: u32,
        to: CopyRoom<'_>,
    ) -> Result<StageCopy, SnapshotError> {
        let sequence = self.sequences.with_prefix(slot, len)?;
        let page_bytes: usize = self.blocks.iter().map(|b| b.state.page_bytes()).sum();
        let rest_bytes: usize = self.blocks.iter().map(|b| b.state.rest_bytes(len)).sum();
        let wanted = (len / KV_PAGE as u32).saturating_sub(first_page);
        let room = to.max_bytes.checked_div(page_bytes).unwrap_or(usize::MAX);
        let n_pages = wanted.min(u32::try_from(room).unwrap_or(u32::MAX));
        let left = to.max_bytes.saturating_sub(n_pages as usize * page_bytes);
        let complete = n_pages == wanted && rest_bytes <= left;
        let stateful = self.blocks.iter().filter_map(|b| Some((b, b.state.paged()?)));
        let blocks = stateful.map(|(block, paged)| BlockCopy {
            layer: block.layer as u32,
            block: block.index as u32,
            paged,
            pages: block.state.copy_pages(sequence, first_page, n_pages, to),
            rest: match complete {
                true => block.state.copy_rest(slot, sequence, len, to),
                false => Vec::new(),
            },
        });
        let prints = self.prints.clone();
        Ok(StageCopy { prints, first_page, n_pages, complete, blocks: blocks.collect() })
    }

    /// Gives an open sequence the state of its first `len` positions; what it held before is lost. `source` says
    /// where a layer's block is to be had.
    ///
    /// # Errors
    /// A block without a source, or with one of another size; tokens that are missing on the last stage; a slot
    /// that is not open or has too few pages. Nothing has changed then.
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
        for block in self.blocks.iter().filter(|b| b.state.paged().is_some()) {
            let (layer, index) = (block.layer, block.index);
            let print = self.prints.iter().find(|(of, _)| *of as usize == layer);
            let found = print.and_then(|print| source(print, index as u32)).ok_or_else(|| {
                SnapshotError::Foreign(format!("there is no copy of layer {layer}, block {index}"))
            })?;
            if !block.state.fits(&found, len) {
                let why = format!("the copy of layer {layer}, block {index} has another size");
                return Err(SnapshotError::Damaged(why));
            }
            sources.push(found);
        }
        let stateful = self.blocks.iter_mut().filter(|b| b.state.paged().is_some());
        for (block, source) in stateful.zip(sources) {
            block.state.put_back(slot, &sequence, &source, len);
        }
        self.sequences.set_restored(slot, len, tokens.to_vec());
        Ok(())
    }
}
