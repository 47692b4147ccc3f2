//! The time mixing of RWKV-6, tiles of heads spread over the threads.

use brigade_ops::{Host, Wkv6, Wkv6Decay};

use super::HeadStates;
use crate::compute::Compute;
use crate::tiles::scan::wkv6::Wkv6Tile;

impl Compute {
    /// Runs the op [`Wkv6Decay`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv6_decay(&self, op: Wkv6Decay<'_, Host>) {
        op.check();
        let (bias, decay) = (op.bias, self.kernels().wkv6_decay);
        self.each_row(op.w, bias.len(), "wkv6_decay", &|_, row| decay(row, bias));
    }

    /// Runs the op [`Wkv6`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn wkv6(&self, op: Wkv6<'_, Host>) {
        op.check();
        let Wkv6 { n_heads, d, parts, states, rows, out } = op;
        let width = n_heads * d;
        let heads = HeadStates { n_heads, d, states };
        self.for_values(heads, parts, out, &|part, value, state, out| {
            let head = value / d * d;
            (self.kernels().wkv6)(&mut Wkv6Tile { part, state, rows, width, d, head, value, out });
        });
    }
}
