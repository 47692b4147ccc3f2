//! What blocks read of the residual stream, and what becomes of their output.
//!
//! In most models a block reads the stream and is added to it. Kimi K3 has attention over depth instead
//! ([`DepthSpec`]), others have several streams ([`HyperSpec`], [`GatedSpec`]).

/// How a model's blocks follow one another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Residual {
    /// Each reads the residual stream and is added to it.
    #[default]
    Sum,
    /// Each reads a mixture of the stream and of what it was at earlier layers.
    OverDepth(DepthSpec),
    /// Each reads a sum of several streams and is added to all of them.
    Hyper(HyperSpec),
    /// The same, with a weight for each value of each stream.
    Gated(GatedSpec),
}

/// Residual attention over depth. Rows of the stream are kept on their way, in a bank beside the stream.
/// Blocks and head read a mixture of all that were kept and of the stream itself: `Σ_i softmax(z)_i v_i` with
/// `z_i = score · norm(v_i)`. A layer that keeps adds what it finds to the bank, and its first block's output
/// takes the stream's place instead of being added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthSpec {
    /// Layers from one that keeps to the next, the first of which is layer 0; at least 1.
    pub every: usize,
    /// Tensors of the score vectors of a layer's blocks, in their order.
    pub scores: [&'static str; 2],
    /// Tensor of the head's score vector.
    pub head_score: &'static str,
}

/// Hyper-connections (arXiv 2409.19606; with streams that a doubly stochastic matrix mixes: arXiv 2512.24880). A token has
/// `n` streams, all of which begin as its embedding. With `m = fn (x / rms(x))`, where `x` is all streams `x_i` as one row,
///
/// - a block reads `Σ_i pre_i x_i` with `pre_i = sigmoid(scale_0 m_i + base_i) + eps`;
/// - of what it gives, `y`, stream `i` becomes `post_i y + Σ_j mix[j][i] x_j` with
///   `post_i = magnitude * sigmoid(scale_1 m_(n+i) + base_(n+i)) + post_eps`;
/// - the matrix `mix` is made of `scale_2 m_(2n..) + base_(2n..)`, see [`Self::rounds`].
///
/// Each block has tensors `fn`, `scale` and `base` of its own.
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
    /// How often the matrix is normed so that its rows and columns sum to one (Sinkhorn and Knopp); `None`: streams do not
    /// mix, each goes on as it is.
    pub rounds: Option<usize>,
    /// Stems of the tensors of a layer's blocks, in their order.
    pub stems: [&'static str; 2],
    /// Stem of the head's tensors, which weigh streams as blocks do; `None`: it reads their mean.
    pub head_stem: Option<&'static str>,
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
    /// Stems of the tensors of a layer's blocks, in their order; those that read and write streams themselves do not count.
    pub stems: [&'static str; 2],
    /// Stem of the head's tensors.
    pub head_stem: &'static str,
}

impl HyperSpec {
    /// Values of a block's `m`.
    #[inline]
    pub fn n_weights(&self) -> usize {
        let n_mix = if self.rounds.is_some() { self.n * self.n } else { 0 };
        2 * self.n + n_mix
    }
}

impl Residual {
    /// Rows as wide as the stream that a token has beside it before `layer`: what earlier layers kept, or other streams.
    #[inline]
    pub fn n_beside(&self, layer: usize) -> usize {
        match self {
            Self::Sum => 0,
            Self::OverDepth(depth) => layer.div_ceil(depth.every),
            Self::Hyper(_) | Self::Gated(_) => self.n_streams() - 1,
        }
    }

    /// Streams that a token has all the way.
    #[inline]
    pub fn n_streams(&self) -> usize {
        match self {
            Self::Sum | Self::OverDepth(_) => 1,
            Self::Hyper(hyper) => hyper.n,
            Self::Gated(gated) => gated.n,
        }
    }

    /// Whether a layer keeps its input and starts the stream anew.
    #[inline]
    pub fn restarts(&self, layer: usize) -> bool {
        matches!(self, Self::OverDepth(depth) if layer.is_multiple_of(depth.every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_keeps_counts_for_those_behind_it() {
        let depth = DepthSpec { every: 12, scores: ["a", "b"], head_score: "c" };
        let residual = Residual::OverDepth(depth);
        let kept = [0, 1, 12, 13, 24, 25, 92, 93].map(|layer| residual.n_beside(layer));
        assert_eq!(kept, [0, 1, 1, 2, 2, 3, 8, 8]);
        let restarting = (0..93).filter(|&layer| residual.restarts(layer));
        assert_eq!(restarting.collect::<Vec<_>>(), [0, 12, 24, 36, 48, 60, 72, 84]);
        assert_eq!((Residual::Sum.n_beside(50), Residual::Sum.restarts(0)), (0, false));
    }
}
