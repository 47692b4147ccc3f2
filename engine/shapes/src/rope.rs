//! Rotary positions (RoPE, arXiv 2104.09864).

/// Pairing of a head's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Pair `i` is `(2i, 2i + 1)`.
    Norm,
    /// Pair `i` is `(i, i + n_rot / 2)`.
    Neox,
}
