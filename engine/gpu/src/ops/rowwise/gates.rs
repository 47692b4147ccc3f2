//! Activations of FFNs other than SwiGLU, bounds on values, and the gates of recurrences.

use brigade_ops::Wkv6Decay;
use brigade_shapes::{GateBound, Xielu};

use super::elementwise::{Function, With};
use crate::device::Gpu;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;

impl Gpu {
    /// `x = gelu(x)`, by the hyperbolic tangent.
    pub fn gelu(&self, x: SpanMut<'_>) {
        self.change(Function::Gelu, x, With::Nothing, []);
    }

    /// `x *= gelu(gate)`.
    pub fn gelu_mul(&self, x: SpanMut<'_>, gates: Span<'_>) {
        self.change(Function::GeluMul, x, With::Each(gates), []);
    }

    /// `x *= max(gate, 0)`.
    pub fn relu_mul(&self, x: SpanMut<'_>, gates: Span<'_>) {
        self.change(Function::ReluMul, x, With::Each(gates), []);
    }

    /// `x = g sigmoid(alpha g) (clamp(x, -limit, limit) + 1)` with `g = min(gate, limit)` (gpt-oss,
    /// arXiv 2508.10925).
    pub fn clamped_swiglu_mul(&self, x: SpanMut<'_>, gates: Span<'_>, alpha: f32, limit: f32) {
        self.change(Function::ClampedSwiGluMul, x, With::Each(gates), [alpha, limit]);
    }

    /// `x = silu(min(g, limit)) clamp(x, -limit, limit)` for each `g` of `gates`. With [`GateBound::After`] the
    /// first factor is `min(silu(g), limit)`.
    pub fn limited_swiglu_mul(&self, x: SpanMut<'_>, gates: Span<'_>, limit: f32, gate: GateBound) {
        let function = match gate {
            GateBound::Before => Function::LimitedBeforeMul,
            GateBound::After => Function::LimitedAfterMul,
        };
        self.change(function, x, With::Each(gates), [limit]);
    }

    /// `x = alpha_p x² + beta x` above 0, elsewhere `x = alpha_n (exp(min(x, eps)) - 1 - x) + beta x` (xIELU, arXiv
    /// 2411.13010).
    pub fn xielu(&self, x: SpanMut<'_>, shape: Xielu) {
        let Xielu { alpha_n, alpha_p, beta, eps } = shape;
        self.change(Function::Xielu, x, With::Nothing, [alpha_n, alpha_p, beta, eps]);
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn softcap(&self, x: SpanMut<'_>, cap: f32) {
        self.change(Function::Softcap, x, With::Nothing, [cap, 1.0 / cap]);
    }

    /// `x = clamp(x, -bound, bound)`.
    pub fn clamp(&self, x: SpanMut<'_>, bound: f32) {
        self.change(Function::Clamp, x, With::Nothing, [bound]);
    }

    /// `x = gate * tanh(g / gate) * sigmoid(g) * linear * tanh(x / linear)` for each `g` of `gates`: SwiGLU with
    /// both factors bounded. Without `linear`, `x` takes the place of the last two factors.
    pub fn bounded_gate_mul(
        &self,
        x: SpanMut<'_>,
        gates: Span<'_>,
        gate: f32,
        linear: Option<f32>,
    ) {
        let gates = With::Each(gates);
        match linear {
            Some(linear) => {
                let bounds = [gate, 1.0 / gate, linear, 1.0 / linear];
                self.change(Function::BoundedGateMul, x, gates, bounds);
            }
            None => self.change(Function::HalfBoundedGateMul, x, gates, [gate, 1.0 / gate]),
        }
    }

    /// Records the op [`Wkv6Decay`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv6_decay(&self, op: Wkv6Decay<'_, OnGpu>) {
        op.check();
        self.change(Function::Wkv6Decay, op.w, With::Columns(self.vector(op.bias)), []);
    }

    /// Decay factors of a gate: `x = exp(rates * softplus(x + bias))` for each row of `x` (`[n, d]`,
    /// `d = bias.len() = rates.len()`).
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn decay_factors(&self, x: SpanMut<'_>, bias: Span<'_>, rates: Span<'_>) {
        assert_eq!(bias.len(), rates.len(), "decay_factors: biases and rates");
        let from = x.as_span().address();
        self.elementwise(Function::DecayFactors, from, With::Columns(bias), Some(rates), x, []);
    }

    /// [`Gpu::decay_factors`] no smaller than `e^bound` (`bound` below 0):
    /// `x = exp(bound * sigmoid(-rates * (x + bias)))`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn bounded_decay_factors(
        &self,
        x: SpanMut<'_>,
        bias: Span<'_>,
        rates: Span<'_>,
        bound: f32,
    ) {
        assert_eq!(bias.len(), rates.len(), "bounded_decay_factors: biases and rates");
        let (from, bias) = (x.as_span().address(), With::Columns(bias));
        self.elementwise(Function::BoundedDecayFactors, from, bias, Some(rates), x, [bound]);
    }
}
