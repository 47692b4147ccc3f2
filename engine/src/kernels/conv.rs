//! Causal depthwise convolution over the rows of each sequence. Its state is the rows before them.

use super::compute::Compute;
use super::ops::Rows;
use super::scan::{ScanPart, States};
use super::simd::LANES;

/// Most taps of a causal convolution; models have 3 or 4.
pub const MAX_CONV_TAPS: usize = 8;

/// A causal depthwise convolution: `y[t][c] = act(bias[c] + Σ_j weight[j][c] · x[t - taps + 1 + j][c])`,
/// taps in ascending order; rows before a sequence's first count as zero.
#[derive(Clone, Debug)]
pub struct Conv {
    channels: usize,
    taps: usize,
    /// `[taps, channels]`.
    weight: Vec<f32>,
    /// `[channels]`, zeros where the model has none.
    bias: Vec<f32>,
    /// Whether `silu` follows.
    silu: bool,
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

/// Where in a slot's values a state lies.
#[derive(Clone, Copy, Debug)]
pub struct StateAt {
    /// Values of a slot.
    pub per_slot: usize,
    /// The first of the state's.
    pub first: usize,
}

impl<'a> Columns<'a> {
    /// Rows that are all of `data`, `stride` values each.
    pub fn whole(data: &'a [f32], stride: usize) -> Self {
        Self { data, stride, first_col: 0 }
    }

    /// Checks that there are `n_rows` rows with `n` columns to take.
    pub(super) fn check(&self, n_rows: usize, n: usize, what: &str) {
        assert!(self.data.len() >= n_rows * self.stride, "{what}: {n_rows} rows");
        assert!(self.first_col + n <= self.stride, "{what}: {n} columns of {}", self.stride);
    }

    /// `n` columns of `row` from column `start` on.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, start: usize, n: usize) -> &'a [f32] {
        &self.data[row * self.stride + self.first_col + start..][..n]
    }
}

/// At most [`LANES`] neighbouring channels of one part.
pub(super) struct ConvTile<'a> {
    pub(super) conv: &'a Conv,
    /// First channel.
    pub(super) start: usize,
    pub(super) part: &'a ScanPart,
    /// `[taps - 1, width]`, oldest row first.
    pub(super) state: &'a mut [f32],
    pub(super) x: Columns<'a>,
    /// All values of the output, `[n_rows, channels]`.
    pub(super) out: &'a Rows<'a, f32>,
}

impl ConvTile<'_> {
    /// Channels of the tile.
    pub(super) fn width(&self) -> usize {
        (self.conv.channels - self.start).min(LANES)
    }

    /// Weights of tap `j` for the tile's channels.
    #[inline(always)]
    pub(super) fn weight(&self, j: usize) -> &[f32] {
        &self.conv.weight[j * self.conv.channels + self.start..][..self.width()]
    }

    #[inline(always)]
    pub(super) fn bias(&self) -> &[f32] {
        &self.conv.bias[self.start..][..self.width()]
    }

    pub(super) fn taps(&self) -> usize {
        self.conv.taps
    }

    pub(super) fn silu(&self) -> bool {
        self.conv.silu
    }

    /// Where row `row` of the tile goes.
    #[inline(always)]
    pub(super) fn out(&mut self, row: usize) -> &mut [f32] {
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
    pub fn new(weight: &[f32], taps: usize, bias: Option<Vec<f32>>, silu: bool) -> Self {
        assert!((2..=MAX_CONV_TAPS).contains(&taps), "{taps} taps");
        let channels = weight.len() / taps;
        assert_eq!(weight.len(), channels * taps, "conv: weights of {taps} taps");
        let by_tap = |i: usize| weight[(i % channels) * taps + i / channels];
        let bias = bias.unwrap_or_else(|| vec![0.0; channels]);
        assert_eq!(bias.len(), channels, "conv: biases");
        let weight = (0..channels * taps).map(by_tap).collect();
        Self { channels, taps, weight, bias, silu }
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Values of a sequence's state: the `taps - 1` rows before the next one, in tiles of channels.
    pub fn state_len(&self) -> usize {
        self.channels * (self.taps - 1)
    }
}

impl Compute {
    /// Runs `conv` over the rows of `parts`: `x` holds the inputs, `out` is `[n_rows, channels]`,
    /// `states` is `[n_slots, conv.state_len()]` and follows.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn conv(
        &self,
        conv: &Conv,
        parts: &[ScanPart],
        states: &mut [f32],
        x: Columns<'_>,
        out: &mut [f32],
    ) {
        self.conv_at(conv, parts, states, StateAt { per_slot: conv.state_len(), first: 0 }, x, out);
    }

    /// [`Compute::conv`] where a slot holds the states of several convolutions, this one's `at`.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn conv_at(
        &self,
        conv: &Conv,
        parts: &[ScanPart],
        states: &mut [f32],
        at: StateAt,
        x: Columns<'_>,
        out: &mut [f32],
    ) {
        let n_rows = out.len() / conv.channels;
        assert_eq!(out.len(), n_rows * conv.channels, "conv: length of out");
        x.check(n_rows, conv.channels, "conv: x");
        ScanPart::check(parts, n_rows, states.len() / at.per_slot, "conv");
        let states = States::new(states, at.per_slot);
        let out = Rows::new(out, 1);
        let before = conv.taps - 1;
        self.for_units(parts, conv.channels.div_ceil(LANES), LANES * conv.taps, &|part, tile| {
            let start = tile * LANES;
            let end = (start + LANES).min(conv.channels);
            let state = at.first + start * before..at.first + end * before;
            // SAFETY: no two parts have a slot in common (checked), and each tile of one is handed out once.
            let state = unsafe { states.part(part.slot, state) };
            (self.kernels().conv)(&mut ConvTile { conv, start, part, state, x, out: &out });
        });
    }
}
