//! Sizes of an index of positions or pools, and the tile of its scores.

use super::kv::{KV_PAGE, KvLayout};
use crate::BlockId;
use crate::simd::LANES;

/// How many positions a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Positions of a pool; 1: each position is chosen by itself.
    pub positions: usize,
    /// Pools that a row attends to at most.
    pub per_row: usize,
}

impl PoolSizes {
    /// Positions that are chosen one by one, so many for a row.
    pub fn single(per_row: usize) -> Self {
        Self { positions: 1, per_row }
    }

    /// Most positions that a row attends to: its pools, and those behind the last pool that it sees. A row that sees no
    /// more attends to all.
    pub fn width(&self) -> usize {
        self.positions.saturating_mul(self.per_row).saturating_add(self.positions - 1)
    }

    /// Pools that a row at `pos` sees, all positions of each.
    pub fn n_seen(&self, pos: usize) -> usize {
        (pos + 1) / self.positions
    }

    /// Values that a position leaves in its page for an index with keys of `dim` elements: its key, and for pools its gate
    /// behind that.
    pub fn kept_of(&self, dim: usize) -> usize {
        if self.positions == 1 { dim } else { 2 * dim }
    }

    /// Elements of a key where a position leaves `kept` values.
    pub fn key_dim(&self, kept: usize) -> usize {
        if self.positions == 1 { kept } else { kept / 2 }
    }

    /// Positions that a row at `pos` attends to which sees more.
    pub(crate) fn n_attended(&self, pos: usize) -> usize {
        self.per_row * self.positions + (pos + 1) % self.positions
    }

    /// The positions that a row at `pos` attends to, ascending, given its pools.
    pub(crate) fn attended<'a>(
        self,
        pools: &'a [f32],
        pos: usize,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let n = self.positions;
        let behind = self.n_seen(pos) * n..pos + 1;
        pools.iter().flat_map(move |pool| (0..n).map(move |i| *pool as usize * n + i)).chain(behind)
    }
}

/// The scores of some pools for one row.
pub(crate) struct IndexTile<'a> {
    pub(crate) layout: &'a KvLayout,
    pub(crate) pool: &'a [u8],
    pub(crate) blocks: &'a [BlockId],
    /// The first pool.
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

    /// How many of the pools from `pool` on have their keys in the same page.
    #[inline(always)]
    pub(crate) fn n_in_page(&self, pool: usize) -> usize {
        (self.key_of(pool) / KV_PAGE + 1) * KV_PAGE / self.positions - pool
    }
}
