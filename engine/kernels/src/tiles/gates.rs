//! Constants and bounds of FFNs' activations.

/// `gelu x = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)))` (arXiv 1606.08415) is `x sigmoid(x (LINEAR +
/// CUBIC x²))` with these two: twice the factors inside the hyperbolic tangent.
pub(crate) const GELU_LINEAR: f32 = 1.595_769;

/// See [`GELU_LINEAR`].
pub(crate) const GELU_CUBIC: f32 = 0.071_354_814;

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
    /// Of the gate from above, and of what is gated from both sides.
    pub limit: f32,
    /// Where the gate meets its bound.
    pub gate: GateBound,
}

pub use brigade_gpu::{GateBound, Xielu};
