//! Ops over recurrent state: each unit of each part is a task of its own.

use crate::kernels::compute::Compute;
use crate::kernels::tiles::scan::ScanPart;

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
}
