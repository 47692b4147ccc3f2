//! The bounds of an FFN's gate, as in Kimi K3.

/// Bounds of [`Compute::bounded_gate_mul`](crate::Compute::bounded_gate_mul), above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateBounds {
    /// Of the gate's linear part (`beta`).
    pub gate: f32,
    /// Of what is gated (`linear_beta`); `None`: it is taken as it is.
    pub linear: Option<f32>,
}
