//! The tile that the kernel of Mamba's selective scan computes.

use brigade_ops::MambaWeights;

use super::ScanPart;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;

/// Operands of a selective scan, in the host's memory.
pub type MambaRows<'a> = brigade_ops::MambaRows<&'a [f32]>;

/// At most [`LANES`] neighbouring channels of one part.
pub(crate) struct MambaTile<'a> {
    pub(crate) weights: &'a MambaWeights,
    pub(crate) tile: usize,
    pub(crate) part: &'a ScanPart,
    /// `[n_state, LANES]`.
    pub(crate) state: &'a mut [[f32; LANES]],
    pub(crate) rows: MambaRows<'a>,
    pub(crate) out: &'a Rows<'a, f32>,
}

/// One row of a tile; slices are as wide as the tile has channels.
pub(crate) struct MambaRow<'a> {
    pub(crate) u: &'a [f32],
    pub(crate) dt: &'a [f32],
    pub(crate) gate: &'a [f32],
    /// `[n_state]`.
    pub(crate) b: &'a [f32],
    /// `[n_state]`.
    pub(crate) c: &'a [f32],
}

impl MambaTile<'_> {
    /// `A` of the tile's channels, `[n_state, LANES]`.
    #[inline(always)]
    pub(crate) fn a(&self) -> &[[f32; LANES]] {
        let n = self.weights.n_state;
        &self.weights.a.as_chunks().0[self.tile * n..][..n]
    }

    #[inline(always)]
    pub(crate) fn dt_bias(&self) -> &[f32; LANES] {
        &self.weights.dt_bias.as_chunks().0[self.tile]
    }

    #[inline(always)]
    pub(crate) fn d(&self) -> &[f32; LANES] {
        &self.weights.d.as_chunks().0[self.tile]
    }

    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> MambaRow<'_> {
        let (channels, n_state) = (self.weights.channels, self.weights.n_state);
        let start = self.tile * LANES;
        let width = (channels - start).min(LANES);
        MambaRow {
            u: &self.rows.u[row * channels + start..][..width],
            dt: &self.rows.dt[row * channels + start..][..width],
            gate: self.rows.gate.at(row, start, width),
            b: &self.rows.b[row * n_state..][..n_state],
            c: &self.rows.c[row * n_state..][..n_state],
        }
    }

    /// Outputs of row `row` of the tile.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize) -> &mut [f32] {
        let channels = self.weights.channels;
        let start = self.tile * LANES;
        let end = (start + LANES).min(channels);
        // SAFETY: tiles have disjoint channels or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        unsafe { self.out.rows(row * channels + start..row * channels + end) }
    }
}
