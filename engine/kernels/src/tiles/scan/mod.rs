//! Tiles of recurrences, and the states of slots as kernels see them: taken apart by part and by range.

pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod mamba;
pub(crate) mod ssd;
pub(crate) mod wkv6;
pub(crate) mod wkv7;

pub use brigade_ops::{FLUSH_EVERY, ScanPart};

use super::out_rows::Rows;

/// Columns of rows in the host's memory.
pub type Columns<'a> = brigade_ops::Columns<&'a [f32]>;

/// The states of all slots, taken apart by slot and by range within it.
pub(crate) struct States<'a> {
    values: Rows<'a, f32>,
    per_slot: usize,
}

impl<'a> States<'a> {
    /// `states` as slots of `per_slot` values.
    #[inline]
    pub(crate) fn new(states: &'a mut [f32], per_slot: usize) -> Self {
        Self { values: Rows::new(states, 1), per_slot }
    }

    /// Values `range` of the state before a part's first row, where the state behind its last one belongs. A state in
    /// another slot is copied here, by the thread that is about to use it: it comes from memory once.
    ///
    /// # Safety
    /// The parts were checked ([`ScanPart::check`]), and no overlapping range of this part was handed out before.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    #[inline]
    pub(crate) unsafe fn of(
        &self,
        part: &ScanPart,
        range: std::ops::Range<usize>,
    ) -> &'a mut [f32] {
        assert!(range.end <= self.per_slot, "{range:?} of a state of {}", self.per_slot);
        let at = |slot: usize| slot * self.per_slot + range.start..slot * self.per_slot + range.end;
        // SAFETY: slots are disjoint, no two parts write one, and within one the caller's promise holds.
        let state = unsafe { self.values.rows(at(part.slot)) };
        if part.from != part.slot {
            // SAFETY: no part writes a slot that another one reads, and nobody keeps what is read here.
            state.copy_from_slice(unsafe { self.values.read(at(part.from)) });
        }
        state
    }
}
