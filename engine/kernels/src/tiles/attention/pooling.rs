//! Tiles of pools of rows by a learned gate.

use brigade_shapes::KvLayout;

/// One row that goes into a pool, in the host's memory.
pub(crate) type GatedRow<'a> = brigade_ops::GatedRow<&'a [f32]>;

/// One pool of [`PoolGated`](brigade_ops::PoolGated).
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
