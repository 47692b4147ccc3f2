//! The norms between blocks, as data.

/// A norm of rows of the model's [`NormKind`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Tensor of its weight within the layer, e.g. `attn_norm.weight`.
    pub weight: &'static str,
    /// Epsilon, inside the root.
    pub eps: f32,
}

/// Norms over a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) * weight`.
    #[default]
    Rms,
    /// [`NormKind::Rms`] with a bias added.
    RmsBiased,
    /// `x / sqrt(mean(x²) + eps)`; files have no tensors of them.
    RmsUnweighted,
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`.
    Layer,
    /// [`NormKind::Layer`] without a bias.
    LayerUnbiased,
    /// `(x - mean) / sqrt(variance + eps)`; files have no tensors of them.
    LayerUnweighted,
}
