//! The convolution over the rows of each sequence, channels spread over the threads.

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::conv::{Columns, Conv, ConvTile};
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::{ScanPart, States};
use brigade_shapes::StateAt;

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
            // SAFETY: the parts were checked, and each tile of one is handed out once.
            let state = unsafe { states.of(part, state) };
            (self.kernels().conv)(&mut ConvTile { conv, start, part, state, x, out: &out });
        });
    }
}
