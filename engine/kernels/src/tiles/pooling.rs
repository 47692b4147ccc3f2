//! Tiles of pools of rows by a learned gate.

use brigade_shapes::KvLayout;

/// One row that goes into a pool.
#[derive(Clone, Copy, Debug)]
pub struct GatedRow<'a> {
    /// What is averaged, `[width]`.
    pub values: &'a [f32],
    /// How much it counts, before the softmax over the pool's rows, `[width]`.
    pub gates: &'a [f32],
}

/// One pool of [`Compute::pool_gated`](crate::Compute::pool_gated).
pub(crate) struct GatedPool<'a> {
    pub(crate) rows: &'a [GatedRow<'a>],
    /// `[width]`.
    pub(crate) out: &'a mut [f32],
}

/// A pool's positions, and where its key goes.
pub(crate) struct PoolTile<'a> {
    /// Shape of what positions left: a key and a gate side by side.
    pub(crate) rows: &'a KvLayout,
    /// For each position the rows of its page, and its place there.
    pub(crate) members: &'a [(&'a [u8], usize)],
    /// `[members.len(), dim]`.
    pub(crate) bias: &'a [f32],
    /// `[dim]`.
    pub(crate) out: &'a mut [f32],
}
