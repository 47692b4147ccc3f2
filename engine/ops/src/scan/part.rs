//! The rows of a ubatch that belong to each slot.

use std::cell::RefCell;

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

/// Positions after which a scan replaces subnormal values of its state by zero: `p` with `p % FLUSH_EVERY ==
/// FLUSH_EVERY - 1`. A state that decays to nothing would otherwise stay subnormal, which is slow to compute with.
/// Rust has no mode of the processor that does the same everywhere. Bound to absolute positions, so cuts of a prompt
/// do not change it.
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
    /// # Panics If they are not so. Writes from several threads at once rely on it.
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
pub fn check_disjoint_rows(parts: impl Iterator<Item = (usize, usize)>, n_rows: usize, op: &str) {
    let mut end = 0;
    for (first, count) in parts {
        assert!(first >= end, "{op}: rows from {first} on after rows up to {end}");
        end = first.checked_add(count).filter(|end| *end <= n_rows).unwrap_or_else(|| {
            panic!("{op}: {count} rows from {first} on of {n_rows} rows");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::ScanPart;

    fn part(slot: usize, first_row: usize, n_rows: usize) -> ScanPart {
        ScanPart { from: slot, slot, first_pos: 0, first_row, n_rows }
    }

    fn refused(parts: &[ScanPart]) -> bool {
        std::panic::catch_unwind(|| ScanPart::check(parts, 10, 200, "test")).is_err()
    }

    #[test]
    fn parts_that_overlap_are_refused() {
        assert!(!refused(&[]));
        assert!(!refused(&[part(3, 0, 2), part(0, 2, 3), part(199, 5, 0), part(64, 6, 4)]));
        // Rows in two parts, out of order or beyond the rows; slots twice or beyond the slots.
        assert!(refused(&[part(0, 0, 2), part(1, 1, 2)]));
        assert!(refused(&[part(0, 4, 2), part(1, 1, 1)]));
        assert!(refused(&[part(1, 2, 9)]));
        assert!(refused(&[part(1, 2, usize::MAX)]));
        assert!(refused(&[part(70, 0, 2), part(3, 2, 2), part(70, 4, 1)]));
        assert!(refused(&[part(200, 2, 2)]));
        // Read elsewhere, also by several; but not where another part writes, or beyond the slots.
        let reads = |from, part| ScanPart { from, ..part };
        assert!(!refused(&[reads(5, part(3, 0, 2)), reads(5, part(0, 2, 3))]));
        assert!(refused(&[reads(5, part(3, 0, 2)), part(5, 2, 3)]));
        assert!(refused(&[reads(200, part(3, 0, 2))]));
    }
}
