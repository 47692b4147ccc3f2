//! The gate of an FFN whose values stay within bounds.

use super::compute::Compute;

/// Bounds of [`Compute::situ_mul`], above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SituBounds {
    /// Of the gate's linear part (`beta`).
    pub gate: f32,
    /// Of what is gated (`linear_beta`); `None`: it is taken as it is.
    pub linear: Option<f32>,
}

impl Compute {
    /// `x = gate * tanh(g / gate) * sigmoid(g) * linear * tanh(x / linear)` for each `g` of `gates`: SwiGLU
    /// with both factors bounded (without the second bound: `x` instead of the last two factors).
    pub fn situ_mul(&self, x: &mut [f32], gates: &[f32], bounds: SituBounds) {
        let situ_mul = self.kernels().situ_mul;
        self.each_span(x, gates.len(), "situ_mul", &|span, x| situ_mul(x, &gates[span], bounds));
    }
}
