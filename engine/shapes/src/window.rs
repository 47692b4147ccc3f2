//! Windows: limits on the positions that attention sees.

/// Limit on the positions that a row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The last so many, its own included.
    Sliding(u32),
    /// The row's own chunk. Chunks of so many positions lie side by side from position 0.
    Chunk(u32),
    /// Positions at most half so many away, before and after the row.
    Around(u32),
}

impl Window {
    /// The first position that a row at `pos` sees.
    #[inline]
    pub fn first_visible(self, pos: usize) -> usize {
        match self {
            Self::Sliding(n) => (pos + 1).saturating_sub(n as usize),
            Self::Chunk(n) => pos / n.max(1) as usize * n.max(1) as usize,
            Self::Around(n) => pos.saturating_sub(n as usize / 2),
        }
    }

    /// End of the positions that a row at `pos` sees among those up to `end`.
    #[inline]
    pub fn n_visible(self, pos: usize, end: usize) -> usize {
        match self {
            Self::Sliding(_) | Self::Chunk(_) => end,
            Self::Around(n) => end.min(pos + n as usize / 2 + 1),
        }
    }

    /// Positions that a row sees at most.
    #[inline]
    pub fn width(self) -> u32 {
        match self {
            Self::Sliding(n) | Self::Chunk(n) => n,
            Self::Around(n) => n / 2 * 2 + 1,
        }
    }
}
