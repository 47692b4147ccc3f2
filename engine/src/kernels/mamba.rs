//! The selective scan of Mamba-1 (arXiv 2312.00752, section 3.2) over the rows of each sequence.
//!
//! Every channel `c` and state index `n` decays by itself, with `Δ[c] = softplus(dt[c] + bias[c])`:
//!
//! - `S[c][n] = S[c][n] · exp(Δ[c] · A[c][n]) + B[n] · Δ[c] · u[c]`
//! - `y[c] = Σ_n S[c][n] · C[n] + D[c] · u[c]`, with `n` ascending
//!
//! Channels are independent. A tile of them walks the rows of a part with its state at hand.

use super::compute::Compute;
use super::conv::Columns;
use super::ops::Rows;
use super::scan::{ScanPart, States};
use super::simd::LANES;

/// The constants of a selective scan.
#[derive(Clone, Debug)]
pub struct MambaScan {
    channels: usize,
    n_state: usize,
    /// `[tiles, n_state, LANES]`; channels beyond the last are zero, here and below.
    a: Vec<f32>,
    /// `[tiles, LANES]`.
    dt_bias: Vec<f32>,
    /// `[tiles, LANES]`.
    d: Vec<f32>,
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
pub(super) struct MambaTile<'a> {
    scan: &'a MambaScan,
    tile: usize,
    pub(super) part: &'a ScanPart,
    /// `[n_state, LANES]`.
    pub(super) state: &'a mut [[f32; LANES]],
    rows: MambaRows<'a>,
    out: &'a Rows<'a, f32>,
}

/// One row of a tile; slices are as wide as the tile has channels.
pub(super) struct MambaRow<'a> {
    pub(super) u: &'a [f32],
    pub(super) dt: &'a [f32],
    pub(super) gate: &'a [f32],
    /// `[n_state]`.
    pub(super) b: &'a [f32],
    /// `[n_state]`.
    pub(super) c: &'a [f32],
}

impl MambaTile<'_> {
    /// `A` of the tile's channels, `[n_state, LANES]`.
    #[inline(always)]
    pub(super) fn a(&self) -> &[[f32; LANES]] {
        let n = self.scan.n_state;
        &self.scan.a.as_chunks().0[self.tile * n..][..n]
    }

    #[inline(always)]
    pub(super) fn dt_bias(&self) -> &[f32; LANES] {
        &self.scan.dt_bias.as_chunks().0[self.tile]
    }

    #[inline(always)]
    pub(super) fn d(&self) -> &[f32; LANES] {
        &self.scan.d.as_chunks().0[self.tile]
    }

    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> MambaRow<'_> {
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
    pub(super) fn out(&mut self, row: usize) -> &mut [f32] {
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

    /// Values of a sequence's state: channels filled up to whole tiles of `n_state` each.
    pub const fn state_len(channels: usize, n_state: usize) -> usize {
        channels.next_multiple_of(LANES) * n_state
    }
}

impl Compute {
    /// Runs `scan` over the rows of `parts` from their states (`[n_slots, state_len]`), which follow;
    /// `out` is `[n_rows, channels]`.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn mamba_scan(
        &self,
        scan: &MambaScan,
        parts: &[ScanPart],
        states: &mut [f32],
        rows: MambaRows<'_>,
        out: &mut [f32],
    ) {
        let (channels, n_state) = (scan.channels, scan.n_state);
        let n_rows = out.len() / channels;
        assert_eq!(out.len(), n_rows * channels, "mamba: length of out");
        assert!(rows.u.len() == out.len() && rows.dt.len() == out.len(), "mamba: u and dt");
        assert!(rows.b.len() == n_rows * n_state && rows.c.len() == rows.b.len(), "mamba: B and C");
        assert!(rows.gate.data.len() >= n_rows * rows.gate.stride, "mamba: rows of the gate");
        assert!(rows.gate.first_col + channels <= rows.gate.stride, "mamba: columns of the gate");
        let state_len = MambaScan::state_len(channels, n_state);
        ScanPart::check(parts, n_rows, states.len() / state_len, "mamba");
        let states = States::new(states, state_len);
        let out = Rows::new(out, 1);
        let n_tiles = channels.div_ceil(LANES);
        self.for_units(parts, n_tiles, ROW_COST * LANES * n_state, &|part, tile| {
            let per_tile = n_state * LANES;
            // SAFETY: no two parts have a slot in common (checked), and each tile of one is handed out once.
            let state = unsafe { states.part(part.slot, tile * per_tile..(tile + 1) * per_tile) };
            let state = state.as_chunks_mut().0;
            (self.kernels().mamba_scan)(&mut MambaTile {
                scan,
                tile,
                part,
                state,
                rows,
                out: &out,
            });
        });
    }
}

/// Work of one element of the state, mostly its exponential, in elements touched.
const ROW_COST: usize = 8;
