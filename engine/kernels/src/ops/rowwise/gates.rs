//! Activations of FFNs other than SwiGLU, and bounds on values: rows spread over the threads.

use crate::compute::Compute;
use brigade_shapes::{SwiGluClamp, SwiGluLimit, Xielu};

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
