//! Forward passes of many sizes that compute nothing, so that a GPU's kernels are compiled before the first ubatch comes.

use std::sync::Arc;

use super::Stage;
use crate::batch::{Ahead, Boundary, PageId, SamplerSetup, SamplingParams};
use crate::batch::{SeqOp, SeqPart, SlotId, UBatch, Want};
use crate::error::BatchError;
use crate::kernels::DeviceError;
use crate::kernels::KV_PAGE;

/// A ubatch to rehearse: so many sequences, with so many rows each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    n_parts: usize,
    n_rows: usize,
}

impl Stage {
    /// Has a GPU's kernels compiled that forward passes will run, on all cores at once. These are the kernels of
    /// prompts and of decode, for ubatches of 1, 2, 4, ... rows up to the most that there may be. Returns how many
    /// were compiled; those of earlier runs are kept on disk. Kernels that only some requests need, such as those of
    /// adapters, are compiled when they are first used.
    ///
    /// The stage has no sequences then. On a CPU nothing is done.
    ///
    /// # Errors
    /// The GPU failed, or a kernel does not compile.
    ///
    /// # Panics
    /// Where the GPU has no memory for the largest ubatch, with [`GaveUp`](crate::device::GaveUp).
    pub fn rehearse(&mut self) -> Result<usize, DeviceError> {
        let mut failed = None;
        let n = self.device.home().rehearse(&mut || {
            for size in self.sizes() {
                let done = self.rehearse_one(size);
                self.reset();
                if let Err(error) = done {
                    failed = Some(error);
                    break;
                }
            }
        })?;
        // Such as rows of a cut that only a real pass has. Kernels are compiled when they are used then.
        if let Some(error) = failed {
            tracing::debug!(%error, "not all passes were rehearsed");
        }
        Ok(n)
    }

    /// The sizes that are rehearsed, the smallest first.
    fn sizes(&self) -> Vec<Size> {
        let most_positions =
            (self.config.n_blocks as usize * KV_PAGE).min(self.config.n_ctx as usize);
        let most_rows = self.config.max_rows.min(most_positions);
        let most_parts =
            self.config.n_slots.min(self.config.max_rows).min(self.config.n_blocks as usize);
        let prompts = up_to(most_rows).map(|n_rows| Size { n_parts: 1, n_rows });
        let steps = up_to(most_parts).skip(1).map(|n_parts| Size { n_parts, n_rows: 1 });
        prompts.chain(steps).collect()
    }

    fn rehearse_one(&mut self, Size { n_parts, n_rows }: Size) -> Result<(), BatchError> {
        let pages = n_rows.div_ceil(KV_PAGE) as u32;
        let greedy = SamplerSetup { params: SamplingParams::greedy(), ..SamplerSetup::default() };
        let sampler = (!self.spec.is_encoder()).then(|| Arc::new(greedy));
        let slots = || (0..n_parts as u32).map(SlotId);
        let open = |slot: SlotId| SeqOp::Open {
            slot,
            blocks: (slot.0 * pages..(slot.0 + 1) * pages).map(PageId).collect(),
            sampler: sampler.clone(),
            request: "rehearsal".into(),
        };
        let is_drafting = self.own_drafts.is_some();
        let read = |slot| is_drafting.then_some(SeqOp::Draft { slot });
        let ahead = Ahead { sure: 0, known: 0, planes: None, drafts: 1 };
        let ahead = is_drafting.then_some(ahead);
        let want = if self.spec.is_encoder() { Want::Hidden } else { Want::Sample };
        let part = |slot| SeqPart { slot, pos: 0, tokens: vec![0; n_rows], want, mu: None, ahead };
        let ub = UBatch {
            id: 0,
            ops: slots().map(open).chain(slots().filter_map(read)).collect(),
            parts: slots().map(part).collect(),
        };
        let input = (self.layers.start > 0).then(|| {
            let n_rows = ub.n_rows();
            let width = self.spec.boundary(self.layers.start).width();
            Boundary { n_rows, data: vec![0.0; n_rows * width] }
        });
        self.forward(&ub, input).map(drop)
    }
}

/// 1, 2, 4 and so on, and `most`.
fn up_to(most: usize) -> impl Iterator<Item = usize> {
    let powers = (0..).map(|i| 1 << i).take_while(move |n| *n < most);
    powers.chain((most > 0).then_some(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_greatest() {
        let sizes = |most| up_to(most).collect::<Vec<_>>();
        assert_eq!(sizes(0), [0; 0]);
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(8), [1, 2, 4, 8]);
        assert_eq!(sizes(37), [1, 2, 4, 8, 16, 32, 37]);
    }
}
