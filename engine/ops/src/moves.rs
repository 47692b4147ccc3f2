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
    /// How many columns there are.
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

/// Takes `columns` of `from`, head by head, to rows of their own.
pub struct HeadsApart<'a, P: Place> {
    /// `[n, n_head, stride]`.
    pub from: P::Read<'a, f32>,
    /// Heads of a row.
    pub n_head: usize,
    /// Which columns of a head.
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
    /// Which columns of a head.
    pub columns: HeadColumns,
    /// `[n, n_head, stride]`.
    pub to: P::Write<'a, f32>,
}

/// `columns` of all rows become `value`.
pub struct FillColumns<'a, P: Place> {
    /// `[n_rows, stride]`.
    pub x: P::Write<'a, f32>,
    /// Which columns.
    pub columns: HeadColumns,
    /// What they become.
    pub value: f32,
}

/// Writes each row `times` times, one after the other.
pub struct RepeatRows<'a, P: Place> {
    /// `[n_rows, d]`.
    pub x: P::Read<'a, f32>,
    /// Values of a row.
    pub d: usize,
    /// How often.
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

carried!(HeadsApart { from: read, n_head: same, columns: same, to: write });
carried!(HeadsTogether { from: read, n_head: same, columns: same, to: write });
carried!(FillColumns { x: write, columns: same, value: same });
carried!(RepeatRows { x: read, d: same, times: same, out: write });
carried!(GatherRows { x: read, d: same, picked: read, out: write });

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
