//! Mamba-2's recurrence, heads spread over the threads.

use brigade_ops::{Host, SsdScan};

use crate::compute::Compute;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::States;
use crate::tiles::scan::ssd::SsdTile;

/// Heads of a group that one unit of work takes: they share its packed B and C.
const HEADS_PER_UNIT: usize = 4;

impl Compute {
    /// Runs the op [`SsdScan`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn ssd(&self, op: SsdScan<'_, Host>) {
        let kernel = self.kernels().ssd;
        self.ssd_with(&kernel, op);
    }

    /// [`Compute::ssd`] as it is usually written, for benches to compare with: token by token, lanes
    /// along `n_state` with a sum over lanes for each output, a head's state being
    /// `[head_dim, n_state]`. No block calls it.
    pub fn ssd_plain(&self, op: SsdScan<'_, Host>) {
        let kernel = self.kernels().ssd_plain;
        self.ssd_with(&kernel, op);
    }

    fn ssd_with(&self, kernel: &(dyn Fn(SsdTile<'_>) + Sync), op: SsdScan<'_, Host>) {
        op.check();
        let SsdScan { ssd, parts, states, input, out } = op;
        let shape = &ssd.shape;
        let states = States::new(states, shape.state_len());
        let out = Rows::new(out, 1);
        let per_group = shape.n_head / shape.n_group;
        let units = per_group.div_ceil(HEADS_PER_UNIT);
        let cost = per_group.min(HEADS_PER_UNIT) * shape.head_state();
        self.for_units(parts, units * shape.n_group, cost, &|part, unit| {
            let start = unit / units * per_group + unit % units * HEADS_PER_UNIT;
            let end = (start + HEADS_PER_UNIT).min((unit / units + 1) * per_group);
            let range = start * shape.head_state()..end * shape.head_state();
            // SAFETY: the parts were checked, and the heads of one are handed out once.
            let state = unsafe { states.of(part, range) };
            kernel(SsdTile { ssd, heads: start..end, part, state, input, out: &out });
        });
    }
}
