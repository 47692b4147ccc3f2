//! What blocks read of the residual stream, and what becomes of their output.
//!
//! In most models a block reads the stream and is added to it. Kimi K3 has attention over depth instead
//! ([`DepthSpec`]).

/// How a model's blocks follow one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Each reads the residual stream and is added to it.
    #[default]
    Sum,
    /// Each reads a mixture of the stream and of what it was at earlier layers.
    OverDepth(DepthSpec),
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

impl Residual {
    /// Rows of a token that the layers before `layer` keep.
    pub fn n_kept(&self, layer: usize) -> usize {
        match self {
            Self::Sum => 0,
            Self::OverDepth(depth) => layer.div_ceil(depth.every),
        }
    }

    /// Whether a layer keeps its input and starts the stream anew.
    pub fn restarts(&self, layer: usize) -> bool {
        matches!(self, Self::OverDepth(depth) if layer.is_multiple_of(depth.every))
    }

    /// Tensor within the layer of the score vector of its block `index`.
    pub fn score(&self, index: usize) -> Option<&'static str> {
        match self {
            Self::Sum => None,
            Self::OverDepth(depth) => Some(depth.scores[index]),
        }
    }

    /// Tensor of the head's score vector.
    pub fn head_score(&self) -> Option<&'static str> {
        match self {
            Self::Sum => None,
            Self::OverDepth(depth) => Some(depth.head_score),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_keeps_counts_for_those_behind_it() {
        let depth = DepthSpec { every: 12, scores: ["a", "b"], head_score: "c" };
        let residual = Residual::OverDepth(depth);
        let kept = [0, 1, 12, 13, 24, 25, 92, 93].map(|layer| residual.n_kept(layer));
        assert_eq!(kept, [0, 1, 1, 2, 2, 3, 8, 8]);
        let restarting = (0..93).filter(|&layer| residual.restarts(layer));
        assert_eq!(restarting.collect::<Vec<_>>(), [0, 12, 24, 36, 48, 60, 72, 84]);
        assert_eq!((Residual::Sum.n_kept(50), Residual::Sum.restarts(0)), (0, false));
    }
}
