//! Constants and bounds of FFNs' activations.

/// First of two factors in `gelu x = x sigmoid(x (LINEAR + CUBIC x²))`. The usual form is `x / 2 (1 + tanh(sqrt(2 / pi)
/// (x + 0.044715 x³)))` (arXiv 1606.08415), and the factors are twice those inside the hyperbolic tangent.
pub(crate) const GELU_LINEAR: f32 = 1.595_769;

/// Second factor beside [`GELU_LINEAR`].
pub(crate) const GELU_CUBIC: f32 = 0.071_354_814;
