//! Sizes of an index that scores blocks of positions, and the tile of its products.

use super::kv::KvLayout;

/// How positions are attended to in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSizes {
    /// Positions of a block; blocks lie side by side from position 0.
    pub positions: usize,
    /// Blocks that a row attends to at most.
    pub per_row: usize,
    /// How many of them are the newest, the row's own included, whatever their scores.
    pub newest: usize,
}

impl BlockSizes {
    /// Positions that a row attends to at most.
    pub fn width(&self) -> usize {
        self.positions.saturating_mul(self.per_row)
    }

    /// Blocks that a row at `pos` sees some of.
    pub(crate) fn n_seen(&self, pos: usize) -> usize {
        pos / self.positions + 1
    }
}

/// Products of some queries with the index's keys in some pages.
pub(crate) struct ProductTile<'a> {
    /// Shape of the keys: one head that has nothing else.
    pub(crate) keys: &'a KvLayout,
    /// The keys in each page.
    pub(crate) pages: &'a [&'a [u8]],
    /// At most [`TILE_QUERIES`], each as wide as a key.
    pub(crate) queries: &'a [&'a [f32]],
    /// `[queries.len(), pages.len() * KV_PAGE]`: also of positions that hold no key.
    pub(crate) out: &'a mut [f32],
}
