//! Mixers and FFNs, one for each file: weights, and a forward pass over the rows of a ubatch.
//!
//! A block gets normed rows and returns rows. The norm before it, the residual sum and the scale after it
//! belong to the stage. Weights never change. What a block remembers is a [`BlockState`], which the stage
//! owns.

mod altup;
mod attention;
mod block_index;
mod branches;
mod channel_mix;
mod compressed;
mod compressor;
mod delta_net;
mod embedding;
mod entry_maker;
mod experts;
mod index;
mod kda;
mod laurel;
mod layer_row;
mod lightning;
mod linear;
mod lora;
mod mamba;
mod mamba2;
mod mla;
mod mlp;
mod moe;
mod ngram;
mod qkv;
mod routing;
mod scratch;
mod short_conv;
mod switch;
mod time_mix;
mod time_mix6;
mod token_experts;
mod token_shift;

pub use altup::{Correct, Predict};
pub use attention::Attention;
pub use channel_mix::ChannelMix;
pub use compressed::Compressed;
pub use delta_net::DeltaNet;
pub use embedding::Embedding;
pub use kda::Kda;
pub use laurel::Laurel;
pub use layer_row::LayerRow;
pub use lightning::Lightning;
pub use linear::{Linear, project_all};
pub use lora::{RowAdapters, scale_of};
pub use mamba::Mamba;
pub use mamba2::Mamba2;
pub use mla::Mla;
pub use mlp::Mlp;
pub use moe::Moe;
pub use ngram::Ngram;
pub use scratch::Scratch;
pub use short_conv::ShortConv;
pub use switch::Switch;
pub use time_mix::TimeMix;
pub use time_mix6::TimeMix6;

use crate::arch::BlockKind;
use crate::error::ModelError;
use crate::kernels::{ActRows, Compute, HeadColumns, PackedMatrix, RopeTable};
use crate::state::{BlockState, PartRows, Sequences};
use crate::weights::WeightLoader;
use linear::Projection;
use token_shift::TokenShift;

/// One loaded block of any kind.
pub enum Block {
    /// See [`Attention`].
    Attention(Box<Attention>),
    /// See [`Mamba2`].
    Mamba2(Box<Mamba2>),
    /// See [`Mla`].
    Mla(Box<Mla>),
    /// See [`Compressed`].
    Compressed(Box<Compressed>),
    /// See [`Mlp`].
    Mlp(Box<Mlp>),
    /// See [`Moe`].
    Moe(Box<Moe>),
    /// See [`Mamba`].
    Mamba(Box<Mamba>),
    /// See [`ShortConv`].
    ShortConv(Box<ShortConv>),
    /// See [`Lightning`].
    Lightning(Box<Lightning>),
    /// See [`Kda`].
    Kda(Box<Kda>),
    /// See [`DeltaNet`].
    DeltaNet(Box<DeltaNet>),
    /// See [`TimeMix`].
    TimeMix(Box<TimeMix>),
    /// See [`ChannelMix`].
    ChannelMix(Box<ChannelMix>),
    /// See [`TimeMix6`].
    TimeMix6(Box<TimeMix6>),
    /// See [`LayerRow`].
    LayerRow(Box<LayerRow>),
    /// See [`Predict`].
    Predict(Box<Predict>),
    /// See [`Correct`].
    Correct(Box<Correct>),
    /// See [`Laurel`].
    Laurel(Box<Laurel>),
    /// See [`Switch`].
    Switch(Switch),
    /// See [`Linear`].
    Linear(Box<Linear>),
    /// See [`Ngram`].
    Ngram(Box<Ngram>),
}

/// What a block may look at besides its own weights and state.
pub struct BlockCx<'a> {
    /// Kernels and threads.
    pub compute: &'a Compute,
    /// Parts of the ubatch with their rows.
    pub parts: &'a [PartRows],
    /// Lengths and pages of the sequences.
    pub sequences: &'a Sequences,
    /// Sines and cosines of the ubatch's positions, where the model rotates.
    pub rope: Option<&'a RopeTable>,
    /// Those of [`Rotation::Local`](crate::arch::Rotation::Local) blocks.
    pub local_rope: Option<&'a RopeTable>,
    /// The token of each row.
    pub tokens: &'a [u32],
    /// The residual stream as it came into the layer, `[n_rows, n_embd]`: empty where no block of the layer reads it.
    pub layer_input: &'a [f32],
    /// Rows that travel beside the residual stream, `[n_rows, width]` each: for all later blocks too.
    pub beside: &'a mut Vec<Vec<f32>>,
    /// The adapters that the rows use.
    pub adapters: &'a RowAdapters,
    /// Buffers to borrow.
    pub scratch: &'a mut Scratch,
}

impl BlockCx<'_> {
    /// Position of each row, in the order of rows.
    fn positions(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.parts.iter().flat_map(|part| part.pos..part.pos + part.rows.len() as u32)
    }

    /// Computes several projections of the rows; their products run in one fork-join.
    fn project(&mut self, projections: &mut [Projection<'_>]) {
        project_all((self.compute, self.scratch), self.adapters, projections);
    }
}

impl Block {
    /// Loads the block of `layer` that `kind` describes; its tensors' names begin with `stem`, rows are `n_embd` wide.
    pub fn load(
        kind: &BlockKind,
        (layer, stem): (usize, &str),
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        Ok(match kind {
            BlockKind::Attention(spec) => {
                Self::Attention(Box::new(Attention::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Mamba2(spec) => {
                Self::Mamba2(Box::new(Mamba2::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Mla(spec) => Self::Mla(Box::new(Mla::load(spec, stem, n_embd, loader)?)),
            BlockKind::Compressed(spec) => {
                Self::Compressed(Box::new(Compressed::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Mlp(spec) => Self::Mlp(Box::new(Mlp::load(spec, stem, n_embd, loader)?)),
            BlockKind::Moe(spec) => Self::Moe(Box::new(Moe::load(spec, stem, n_embd, loader)?)),
            BlockKind::Mamba(spec) => {
                Self::Mamba(Box::new(Mamba::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Kda(spec) => Self::Kda(Box::new(Kda::load(spec, stem, n_embd, loader)?)),
            BlockKind::DeltaNet(spec) => {
                Self::DeltaNet(Box::new(DeltaNet::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::ShortConv(spec) => {
                Self::ShortConv(Box::new(ShortConv::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Lightning(spec) => {
                Self::Lightning(Box::new(Lightning::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::TimeMix(spec) => {
                Self::TimeMix(Box::new(TimeMix::load(spec, stem, layer, n_embd, loader)?))
            }
            BlockKind::ChannelMix(spec) => {
                Self::ChannelMix(Box::new(ChannelMix::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::TimeMix6(spec) => {
                Self::TimeMix6(Box::new(TimeMix6::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::LayerRow(spec) => {
                Self::LayerRow(Box::new(LayerRow::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Predict(spec) => {
                Self::Predict(Box::new(Predict::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Correct(spec) => {
                Self::Correct(Box::new(Correct::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Laurel(spec) => {
                Self::Laurel(Box::new(Laurel::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Ngram(spec) => {
                Self::Ngram(Box::new(Ngram::load(spec, stem, n_embd, loader)?))
            }
            BlockKind::Switch(spec) => Self::Switch(Switch::new(spec)),
            BlockKind::Linear => Self::Linear(Box::new(Linear::load_block(stem, n_embd, loader)?)),
        })
    }

    /// The matrices that multiply the block's input: what its rows are prepared for.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        match self {
            Self::Attention(attention) => attention.inputs(),
            Self::Mamba2(mamba2) => mamba2.inputs(),
            Self::Mla(mla) => mla.inputs(),
            Self::Compressed(compressed) => compressed.inputs(),
            Self::Mlp(mlp) => mlp.inputs(),
            Self::Moe(moe) => moe.inputs(),
            Self::LayerRow(row) => row.inputs(),
            Self::Laurel(laurel) => laurel.inputs(),
            Self::Linear(linear) => vec![linear.weight()],
            Self::Mamba(mamba) => mamba.inputs(),
            Self::ShortConv(conv) => conv.inputs(),
            Self::Lightning(lightning) => lightning.inputs(),
            Self::Kda(kda) => kda.inputs(),
            Self::DeltaNet(net) => net.inputs(),
            // It multiplies with nothing.
            Self::Switch(_) => Vec::new(),
            // Their products read normed rows.
            Self::Predict(_) | Self::Correct(_) => Vec::new(),
            // Its products read rows of its table.
            Self::Ngram(_) => Vec::new(),
            // Their products read mixtures of rows.
            Self::TimeMix(_) | Self::TimeMix6(_) | Self::ChannelMix(_) => Vec::new(),
        }
    }

    /// Bytes of all matrices as the kernels hold them.
    pub fn nbytes(&self) -> u64 {
        let bytes = match self {
            Self::Attention(attention) => attention.nbytes(),
            Self::Mamba2(mamba2) => mamba2.nbytes(),
            Self::Mla(mla) => mla.nbytes(),
            Self::Compressed(compressed) => compressed.nbytes(),
            Self::Mlp(mlp) => mlp.nbytes(),
            Self::Moe(moe) => moe.nbytes(),
            Self::LayerRow(row) => row.nbytes(),
            Self::Predict(predict) => predict.nbytes(),
            Self::Correct(correct) => correct.nbytes(),
            Self::Laurel(laurel) => laurel.nbytes(),
            Self::Switch(_) => 0,
            Self::Linear(linear) => linear.nbytes(),
            Self::Mamba(mamba) => mamba.nbytes(),
            Self::ShortConv(conv) => conv.nbytes(),
            Self::Lightning(lightning) => lightning.nbytes(),
            Self::Kda(kda) => kda.nbytes(),
            Self::DeltaNet(net) => net.nbytes(),
            Self::TimeMix(mix) => mix.nbytes(),
            Self::TimeMix6(mix) => mix.nbytes(),
            Self::ChannelMix(mix) => mix.nbytes(),
            Self::Ngram(ngram) => ngram.nbytes(),
        };
        bytes as u64
    }

    /// Computes `out[n_rows, n_embd]` from the normed rows `x[n_rows, n_embd]`.
    pub fn forward(
        &self,
        cx: &mut BlockCx<'_>,
        state: &mut BlockState,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        match (self, state) {
            (Self::Attention(attention), BlockState::Kv(kv)) => attention.forward(cx, kv, x, out),
            (Self::Mla(mla), BlockState::Kv(kv)) => mla.forward(cx, kv, x, out),
            (Self::Compressed(compressed), state) => compressed.forward(cx, state, x, out),
            (Self::Mamba(mamba), BlockState::Slots(states)) => mamba.forward(cx, states, x, out),
            (Self::Mamba2(mamba2), BlockState::Slots(slots)) => mamba2.forward(cx, slots, x, out),
            (Self::ShortConv(conv), BlockState::Slots(states)) => conv.forward(cx, states, x, out),
            (Self::Lightning(lightning), BlockState::Slots(states)) => {
                lightning.forward(cx, states, x, out)
            }
            (Self::Kda(kda), BlockState::Slots(states)) => kda.forward(cx, states, x, out),
            (Self::DeltaNet(net), BlockState::Slots(states)) => net.forward(cx, states, x, out),
            (Self::Switch(switch), BlockState::Kv(kv)) => switch.forward(cx, kv, out),
            (Self::Attention(_) | Self::Mla(_) | Self::Switch(_), _) => {
                unreachable!("the stage gives every attention its cache")
            }
            (Self::TimeMix(mix), BlockState::Slots(states)) => mix.forward(cx, states, x, out),
            (Self::TimeMix6(mix), BlockState::Slots(states)) => mix.forward(cx, states, x, out),
            (Self::ChannelMix(mix), BlockState::Slots(states)) => mix.forward(cx, states, x, out),
            (Self::Ngram(ngram), BlockState::Slots(states)) => ngram.forward(cx, states, x, out),
            (Self::Mamba(_) | Self::Mamba2(_) | Self::ShortConv(_), _)
            | (Self::Lightning(_) | Self::Kda(_) | Self::DeltaNet(_), _)
            | (Self::TimeMix(_) | Self::TimeMix6(_) | Self::ChannelMix(_) | Self::Ngram(_), _) => {
                unreachable!("the stage gives every recurrent block its slots")
            }
            (Self::Mlp(mlp), _) => mlp.forward(cx, x, out),
            (Self::LayerRow(row), _) => row.forward(cx, x, out),
            (Self::Predict(predict), _) => predict.forward(cx, x, out),
            (Self::Correct(correct), _) => correct.forward(cx, x, out),
            (Self::Laurel(laurel), _) => laurel.forward(cx, x, out),
            (Self::Linear(linear), _) => linear.forward_block(cx, x, out),
            (Self::Moe(moe), _) => moe.forward(cx, x, out),
        }
    }
}

/// The projection of rows `x[n, w.cols()]`, in a borrowed buffer.
fn project(cx: &mut BlockCx<'_>, w: &Linear, x: &[f32]) -> Vec<f32> {
    let n = x.len() / w.cols();
    let mut out = cx.scratch.take(n * w.rows());
    w.forward(cx, x, &mut out);
    out
}

/// Rotates the last `n_rot` elements of heads of `stride`.
fn rotate_last(
    cx: &mut BlockCx<'_>,
    heads: &mut [f32],
    [stride, n_rot]: [usize; 2],
    table: &RopeTable,
) {
    let columns = HeadColumns { stride, first: stride - n_rot, width: n_rot };
    let mut pe = cx.scratch.take(heads.len() / stride * n_rot);
    // Rotated row by row: heads need not be apart.
    cx.compute.heads_apart(heads, 1, columns, &mut pe);
    cx.compute.rope(&mut pe, n_rot, table);
    cx.compute.heads_together(&pe, 1, columns, heads);
    cx.scratch.give_all([pe]);
}

/// Columns `first_col ..` of rows of `stride` values as rows of their own, `width` values each.
fn copy_columns(x: &[f32], stride: usize, first_col: usize, width: usize, out: &mut [f32]) {
    for (from, to) in x.chunks_exact(stride).zip(out.chunks_exact_mut(width)) {
        to.copy_from_slice(&from[first_col..first_col + width]);
    }
}

#[cfg(test)]
mod tests;
