//! The input of the first stage, made from token ids: hidden rows and the rows beside them. A model may add rows of
//! positions to the hidden rows and norm them.

use crate::batch::UBatch;
use crate::block::{Embedding, RowAdapters, scale_of};
use crate::device::{Device, Rows, Scratch};
use crate::kernels::{PackedMatrix, Vector};
use crate::residual::{Begin, Norm};
use crate::spec::SwitchSpec;

/// Tables and norms that make the first layer's rows.
pub(super) struct Input {
    pub(super) tokens: Embedding,
    /// Tokens that switch adapters on, and are embedded as others.
    pub(super) switch: Option<SwitchSpec>,
    /// `[n_embd]`, added to every token's: the row of the only token type that comes.
    pub(super) token_type: Option<Vector>,
    /// `[n_positions, n_embd]`, where positions have rows. Every ubatch reads of them, so they are in memory.
    pub(super) positions: Option<Vector>,
    pub(super) norm: Option<Norm>,
    /// Makers of the rows beside the embedded ones, in the order of these rows.
    pub(super) beside: Vec<Box<dyn Begin>>,
    /// Changes of adapters to the rows of tokens.
    pub(super) adapters: Vec<EmbeddingLora>,
}

/// An adapter's change of the rows of tokens.
pub(super) struct EmbeddingLora {
    /// Number of the adapter.
    pub(super) adapter: u32,
    /// `[n_vocab, rank]`. Every ubatch reads of them, so they are in memory.
    pub(super) a: Vec<f32>,
    /// `[n_embd, rank]`.
    pub(super) b: PackedMatrix,
    /// Scale in the adapter's file, as in [`scale_of`].
    pub(super) alpha: f32,
}

impl Input {
    /// The rows of a ubatch, `[n_rows, n_embd]`; tokens and positions are known to have rows. Embeddings of tokens
    /// are multiplied by `scale`. They leave with the boundary: on a CPU they are not the scratch's, whose memory
    /// would have to be copied.
    pub(super) fn rows(
        &self,
        device: &Device,
        scratch: &Scratch,
        ub: &UBatch,
        adapters: &RowAdapters,
        scale: f32,
    ) -> Rows {
        let mut tokens = ub.tokens();
        if let Some(switch) = &self.switch {
            tokens.iter_mut().for_each(|token| *token = switch.embedded(*token));
        }
        let rows = Rows::new(self.tokens.rows(device, &tokens, scale), self.tokens.n_embd());
        let mut rows = scratch.adopt(rows);
        self.adapt(device, scratch, &tokens, adapters, scale, &mut rows);
        if let Some(row) = &self.token_type {
            device.add_bias(&mut rows, row);
        }
        if let Some(table) = &self.positions {
            let n = self.tokens.n_embd();
            let positions = ub.parts.iter().flat_map(|p| (p.pos as usize..).take(p.tokens.len()));
            let of_positions: Vec<f32> =
                positions.flat_map(|pos| &table[pos * n..][..n]).copied().collect();
            device.add(&mut rows, &of_positions);
        }
        if let Some(norm) = &self.norm {
            norm.apply_inplace(device, &mut rows);
        }
        rows
    }

    /// Adds what adapters add to the rows of tokens, before they are multiplied by `scale`.
    fn adapt(
        &self,
        device: &Device,
        scratch: &Scratch,
        tokens: &[u32],
        adapters: &RowAdapters,
        scale: f32,
        rows: &mut Rows,
    ) {
        if self.adapters.is_empty() {
            return;
        }
        let mut rows = rows.to_write();
        for (run, uses) in adapters.within(&(0..tokens.len())) {
            for used in uses {
                let is_it = |lora: &&EmbeddingLora| lora.adapter == used.adapter;
                let Some(lora) = self.adapters.iter().find(is_it) else { continue };
                let rank = lora.b.cols();
                let row = |token: &u32| &lora.a[*token as usize * rank..][..rank];
                let low: Vec<f32> = tokens[run.clone()].iter().flat_map(row).copied().collect();
                let mut change = scratch.take(run.len(), lora.b.rows());
                device.multiply(&lora.b, &low, &mut change);
                let factor = scale_of(lora.alpha, rank, used.scale) * scale;
                device.add_scaled(&mut rows.part(run.clone()), &change, factor);
            }
        }
    }
}
