//! Causal depthwise convolution over the rows of each sequence. Its state is the rows before them.

use brigade_shapes::{MAX_CONV_TAPS, StateAt};

use super::{Columns, ScanPart, check_columns};
use crate::carry::carried;
use crate::place::Place;
use crate::vector::Vector;

/// A causal depthwise convolution: `y[t][c] = act(bias[c] + Σ_j weight[j][c] · x[t - taps + 1 + j][c])`,
/// taps in ascending order; rows before a sequence's first count as zero.
#[derive(Clone, Debug)]
pub struct Conv {
    /// Number of channels.
    pub channels: usize,
    /// Taps of each channel.
    pub taps: usize,
    /// `[taps, channels]`.
    pub weight: Vector,
    /// `[channels]`, zeros where the model has none.
    pub bias: Vector,
    /// Whether `silu` follows.
    pub silu: bool,
}

/// A convolution over the rows of `parts`.
pub struct ConvRows<'a, P: Place> {
    /// Weights of the convolution.
    pub conv: &'a Conv,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, at.per_slot]`. Those of the convolution begin at `at.first` of each slot, and are written.
    pub states: P::Write<'a, f32>,
    /// Place of the convolution's values within a slot.
    pub at: StateAt,
    /// Inputs, `[n_rows, channels]`.
    pub x: Columns<P::Read<'a, f32>>,
    /// `[n_rows, channels]`.
    pub out: P::Write<'a, f32>,
}

carried!(ConvRows { conv: same, parts: same, states: write, at: same, x: rows, out: write });

impl<P: Place> ConvRows<'_, P> {
    /// Panics if shapes disagree, or two parts share a slot. Gives the number of rows.
    #[inline]
    pub fn check(&self) -> usize {
        let Conv { channels, taps, weight, bias, .. } = self.conv;
        assert!(
            (2..=MAX_CONV_TAPS).contains(taps) && *channels > 0,
            "conv: {taps} taps of {channels}"
        );
        assert_eq!(weight.len(), taps * channels, "conv: weights");
        assert_eq!(bias.len(), *channels, "conv: biases");
        let n_out = P::len_mut(&self.out);
        let n_rows = n_out / channels;
        assert_eq!(n_out, n_rows * channels, "conv: length of out");
        check_columns::<P>(&self.x, n_rows, *channels, "conv: x");
        let StateAt { per_slot, first } = self.at;
        assert!(first + self.conv.state_len() <= per_slot, "conv: place of the state");
        ScanPart::check(self.parts, n_rows, P::len_mut(&self.states) / per_slot, "conv");
        n_rows
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

    /// Number of values of a sequence's state: its last `taps - 1` rows.
    #[inline]
    pub fn state_len(&self) -> usize {
        self.channels * (self.taps - 1)
    }

    /// Place of the state in slots that hold this convolution's state and nothing else.
    #[inline]
    pub fn alone(&self) -> StateAt {
        StateAt { per_slot: self.state_len(), first: 0 }
    }
}
