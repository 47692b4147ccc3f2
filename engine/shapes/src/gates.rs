//! Bounds and constants of gates.

/// The value of a gate that is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateBound {
    /// The activation's argument.
    Before,
    /// The activation's result.
    After,
}

/// Constants of xIELU (arXiv 2411.13010).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// Factor below 0.
    pub alpha_n: f32,
    /// Factor of the square above 0.
    pub alpha_p: f32,
    /// Slope at 0.
    pub beta: f32,
    /// Upper bound of the exponential's argument.
    pub eps: f32,
}

/// Bounds of [`Compute::bounded_gate_mul`](crate::Compute::bounded_gate_mul), above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateBounds {
    /// Bound of the gate's linear part (`beta`).
    pub gate: f32,
    /// Bound of the value that is gated (`linear_beta`); `None`: it has none.
    pub linear: Option<f32>,
}

/// Constants of [`Compute::clamped_swiglu_mul`](crate::Compute::clamped_swiglu_mul).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiGluClamp {
    /// Factor on the gate inside the sigmoid.
    pub alpha: f32,
    /// Bound of the gate from above, and of what is gated from both sides.
    pub limit: f32,
}

/// Bounds of [`Compute::limited_swiglu_mul`](crate::Compute::limited_swiglu_mul).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiGluLimit {
    /// Bound of the gate from above, and of the value that is gated from both sides.
    pub limit: f32,
    /// Whether the bound is on the argument or the result of the gate's activation.
    pub gate: GateBound,
}
