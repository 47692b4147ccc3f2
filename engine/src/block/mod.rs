//! Mixers and FFNs, one for each file, in folders by their kind: weights, and a forward pass over the rows of a ubatch.
//!
//! A block gets normed rows and returns rows. How these meet the residual stream is said by what stands beside it
//! (`residual`). Weights never change. The state of a block is a [`BlockState`], which the stage owns.

mod attention;
mod embedding;
mod ffn;
mod laurel;
mod layer_row;
mod linear;
mod lora;
mod ngram;
mod recurrent;
mod switch;

pub use embedding::Embedding;
pub use linear::{Linear, project_all};
pub use lora::{RowAdapters, scale_of};

use crate::device::{Device, Rows, Scratch};
use crate::kernels::{HeadColumns, KernelError, RopeTable};
use crate::spec::{BlockKind, ModelError, Rotation};
use crate::state::{BlockState, PartRows, Sequences, UbatchRows};
use crate::weights::WeightLoader;
use attention::compressed::Compressed;
use attention::gqa::Attention;
use attention::mla::Mla;
use ffn::mlp::Mlp;
use ffn::moe::Moe;
use laurel::Laurel;
use layer_row::LayerRow;
use linear::LinearBlock;
use ngram::Ngram;
use recurrent::channel_mix::ChannelMix;
use recurrent::delta_net::DeltaNet;
use recurrent::kda::Kda;
use recurrent::lightning::Lightning;
use recurrent::mamba::Mamba;
use recurrent::mamba2::Mamba2;
use recurrent::short_conv::ShortConv;
use recurrent::time_mix::TimeMix;
use recurrent::time_mix6::TimeMix6;
use recurrent::token_shift::TokenShift;
use switch::Switch;

/// One mixer or FFN: weights, and a forward pass.
pub trait Block: Send + Sync {
    /// Bytes of all matrices as the kernels hold them.
    fn nbytes(&self) -> usize;

    /// Bytes among these that lie elsewhere than in the memory of the stage's device.
    fn nbytes_beside(&self) -> usize {
        0
    }

    /// Makes room on the device for weights that lie elsewhere and come there for ubatches of many rows.
    ///
    /// # Errors
    /// The device has no memory for that.
    fn make_room(&self, device: &Device) -> Result<(), KernelError> {
        let _ = device;
        Ok(())
    }

    /// Has the device copy weights that lie elsewhere and that it shall have from the beginning ([`Device::choose_copies`]).
    fn make_copies(&self, device: &Device) {
        let _ = device;
    }

    /// Computes rows `[n_rows, n_embd]` from the normed rows `x[n_rows, n_embd]`, and moves the block's `state` on, which is
    /// what its kind asks for ([`BlockKind::state`]).
    ///
    /// # Panics
    /// If the state is another block's.
    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows;

    /// Moves the block's `state` on as [`Self::forward`] does, for rows whose output is not read.
    ///
    /// # Panics
    /// As [`Self::forward`].
    fn remember(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) {
        self.forward(cx, state, x);
    }
}

/// Loads the block of `layer` that `kind` describes; its tensors' names begin with `stem`, rows are `n_embd` wide.
///
/// # Errors
/// As of every tensor that is missing, misshapen or of an unknown type.
pub fn load_block(
    kind: &BlockKind,
    layer: usize,
    stem: &str,
    n_embd: usize,
    loader: &mut WeightLoader<'_>,
) -> Result<Box<dyn Block>, ModelError> {
    Ok(match kind {
        BlockKind::Attention(spec) => Box::new(Attention::load(spec, stem, n_embd, loader)?),
        BlockKind::Mamba2(spec) => Box::new(Mamba2::load(spec, stem, n_embd, loader)?),
        BlockKind::Mla(spec) => Box::new(Mla::load(spec, stem, n_embd, loader)?),
        BlockKind::Compressed(spec) => Box::new(Compressed::load(spec, stem, n_embd, loader)?),
        BlockKind::Mlp(spec) => Box::new(Mlp::load(spec, stem, n_embd, loader)?),
        BlockKind::Moe(spec) => Box::new(Moe::load(spec, stem, n_embd, loader)?),
        BlockKind::Mamba(spec) => Box::new(Mamba::load(spec, stem, n_embd, loader)?),
        BlockKind::Kda(spec) => Box::new(Kda::load(spec, stem, n_embd, loader)?),
        BlockKind::DeltaNet(spec) => Box::new(DeltaNet::load(spec, stem, n_embd, loader)?),
        BlockKind::ShortConv(spec) => Box::new(ShortConv::load(spec, stem, n_embd, loader)?),
        BlockKind::Lightning(spec) => Box::new(Lightning::load(spec, stem, n_embd, loader)?),
        BlockKind::TimeMix(spec) => Box::new(TimeMix::load(spec, stem, layer, n_embd, loader)?),
        BlockKind::ChannelMix(spec) => Box::new(ChannelMix::load(spec, stem, n_embd, loader)?),
        BlockKind::TimeMix6(spec) => Box::new(TimeMix6::load(spec, stem, n_embd, loader)?),
        BlockKind::LayerRow(spec) => Box::new(LayerRow::load(spec, stem, n_embd, loader)?),
        BlockKind::Laurel(spec) => Box::new(Laurel::load(spec, stem, n_embd, loader)?),
        BlockKind::Switch(spec) => Box::new(Switch::new(spec)),
        BlockKind::Ngram(spec) => Box::new(Ngram::load(spec, stem, n_embd, loader)?),
        BlockKind::Linear => Box::new(LinearBlock::load(stem, n_embd, loader)?),
    })
}

/// Inputs of a block's forward pass, besides its own weights and state.
pub struct BlockCx<'a> {
    /// Kernels and threads.
    pub device: &'a Device,
    /// Memory for new rows, which is reused.
    pub scratch: &'a Scratch,
    /// Parts of the ubatch with their rows.
    pub parts: &'a [PartRows],
    /// Lengths and pages of the sequences.
    pub sequences: &'a Sequences,
    /// Sines and cosines of the ubatch's positions.
    pub ropes: Ropes<'a>,
    /// Facts of each row besides the values that the block reads.
    pub rows: RowInputs<'a>,
    /// Rows that travel beside the residual stream, `[n_rows, width]` each: for all later blocks too.
    pub beside: &'a mut Vec<Rows>,
}

/// Sines and cosines of a ubatch's positions, where the model rotates.
#[derive(Clone, Copy, Default)]
pub struct Ropes<'a> {
    /// Angles of [`Rotation::Model`](crate::spec::Rotation::Model) blocks.
    pub model: Option<&'a RopeTable>,
    /// Angles of [`Rotation::Local`](crate::spec::Rotation::Local) blocks.
    pub local: Option<&'a RopeTable>,
}

/// Facts of each row of a ubatch besides the values that a block reads.
#[derive(Clone, Copy)]
pub struct RowInputs<'a> {
    /// The token of each row.
    pub tokens: &'a [u32],
    /// The adapters that the rows use.
    pub adapters: &'a RowAdapters,
    /// The residual stream as it came into the layer, `[n_rows, n_embd]`: empty where no block of the layer reads it.
    pub layer_input: &'a Rows,
}

impl BlockCx<'_> {
    /// The rows of the ubatch, and what computes with them.
    fn ubatch(&self) -> UbatchRows<'_> {
        UbatchRows { device: self.device, parts: self.parts, sequences: self.sequences }
    }

    /// Position of each row, in the order of rows.
    fn positions(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.parts.iter().flat_map(|part| part.pos..part.pos + part.rows.len() as u32)
    }

    /// Projections of the same rows; their products run in one fork-join.
    fn project<const N: usize>(&self, x: &Rows, weights: [&Linear; N]) -> [Rows; N] {
        self.project_each(weights.map(|w| (w, x)))
    }

    /// Projections of the same rows, of which some may not exist.
    fn project_some<const N: usize>(
        &self,
        x: &Rows,
        weights: [Option<&Linear>; N],
    ) -> [Option<Rows>; N] {
        let mut outs = weights.map(|w| Some(self.scratch.take(x.n_rows(), w?.rows())));
        let jobs = weights.into_iter().zip(&mut outs);
        let mut jobs: Vec<_> = jobs.filter_map(|(w, out)| Some(w?.job(x, out.as_mut()?))).collect();
        project_all(self.device, self.scratch, self.rows.adapters, &mut jobs);
        outs
    }

    /// Projections of some rows each, in one fork-join too.
    fn project_each<const N: usize>(&self, pairs: [(&Linear, &Rows); N]) -> [Rows; N] {
        let mut outs = pairs.map(|(w, x)| self.scratch.take(x.n_rows(), w.rows()));
        let jobs = pairs.into_iter().zip(&mut outs);
        let mut jobs: Vec<_> = jobs.map(|((w, x), out)| w.job(x, out)).collect();
        project_all(self.device, self.scratch, self.rows.adapters, &mut jobs);
        outs
    }
}

impl<'a> BlockCx<'a> {
    /// Sines and cosines for a block with this rotation.
    fn rope_of(&self, rotation: Rotation) -> Option<&'a RopeTable> {
        match rotation {
            Rotation::None => None,
            Rotation::Model => self.ropes.model,
            Rotation::Local => self.ropes.local,
        }
    }
}

/// Rotates the last `n_rot` elements of heads of `stride`.
fn rotate_last(
    device: &Device,
    scratch: &Scratch,
    heads: &mut Rows,
    stride: usize,
    n_rot: usize,
    table: &RopeTable,
) {
    let columns = HeadColumns { stride, first: stride - n_rot, width: n_rot };
    let mut pe = scratch.take(heads.len() / stride, n_rot);
    // Rotated row by row: heads need not be apart.
    device.heads_apart(heads, 1, columns, &mut pe);
    device.rope(&mut pe, n_rot, table);
    device.heads_together(&pe, 1, columns, heads);
}

#[cfg(test)]
pub(crate) mod tests;
