//! The tile that the kernel of Mamba-2's recurrence computes.

use std::ops::Range;

use brigade_ops::Ssd;

use super::ScanPart;
use crate::tiles::out_rows::Rows;

/// Operands of the recurrence, in the host's memory.
pub type SsdInput<'a> = brigade_ops::SsdInput<&'a [f32]>;

/// Some heads of one group over the rows of a part.
pub(crate) struct SsdTile<'a> {
    pub(crate) ssd: &'a Ssd,
    pub(crate) heads: Range<usize>,
    pub(crate) part: &'a ScanPart,
    /// `[heads, n_state, head_dim]`.
    pub(crate) state: &'a mut [f32],
    pub(crate) input: SsdInput<'a>,
    /// All values of the output, `[n_rows, n_head * head_dim]`.
    pub(crate) out: &'a Rows<'a, f32>,
}

impl SsdTile<'_> {
    /// The group of the tile's heads.
    #[inline]
    pub(crate) fn group(&self) -> usize {
        self.heads.start / (self.ssd.shape.n_head / self.ssd.shape.n_group)
    }

    /// Outputs of channels `start ..` of head `head` of a row.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize, head: usize, start: usize, n: usize) -> &mut [f32] {
        let at = row * self.ssd.shape.n_inner() + head * self.ssd.shape.head_dim + start;
        // SAFETY: tiles have disjoint heads or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own values apart; callers stay within the tile's
        // heads and rows.
        unsafe { self.out.rows(at..at + n) }
    }
}
