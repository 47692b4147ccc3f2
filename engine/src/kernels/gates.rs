//! Activations of FFNs other than SwiGLU (GELU, xIELU and bounded SwiGLUs), and bounds on values.

use super::compute::Compute;

/// `gelu x = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)))` (arXiv 1606.08415) is `x sigmoid(x (LINEAR +
/// CUBIC x²))` with these two: twice the factors inside the hyperbolic tangent.
pub(super) const GELU_LINEAR: f32 = 1.595_769;
/// See [`GELU_LINEAR`].
pub(super) const GELU_CUBIC: f32 = 0.071_354_814;

/// Constants of [`Compute::clamped_swiglu_mul`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiGluClamp {
    /// Factor on the gate inside the sigmoid.
    pub alpha: f32,
    /// Bound of the gate from above, and of what is gated from both sides.
    pub limit: f32,
}

/// Bounds of [`Compute::limited_swiglu_mul`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiGluLimit {
    /// Of the gate from above, and of what is gated from both sides.
    pub limit: f32,
    /// Where the gate meets its bound.
    pub gate: GateBound,
}

/// Constants of [`Compute::xielu`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor below 0.
    pub alpha_n: f32,
    /// Factor of the square above 0.
    pub alpha_p: f32,
    /// Slope at 0.
    pub beta: f32,
    /// What the exponential's argument is at most.
    pub eps: f32,
}

/// Which value of a gate is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateBound {
    /// What goes into its activation.
    Before,
    /// What its activation gives.
    After,
}

impl Compute {
    /// `x = gelu(x)`, by the hyperbolic tangent.
    pub fn gelu(&self, x: &mut [f32]) {
        self.map(x, "gelu", self.kernels().gelu);
    }

    /// `x *= gelu(gate)`.
    pub fn gelu_mul(&self, x: &mut [f32], gates: &[f32]) {
        let gelu_mul = self.kernels().gelu_mul;
        self.each_span(x, gates.len(), "gelu_mul", &|span, x| gelu_mul(x, &gates[span]));
    }

    /// `x *= max(gate, 0)`.
    pub fn relu_mul(&self, x: &mut [f32], gates: &[f32]) {
        self.each_span(x, gates.len(), "relu_mul", &|span, x| {
            x.iter_mut().zip(&gates[span]).for_each(|(x, gate)| *x *= gate.max(0.0));
        });
    }

    /// `x = g sigmoid(alpha g) (clamp(x, -limit, limit) + 1)` with `g = min(gate, limit)` (gpt-oss,
    /// arXiv 2508.10925).
    pub fn clamped_swiglu_mul(&self, x: &mut [f32], gates: &[f32], clamp: SwiGluClamp) {
        let op = self.kernels().clamped_swiglu_mul;
        self.each_span(x, gates.len(), "clamped_swiglu_mul", &|span, x| op(x, &gates[span], clamp));
    }

    /// `x = silu(min(g, limit)) clamp(x, -limit, limit)` for each `g` of `gates`. With [`GateBound::After`] the
    /// first factor is `min(silu(g), limit)`.
    pub fn limited_swiglu_mul(&self, x: &mut [f32], gates: &[f32], limit: SwiGluLimit) {
        let op = self.kernels().limited_swiglu_mul;
        self.each_span(x, gates.len(), "limited_swiglu_mul", &|span, x| op(x, &gates[span], limit));
    }

    /// `x = alpha_p x² + beta x` above 0, elsewhere `x = alpha_n (exp(min(x, eps)) - 1 - x) + beta x` (xIELU, arXiv
    /// 2411.13010).
    pub fn xielu(&self, x: &mut [f32], shape: Xielu) {
        let xielu = self.kernels().xielu;
        let len = x.len();
        self.each_span(x, len, "xielu", &|_, x| xielu(x, shape));
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        let softcap = self.kernels().softcap;
        let len = x.len();
        self.each_span(x, len, "softcap", &|_, x| softcap(x, cap));
    }

    /// `x = clamp(x, -bound, bound)`.
    pub fn clamp(&self, x: &mut [f32], bound: f32) {
        let clamp = self.kernels().clamp;
        let len = x.len();
        self.each_span(x, len, "clamp", &|_, x| clamp(x, bound));
    }
}
