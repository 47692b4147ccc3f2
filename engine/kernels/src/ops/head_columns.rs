//! Takes rows of heads apart, head by head, and puts them together again. It only copies values.

use crate::compute::Compute;

/// Some neighbouring columns of rows that lie one after the other.
#[derive(Clone, Copy, Debug)]
pub struct HeadColumns {
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
    /// The first of the columns.
    pub first: usize,
    /// How many columns there are.
    pub width: usize,
}

impl Compute {
    /// Takes `columns` of `from[n, n_head, stride]`, head by head, to `to[n_head, n, width]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn heads_apart(&self, from: &[f32], n_head: usize, columns: HeadColumns, to: &mut [f32]) {
        let HeadColumns { stride, first, width } = columns;
        check(from.len(), n_head, columns, to.len());
        let n = to.len() / (n_head * width);
        self.each_row(to, width, "heads_apart", &|r, row| {
            let at = (r % n * n_head + r / n) * stride + first;
            row.copy_from_slice(&from[at..at + width]);
        });
    }

    /// The way back of [`Compute::heads_apart`]: `from[n_head, n, width]` to `columns` of
    /// `to[n, n_head, stride]`, whose other columns stay as they are.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn heads_together(
        &self,
        from: &[f32],
        n_head: usize,
        columns: HeadColumns,
        to: &mut [f32],
    ) {
        let HeadColumns { stride, first, width } = columns;
        check(to.len(), n_head, columns, from.len());
        let n = from.len() / (n_head * width);
        self.each_row(to, stride, "heads_together", &|r, row| {
            let at = (r % n_head * n + r / n_head) * width;
            row[first..first + width].copy_from_slice(&from[at..at + width]);
        });
    }
}

/// `together` values in rows of heads, `apart` values of their columns.
fn check(together: usize, n_head: usize, columns: HeadColumns, apart: usize) {
    let HeadColumns { stride, first, width } = columns;
    assert!(n_head > 0 && width > 0 && first + width <= stride, "heads: {columns:?}");
    assert_eq!(together * width, apart * stride, "heads: rows of both");
    assert!(together.is_multiple_of(n_head * stride), "heads: whole rows of {n_head} heads");
}
