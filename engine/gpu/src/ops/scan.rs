//! What ops over the slots of sequences have in common: which rows belong to which slot, and operands by columns.
//!
//! States lie in memory as on the CPU, so a slot's bytes can go from one to the other. The rows of a part are walked in
//! order; its bits are the same whether it comes in one piece or in many, alone or beside others.

use super::elementwise::count;
use crate::device::Gpu;
use crate::span::{Span, SpanMut};

/// Lanes of a vector on the CPU, in which states are tiled.
pub(super) const LANES: usize = 16;

/// Columns that a workgroup of `scan.glsl` has.
pub(super) const COLUMNS: usize = 32;

/// A number of which the shaders' FLUSH_EVERY is a divisor: they count positions modulo this.
const POSITIONS: usize = 1 << 16;

/// Slots that a part can name: shaders have half a word for the one that its state is read in.
const MAX_SLOTS: usize = 1 << 16;

/// Consecutive rows of one sequence with recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanPart {
    /// Row of the states that has the state before the part. No other part writes it.
    pub from: usize,
    /// Row of the states that the state behind the part goes to; no two parts share one.
    pub slot: usize,
    /// Position of the first row.
    pub first_pos: usize,
    /// Index of the first row in the op's operands; parts are in the order of their rows, which are each in one part at
    /// most.
    pub first_row: usize,
    /// Rows, at consecutive positions.
    pub n_rows: usize,
}

/// Rows of a wider matrix: columns `first_col ..` of rows of `stride` values.
#[derive(Clone, Copy, Debug)]
pub struct ColumnsSpan<'a> {
    /// All rows.
    pub span: Span<'a>,
    /// Values in a row.
    pub stride: usize,
    /// Where the wanted columns start.
    pub first_col: usize,
}

impl<'a> ColumnsSpan<'a> {
    /// Rows that are all of `span`, `stride` values each.
    pub fn whole(span: Span<'a>, stride: usize) -> Self {
        Self { span, stride, first_col: 0 }
    }

    /// The address of the first row's first wanted column, and the distance of rows, as shaders take them.
    ///
    /// # Panics
    /// If there are not `n_rows` rows with `n` columns to take.
    pub(super) fn place(&self, n_rows: usize, n: usize, what: &str) -> (u64, u32) {
        assert!(self.span.values() >= n_rows * self.stride, "{what}: {n_rows} rows");
        assert!(self.first_col + n <= self.stride, "{what}: {n} columns of {}", self.stride);
        count(n_rows * self.stride);
        (self.span.address() + 4 * self.first_col as u64, self.stride as u32)
    }
}

impl ScanPart {
    /// Checks the parts against `n_rows` rows and `n_slots` states.
    ///
    /// # Panics
    /// If rows do not ascend, are in two parts or beyond the rows, or a slot is written by two parts, read by one and written
    /// by another, or beyond the slots. What is written by several workgroups at once rests on it.
    pub(super) fn check(parts: &[Self], n_rows: usize, n_slots: usize, op: &str) {
        let mut end = 0;
        for part in parts {
            let Self { from, slot, first_row, n_rows: n, .. } = *part;
            assert!(first_row >= end, "{op}: rows from {first_row} on after rows up to {end}");
            let last = slot.max(from);
            assert!(last < n_slots.min(MAX_SLOTS), "{op}: slot {last} of {n_slots}");
            end = first_row.saturating_add(n);
            assert!(end <= n_rows, "{op}: {n} rows from {first_row} on of {n_rows} rows");
        }
        let mut slots: Vec<usize> = parts.iter().map(|part| part.slot).collect();
        slots.sort_unstable();
        let twice = slots.windows(2).find(|pair| pair[0] == pair[1]);
        assert!(twice.is_none(), "{op}: slot {twice:?} in two parts");
        let of_another =
            |part: &&Self| part.from != part.slot && slots.binary_search(&part.from).is_ok();
        let read = parts.iter().find(of_another);
        assert!(read.is_none(), "{op}: {read:?} reads what another part writes");
    }

    /// As shaders take it.
    fn words(&self) -> [u32; 4] {
        let place = (self.from << 16) | (self.first_pos % POSITIONS);
        [self.slot, place, self.first_row, self.n_rows].map(count)
    }
}

impl Gpu {
    /// Copies slot `from` of `states` (slots of `per_slot` values each) to slot `to`. [`Gpu::fill`] makes one zero.
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn copy_slot(&self, states: SpanMut<'_>, per_slot: usize, from: usize, to: usize) {
        if from == to {
            return;
        }
        let len = 4 * per_slot;
        let (low, high) = (from.min(to), from.max(to));
        let (mut before, mut behind) = states.split_at(high * len);
        let (low, high) = (before.part(low * len..(low + 1) * len), behind.part(0..len));
        let (from, to) = if from < to { (low, high) } else { (high, low) };
        self.copy(from.as_span(), to);
    }

    /// Parts that have rows, where shaders read them: their address and how many there are.
    pub(super) fn upload_parts(&self, parts: impl Iterator<Item = ScanPart>) -> (u64, usize) {
        let words: Vec<_> = parts.filter(|part| part.n_rows > 0).map(|p| p.words()).collect();
        (self.upload(bytemuck::cast_slice(&words)).address(), words.len())
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

    #[test]
    fn positions_count_for_the_shaders_modulo_the_distance_of_flushes() {
        let far = ScanPart { from: 7, slot: 1, first_pos: (1 << 40) + 63, first_row: 2, n_rows: 3 };
        let [slot, place, first_row, n_rows] = far.words();
        assert_eq!((slot, place >> 16, place % 64, first_row, n_rows), (1, 7, 63, 2, 3));
    }
}
