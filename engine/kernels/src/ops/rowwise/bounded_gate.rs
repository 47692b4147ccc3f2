//! The gate of an FFN whose values stay within bounds ([`GateBounds`]).

use crate::compute::Compute;
use brigade_shapes::GateBounds;

impl Compute {
    /// `x = gate * tanh(g / gate) * sigmoid(g) * linear * tanh(x / linear)` for each `g` of `gates`. This is
    /// SwiGLU with both factors bounded. Without the second bound, `x` takes the place of the last two
    /// factors.
    pub fn bounded_gate_mul(&self, x: &mut [f32], gates: &[f32], bounds: GateBounds) {
        let bounded_gate_mul = self.kernels().bounded_gate_mul;
        self.each_span(x, gates.len(), "bounded_gate_mul", &|span, x| {
            bounded_gate_mul(x, &gates[span], bounds)
        });
    }
}
