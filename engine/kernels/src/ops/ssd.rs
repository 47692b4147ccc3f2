//! Mamba-2's recurrence, heads spread over the threads.

use crate::compute::Compute;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::{ScanPart, States};
use crate::tiles::ssd::{Ssd, SsdInput, SsdTile};
use brigade_shapes::SsdShape;

/// Heads of a group that one unit of work takes: they share its packed B and C.
const HEADS_PER_UNIT: usize = 4;

impl Compute {
    /// Runs the recurrence over the rows of `parts`: `out` is `[n_rows, n_head * head_dim]`,
    /// `states` is `[n_slots, shape.state_len()]` and follows.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn ssd(
        &self,
        ssd: &Ssd,
        parts: &[ScanPart],
        states: &mut [f32],
        input: SsdInput<'_>,
        out: &mut [f32],
    ) {
        let kernel = self.kernels().ssd;
        self.ssd_with(&kernel, HEADS_PER_UNIT, ssd, (parts, states), input, out);
    }

    /// [`Compute::ssd`] as it is usually written, for benches to compare with: token by token, lanes
    /// along `n_state` with a sum over lanes for each output, a head's state being
    /// `[head_dim, n_state]`. No block calls it.
    pub fn ssd_plain(
        &self,
        ssd: &Ssd,
        parts: &[ScanPart],
        states: &mut [f32],
        input: SsdInput<'_>,
        out: &mut [f32],
    ) {
        let kernel = self.kernels().ssd_plain;
        self.ssd_with(&kernel, HEADS_PER_UNIT, ssd, (parts, states), input, out);
    }

    fn ssd_with(
        &self,
        kernel: &(dyn Fn(SsdTile<'_>) + Sync),
        per_unit: usize,
        ssd: &Ssd,
        (parts, states): (&[ScanPart], &mut [f32]),
        input: SsdInput<'_>,
        out: &mut [f32],
    ) {
        let shape = &ssd.shape;
        check(shape, parts, states.len(), &input, out.len());
        let states = States::new(states, shape.state_len());
        let out = Rows::new(out, 1);
        let per_group = shape.n_head / shape.n_group;
        let units = per_group.div_ceil(per_unit);
        let cost = per_group.min(per_unit) * shape.head_state();
        self.for_units(parts, units * shape.n_group, cost, &|part, unit| {
            let start = unit / units * per_group + unit % units * per_unit;
            let end = (start + per_unit).min((unit / units + 1) * per_group);
            let range = start * shape.head_state()..end * shape.head_state();
            // SAFETY: the parts were checked, and the heads of one are handed out once.
            let state = unsafe { states.of(part, range) };
            kernel(SsdTile { ssd, heads: start..end, part, state, input, out: &out });
        });
    }
}

/// Panics where operands do not have the shape's sizes.
fn check(
    shape: &SsdShape,
    parts: &[ScanPart],
    n_states: usize,
    input: &SsdInput<'_>,
    n_out: usize,
) {
    let n_rows = n_out / shape.n_inner();
    assert_eq!(n_out, n_rows * shape.n_inner(), "ssd: length of out");
    let widths = [shape.n_inner(), shape.n_bc(), shape.n_bc(), shape.n_head];
    for (columns, width) in [input.x, input.b, input.c, input.dt].iter().zip(widths) {
        assert!(columns.data.len() >= n_rows * columns.stride, "ssd: rows of {n_rows}");
        assert!(columns.first_col + width <= columns.stride, "ssd: {width} columns");
    }
    ScanPart::check(parts, n_rows, n_states / shape.state_len(), "ssd");
}
