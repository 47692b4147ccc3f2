//! Moves values: takes rows of heads apart, head by head, and puts them together again; repeats and picks rows; copies runs.

pub use brigade_ops::HeadColumns;
use brigade_ops::{AddPicked, CopyParts, FillColumns, GatherRows, HalvesToPairs, Host, RepeatRows};

use crate::compute::Compute;

impl Compute {
    /// Runs the op [`FillColumns`].
    pub(crate) fn fill_columns(&self, op: FillColumns<'_, Host>) {
        op.check();
        let HeadColumns { stride, first, width } = op.columns;
        for row in op.x.chunks_exact_mut(stride) {
            row[first..first + width].fill(op.value);
        }
    }

    /// Runs the op [`RepeatRows`].
    pub(crate) fn repeat_rows(&self, op: RepeatRows<'_, Host>) {
        op.check();
        let RepeatRows { x, d, times, out } = op;
        let repeated = x.chunks_exact(d).flat_map(|row| std::iter::repeat_n(row, times));
        out.chunks_exact_mut(d).zip(repeated).for_each(|(out, row)| out.copy_from_slice(row));
    }

    /// Runs the op [`GatherRows`].
    pub(crate) fn gather_rows(&self, op: GatherRows<'_, Host>) {
        op.check();
        for (row, out) in op.picked.iter().zip(op.out.chunks_exact_mut(op.d)) {
            out.copy_from_slice(&op.x[*row as usize * op.d..][..op.d]);
        }
    }

    /// Runs the op [`AddPicked`].
    ///
    /// # Panics
    /// If shapes disagree, or a number names no row.
    pub fn add_picked(&self, op: AddPicked<'_, Host>) {
        op.check();
        let AddPicked { out, table, d, picked } = op;
        for (out, row) in out.chunks_exact_mut(d).zip(picked) {
            let row = &table[*row as usize * d..][..d];
            out.iter_mut().zip(row).for_each(|(out, row)| *out += row);
        }
    }

    /// Runs the op [`CopyParts`].
    ///
    /// # Panics
    /// If a place lies outside.
    pub fn copy_parts(&self, op: CopyParts<'_, Host>) {
        op.check();
        let CopyParts { from, to, width, places } = op;
        for [at, place] in places {
            to[*place..place + width].copy_from_slice(&from[*at..at + width]);
        }
    }

    /// Runs the op [`HalvesToPairs`].
    ///
    /// # Panics
    /// If rows have no halves, or are not whole.
    pub fn halves_to_pairs(&self, op: HalvesToPairs<'_, Host>) {
        op.check();
        let mut row = vec![0.0; op.d];
        for x in op.x.chunks_exact_mut(op.d) {
            row.copy_from_slice(x);
            let (first, second) = row.split_at(op.d / 2);
            let pairs = x.as_chunks_mut().0;
            for (pair, halves) in pairs.iter_mut().zip(first.iter().zip(second)) {
                *pair = [*halves.0, *halves.1];
            }
        }
    }

    /// Takes `columns` of `from[n, n_head, stride]`, head by head, to `to[n_head, n, width]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn heads_apart(&self, from: &[f32], n_head: usize, columns: HeadColumns, to: &mut [f32]) {
        let HeadColumns { stride, first, width } = columns;
        columns.check(from.len(), n_head, to.len());
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
        columns.check(to.len(), n_head, from.len());
        let n = from.len() / (n_head * width);
        self.each_row(to, stride, "heads_together", &|r, row| {
            let at = (r % n_head * n + r / n_head) * width;
            row[first..first + width].copy_from_slice(&from[at..at + width]);
        });
    }
}
