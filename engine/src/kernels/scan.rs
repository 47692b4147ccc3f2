//! What all ops over recurrent state have in common: which rows belong to which slot.
//!
//! The states of a block are one slice, `n_slots` rows of the same length; a ubatch touches those of
//! its parts. Such an op walks a part's rows in order from the slot's state and leaves the state after
//! the last row there, element by element the same operations whatever the cut, so a prompt gives the
//! same bits in one piece or in many.

use super::compute::Compute;
use super::ops::Rows;

/// Consecutive rows of one sequence with recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanPart {
    /// Row of the states that is the sequence's own; no two parts share one.
    pub slot: usize,
    /// Position of the first row.
    pub first_pos: usize,
    /// Index of the first row in the op's operands.
    pub first_row: usize,
    /// Rows, at consecutive positions.
    pub n_rows: usize,
}

/// Positions after which a scan replaces subnormal values of its state by zero: `p` with
/// `p % FLUSH_EVERY == FLUSH_EVERY - 1`. A state that decays to nothing would otherwise stay
/// subnormal, which is slow to compute with; a mode of the processor that does the same everywhere
/// is not to be had in Rust. Bound to absolute positions, so cuts of a prompt do not change it.
pub const FLUSH_EVERY: usize = 64;

impl ScanPart {
    /// Checks the parts against `n_rows` rows and `n_slots` states.
    pub(super) fn check(parts: &[Self], n_rows: usize, n_slots: usize, op: &str) {
        for (i, part) in parts.iter().enumerate() {
            assert!(part.slot < n_slots, "{op}: slot {} of {n_slots}", part.slot);
            assert!(part.first_row + part.n_rows <= n_rows, "{op}: {part:?} of {n_rows} rows");
            assert!(parts[..i].iter().all(|p| p.slot != part.slot), "{op}: a slot twice");
        }
    }
}

impl Compute {
    /// Runs `task(part, unit)` for every part and each of `units` independent units of it (heads, tiles of
    /// channels); `row_cost` is the work of one row of one unit, in elements touched.
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

/// The states of all slots, taken apart by slot and by range within it.
pub(super) struct States<'a> {
    values: Rows<'a, f32>,
    per_slot: usize,
}

impl<'a> States<'a> {
    /// `states` as slots of `per_slot` values.
    pub(super) fn new(states: &'a mut [f32], per_slot: usize) -> Self {
        Self { values: Rows::new(states, 1), per_slot }
    }

    /// Values `range` of a slot.
    ///
    /// # Safety
    /// No overlapping range of the same slot is alive.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(super) unsafe fn part(&self, slot: usize, range: std::ops::Range<usize>) -> &'a mut [f32] {
        assert!(range.end <= self.per_slot, "{range:?} of a state of {}", self.per_slot);
        let start = slot * self.per_slot;
        // SAFETY: slots are disjoint, and within one the caller's promise holds.
        unsafe { self.values.rows(start + range.start..start + range.end) }
    }
}
