//! The convolution over the rows of each sequence, channels spread over the threads.

use brigade_ops::{ConvRows, Host};

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::States;
use crate::tiles::scan::conv::ConvTile;

impl Compute {
    /// Runs the op [`ConvRows`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn conv(&self, op: ConvRows<'_, Host>) {
        op.check();
        let ConvRows { conv, parts, states, at, x, out } = op;
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
