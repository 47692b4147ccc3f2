//! Sizes of an index of positions or pools, and the tile of its scores.

use crate::simd::LANES;
use brigade_ops::PageId;
use brigade_shapes::{KV_PAGE, KvLayout};

/// The scores of some pools for one row.
pub(crate) struct IndexTile<'a> {
    pub(crate) layout: &'a KvLayout,
    pub(crate) pool: &'a [u8],
    pub(crate) blocks: &'a [PageId],
    /// Number of the first pool.
    pub(crate) first: usize,
    /// Positions of a pool.
    pub(crate) positions: usize,
    /// The row's queries with heads side by side, `[dim][n_vectors]`.
    pub(crate) columns: &'a [[f32; LANES]],
    /// The weight of each head, `[n_vectors]`; that of a head which is not there is zero.
    pub(crate) weights: &'a [[f32; LANES]],
    /// One for each pool that is scored.
    pub(crate) out: &'a mut [f32],
}

impl IndexTile<'_> {
    /// The position that has a pool's key: its last.
    #[inline(always)]
    pub(crate) fn key_of(&self, pool: usize) -> usize {
        (pool + 1) * self.positions - 1
    }

    /// Number of pools from `pool` on whose keys are in the same page.
    #[inline(always)]
    pub(crate) fn n_in_page(&self, pool: usize) -> usize {
        (self.key_of(pool) / KV_PAGE + 1) * KV_PAGE / self.positions - pool
    }
}
