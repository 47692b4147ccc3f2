//! Values that change their place, and rotations.

use std::ops::Range;

use brigade_gpu::{self as there, FewValues};

use super::{Device, Rows, Scratch, Values, ValuesMut};
use crate::kernels::RopeTable;
use crate::ops::{
    FillColumns, Function, GatherRows, HeadColumns, HeadsApart, HeadsTogether, Map, RepeatRows,
    View,
};

/// The greatest values of each row, which a GPU finds: on their way to the host.
pub struct FewGreatest(Found);

enum Found {
    /// Only its place is known, and needed.
    One(there::Greatest),
    Several(there::FewGreatest),
}

impl FewGreatest {
    /// The values with their places, which ascend; of equal ones the earlier. A single one counts as 0. `None` where a row has a
    /// value that is no number or +inf, or only -inf: whoever asks looks at the rows then. Waits for them.
    pub fn values(&self) -> Option<Vec<FewValues>> {
        match &self.0 {
            Found::One(found) => {
                let places = found.places().into_iter();
                places.map(|place| Some(vec![(place?, 0.0)])).collect()
            }
            Found::Several(found) => found.values().into_iter().collect(),
        }
    }
}

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

    /// Rotates heads of `x`, `[n, n_head * head_dim]`, by the positions of `table`.
    pub fn rope(&self, x: &mut (impl ValuesMut + ?Sized), head_dim: usize, table: &RopeTable) {
        match self.gpu_of(x) {
            Some((gpu, x)) => {
                gpu.rope(x, head_dim, table.by_pair().on_gpu(gpu), table.n_rot(), table.layout());
            }
            None => self.compute.rope(x.on_host_mut(), head_dim, table),
        }
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

    /// Finds the `k` greatest values of each row. `None` without a GPU, and where it has no room for them.
    pub fn greatest(&self, x: &Rows, k: usize) -> Option<FewGreatest> {
        let (gpu, span) = (self.gpu.as_ref()?, x.span()?);
        let found = match k {
            1 => Found::One(gpu.greatest(span, x.cols()).ok()?),
            _ => Found::Several(gpu.greatest_few(span, x.cols(), k).ok()?),
        };
        Some(FewGreatest(found))
    }

    /// Rows `picked` of `x`, in this order. Those that the host keeps, whatever computes, stay there.
    pub fn picked_rows(&self, scratch: &Scratch, x: &Rows, picked: &[u32]) -> Rows {
        let mut out = match self.has_gpu() && !x.is_with_gpu() {
            true => Rows::new(vec![0.0; picked.len() * x.cols()], x.cols()),
            false => scratch.take(picked.len(), x.cols()),
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
