//! Token shift (arXiv 2305.13048): the row before each row of a sequence. It is computed as a causal
//! convolution of two taps, of which only the older one counts.

use crate::device::{Device, Memory, Rows, Scratch};
use crate::ops::{Conv, ConvRows, ScanPart};

/// A shift over rows of a fixed width.
pub(crate) struct TokenShift(Conv);

impl TokenShift {
    /// Over rows of `n_embd` values.
    pub(super) fn new(n_embd: usize) -> Self {
        let taps = [1.0, 0.0].repeat(n_embd);
        Self(Conv::new(&taps, 2, None, false))
    }

    /// For each row of `x` the one before it in its sequence, zeros for a sequence's first; `states` are
    /// `[n_slots, n_embd]`.
    pub(super) fn before(
        &self,
        device: &Device,
        scratch: &Scratch,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        x: &Rows,
    ) -> Rows {
        let mut before = scratch.take(x.n_rows(), x.cols());
        device.run(ConvRows {
            conv: &self.0,
            parts,
            states: states.view_mut(),
            at: self.0.alone(),
            x: x.columns(0),
            out: before.view_mut(),
        });
        before
    }
}
