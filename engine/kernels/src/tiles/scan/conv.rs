//! The tile that the kernel of a convolution computes.

use super::{Columns, ScanPart};
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use brigade_ops::Conv;

/// At most [`LANES`] neighbouring channels of one part.
pub(crate) struct ConvTile<'a> {
    pub(crate) conv: &'a Conv,
    /// First channel of the tile.
    pub(crate) start: usize,
    pub(crate) part: &'a ScanPart,
    /// `[taps - 1, width]`, oldest row first.
    pub(crate) state: &'a mut [f32],
    pub(crate) x: Columns<'a>,
    /// All values of the output, `[n_rows, channels]`.
    pub(crate) out: &'a Rows<'a, f32>,
}

impl ConvTile<'_> {
    /// Channels of the tile.
    #[inline]
    pub(crate) fn width(&self) -> usize {
        (self.conv.channels - self.start).min(LANES)
    }

    /// Weights of tap `j` for the tile's channels.
    #[inline(always)]
    pub(crate) fn weight(&self, j: usize) -> &[f32] {
        &self.conv.weight[j * self.conv.channels + self.start..][..self.width()]
    }

    #[inline(always)]
    pub(crate) fn bias(&self) -> &[f32] {
        &self.conv.bias[self.start..][..self.width()]
    }

    #[inline]
    pub(crate) fn taps(&self) -> usize {
        self.conv.taps
    }

    #[inline]
    pub(crate) fn silu(&self) -> bool {
        self.conv.silu
    }

    /// Outputs of row `row` of the tile.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize) -> &mut [f32] {
        let start = row * self.conv.channels + self.start;
        // SAFETY: tiles have disjoint channels or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        unsafe { self.out.rows(start..start + self.width()) }
    }
}
