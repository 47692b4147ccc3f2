//! Weighted sums of rows.

/// Start of a weighted sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumStart {
    /// Zero.
    Zero,
    /// The values that the output has before.
    Own,
}

/// Place of the weights: that of row `r` and source `k` is value `first + r * stride + k * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightsAt {
    /// Place of the weight of row 0 and source 0.
    pub first: usize,
    /// Values from one row's to the next one's.
    pub stride: usize,
    /// Values from one source's to the next one's.
    pub step: usize,
    /// Whether each column has weights of its own, side by side; else all have the same.
    pub by_column: bool,
}

impl WeightsAt {
    /// The place of the weight of row `r` and source `k`, of its first column.
    #[inline]
    pub fn of(&self, r: usize, k: usize) -> usize {
        self.first + r * self.stride + k * self.step
    }
}
