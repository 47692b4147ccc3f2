//! The norms between blocks, as data.

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
