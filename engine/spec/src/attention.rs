//! Softmax attention as data: the sizes of its heads, and everything that some models change of it.

use brigade_shapes::{BlockSizes, Window};

/// Grouped-query attention: sizes of its heads, and where it differs from the plain form.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Width of a query or key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// Rotary embedding of q and k.
    pub rotation: Rotation,
    /// Norms of q and k; `None` without them.
    pub qk_norm: Option<QkNorm>,
    /// Source of keys and values.
    pub kv: KvSpec,
    /// Positions that a row attends to.
    pub mask: MaskSpec,
    /// Changes to the scores between q·k and the softmax.
    pub scores: ScoreSpec,
    /// Changes to the heads' outputs before the output projection.
    pub head_output: HeadOutputSpec,
    /// Whether the bias of the output projection is added, where the file has one.
    pub output_bias: bool,
}

/// Source of keys and values, and changes to their projections.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvSpec {
    /// The block that computes them.
    pub from: KvFrom,
    /// Bound on q, k and v: each value is clamped to `-bound..=bound` after its bias.
    pub clamp: Option<f32>,
    /// Whether the values are the rows of the keys' projection, before the keys' norm and rotation.
    pub values_of_keys: bool,
    /// Epsilon of an RMS norm without weights of each value; `None` without it.
    pub value_norm: Option<f32>,
}

/// Positions that a row attends to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MaskSpec {
    /// Window of earlier positions that a row sees; `None`: all of them.
    pub window: Option<Window>,
    /// Whether it sees the rows after it too, as in encoders.
    pub both_ways: bool,
    /// Index that chooses among the positions that a row sees; `None`: the row attends to all of them.
    pub index: Option<BlockIndexSpec>,
}

/// Changes to the scores between q·k and the softmax.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScoreSpec {
    /// Bound of the scores: `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Whether they fall with the distance, by a slope of each head's own; `None`: they do not.
    pub alibi: Option<Alibi>,
    /// Biases that are added to the scores by distance; `None`: nothing.
    pub buckets: Option<Buckets>,
    /// Whether each head has a score without a value (`attn_sinks`) that takes part in the softmax.
    pub sinks: bool,
    /// A factor on q that grows with the position.
    pub temperature: Option<Temperature>,
}

/// Changes to the heads' outputs before the output projection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadOutputSpec {
    /// Factor on the outputs; `None`: nothing.
    pub gate: Option<HeadGate>,
    /// Epsilon of an RMS norm (`attn_sub_norm`) of all of them together; `None` without it.
    pub sub_norm: Option<f32>,
}

impl AttentionSpec {
    /// Width of the index's key that is remembered of a position; 0: the block has no index.
    #[inline]
    pub fn index_dim(&self) -> usize {
        self.mask.index.map_or(0, |index| index.head_dim)
    }
}

impl HeadOutputSpec {
    /// Outputs behind a gate, the sigmoid of what `source` gives.
    pub fn gated(source: GateSource) -> Self {
        Self { gate: Some(HeadGate::sigmoid(source)), sub_norm: None }
    }
}

/// An index of blocks of positions. It has some queries and one key. Both are normed, each head by itself, and rotated as
/// the block's own are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockIndexSpec {
    /// Width of its queries and keys. As many of their first elements are rotated as of the block's own.
    pub head_dim: usize,
    /// Positions of a block, and blocks that are chosen.
    pub sizes: BlockSizes,
    /// Epsilon of the norms of its queries and keys.
    pub eps: f32,
    /// Rule by which it scores blocks.
    pub scoring: BlockScoring,
}

impl BlockIndexSpec {
    /// Positions that a row sees at most if it attends to all.
    #[inline]
    pub fn n_near(&self) -> usize {
        match self.scoring {
            BlockScoring::BestPosition => self.sizes.width(),
            BlockScoring::Mean { .. } => self.sizes.near_of_means(),
        }
    }
}

/// Rule by which an index scores a block of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScoring {
    /// The score is the greatest product with the key of a position. Each head of keys and values has a query of its
    /// own (MiniMax Sparse Attention).
    BestPosition,
    /// The score is the sum over all queries of the positive products with the mean of the positions' keys, the same
    /// for all heads (Qwen Sparse Attention). The mean is normed and rotated as the block's first position. Only whole
    /// blocks are scored. A row also attends to the positions behind the last of them.
    Mean {
        /// Number of queries.
        n_head: usize,
    },
}

/// The block whose keys and values a block attends to. Lent keys and values travel beside the residual stream, a pair
/// of tensors each, as [`Beside`](super::Beside) says. Every block that borrows them keeps them in a cache of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFrom {
    /// The block itself.
    #[default]
    Own,
    /// The block itself, which lends them to later blocks as the pair of this number.
    Lent(usize),
    /// An earlier block, which lends them as the pair of this number.
    Borrowed(usize),
}

/// Distances in buckets, each with a value for every head that its scores gain (T5, arXiv 1910.10683, section 2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Holds the values, `[n, n_head]`.
    pub tensor: String,
    /// Half of them are for positions before the row and its own, half for those after it.
    pub n: usize,
}

impl Buckets {
    /// Distances from here on share the last bucket.
    const FAR: usize = 128;

    /// The farthest distance with a bucket of its own.
    #[inline]
    pub fn reach(&self) -> usize {
        Self::FAR.max(self.n / 4)
    }

    /// The bucket of a position `ahead` of the row's own: of each half, one half is for a distance each, and the other
    /// half by the logarithm.
    #[inline]
    pub fn of(&self, ahead: isize) -> usize {
        let half = self.n / 2;
        let (exact, distance) = (half / 2, ahead.unsigned_abs());
        let first = if ahead > 0 { half } else { 0 };
        if distance < exact {
            return first + distance;
        }
        let share = |n: usize| libm::log(n as f64 / exact as f64);
        let steps = share(distance) * (half - exact) as f64 / share(Self::FAR);
        // In f32: a distance that is a step's end must not fall short of it by a rounding.
        first + ((exact as f64 + steps) as f32 as usize).min(half - 1)
    }
}

/// A factor on the heads' outputs, made of the block's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadGate {
    /// Projection from which the factor is made.
    pub source: GateSource,
    /// Function from the projection's values to the factor.
    pub activation: GateActivation,
}

impl HeadGate {
    /// The sigmoid of the projection `source`.
    pub fn sigmoid(source: GateSource) -> Self {
        Self { source, activation: GateActivation::Sigmoid }
    }
}

/// The projection that a [`HeadGate`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateSource {
    /// Rows behind each head's query in the query projection, one for each of the head's values.
    BehindQuery,
    /// `attn_gate`, with a row for each value of each head.
    EachValue,
    /// `attn_gate`, with a row for each head.
    EachHead,
}

/// Function from a projection's values to a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateActivation {
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `ln(1 + exp(x))`.
    Softplus,
}

/// Rotary embedding of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// None: q and k carry no position.
    None,
    /// Rotation by the model's [`RopeSpec`](super::RopeSpec).
    Model,
    /// Rotation of layers with windows, where a model has two.
    Local,
}

/// Norms of q and k, mostly RMS norms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Epsilon of the norms.
    pub eps: f32,
    /// Values that are normed together, and the weights of the norm.
    pub over: NormOver,
    /// Whether they come after the rotation.
    pub after_rotation: bool,
}

impl QkNorm {
    /// Norms of heads that share their weights, before the rotation.
    pub fn heads(eps: f32) -> Self {
        Self { eps, over: NormOver::Head, after_rotation: false }
    }
}

/// Values of q or k that are normed together, and the weights of the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOver {
    /// Each head, all with the same weights.
    Head,
    /// Each head, without weights.
    HeadUnweighted,
    /// Each head with weights of its own.
    HeadOwn,
    /// Each head without weights; a query is then multiplied by its head's factor.
    HeadFactor,
    /// Each head with weights of its own, the mean taken off first.
    HeadLayer,
    /// All heads together, with weights.
    AllHeads,
    /// All heads together, the mean taken off first, with a bias.
    AllHeadsLayer,
}

/// Scores that fall with the distance (ALiBi, arXiv 2108.12409). They stand for positions: nothing rotates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alibi {
    /// The slopes of a power of two of heads end at 2 to minus this.
    pub max_bias: f32,
}

impl Alibi {
    /// The value that most models have.
    pub const USUAL: Self = Self { max_bias: 8.0 };

    /// Slope of each head, `[n_head]`: its scores lose so much for every position of distance. The slopes of the first
    /// heads, a power of two of them, are a geometric series. The other heads get every other value of the series with
    /// twice as many.
    pub fn slopes(self, n_head: usize) -> Vec<f32> {
        let n = 1 << n_head.max(1).ilog2();
        let exponent = |head: usize| {
            if head < n {
                (head + 1) as f64 / n as f64
            } else {
                (2 * (head - n) + 1) as f64 / (2 * n) as f64
            }
        };
        let slope = |head| libm::exp2(-f64::from(self.max_bias) * exponent(head)) as f32;
        (0..n_head).map(slope).collect()
    }
}

/// A factor on q by position: `1 + scale * ln(floor((pos + offset) / every) + 1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor on the logarithm.
    pub scale: f32,
    /// Positions of a step.
    pub every: u32,
    /// Added to the position.
    pub offset: f32,
}

impl Temperature {
    /// The factor at a position.
    #[inline]
    pub fn factor(&self, pos: u32) -> f32 {
        let step = ((pos as f32 + self.offset) / self.every as f32).floor();
        (libm::log(f64::from(step) + 1.0) * f64::from(self.scale) + 1.0) as f32
    }
}

impl AttentionSpec {
    /// Heads with the usual scale 1/sqrt(width of a key), neither rotated nor normed.
    pub fn plain(n_head: usize, n_kv_head: usize, dims: [usize; 2]) -> Self {
        let [head_dim_k, head_dim_v] = dims;
        Self {
            n_head,
            n_kv_head,
            head_dim_k,
            head_dim_v,
            scale: 1.0 / (head_dim_k as f32).sqrt(),
            rotation: Rotation::None,
            qk_norm: None,
            kv: KvSpec::default(),
            mask: MaskSpec::default(),
            scores: ScoreSpec::default(),
            head_output: HeadOutputSpec::default(),
            output_bias: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_grow_with_the_logarithm_of_steps() {
        let temperature = Temperature { scale: 0.1, every: 8192, offset: 1.0 };
        let factors = [0, 8190, 8191, 16383].map(|pos| temperature.factor(pos));
        assert_eq!(factors[..2], [1.0, 1.0]);
        assert_eq!(factors[2], (1.0 + 0.1 * 2f64.ln()) as f32);
        assert_eq!(factors[3], (1.0 + 0.1 * 3f64.ln()) as f32);
    }

    #[test]
    fn slopes_are_a_series_and_between_it_for_other_numbers_of_heads() {
        let slopes = |n_head| Alibi::USUAL.slopes(n_head);
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015625, 0.00390625]);
        assert_eq!(slopes(6)[..4], slopes(4)[..]);
        assert_eq!(slopes(6)[4..], [0.5, 0.125]);
        assert_eq!(slopes(1), [0.00390625]);
    }

    #[test]
    fn windows_begin_where_they_should() {
        let first = |window: Window, pos| window.first_visible(pos);
        assert_eq!([0, 3, 4, 9].map(|pos| first(Window::Sliding(4), pos)), [0, 0, 1, 6]);
        assert_eq!([0, 3, 4, 9].map(|pos| first(Window::Chunk(4), pos)), [0, 0, 4, 8]);
        assert_eq!([0, 3, 4, 9].map(|pos| first(Window::Around(5), pos)), [0, 1, 2, 7]);
        assert_eq!([0, 3, 9].map(|pos| Window::Around(5).n_visible(pos, 10)), [3, 6, 10]);
        assert_eq!([Window::Around(5), Window::Around(4)].map(Window::width), [5, 5]);
    }

    #[test]
    fn buckets_are_single_distances_and_then_grow() {
        let buckets = Buckets { tensor: String::new(), n: 32 };
        let of = |distances: &[isize]| -> Vec<usize> {
            distances.iter().map(|&ahead| buckets.of(ahead)).collect()
        };
        assert_eq!(of(&[0, -1, -7, 1, 7]), [0, 1, 7, 17, 23]);
        assert_eq!(of(&[-8, -11, -12, -15, -16, -31, -32]), [8, 8, 9, 9, 10, 11, 12]);
        assert_eq!(of(&[-127, -128, -5000, 128, 5000]), [15, 15, 15, 31, 31]);
    }
}
