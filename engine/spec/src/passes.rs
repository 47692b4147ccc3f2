//! Models that go through their layers more than once. Each pass through a layer of the file is a layer of its own, with
//! keys and values of its own. Layers that are one layer of the file compute with the same weights.

/// Order in which the layers of the file run, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passes {
    /// Each runs once, in order.
    #[default]
    Once,
    /// All run in order, several times.
    Loop(LoopSpec),
    /// Two stacks run by turns.
    Stacks(StackSpec),
}

/// All layers of the file in order, and again from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopSpec {
    /// Layers of the file, at least 1.
    pub in_file: usize,
    /// Whether the norm before the head also norms the stream between two passes.
    pub normed: bool,
}

/// Two stacks of layers, low and high, which come one after the other in the file (hierarchical reasoning, arXiv
/// 2506.21734). Each has a vector of the token, `l` and `h`. A cycle is some passes through the low stack and then one
/// through the high one. A pass reads `h + l`, and what it gives, normed without weights, is the new vector of its stack.
/// `h` begins as the token's embedded row and `l` as the same row for all tokens. The model's end reads `h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackSpec {
    /// Layers of each stack, at least 1.
    pub per_stack: usize,
    /// Passes through the low stack in a cycle, at least 1.
    pub low: usize,
    /// Cycles, at least 1.
    pub cycles: usize,
}

/// Treatment of the stream behind the last layer of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassEnd {
    /// The stream is normed.
    Normed,
    /// The stream is normed and added to the row beside it, which stays as it is. The sum goes on.
    AddsBeside,
    /// As [`Self::AddsBeside`], and the normed stream becomes the new row beside it.
    TakesTurns,
}

impl Passes {
    /// Whether layers of the file run more than once.
    #[inline]
    pub fn repeat(&self) -> bool {
        !matches!(self, Self::Once)
    }

    /// Number in the file of a layer's weights.
    #[inline]
    pub fn in_file(&self, layer: usize) -> usize {
        match self {
            Self::Once => layer,
            Self::Loop(spec) => layer % spec.in_file,
            Self::Stacks(spec) => {
                let high = if spec.is_high(layer / spec.per_stack) { spec.per_stack } else { 0 };
                high + layer % spec.per_stack
            }
        }
    }

    /// Treatment of the stream behind layer `layer` of a model with `n_layer`. `None`: no pass ends there, or the
    /// stream goes on unchanged.
    #[inline]
    pub fn end(&self, layer: usize, n_layer: usize) -> Option<PassEnd> {
        let is_last = layer + 1 == n_layer;
        match self {
            Self::Once => None,
            Self::Loop(spec) => {
                let ends = (layer + 1).is_multiple_of(spec.in_file) && !is_last;
                (ends && spec.normed).then_some(PassEnd::Normed)
            }
            Self::Stacks(spec) if (layer + 1).is_multiple_of(spec.per_stack) => {
                let pass = layer / spec.per_stack;
                Some(match (spec.is_high(pass), spec.is_high(pass + 1)) {
                    _ if is_last => PassEnd::Normed,
                    (false, false) => PassEnd::AddsBeside,
                    _ => PassEnd::TakesTurns,
                })
            }
            Self::Stacks(_) => None,
        }
    }

    /// Whether a token has a row beside the stream before layer `layer`, `Some(true)` where a layer behind it reads
    /// that row; `None` in models without such rows.
    pub(crate) fn beside(&self, layer: usize, n_layer: usize) -> Option<bool> {
        match self {
            Self::Stacks(spec) => Some(n_layer - layer > spec.per_stack),
            Self::Once | Self::Loop(_) => None,
        }
    }
}

impl StackSpec {
    /// Whether a pass, counted from the first, is through the high stack.
    #[inline]
    fn is_high(&self, pass: usize) -> bool {
        (pass + 1).is_multiple_of(self.low + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_begins_again_and_is_normed_between_passes() {
        let passes = Passes::Loop(LoopSpec { in_file: 3, normed: true });
        assert_eq!((0..6).map(|l| passes.in_file(l)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        let ends: Vec<_> = (0..6).map(|l| passes.end(l, 6)).collect();
        assert_eq!(ends, [None, None, Some(PassEnd::Normed), None, None, None]);
        let bare = Passes::Loop(LoopSpec { in_file: 3, normed: false });
        assert!((0..6).all(|l| bare.end(l, 6).is_none() && bare.beside(l, 6).is_none()));
    }

    #[test]
    fn stacks_take_turns() {
        use PassEnd::{AddsBeside, Normed, TakesTurns};
        let passes = Passes::Stacks(StackSpec { per_stack: 1, low: 2, cycles: 2 });
        assert_eq!((0..6).map(|l| passes.in_file(l)).collect::<Vec<_>>(), [0, 0, 1, 0, 0, 1]);
        let ends: Vec<_> = (0..6).filter_map(|l| passes.end(l, 6)).collect();
        assert_eq!(ends, [AddsBeside, TakesTurns, TakesTurns, AddsBeside, TakesTurns, Normed]);
        let read: Vec<_> = (0..6).filter_map(|l| passes.beside(l, 6)).collect();
        assert_eq!(read, [true, true, true, true, true, false]);
        let two = Passes::Stacks(StackSpec { per_stack: 2, low: 1, cycles: 1 });
        assert_eq!((0..4).map(|l| two.in_file(l)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(
            [0, 1, 2, 3].map(|l| two.end(l, 4)),
            [None, Some(TakesTurns), None, Some(Normed)]
        );
    }
}
