//! The tile of attention over depth.

/// One row of [`Compute::attend_depth`](crate::kernels::Compute::attend_depth).
pub(in crate::kernels) struct DepthRow<'a> {
    /// Rows of `d` values.
    pub(in crate::kernels) sources: &'a [&'a [f32]],
    /// `[d]`.
    pub(in crate::kernels) score: &'a [f32],
    pub(in crate::kernels) eps: f32,
    /// Room for a weight of each source.
    pub(in crate::kernels) weights: &'a mut [f32],
    /// `[d]`.
    pub(in crate::kernels) out: &'a mut [f32],
}
