//! Values that change their place, and rotations.

use std::ops::Range;

use crate::device::{Device, Rows, Scratch, Values, ValuesMut};
use crate::kernels::{RopeTable, Vector};
use crate::ops::{
    FillColumns, Function, GatherRows, HalvesToPairs, HeadColumns, HeadsApart, HeadsTogether, Map,
    RepeatRows, Rope, View,
};

impl Device {
    /// [`HeadsApart`].
    pub fn heads_apart(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        let (from, to) = (from.view(), to.view_mut());
        self.run(HeadsApart { from, n_head, columns, to });
    }

    /// [`HeadsTogether`].
    pub fn heads_together(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        let (from, to) = (from.view(), to.view_mut());
        self.run(HeadsTogether { from, n_head, columns, to });
    }

    /// Columns `first .. first + width` of rows, as rows of their own.
    pub fn columns_of(&self, scratch: &Scratch, rows: &Rows, first: usize, width: usize) -> Rows {
        let mut part = scratch.take(rows.n_rows(), width);
        self.heads_apart(rows, 1, HeadColumns { stride: rows.cols(), first, width }, &mut part);
        part
    }

    /// Rows beside each other: row `r` of `out` (`[n_rows, cols]`) is row `r` of each of them in turn.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn side_by_side(&self, rows: &[&Rows], out: &mut Rows) {
        let (stride, n_rows, mut first) = (out.cols(), out.n_rows(), 0);
        assert!(rows.iter().all(|rows| rows.n_rows() == n_rows), "side_by_side: rows");
        for rows in rows {
            let columns = HeadColumns { stride, first, width: rows.cols() };
            self.heads_together(*rows, 1, columns, out);
            first += rows.cols();
        }
        assert_eq!(first, stride, "side_by_side: columns");
    }

    /// Keeps the last `width` values of each row.
    ///
    /// # Panics
    /// If a row has fewer.
    pub fn keep_last(&self, scratch: &Scratch, rows: &mut Rows, width: usize) {
        let cols = rows.cols();
        assert!(width <= cols, "the last {width} of {cols} values");
        if width < cols {
            *rows = match width {
                0 => Rows::default(),
                _ => self.columns_of(scratch, rows, cols - width, width),
            };
        }
    }

    /// Puts element `i` of the second half of each row behind that of the first half ([`HalvesToPairs`]).
    ///
    /// # Panics
    /// If rows have no halves.
    pub fn halves_to_pairs(&self, x: &mut Rows) {
        let d = x.cols();
        self.run(HalvesToPairs { x: x.view_mut(), d });
    }

    /// Rotates heads of `x`, `[n, n_head * head_dim]`, by the positions of `table` ([`Rope`]).
    pub fn rope(&self, x: &mut (impl ValuesMut + ?Sized), head_dim: usize, table: &RopeTable) {
        let angles = table.angles().map(Vector::view);
        self.run(Rope { x: x.view_mut(), head_dim, angles });
    }

    /// `x = value`.
    pub fn fill(&self, x: &mut (impl ValuesMut + ?Sized), value: f32) {
        self.run(Map { x: x.view_mut(), with: Function::Constant(value) });
    }

    /// Columns `columns` of all rows become `value`.
    pub fn fill_columns(&self, x: &mut Rows, columns: Range<usize>, value: f32) {
        let columns = HeadColumns { stride: x.cols(), first: columns.start, width: columns.len() };
        self.run(FillColumns { x: x.view_mut(), columns, value });
    }

    /// Writes each run of `d` values of `x` `times` times, one after the other: `out` has `times` as many values.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn repeat_rows(&self, x: &Rows, d: usize, times: usize, out: &mut Rows) {
        self.run(RepeatRows { x: x.view(), d, times, out: out.view_mut() });
    }

    /// Rows `picked` of `x`, in this order. Values that the host always keeps stay there.
    pub fn picked_rows(&self, scratch: &Scratch, x: &Rows, picked: &[u32]) -> Rows {
        let mut out = if self.there.is_some() && !x.is_there() {
            Rows::new(vec![0.0; picked.len() * x.cols()], x.cols())
        } else {
            scratch.take(picked.len(), x.cols())
        };
        self.gather_rows(x, picked, &mut out);
        out
    }

    /// Rows `picked` of `x`, in this order: `out` is `[picked.len(), x.cols()]`.
    pub fn gather_rows(&self, x: &Rows, picked: &[u32], out: &mut Rows) {
        let picked = View::Host(picked);
        self.run(GatherRows { x: x.view(), d: x.cols(), picked, out: out.view_mut() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Compute, select};

    #[test]
    fn columns_are_rows_of_their_own() {
        let device = Device::from(Compute::new(select(None).unwrap(), 1, None).unwrap());
        let scratch = device.scratch();
        let mut rows = Rows::new((0..8).map(|i| i as f32).collect(), 4);
        let middle = device.columns_of(&scratch, &rows, 1, 2);
        assert_eq!((&middle[..], middle.n_rows()), (&[1.0, 2.0, 5.0, 6.0][..], 2));
        let mut all = scratch.take(2, 6);
        device.side_by_side(&[&middle, &rows], &mut all);
        assert_eq!(all[..], [1.0, 2.0, 0.0, 1.0, 2.0, 3.0, 5.0, 6.0, 4.0, 5.0, 6.0, 7.0]);
        device.keep_last(&scratch, &mut rows, 1);
        assert_eq!((&rows[..], rows.cols(), rows.row(1)), (&[3.0, 7.0][..], 1, &[7.0][..]));
        let mut empty = Rows::default();
        assert_eq!((empty.n_rows(), empty.cols()), (0, 0));
        empty.set(&rows);
        assert_eq!((&empty[..], empty.n_rows()), (&[3.0, 7.0][..], 2));
        device.keep_last(&scratch, &mut empty, 0);
        assert_eq!((empty.n_rows(), empty.cols()), (0, 0));
    }

    #[test]
    fn halves_become_pairs() {
        let device = Device::from(Compute::new(select(None).unwrap(), 1, None).unwrap());
        let mut rows = Rows::new((0..12).map(|i| i as f32).collect(), 6);
        device.halves_to_pairs(&mut rows);
        assert_eq!(rows[..], [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 9.0, 7.0, 10.0, 8.0, 11.0]);
    }
}
