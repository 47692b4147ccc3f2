//! Layers over the rows of a ubatch: block after block, each between its way in and its way out of the residual stream.

use std::ops::Range;
use std::sync::Arc;

use super::Stage;
use super::switched::OwnAdapters;
use crate::block::{Block, BlockCx, Ropes, RowAdapters, RowInputs};
use crate::device::{Device, Rows};
use crate::kernels::{RopeParams, RopeTable};
use crate::residual::{Behind, BoundaryRows, Inputs, Met, Norm, On, Residual};
use crate::spec::BlockSpec;
use crate::state::{BlockState, PartRows};

/// One block, ready to run.
pub(super) struct LoadedBlock {
    pub(super) layer: usize,
    /// Place within its layer.
    pub(super) index: usize,
    /// Number within its layer under which snapshots and copies have its state.
    pub(super) number: usize,
    pub(super) spec: BlockSpec,
    pub(super) weights: Arc<BlockWeights>,
    pub(super) state: BlockState,
    /// Changes of the streams behind the layer, if the block is the layer's last.
    pub(super) behind: Vec<Box<dyn Behind>>,
}

/// Weights of a block. Layers that are one layer of the file share them. Layers that are one layer of the file share
/// it.
pub(super) struct BlockWeights {
    /// Norm of the block's input.
    pub(super) norm: Option<Norm>,
    /// Norm of the block's output.
    pub(super) post_norm: Option<Norm>,
    /// Way in which the block meets the residual stream.
    pub(super) residual: Box<dyn Residual>,
    pub(super) block: Box<dyn Block>,
}

impl BlockWeights {
    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> u64 {
        (self.block.nbytes() + self.residual.nbytes()) as u64
    }

    /// The block's input, if it reads the streams as they come into its layer.
    pub(super) fn enter_layer(&self, on: On<'_>, rows: &BoundaryRows) -> Option<Rows> {
        self.residual.enter_layer(on, self.norm.as_ref(), rows)
    }

    /// Makes the block's input. Gives rows that [`Self::meet`] is to have again.
    pub(super) fn enter(
        &self,
        on: On<'_>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        self.residual.enter(on, self.norm.as_ref(), rows, inputs)
    }

    /// Takes what the block gave to the streams, behind its norm where it has one.
    pub(super) fn meet(&self, on: On<'_>, mut met: Met<'_>, rows: &mut BoundaryRows) {
        if let Some(norm) = &self.post_norm {
            norm.apply_inplace(on.device, &mut met.output);
        }
        self.residual.meet(on, met, rows);
    }
}

/// Rows that blocks go over.
pub(super) struct OfRows<'a> {
    /// Parts of the ubatch; empty where none of the blocks mixes rows, as `tokens` then may be.
    pub(super) parts: &'a [PartRows],
    pub(super) tokens: &'a [u32],
    pub(super) adapters: &'a RowAdapters,
    pub(super) n_rows: usize,
}

impl Stage {
    /// Blocks that all rows go through, where only some are wanted behind the last layer.
    pub(super) fn n_mixing(&self) -> usize {
        let mut layers = self.layers.clone().rev();
        let mixing = layers.find_map(|layer| match self.spec.layers[layer].n_mixing() {
            0 => None,
            n => Some((layer, n)),
        });
        let Some((last, n)) = mixing else { return 0 };
        self.blocks.iter().filter(|block| block.layer < last).count() + n
    }

    /// Makes the inputs that later blocks read of the rows coming into their layer, which begins with block `first`.
    /// The inputs are in the order of the blocks.
    fn begin_layer(&self, first: usize, rows: &BoundaryRows, inputs: &mut Inputs) {
        let on = self.on();
        let layer = self.blocks[first].layer;
        let of_layer = self.blocks[first..].iter().take_while(|block| block.layer == layer);
        inputs.begin_layer(of_layer.filter_map(|block| block.weights.enter_layer(on, rows)));
    }

    /// Runs a range of blocks over rows in place.
    pub(super) fn run_blocks(
        &mut self,
        range: Range<usize>,
        of: &OfRows<'_>,
        rows: &mut BoundaryRows,
    ) {
        let &OfRows { parts, tokens, adapters, n_rows } = of;
        if n_rows == 0 {
            return;
        }
        let rope = rope_table(&self.device, self.rope.as_ref(), parts);
        let local_rope = rope_table(&self.device, self.local_rope.as_ref(), parts);
        let n_embd = self.spec.n_embd;
        let mut inputs = Inputs::new(self.scratch.take(n_rows, n_embd));
        let keeps_input =
            self.blocks[range.clone()].iter().any(|b| b.spec.kind.reads_layer_input());
        let mut own = OwnAdapters::new(self.spec.skeleton.beside, adapters);
        let mut layer_input = self.scratch.take(if keeps_input { n_rows } else { 0 }, n_embd);
        for i in range {
            if self.blocks[i].index == 0 {
                self.begin_layer(i, rows, &mut inputs);
                if keeps_input {
                    layer_input.set(&rows.hidden);
                }
            }
            let on = On { device: &self.device, scratch: &self.scratch };
            let block = &mut self.blocks[i];
            let adapters = own.of(&block.spec.kind, rows);
            let weights = &block.weights;
            let kept = weights.enter(on, rows, &mut inputs);
            let mut cx = BlockCx {
                device: &self.device,
                scratch: &self.scratch,
                parts,
                sequences: &self.sequences,
                ropes: Ropes { model: rope.as_ref(), local: local_rope.as_ref() },
                rows: RowInputs { tokens, adapters, layer_input: &layer_input },
                beside: &mut rows.beside,
            };
            let output = weights.block.forward(&mut cx, &mut block.state, &inputs.rows);
            weights.meet(on, Met { output, input: &inputs.rows, kept }, rows);
            block.behind.iter().for_each(|behind| behind.apply(&self.device, rows));
        }
    }
}

/// Sines and cosines for the positions of a ubatch.
pub(super) fn rope_table(
    device: &Device,
    rope: Option<&RopeParams>,
    parts: &[PartRows],
) -> Option<RopeTable> {
    let rope = rope.filter(|_| !parts.is_empty())?;
    let positions: Vec<u32> =
        parts.iter().flat_map(|p| p.pos..p.pos + p.rows.len() as u32).collect();
    Some(RopeTable::new(device.host(), rope, &positions))
}
