//! Functions of each value: sums, products and activations.

use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::pipelines::shader::{Shader, shader};

pub(super) static SHADER: Shader = shader!("elementwise");

/// Functions of `x`, `y` and `z`, by their numbers in the shader.
#[derive(Clone, Copy)]
pub(super) enum Function {
    Add = 0,
    AddScaled = 1,
    Scale = 2,
    Mul = 3,
    Lerp = 4,
    SiluMul = 5,
    SigmoidMul = 6,
    ReluMul = 7,
    Silu = 8,
    Sigmoid = 9,
    Tanh = 10,
    Softplus = 11,
    ReluSquared = 12,
    Gelu = 13,
    GeluMul = 14,
    ClampedSwiGluMul = 15,
    LimitedBeforeMul = 16,
    LimitedAfterMul = 17,
    Xielu = 18,
    Softcap = 19,
    Clamp = 20,
    BoundedGateMul = 21,
    HalfBoundedGateMul = 22,
    Wkv6Decay = 23,
    DecayFactors = 24,
    BoundedDecayFactors = 25,
    Sqrt = 26,
    Relu = 27,
    PlainTanh = 28,
}

/// The second operand, and which of its values belongs to value `i`.
#[derive(Clone, Copy)]
pub(super) enum With<'a> {
    Nothing,
    /// The value at `i`.
    Each(Span<'a>),
    /// The value of the column, in rows as long as the operand.
    Columns(Span<'a>),
    /// The value of the row, in rows of this length.
    Rows(Span<'a>, usize),
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Push {
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) z: u64,
    pub(super) result: u64,
    pub(super) n: u32,
    pub(super) width: u32,
    pub(super) constants: [f32; 4],
}

impl Gpu {
    /// `out += x`.
    pub fn add(&self, out: SpanMut<'_>, x: Span<'_>) {
        self.change(Function::Add, out, With::Each(x), []);
    }

    /// `out += x * s`.
    pub fn add_scaled(&self, out: SpanMut<'_>, x: Span<'_>, s: f32) {
        self.change(Function::AddScaled, out, With::Each(x), [s]);
    }

    /// `x *= s`.
    pub fn scale(&self, x: SpanMut<'_>, s: f32) {
        self.change(Function::Scale, x, With::Nothing, [s]);
    }

    /// Multiplies row `r` of `x` (`[n, d]`) by `factors[r]`.
    pub fn scale_rows(&self, x: SpanMut<'_>, d: usize, factors: Span<'_>) {
        self.change(Function::Mul, x, With::Rows(factors, d), []);
    }

    /// `x *= y`.
    pub fn mul(&self, x: SpanMut<'_>, y: Span<'_>) {
        self.change(Function::Mul, x, With::Each(y), []);
    }

    /// Multiplies each row of `x` (`[n, d]`) by `factors` (`[d]`).
    pub fn scale_columns(&self, x: SpanMut<'_>, factors: Span<'_>) {
        self.change(Function::Mul, x, With::Columns(factors), []);
    }

    /// Adds `bias` (`[d]`) to each row of `x` (`[n, d]`).
    pub fn add_bias(&self, x: SpanMut<'_>, bias: Span<'_>) {
        self.change(Function::Add, x, With::Columns(bias), []);
    }

    /// Moves each row of `x` (`[n, d]`) towards that of `to` by the `share` (`[d]`) of each column:
    /// `x += (to - x) * share`.
    pub fn lerp(&self, x: SpanMut<'_>, to: Span<'_>, share: Span<'_>) {
        let from = x.as_span().address();
        self.elementwise(Function::Lerp, from, With::Each(to), Some(share), x, []);
    }

    /// `out = silu(gate) * up`, where `silu(g) = g / (1 + exp(-g))`.
    pub fn silu_mul(&self, gate: Span<'_>, up: Span<'_>, out: SpanMut<'_>) {
        assert_eq!(up.len(), out.len(), "silu_mul: lengths of up and out");
        self.elementwise(Function::SiluMul, up.address(), With::Each(gate), None, out, []);
    }

    /// `x *= silu(gate)`.
    pub fn silu_mul_inplace(&self, x: SpanMut<'_>, gate: Span<'_>) {
        self.change(Function::SiluMul, x, With::Each(gate), []);
    }

    /// `x *= sigmoid(gate)`, where `sigmoid(g) = 1 / (1 + exp(-g))`.
    pub fn sigmoid_mul(&self, x: SpanMut<'_>, gate: Span<'_>) {
        self.change(Function::SigmoidMul, x, With::Each(gate), []);
    }

    /// `x = silu(x)`.
    pub fn silu(&self, x: SpanMut<'_>) {
        self.change(Function::Silu, x, With::Nothing, []);
    }

    /// `x = sigmoid(x)`.
    pub fn sigmoid(&self, x: SpanMut<'_>) {
        self.change(Function::Sigmoid, x, With::Nothing, []);
    }

    /// `x = tanh(x)`, with the bits of the host's kernels.
    pub fn tanh(&self, x: SpanMut<'_>) {
        self.change(Function::Tanh, x, With::Nothing, []);
    }

    /// `x = tanh(x)`, with the bits of the crate libm's `tanhf`.
    pub fn plain_tanh(&self, x: SpanMut<'_>) {
        self.change(Function::PlainTanh, x, With::Nothing, []);
    }

    /// `x = ln(1 + exp(x))`.
    pub fn softplus(&self, x: SpanMut<'_>) {
        self.change(Function::Softplus, x, With::Nothing, []);
    }

    /// `x = max(x, 0)`.
    pub fn relu(&self, x: SpanMut<'_>) {
        self.change(Function::Relu, x, With::Nothing, []);
    }

    /// `x = max(x, 0)²`.
    pub fn relu_squared(&self, x: SpanMut<'_>) {
        self.change(Function::ReluSquared, x, With::Nothing, []);
    }

    /// `x = sqrt(x)`, rounded to nearest even.
    pub fn sqrt(&self, x: SpanMut<'_>) {
        self.change(Function::Sqrt, x, With::Nothing, []);
    }

    /// Applies a function of up to two operands in place.
    pub(super) fn change<const N: usize>(
        &self,
        function: Function,
        x: SpanMut<'_>,
        y: With<'_>,
        constants: [f32; N],
    ) {
        let from = x.as_span().address();
        self.elementwise(function, from, y, None, x, constants);
    }

    /// Writes `f(x[i], y[..], z[column])` to `out[i]`. The caller makes sure that `x` is the address of as many values as `out` has,
    /// and that `y` and `z` have rows of one width where both are columns.
    pub(super) fn elementwise<const N: usize>(
        &self,
        function: Function,
        x: u64,
        y: With<'_>,
        z: Option<Span<'_>>,
        out: SpanMut<'_>,
        constants: [f32; N],
    ) {
        let n = out.values();
        let (place, y, width) = y.place(n);
        let width = z.map_or(width, |z| z.values());
        assert!(z.is_none() || width > 0 && n.is_multiple_of(width), "{n} in rows of {width}");
        let mut four = [0.0; 4];
        four[..N].copy_from_slice(&constants);
        let (z, result) = (z.map_or(0, |z| z.address()), out.address());
        let push = Push { x, y, z, result, n: count(n), width: width as u32, constants: four };
        let groups = lines(n.div_ceil(256));
        // SAFETY: the kernel reads `n` values of `x`, which its caller has checked, and of `y` and `z` those of their places, whose
        // lengths are checked above and in `place`; it writes the `n` values of `out`.
        unsafe { self.dispatch(Order::After, &SHADER, &[function as u32, place], &push, groups) };
    }
}

impl With<'_> {
    /// Number of the place in the shader, address, and length of rows, for `n` values.
    fn place(self, n: usize) -> (u32, u64, usize) {
        match self {
            With::Nothing => (0, 0, 1),
            With::Each(y) => {
                assert_eq!(y.values(), n, "lengths of the operands");
                (1, y.address(), 1)
            }
            With::Columns(y) => {
                let d = y.values();
                assert!(d > 0 && n.is_multiple_of(d), "{n} values in rows of {d}");
                (2, y.address(), d)
            }
            With::Rows(y, d) => {
                assert_eq!(y.values() * d, n, "a value for each row of {d}");
                (3, y.address(), d.max(1))
            }
        }
    }
}

/// A count of values as shaders take it.
///
/// # Panics
/// If it is not below 2^31.
pub(crate) fn count(n: usize) -> u32 {
    assert!(n < 1 << 31, "{n} values at once");
    n as u32
}
