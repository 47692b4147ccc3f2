//! Ops over several streams of a token, or over rows that were kept on its way through the layers.

use brigade_shapes::{DilatedConv, StreamShape, SumStart, WeightsAt};

use crate::carry::carried;
use crate::place::Place;
use crate::scan::ScanPart;
use crate::vector::Vector;

/// `out[r, c] = start + Σ_k x_k[r, c] w[r, k]` in the order of the sources, each sum and product rounded by itself.
pub struct Weigh<'a, P: Place> {
    /// `[n_rows, d]`.
    pub out: P::Write<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// Start of every sum.
    pub start: SumStart,
    /// Rows that are summed.
    pub sources: Vec<P::Read<'a, f32>>,
    /// For each source, the value at which its row 0 begins.
    pub firsts: Vec<usize>,
    /// Values from one row of a source to the next; 0: all rows have the same.
    pub stride: usize,
    /// Weights of rows and sources, as `at` places them.
    pub weights: P::Read<'a, f32>,
    /// Place of each row's and source's weight in `weights`.
    pub at: WeightsAt,
}

/// Attention over depth. Each row of `out` becomes a mixture of that row of all `sources`: `out = Σ_i a_i v_i` with `a
/// = softmax(z)` and `z_i = score · v_i / sqrt(mean(v_i²) + eps)`. The rows are normed for their scores only, and mixed
/// as they are. Sources are summed in their order.
pub struct AttendDepth<'a, P: Place> {
    /// `[n_rows, d]` each, at least one.
    pub sources: Vec<P::Read<'a, f32>>,
    /// `[d]`: the learned query that scores rows.
    pub score: &'a Vector,
    /// Added to the mean.
    pub eps: f32,
    /// `[n_rows, d]`.
    pub out: P::Write<'a, f32>,
}

/// Makes weights of the numbers `weights`, in place. The first `n` of each row become `sigmoid(scale[0] m + base) + eps`. The
/// next `n` become `magnitude sigmoid(scale[1] m + base) + post_eps`. The others are a matrix `[n, n]` of `scale[2] m + base`, which
/// is made one whose rows and columns sum to one, nearly (Sinkhorn and Knopp; arXiv 2512.24880, section 4.2).
pub struct StreamWeights<'a, P: Place> {
    /// Streams, and the constants.
    pub shape: &'a StreamShape,
    /// `[width]`.
    pub base: &'a Vector,
    /// One factor for each kind of weights.
    pub scale: &'a Vector,
    /// `[n_rows, width]`.
    pub weights: P::Write<'a, f32>,
}

/// Gives each row of `x` the magnitude of that of `like`: `x * |like| / |x|`, magnitudes summed in f64 and rounded to f32.
pub struct MatchMagnitudes<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Write<'a, f32>,
    /// `[n_rows, d]`.
    pub like: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
}

/// Subtracts from each value the row's mean and `deviations` standard deviations of the row, both in f64. Values below
/// 0 then become 0.
pub struct KeepAbove<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Write<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// Standard deviations that are subtracted.
    pub deviations: f32,
}

/// For each row of `x` and of `y` the signed root of their product, `root(x · y / divisor)`. The product is computed in
/// f64 and rounded to f32. `root(s)` is `sqrt(max(|s|, least))` with the sign of `s`, and 0 where `s` is 0.
pub struct ProductRoots<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// `[n_rows, d]`.
    pub y: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// Divisor of the product.
    pub divisor: f32,
    /// Lower bound of the magnitude below the root.
    pub least: f32,
    /// `[n_rows]`.
    pub out: P::Write<'a, f32>,
}

/// Convolves the rows of `parts` with taps some rows apart. A sum over taps in order, the oldest first, each step rounded by
/// itself. The rows before a part are those it reads of `states`.
pub struct DilatedRows<'a, P: Place> {
    /// Taps, their distance, and channels.
    pub conv: &'a DilatedConv,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, n_before, channels]`.
    pub states: P::Read<'a, f32>,
    /// `[n_rows, channels]`.
    pub x: P::Read<'a, f32>,
    /// `[taps, channels]`.
    pub weight: &'a Vector,
    /// `[n_rows, channels]`.
    pub out: P::Write<'a, f32>,
}

/// Writes to the slots of `parts` the last rows of `x`, which [`DilatedRows`] reads in the next ubatch.
pub struct KeepLastRows<'a, P: Place> {
    /// Taps, their distance, and channels.
    pub conv: &'a DilatedConv,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, n_before, channels]`.
    pub states: P::Write<'a, f32>,
    /// `[n_rows, channels]`.
    pub x: P::Read<'a, f32>,
}

carried!(Weigh {
    out: write,
    d: same,
    start: same,
    sources: reads,
    firsts: same,
    stride: same,
    weights: read,
    at: same,
});
carried!(AttendDepth { sources: reads, score: same, eps: same, out: write });
carried!(StreamWeights { shape: same, base: same, scale: same, weights: write });
carried!(MatchMagnitudes { x: write, like: read, d: same });
carried!(KeepAbove { x: write, d: same, deviations: same });
carried!(ProductRoots { x: read, y: read, d: same, divisor: same, least: same, out: write });
carried!(DilatedRows { conv: same, parts: same, states: read, x: read, weight: same, out: write });
carried!(KeepLastRows { conv: same, parts: same, states: write, x: read });
