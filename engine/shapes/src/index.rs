//! Sizes of indexes, which choose the positions that a row attends to.

/// Pools of positions that a row attends to: their size, and how many are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSizes {
    /// Positions of a pool; 1: each position is chosen by itself.
    pub positions: usize,
    /// Pools that a row attends to at most.
    pub per_row: usize,
}

impl PoolSizes {
    /// Positions that are chosen one by one, so many for a row.
    #[inline]
    pub fn single(per_row: usize) -> Self {
        Self { positions: 1, per_row }
    }

    /// Most positions that a row attends to: its pools, and those behind the last pool that it sees. A row that sees no
    /// more attends to all.
    #[inline]
    pub fn width(&self) -> usize {
        self.positions.saturating_mul(self.per_row).saturating_add(self.positions - 1)
    }

    /// Pools that a row at `pos` sees, all positions of each.
    #[inline]
    pub fn n_seen(&self, pos: usize) -> usize {
        (pos + 1) / self.positions
    }

    /// Values that a position leaves in its page for an index with keys of `dim` elements: its key, and for pools its gate
    /// behind that.
    #[inline]
    pub fn kept_of(&self, dim: usize) -> usize {
        if self.positions == 1 { dim } else { 2 * dim }
    }

    /// Elements of a key where a position leaves `kept` values.
    #[inline]
    pub fn key_dim(&self, kept: usize) -> usize {
        if self.positions == 1 { kept } else { kept / 2 }
    }

    /// Positions that a row at `pos` attends to which sees more.
    #[inline]
    pub fn n_attended(&self, pos: usize) -> usize {
        self.per_row * self.positions + (pos + 1) % self.positions
    }

    /// The positions that a row at `pos` attends to, ascending, given its pools.
    #[inline]
    pub fn attended<'a>(
        self,
        pools: &'a [f32],
        pos: usize,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let n = self.positions;
        let behind = self.n_seen(pos) * n..pos + 1;
        pools.iter().flat_map(move |pool| (0..n).map(move |i| *pool as usize * n + i)).chain(behind)
    }
}

/// Blocks of positions that a row attends to: their size, and how many are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockSizes {
    /// Positions of a block; blocks lie side by side from position 0.
    pub positions: usize,
    /// Blocks that a row attends to at most.
    pub per_row: usize,
    /// Number of newest blocks among them, the row's own included, which are chosen whatever their scores.
    pub newest: usize,
}

impl BlockSizes {
    /// Positions that a row attends to at most.
    #[inline]
    pub fn width(&self) -> usize {
        self.positions.saturating_mul(self.per_row)
    }

    /// Blocks that a row at `pos` sees some of.
    #[inline]
    pub fn n_seen(&self, pos: usize) -> usize {
        pos / self.positions + 1
    }
}

impl BlockSizes {
    /// Most positions of a row that attends to all it sees, with an index whose last block may be incomplete.
    #[inline]
    pub fn near_of_means(&self) -> usize {
        self.width() - 1
    }

    /// Blocks that a row at `pos` sees whole.
    pub fn n_whole(&self, pos: usize) -> usize {
        (pos + 1) / self.positions
    }
}
