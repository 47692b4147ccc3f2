//! The selective scan of Mamba-1 (arXiv 2312.00752, section 3.2) over the rows of each sequence.
//!
//! Every channel `c` and state index `n` decays by itself, with `Δ[c] = softplus(dt[c] + bias[c])`:
//!
//! - `S[c][n] = S[c][n] · exp(Δ[c] · A[c][n]) + B[n] · Δ[c] · u[c]`
//! - `y[c] = Σ_n S[c][n] · C[n] + D[c] · u[c]`, with `n` ascending
//!
//! Channels are independent. A tile of them walks the rows of a part with its state at hand.

use super::conv::Columns;
use super::out_rows::Rows;
use super::scan::ScanPart;
use crate::simd::LANES;
use crate::vector::Vector;
use brigade_shapes::mamba_state_len;

/// The constants of a selective scan.
#[derive(Clone, Debug)]
pub struct MambaScan {
    /// Channels.
    pub channels: usize,
    /// State values of each.
    pub n_state: usize,
    /// `[tiles, n_state, LANES]`; channels beyond the last are zero, here and below.
    pub a: Vector,
    /// `[tiles, LANES]`.
    pub dt_bias: Vector,
    /// `[tiles, LANES]`.
    pub d: Vector,
}

/// What a selective scan reads, row by row.
#[derive(Clone, Copy, Debug)]
pub struct MambaRows<'a> {
    /// Inputs `u`, `[n_rows, channels]`.
    pub u: &'a [f32],
    /// Step sizes before bias and softplus, `[n_rows, channels]`.
    pub dt: &'a [f32],
    /// `B`, `[n_rows, n_state]`.
    pub b: &'a [f32],
    /// `C`, `[n_rows, n_state]`.
    pub c: &'a [f32],
    /// `y` is multiplied by `silu` of these `channels` columns.
    pub gate: Columns<'a>,
}

/// At most [`LANES`] neighbouring channels of one part.
pub(crate) struct MambaTile<'a> {
    pub(crate) scan: &'a MambaScan,
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
        let n = self.scan.n_state;
        &self.scan.a.as_chunks().0[self.tile * n..][..n]
    }

    #[inline(always)]
    pub(crate) fn dt_bias(&self) -> &[f32; LANES] {
        &self.scan.dt_bias.as_chunks().0[self.tile]
    }

    #[inline(always)]
    pub(crate) fn d(&self) -> &[f32; LANES] {
        &self.scan.d.as_chunks().0[self.tile]
    }

    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> MambaRow<'_> {
        let (channels, n_state) = (self.scan.channels, self.scan.n_state);
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

    /// Where row `row` of the tile goes.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize) -> &mut [f32] {
        let channels = self.scan.channels;
        let start = self.tile * LANES;
        let end = (start + LANES).min(channels);
        // SAFETY: tiles have disjoint channels or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        unsafe { self.out.rows(row * channels + start..row * channels + end) }
    }
}

impl MambaScan {
    /// `a` as files hold it, `[channels, n_state]` and negative; `dt_bias` and `d` are `[channels]`.
    ///
    /// # Panics
    /// If lengths disagree.
    #[inline]
    pub fn new(a: &[f32], dt_bias: &[f32], d: &[f32]) -> Self {
        let channels = d.len();
        assert!(channels > 0 && dt_bias.len() == channels, "mamba: channels");
        let n_state = a.len() / channels;
        assert!(n_state > 0 && a.len() == channels * n_state, "mamba: states of a channel");
        let padded = channels.next_multiple_of(LANES);
        let pad = |x: &[f32]| (0..padded).map(|c| x.get(c).copied().unwrap_or(0.0)).collect();
        let by_state = |i: usize| {
            let (tile, n, lane) = (i / (n_state * LANES), i / LANES % n_state, i % LANES);
            a.get((tile * LANES + lane) * n_state + n).copied().unwrap_or(0.0)
        };
        let tiled = (0..padded * n_state).map(by_state).collect();
        Self { channels, n_state, a: tiled, dt_bias: pad(dt_bias), d: pad(d) }
    }

    /// Values of a sequence's state ([`mamba_state_len`]).
    #[inline]
    pub const fn state_len(channels: usize, n_state: usize) -> usize {
        mamba_state_len(channels, n_state)
    }
}
