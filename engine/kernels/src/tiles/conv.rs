//! Causal depthwise convolution over the rows of each sequence. Its state is the rows before them.

use super::out_rows::Rows;
use super::scan::ScanPart;
use crate::simd::LANES;
use crate::vector::Vector;
use brigade_shapes::MAX_CONV_TAPS;

/// A causal depthwise convolution: `y[t][c] = act(bias[c] + Σ_j weight[j][c] · x[t - taps + 1 + j][c])`,
/// taps in ascending order; rows before a sequence's first count as zero.
#[derive(Clone, Debug)]
pub struct Conv {
    /// Channels.
    pub channels: usize,
    /// Taps of each.
    pub taps: usize,
    /// `[taps, channels]`.
    pub weight: Vector,
    /// `[channels]`, zeros where the model has none.
    pub bias: Vector,
    /// Whether `silu` follows.
    pub silu: bool,
}

/// Rows of a wider matrix: columns `first_col ..` of rows of `stride` values.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// Values in a row.
    pub stride: usize,
    /// Where the wanted columns start.
    pub first_col: usize,
}

impl<'a> Columns<'a> {
    /// Rows that are all of `data`, `stride` values each.
    #[inline]
    pub fn whole(data: &'a [f32], stride: usize) -> Self {
        Self { data, stride, first_col: 0 }
    }

    /// Checks that there are `n_rows` rows with `n` columns to take.
    #[inline]
    pub(crate) fn check(&self, n_rows: usize, n: usize, what: &str) {
        assert!(self.data.len() >= n_rows * self.stride, "{what}: {n_rows} rows");
        assert!(self.first_col + n <= self.stride, "{what}: {n} columns of {}", self.stride);
    }

    /// `n` columns of `row` from column `start` on.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, start: usize, n: usize) -> &'a [f32] {
        &self.data[row * self.stride + self.first_col + start..][..n]
    }
}

/// At most [`LANES`] neighbouring channels of one part.
pub(crate) struct ConvTile<'a> {
    pub(crate) conv: &'a Conv,
    /// First channel.
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

    /// Where row `row` of the tile goes.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize) -> &mut [f32] {
        let start = row * self.conv.channels + self.start;
        // SAFETY: tiles have disjoint channels or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        unsafe { self.out.rows(start..start + self.width()) }
    }
}

impl Conv {
    /// `weight` as files hold it, `[channels, taps]` with the taps of a channel together; `bias`
    /// `[channels]`.
    ///
    /// # Panics
    /// If lengths disagree, or there are fewer than 2 or more than [`MAX_CONV_TAPS`] taps.
    #[inline]
    pub fn new(weight: &[f32], taps: usize, bias: Option<Vector>, silu: bool) -> Self {
        assert!((2..=MAX_CONV_TAPS).contains(&taps), "{taps} taps");
        let channels = weight.len() / taps;
        assert_eq!(weight.len(), channels * taps, "conv: weights of {taps} taps");
        let by_tap = |i: usize| weight[(i % channels) * taps + i / channels];
        let bias = bias.unwrap_or_else(|| vec![0.0; channels].into());
        assert_eq!(bias.len(), channels, "conv: biases");
        let weight = (0..channels * taps).map(by_tap).collect();
        Self { channels, taps, weight, bias, silu }
    }

    /// Channels.
    #[inline]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Values of a sequence's state: the `taps - 1` rows before the next one, in tiles of channels.
    #[inline]
    pub fn state_len(&self) -> usize {
        self.channels * (self.taps - 1)
    }
}
