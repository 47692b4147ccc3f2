//! Residual streams: the rows of a token, and the rules by which blocks read and change them.
//!
//! In most models a token has one row, the stream. A block reads it, and what the block gives is added to it. Here is what
//! models have instead: [`Residual`] says how a block meets the stream, [`Streams`] what there is to meet, and [`HeadReads`]
//! what the model's end reads.

use std::ops::Range;

/// Rule by which a block meets the residual stream: the rows that it reads, and the use of its output. `x` is the
/// stream and `y` the block's output, behind its norm if it has one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Residual {
    /// The stream becomes `x + y`.
    #[default]
    Plain,
    /// `stream * (x + output * y)`.
    Scaled {
        /// Multiplies the block's output.
        output: f32,
        /// Factor on the sum.
        stream: f32,
    },
    /// `f * (x + y)`, where the tensor of this name has `f` as its one value.
    Factor(&'static str),
    /// `scale * u + y`, where `u` are the normed rows that the block read: the stream goes on from these.
    FromNorm {
        /// Factor on the normed rows.
        scale: f32,
    },
    /// `x + y + f * e`, where the tensor of this name has `f` as its one value, and `e` are the rows that came into the first
    /// layer ([`Beside::Embedding`](crate::Beside::Embedding)).
    WithEmbedding(&'static str),
    /// The sum is normed.
    Normed(NormedSpec),
    /// The block reads a mixture of the stream and of what it was at earlier layers ([`Streams::Kept`]).
    OverDepth {
        /// Scores of the mixture.
        mixture: DepthSpec,
        /// Whether the stream is kept as it is, and goes on as `y`. Else it becomes `x + y`.
        keeps: bool,
    },
    /// The block reads a sum of several streams and is added to all of them.
    Hyper(HyperSpec),
    /// The same, with a weight for each value of each stream.
    Gated(GatedSpec),
    /// One step of several streams that are updated by turns.
    AltUp(AltUpSpec, AltUpStep),
}

/// Rows of a token's residual stream. All of them are as wide as the model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Streams {
    /// One row, as in most models.
    #[default]
    One,
    /// One row, and what it was before some layers: rows that were kept on the way.
    Kept {
        /// Layers from one that keeps to the next, the first of which is layer 0; at least 1.
        every: usize,
    },
    /// So many rows, which all begin as the token's embedding.
    Alike(usize),
    /// Rows that matrices make of the token's embedding, which is the first of them.
    AltUp(AltUpSpec),
}

/// Input of the norm before the head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadReads {
    /// The stream, or the first one.
    Stream,
    /// The mean of so many streams.
    Mean(usize),
    /// A mixture of the stream and of what it was.
    OverDepth(DepthSpec),
    /// A sum of all streams, as they weigh themselves.
    Hyper(HyperSpec),
    /// The mean of all streams, each value through a gate.
    Gated(GatedSpec),
    /// The mean of the first stream and of what matrices make of the others.
    AltUp(AltUpSpec),
}

/// Tensor of the first norm's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormedSpec {
    /// Tensor of the first norm's weight.
    pub norm: &'static str,
    /// Tensor of the other one's.
    pub again: Option<&'static str>,
    /// Epsilon of the norms.
    pub eps: f32,
}

/// Residual attention over depth. Rows of the stream are kept on their way, in a bank beside the stream.
/// Blocks and head read a mixture of all that were kept and of the stream itself: `Σ_i softmax(z)_i v_i` with
/// `z_i = score · norm(v_i)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthSpec {
    /// Tensor of the score vector.
    pub score: &'static str,
    /// Epsilon of the norm under the scores.
    pub eps: f32,
}

/// Hyper-connections (arXiv 2409.19606; with streams that a doubly stochastic matrix mixes: arXiv 2512.24880). A token has
/// `n` streams, all of which begin as its embedding. With `m = fn (x / rms(x))`, where `x` is all streams `x_i` as one row,
///
/// - a block reads `Σ_i pre_i x_i` with `pre_i = sigmoid(scale_0 m_i + base_i) + eps`;
/// - of what it gives, `y`, stream `i` becomes `post_i y + Σ_j mix[j][i] x_j` with
///   `post_i = magnitude * sigmoid(scale_1 m_(n+i) + base_(n+i)) + post_eps`;
/// - the matrix `mix` is made of `scale_2 m_(2n..) + base_(2n..)`, see [`Self::rounds`].
///
/// Each block has tensors `fn`, `scale` and `base` of its own. The head reads streams as blocks do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperSpec {
    /// Streams, the first included.
    pub n: usize,
    /// Epsilon under the root of `rms`.
    pub norm_eps: f32,
    /// Added to what weighs the streams that are read, and to the sums by which [`Self::rounds`] divides.
    pub eps: f32,
    /// Greatest weight of a block's output.
    pub magnitude: f32,
    /// Added to that weight.
    pub post_eps: f32,
    /// Rounds that norm the matrix so that its rows and columns sum to one (Sinkhorn and Knopp). `None`: streams do not
    /// mix, and each goes on as it is.
    pub rounds: Option<usize>,
    /// Stem of the tensors.
    pub stem: &'static str,
}

/// Hyper-connections whose weights are gates of single values (Qwen3.8-Flash-Next). A token has `n` streams, all of which
/// begin as its embedding. With `u_i`, stream `i` normed by itself with weights of its own, and `u`, all of these as one
/// row,
///
/// - a block or the head reads `1/n Σ_i sigmoid(g_i) u_i`, where `g = up silu(down u / n)` is as wide as all streams;
/// - of what a block gives, `y`, stream `i` becomes `x_i + 2 sigmoid(inject_i u / n) y`.
///
/// Each block and the head have tensors `norm`, `down` and `up` of their own, each block `inject` too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedSpec {
    /// Streams, the first included.
    pub n: usize,
    /// Width between `down` and `up`.
    pub rank: usize,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Stem of the tensors.
    pub stem: &'static str,
}

/// Several streams, of which the first is computed with (AltUp, arXiv 2301.13310, section 3). Before a layer's blocks all
/// streams are predicted from what they were; behind them all are corrected by how far the first is from its prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AltUpSpec {
    /// Streams, the first included.
    pub n: usize,
    /// Number of the tensor beside the first stream that holds the second.
    pub second: usize,
    /// Epsilon of the norm before the router.
    pub eps: f32,
}

/// The block's step in updating the streams by turns. Blocks without a step read and change the first stream alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltUpStep {
    /// All streams become their predictions before the block reads the first one, to which its output is added.
    Predict,
    /// The output is added to the first stream. Then all streams are corrected.
    Correct,
    /// The block reads the first stream, times `altup_correct_scale`. Its output is added to the others.
    Others,
}

impl HyperSpec {
    /// Values of a block's `m`.
    #[inline]
    pub fn n_weights(&self) -> usize {
        let n_mix = if self.rounds.is_some() { self.n * self.n } else { 0 };
        2 * self.n + n_mix
    }
}

impl AltUpSpec {
    /// Numbers of the tensors beside the first stream that hold the others.
    #[inline]
    pub fn others(&self) -> Range<usize> {
        self.second..self.second + self.n - 1
    }

    /// Number of the tensor with the prediction of the first stream, within a layer.
    #[inline]
    pub fn prediction(&self) -> usize {
        self.others().end
    }
}

impl Residual {
    /// Whether streams are predicted before the block.
    #[inline]
    pub fn predicts(&self) -> bool {
        matches!(self, Self::AltUp(_, AltUpStep::Predict))
    }
}

impl Streams {
    /// Rows that a token has beside the first one before `layer`: what earlier layers kept, or other streams.
    #[inline]
    pub fn n_beside(&self, layer: usize) -> usize {
        match self {
            Self::One => 0,
            Self::Kept { every } => layer.div_ceil(*every),
            Self::Alike(n) => n - 1,
            Self::AltUp(altup) => altup.n - 1,
        }
    }

    /// Number of the tensor beside the first row that holds the first of these.
    #[inline]
    pub fn place(&self) -> usize {
        match self {
            Self::AltUp(altup) => altup.second,
            Self::One | Self::Kept { .. } | Self::Alike(_) => 0,
        }
    }

    /// Streams that a token has all the way and that are alike: 1 where others differ from the first.
    #[inline]
    pub fn n_alike(&self) -> usize {
        match self {
            Self::One | Self::Kept { .. } | Self::AltUp(_) => 1,
            Self::Alike(n) => *n,
        }
    }

    /// Whether a layer keeps the stream as it comes: its first block's output goes on as the stream then.
    #[inline]
    pub fn keeps(&self, layer: usize) -> bool {
        matches!(self, Self::Kept { every } if layer.is_multiple_of(*every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_keeps_counts_for_those_behind_it() {
        let streams = Streams::Kept { every: 12 };
        let kept = [0, 1, 12, 13, 24, 25, 92, 93].map(|layer| streams.n_beside(layer));
        assert_eq!(kept, [0, 1, 1, 2, 2, 3, 8, 8]);
        let keeping = (0..93).filter(|&layer| streams.keeps(layer));
        assert_eq!(keeping.collect::<Vec<_>>(), [0, 12, 24, 36, 48, 60, 72, 84]);
        assert_eq!((Streams::One.n_beside(50), Streams::One.keeps(0)), (0, false));
    }
}
