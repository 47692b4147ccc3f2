//! Ops over recurrent state: each unit of each part is a task of its own.

pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod dilated_conv;
pub(crate) mod mamba;
pub(crate) mod ssd;
pub(crate) mod wkv6;
pub(crate) mod wkv7;

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::{ScanPart, States};

/// A task of [`Compute::for_values`].
type ValueTask<'a> = dyn Fn(&ScanPart, usize, &mut [[f32; LANES]], &Rows<'_, f32>) + Sync + 'a;

/// Heads whose states are matrices `[d, d]`.
pub(super) struct HeadStates<'a> {
    pub(super) n_heads: usize,
    pub(super) d: usize,
    /// `[n_slots, n_heads * d * d]`.
    pub(super) states: &'a mut [f32],
}

impl Compute {
    /// Runs `task(part, unit)` for every part, and for each of its `units` independent units (heads, tiles of
    /// channels). `row_cost` is the work of one row of one unit, in elements touched.
    pub(super) fn for_units(
        &self,
        parts: &[ScanPart],
        units: usize,
        row_cost: usize,
        task: &(dyn Fn(&ScanPart, usize) + Sync),
    ) {
        let most_rows = parts.iter().map(|p| p.n_rows).max().unwrap_or(0);
        self.for_rows(parts.len() * units, row_cost * most_rows, &|range| {
            for i in range {
                task(&parts[i / units], i % units);
            }
        });
    }

    /// Runs `task(part, value, state, out)` for every part and every sixteen values of its heads. `value` is the first
    /// of the sixteen in a row, `state` is their state (`[d, 16]`), and `out` is all of `[n_rows, n_heads * d]`. The
    /// caller has checked shapes and parts.
    pub(super) fn for_values(
        &self,
        heads: HeadStates<'_>,
        parts: &[ScanPart],
        out: &mut [f32],
        task: &ValueTask<'_>,
    ) {
        let HeadStates { n_heads, d, states } = heads;
        let width = n_heads * d;
        let states = States::new(states, width * d);
        let out = Rows::new(out, 1);
        self.for_units(parts, width / LANES, 2 * LANES * d, &|part, tile| {
            let value = tile * LANES;
            // SAFETY: the parts were checked, and each tile of one is handed out once.
            let state = unsafe { states.of(part, value * d..(value + LANES) * d) };
            task(part, value, state.as_chunks_mut().0, &out);
        });
    }
}
