//! Sizes of dilated convolutions.

/// Shape of a causal depthwise convolution: `y[t][c] = Σ_j weight[j][c] · x[t - (taps - 1 - j) apart][c]`, taps in ascending
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DilatedConv {
    /// Values of a row.
    pub channels: usize,
    /// Taps, at least 1.
    pub taps: usize,
    /// Rows from one tap to the next.
    pub apart: usize,
}

impl DilatedConv {
    /// Rows before a row that it reaches back to.
    #[inline]
    pub fn n_before(&self) -> usize {
        (self.taps - 1) * self.apart
    }

    /// Values of a sequence's state: as many rows before the next one.
    #[inline]
    pub fn state_len(&self) -> usize {
        self.n_before() * self.channels
    }
}

/// Most taps of a causal convolution; models have 3 or 4.
pub const MAX_CONV_TAPS: usize = 8;
