//! Ops that take every value by itself, or every row: activations, sums, gates and norms.

use brigade_shapes::{GateBounds, SwiGluClamp, SwiGluLimit, Xielu};

use crate::carry::carried;
use crate::place::Place;

/// `x = f(x)`, value by value.
pub struct Map<'a, P: Place> {
    /// Values, changed in place.
    pub x: P::Write<'a, f32>,
    /// The function `f`.
    pub with: Function,
}

/// A function of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// A constant, whatever `x` is.
    Constant(f32),
    /// `x * s`.
    Scale(f32),
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The square root.
    Sqrt,
    /// `tanh(x)`.
    Tanh,
    /// `tanh(x)` with the bits of the crate libm's `tanhf`.
    PlainTanh,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// The Gaussian error linear unit, by the hyperbolic tangent (arXiv 1606.08415, section 2).
    Gelu,
    /// `alpha_p x² + beta x` above 0, elsewhere `alpha_n (exp(min(x, eps)) - 1 - x) + beta x` (xIELU, arXiv 2411.13010).
    Xielu(Xielu),
    /// `cap * tanh(x / cap)`.
    Softcap(f32),
    /// The nearest value within `-bound..=bound`.
    Clamp(f32),
}

/// `x = f(x, y)`, value by value.
pub struct Combine<'a, P: Place> {
    /// The values, `[n_rows, d]`.
    pub x: P::Write<'a, f32>,
    /// As many other values, or one row or column of them ([`Pairing`]).
    pub y: P::Read<'a, f32>,
    /// The function `f`, and which `y` it takes.
    pub with: Pairing,
}

/// A function of two values, and which `y` an `x` meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pairing {
    /// `x + y`.
    Add,
    /// `x + y * s`.
    AddScaled(f32),
    /// `x * y`.
    Mul,
    /// `x + y`, where `y` is one row.
    AddRow,
    /// `x * y`, where `y` is one row.
    MulRow,
    /// `x * y`, where `y` has one value for each row of so many.
    MulColumn(usize),
    /// `x * silu(y)`.
    Silu,
    /// `x * sigmoid(y)`.
    Sigmoid,
    /// `x * gelu(y)`.
    Gelu,
    /// `x * max(y, 0)`.
    Relu,
    /// `g sigmoid(alpha g) (clamp(x, -limit, limit) + 1)` with `g = min(y, limit)` (gpt-oss, arXiv 2508.10925).
    Clamped(SwiGluClamp),
    /// `silu(min(y, limit)) clamp(x, -limit, limit)`; with [`GateBound::After`](brigade_shapes::GateBound::After) the first factor
    /// is `min(silu(y), limit)`.
    Limited(SwiGluLimit),
    /// `gate * tanh(y / gate) * sigmoid(y) * linear * tanh(x / linear)`: SwiGLU with both factors bounded. Without the second
    /// bound, `x` takes the place of the last two factors.
    Bounded(GateBounds),
}

/// `x += (to - x) * share`.
pub struct Lerp<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Write<'a, f32>,
    /// `[n_rows, d]`.
    pub to: P::Read<'a, f32>,
    /// One row of shares.
    pub share: P::Read<'a, f32>,
}

/// Decay factors of a gate: `x = exp(rates * softplus(x + bias))`; with rates below 0 they lie in 0..=1.
pub struct DecayFactors<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Write<'a, f32>,
    /// One row: added before the softplus.
    pub bias: P::Read<'a, f32>,
    /// One row: factors in the exponent.
    pub rates: P::Read<'a, f32>,
    /// Bound of the exponent, below 0, with which no factor is smaller than `e^bound`:
    /// `x = exp(bound * sigmoid(-rates * (x + bias)))`.
    pub bound: Option<f32>,
}

/// RMS norm of each row: `out = x / sqrt(mean(x²) + eps) * weight`. Heads are rows too: `[n_rows * n_head, head_dim]`.
pub struct RmsNorm<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// One row of weights.
    pub weight: P::Read<'a, f32>,
    /// Added to the mean.
    pub eps: f32,
    /// `[n_rows, d]`.
    pub out: P::Write<'a, f32>,
}

/// A norm of each row of `d` values, in place.
pub struct Norm<'a, P: Place> {
    /// `[n_rows, n_groups, d]`.
    pub x: P::Write<'a, f32>,
    /// Values of a row that is normed by itself.
    pub d: usize,
    /// Added below the root.
    pub eps: f32,
    /// Kind of the norm, with its weights.
    pub by: NormBy<P::Read<'a, f32>>,
}

/// Kind of a norm, with its weights.
#[derive(Clone, Copy, Debug)]
pub enum NormBy<V> {
    /// `x / sqrt(mean(x²) + eps) * weight`, with a weight for each group, `[n_groups, d]`.
    Rms(V),
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`, each `[n_groups, d]`.
    Layer(V, V),
    /// `x / sqrt(sum(x²) + eps)`.
    L2,
    /// `exp(x) / sum(exp(x))`; without `eps`.
    Softmax,
}

carried!(Map { x: write, with: same });
carried!(Combine { x: write, y: read, with: same });
carried!(Lerp { x: write, to: read, share: read });
carried!(DecayFactors { x: write, bias: read, rates: read, bound: same });
carried!(RmsNorm { x: read, weight: read, eps: same, out: write });
carried!(Norm { x: write, d: same, eps: same, by: rows });

impl<V> NormBy<V> {
    /// The same of other values.
    pub fn map<W>(self, mut by: impl FnMut(V) -> W) -> NormBy<W> {
        match self {
            Self::Rms(weight) => NormBy::Rms(by(weight)),
            Self::Layer(weight, bias) => NormBy::Layer(by(weight), by(bias)),
            Self::L2 => NormBy::L2,
            Self::Softmax => NormBy::Softmax,
        }
    }
}
