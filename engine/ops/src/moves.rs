//! Ops that only move values.

use crate::carry::carried;
use crate::place::Place;

/// Some neighbouring columns of rows that lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
    /// The first of the columns.
    pub first: usize,
    /// Number of columns.
    pub width: usize,
}

impl HeadColumns {
    /// Panics where `together` values in rows of heads do not stand beside `apart` values of their columns.
    pub fn check(self, together: usize, n_head: usize, apart: usize) {
        let Self { stride, first, width } = self;
        assert!(n_head > 0 && width > 0 && first + width <= stride, "columns: {self:?}");
        assert_eq!(together * width, apart * stride, "columns: rows of both");
        assert!(together.is_multiple_of(n_head * stride), "columns: whole rows of {n_head} heads");
    }
}

/// `to = from`.
pub struct Copy<'a, P: Place> {
    /// Source values.
    pub from: P::Read<'a, f32>,
    /// Destination, of the same length.
    pub to: P::Write<'a, f32>,
}

carried!(Copy { from: read, to: write });

/// Copies one slot to another; slots have `per_slot` values each.
pub struct CopySlot<'a, P: Place> {
    /// `[n_slots, per_slot]`.
    pub slots: P::Write<'a, f32>,
    /// Values of a slot.
    pub per_slot: usize,
    /// The slot that is copied.
    pub from: usize,
    /// The slot that becomes like it.
    pub to: usize,
}

carried!(CopySlot { slots: write, per_slot: same, from: same, to: same });

/// Takes `columns` of `from`, head by head, to rows of their own.
pub struct HeadsApart<'a, P: Place> {
    /// `[n, n_head, stride]`.
    pub from: P::Read<'a, f32>,
    /// Heads of a row.
    pub n_head: usize,
    /// Columns of each head.
    pub columns: HeadColumns,
    /// `[n_head, n, width]`.
    pub to: P::Write<'a, f32>,
}

/// The way back of [`HeadsApart`]; other columns of `to` stay as they are.
pub struct HeadsTogether<'a, P: Place> {
    /// `[n_head, n, width]`.
    pub from: P::Read<'a, f32>,
    /// Heads of a row.
    pub n_head: usize,
    /// Columns of each head.
    pub columns: HeadColumns,
    /// `[n, n_head, stride]`.
    pub to: P::Write<'a, f32>,
}

/// `columns` of all rows become `value`.
pub struct FillColumns<'a, P: Place> {
    /// `[n_rows, stride]`.
    pub x: P::Write<'a, f32>,
    /// Columns to fill.
    pub columns: HeadColumns,
    /// The value they get.
    pub value: f32,
}

/// Writes each row `times` times, one after the other.
pub struct RepeatRows<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// Copies of each row.
    pub times: usize,
    /// `[n_rows, times, d]`.
    pub out: P::Write<'a, f32>,
}

/// Rows by their numbers, in the order of these.
pub struct GatherRows<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// Numbers of rows, each below `n_rows`.
    pub picked: P::Read<'a, u32>,
    /// `[picked.len(), d]`.
    pub out: P::Write<'a, f32>,
}

/// Adds to each row the row of a table that is named for it.
pub struct AddPicked<'a, P: Place> {
    /// `[n_rows, d]`.
    pub out: P::Write<'a, f32>,
    /// `[_, d]`: the rows that are added.
    pub table: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// For each row the number of a row of `table`.
    pub picked: P::Read<'a, u32>,
}

/// Copies `width` values for each of `places`: those of `from` from the first number on to those of `to` from the second on. No
/// value is written twice.
pub struct CopyParts<'a, P: Place> {
    /// Source values.
    pub from: P::Read<'a, f32>,
    /// Destination values.
    pub to: P::Write<'a, f32>,
    /// Values of each copy.
    pub width: usize,
    /// For each copy its first value in `from`, and its first value in `to`.
    pub places: &'a [[usize; 2]],
}

/// Puts element `i` of the second half of each row behind that of the first half: pairs come to stand side by side.
pub struct HalvesToPairs<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Write<'a, f32>,
    /// Values of a row, even.
    pub d: usize,
}

carried!(HeadsApart { from: read, n_head: same, columns: same, to: write });
carried!(HeadsTogether { from: read, n_head: same, columns: same, to: write });
carried!(FillColumns { x: write, columns: same, value: same });
carried!(RepeatRows { x: read, d: same, times: same, out: write });
carried!(GatherRows { x: read, d: same, picked: read, out: write });
carried!(AddPicked { out: write, table: read, d: same, picked: read });
carried!(CopyParts { from: read, to: write, width: same, places: same });
carried!(HalvesToPairs { x: write, d: same });

impl<P: Place> FillColumns<'_, P> {
    /// Panics if there are no such columns, or rows are not whole.
    pub fn check(&self) {
        let HeadColumns { stride, first, width } = self.columns;
        assert!(stride > 0 && first + width <= stride, "fill_columns: {:?}", self.columns);
        assert!(P::len_mut(&self.x).is_multiple_of(stride), "fill_columns: whole rows");
    }
}

impl<P: Place> RepeatRows<'_, P> {
    /// Panics if shapes disagree.
    pub fn check(&self) {
        let (n, n_out) = (P::len(&self.x), P::len_mut(&self.out));
        assert!(self.d > 0 && n.is_multiple_of(self.d), "repeat_rows: whole rows");
        assert_eq!(n_out, n * self.times, "repeat_rows: each row {} times", self.times);
    }
}

impl<P: Place> GatherRows<'_, P> {
    /// Panics if shapes disagree.
    pub fn check(&self) {
        let n = P::len(&self.picked) * self.d;
        assert_eq!(P::len_mut(&self.out), n, "gather_rows: a row for each number");
    }
}

impl<P: Place> AddPicked<'_, P> {
    /// Panics if rows are not whole, or not as many as named ones.
    pub fn check(&self) {
        let whole = self.d > 0 && P::len(&self.table).is_multiple_of(self.d);
        assert!(whole, "add_picked: whole rows of {}", self.d);
        let n = P::len(&self.picked) * self.d;
        assert_eq!(P::len_mut(&self.out), n, "add_picked: a row for each");
    }
}

impl<P: Place> CopyParts<'_, P> {
    /// Panics if a place lies outside.
    pub fn check(&self) {
        let (n_from, n_to) = (P::len(&self.from), P::len_mut(&self.to));
        let inside =
            |[from, to]: &[usize; 2]| from + self.width <= n_from && to + self.width <= n_to;
        let all_inside = self.places.iter().all(inside);
        assert!(all_inside, "copy_parts: places of {n_from} and {n_to} values");
    }
}

impl<P: Place> HalvesToPairs<'_, P> {
    /// Panics if rows have no halves, or are not whole. Gives the number of rows.
    pub fn check(&self) -> usize {
        let (n, d) = (P::len_mut(&self.x), self.d);
        assert!(d > 0 && d.is_multiple_of(2), "halves_to_pairs: rows of {d} have no halves");
        assert!(n.is_multiple_of(d), "halves_to_pairs: {n} values in rows of {d}");
        n / d
    }
}
