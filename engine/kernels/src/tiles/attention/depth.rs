//! The tile of attention over depth.

/// One row of [`Compute::attend_depth`](crate::Compute::attend_depth).
pub(crate) struct DepthRow<'a> {
    /// Rows of `d` values.
    pub(crate) sources: &'a [&'a [f32]],
    /// `[d]`.
    pub(crate) score: &'a [f32],
    pub(crate) eps: f32,
    /// Room for a weight of each source.
    pub(crate) weights: &'a mut [f32],
    /// `[d]`.
    pub(crate) out: &'a mut [f32],
}
