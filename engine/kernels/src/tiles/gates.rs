//! Constants and bounds of FFNs' activations.

/// `gelu x = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)))` (arXiv 1606.08415) is `x sigmoid(x (LINEAR +
/// CUBIC x²))` with these two: twice the factors inside the hyperbolic tangent.
pub(crate) const GELU_LINEAR: f32 = 1.595_769;

/// See [`GELU_LINEAR`].
pub(crate) const GELU_CUBIC: f32 = 0.071_354_814;
