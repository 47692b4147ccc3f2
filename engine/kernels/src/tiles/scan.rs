//! What all ops over recurrent state have in common: which rows belong to which slot.
//!
//! The states of a block are one slice, `n_slots` rows of the same length. A ubatch touches the states of its
//! parts. An op walks the rows of a part in order, begins with the state in one slot, and leaves the state behind
//! the last row in that slot or in another. Each element sees the same operations whatever the cut. So a prompt gives the same
//! bits in one piece or in many.

use std::cell::RefCell;

use super::out_rows::Rows;

/// Consecutive rows of one sequence with recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanPart {
    /// Row of the states that has the state before the first row; what is there stays, unless it is `slot` as well.
    pub from: usize,
    /// Row of the states that gets the state behind the last row; no two parts share one, and no part reads that of another.
    pub slot: usize,
    /// Position of the first row.
    pub first_pos: usize,
    /// Index of the first row in the op's operands; parts are in the order of their rows, which are
    /// each in one part at most.
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
    /// A part whose state lies in one slot, before it and behind it.
    #[inline]
    pub fn in_place(slot: usize, first_pos: usize, first_row: usize, n_rows: usize) -> Self {
        Self { from: slot, slot, first_pos, first_row, n_rows }
    }

    /// Checks the parts against `n_rows` rows and `n_slots` states: rows in ascending order, each in one part at most, no
    /// slot twice, and none that another part reads. One walk, without memory of its own once the thread has warmed up.
    ///
    /// # Panics
    /// If they are not so. What is written from several threads at once rests on it.
    #[inline]
    pub fn check(parts: &[Self], n_rows: usize, n_slots: usize, op: &str) {
        let rows = parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, op);
        for part in parts {
            assert!(part.slot < n_slots, "{op}: slot {} of {n_slots}", part.slot);
            assert!(part.from < n_slots, "{op}: slot {} of {n_slots}", part.from);
            // Few parts read elsewhere: those of streams that run ahead.
            let is_written = part.from != part.slot && parts.iter().any(|p| p.slot == part.from);
            assert!(
                !is_written,
                "{op}: slot {} is read by one part and written by another",
                part.from
            );
        }
        // Slots mostly ascend as rows do; then there is nothing to remember.
        if !parts.is_sorted_by(|a, b| a.slot < b.slot) {
            SEEN_SLOTS.with_borrow_mut(|seen| check_each_slot_once(parts, seen, op));
        }
    }
}

thread_local! {
    /// Bit `slot % 64` of word `slot / 64`: whether a part met so far has the slot. Clear between checks.
    static SEEN_SLOTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Panics where two parts have one slot. `seen` is clear before and after.
fn check_each_slot_once(parts: &[ScanPart], seen: &mut Vec<u64>, op: &str) {
    let place = |part: &ScanPart| (part.slot / 64, 1 << (part.slot % 64));
    let n_words = parts.iter().map(|part| place(part).0 + 1).max().unwrap_or(0);
    if seen.len() < n_words {
        seen.resize(n_words, 0);
    }
    let mut twice = None;
    for part in parts {
        let (word, bit) = place(part);
        if seen[word] & bit != 0 {
            twice = Some(part.slot);
        }
        seen[word] |= bit;
    }
    parts.iter().for_each(|part| seen[place(part).0] = 0);
    assert!(twice.is_none(), "{op}: slot {twice:?} in two parts");
}

/// Checks that the rows `(first, count)` of parts ascend, lie apart and within `n_rows`, in one walk.
///
/// # Panics
/// If they do not.
#[inline]
pub(crate) fn check_disjoint_rows(
    parts: impl Iterator<Item = (usize, usize)>,
    n_rows: usize,
    op: &str,
) {
    let mut end = 0;
    for (first, count) in parts {
        assert!(first >= end, "{op}: rows from {first} on after rows up to {end}");
        end = first.checked_add(count).filter(|end| *end <= n_rows).unwrap_or_else(|| {
            panic!("{op}: {count} rows from {first} on of {n_rows} rows");
        });
    }
}

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

    /// Values `range` of the state before a part's first row, where the state behind its last one belongs. What lies in
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
