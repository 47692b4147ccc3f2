//! Rows that blocks compute with, and the scratch that they come from: memory that is used again, so that a forward pass
//! asks the system for some only until it is warm. Rows go back by themselves when nobody has them any more.

use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::ops::{Columns, HeadColumns, Part, PartMut, View, ViewMut};
use brigade_gpu::{self as there, Gpu, GpuBuffer, RowForm, Span, SpanMut};

use super::store::Store;
use crate::kernels::{ActForms, ActRows};

/// Where rows come from, and go back to.
#[derive(Clone, Default)]
pub struct Scratch {
    gpu: Option<Gpu>,
    spare: Arc<Mutex<Spare>>,
}

/// Memory that nobody has, at the greatest length that somebody asked for.
#[derive(Default)]
struct Spare {
    stores: Vec<Store>,
    n_grown: usize,
}

/// Rows of values, `[n_rows, cols]`, in memory of a scratch, to which it goes back, or in memory of their own. They read as
/// one slice, row after row. What products make of them for themselves is kept until a value changes.
#[derive(Default)]
pub struct Rows {
    /// At least `len` of them, so that nothing is filled when longer rows are taken again.
    values: Store,
    len: usize,
    cols: usize,
    forms: Forms,
    home: Option<Scratch>,
}

/// What products made of rows for themselves.
#[derive(Default)]
struct Forms {
    cpu: ActForms,
    /// With a GPU: the 8-bit form, and that in f16.
    blocks: OnceLock<GpuBuffer>,
    halves: OnceLock<GpuBuffer>,
}

/// Whole rows of others, to be written.
pub struct RowsMut<'a> {
    values: ViewMut<'a, f32>,
    cols: usize,
}

/// Some of the rows of others.
#[derive(Clone, Copy)]
pub struct RowsPart<'a> {
    rows: &'a Rows,
    first: usize,
    n_rows: usize,
}

impl Scratch {
    /// A scratch in the host's memory, or in a GPU's.
    pub(super) fn new(gpu: Option<Gpu>) -> Self {
        Self { gpu, spare: Arc::default() }
    }

    /// Rows `[n_rows, cols]` of stale values.
    pub fn take(&self, n_rows: usize, cols: usize) -> Rows {
        let len = n_rows * cols;
        let spare = &mut *self.spare();
        // The tightest fit, and of several of a GPU's the one that lies first: layers, and there passes too, that ask for the same
        // lengths in turn get the same memory again.
        let fits = (0..spare.stores.len()).filter(|i| spare.stores[*i].len() >= len);
        let place = |i: &usize| (spare.stores[*i].len(), spare.stores[*i].address());
        let values = match fits.min_by_key(place) {
            Some(i) => spare.stores.swap_remove(i),
            None => {
                spare.n_grown += 1;
                // Longer memory takes the place of shorter memory.
                drop(spare.stores.pop());
                Store::new(self.gpu.as_ref(), len)
            }
        };
        let home = Some(self.clone());
        Rows { values, len, cols, forms: Forms::default(), home }
    }

    /// Rows `[n_rows, cols]` of zeros.
    pub fn zeros(&self, n_rows: usize, cols: usize) -> Rows {
        let mut rows = self.take(n_rows, cols);
        match (&self.gpu, rows.span_mut()) {
            (Some(gpu), Some(span)) => gpu.fill(span, 0.0),
            _ => rows.fill(0.0),
        }
        rows
    }

    /// Rows that begin as a copy of others.
    pub fn copy_of(&self, rows: &Rows) -> Rows {
        let mut copy = self.take(rows.n_rows(), rows.cols);
        copy.copy_values(rows);
        copy
    }

    /// Columns `first_col .. first_col + width` of rows, as rows of their own.
    pub fn columns_of(&self, rows: &Rows, first_col: usize, width: usize) -> Rows {
        let mut part = self.take(rows.n_rows(), width);
        match (&self.gpu, rows.span(), part.span_mut()) {
            (Some(gpu), Some(from), Some(to)) => {
                let columns = HeadColumns { stride: rows.cols, first: first_col, width };
                gpu.columns_of(from, columns, to);
            }
            _ => {
                for (from, to) in rows.chunks_exact(rows.cols).zip(part.chunks_exact_mut(width)) {
                    to.copy_from_slice(&from[first_col..first_col + width]);
                }
            }
        }
        part
    }

    /// Rows with the values of others that may lie elsewhere: with the scratch's GPU, where it has one, else they stay as
    /// they are.
    pub fn adopt(&self, rows: Rows) -> Rows {
        match self.gpu {
            Some(_) if rows.values.span().is_none() && rows.len > 0 => {
                let mut here = self.take(rows.n_rows(), rows.cols);
                here.copy_values(&rows);
                here
            }
            _ => rows,
        }
    }

    /// How often memory was asked for so far. It stays where it is once the pass is warm.
    pub fn n_grown(&self) -> usize {
        self.spare().n_grown
    }

    /// Buffers that are here now: as many after one pass as after another, or somebody keeps one.
    pub fn n_spare(&self) -> usize {
        self.spare().stores.len()
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    /// Rows of `cols` values in memory of their own.
    ///
    /// # Panics
    /// If these are not whole rows.
    pub fn new(values: Vec<f32>, cols: usize) -> Self {
        assert!(values.len().is_multiple_of(cols), "{} values in rows of {cols}", values.len());
        let len = values.len();
        Self { values: Store::Host(values), len, cols, forms: Forms::default(), home: None }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.len.checked_div(self.cols).unwrap_or(0)
    }

    /// How many values there are, wherever they lie.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Values in a row; 0 where nothing is here yet.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    pub fn row(&self, r: usize) -> &[f32] {
        &self[r * self.cols..(r + 1) * self.cols]
    }

    /// All rows, to be written in parts.
    pub fn to_write(&mut self) -> RowsMut<'_> {
        let cols = self.cols;
        RowsMut { values: self.view_mut(), cols }
    }

    /// Rows `rows` of them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&self, rows: Range<usize>) -> RowsPart<'_> {
        assert!(rows.end <= self.n_rows(), "rows {rows:?} of {}", self.n_rows());
        RowsPart { rows: self, first: rows.start, n_rows: rows.len() }
    }

    /// The values, as ops read them.
    pub fn view(&self) -> View<'_, f32> {
        match &self.values {
            Store::Host(values) => View::Host(&values[..self.len]),
            Store::Gpu(buffer) => View::Device(Part::of(buffer, 0..self.len * size_of::<f32>())),
        }
    }

    /// The values, as ops write them.
    pub fn view_mut(&mut self) -> ViewMut<'_, f32> {
        self.forms = Forms::default();
        match &mut self.values {
            Store::Host(values) => ViewMut::Host(&mut values[..self.len]),
            Store::Gpu(buffer) => {
                ViewMut::Device(PartMut::of(buffer, 0..self.len * size_of::<f32>()))
            }
        }
    }

    /// Columns from `first_col` on, as ops read them.
    pub fn columns(&self, first_col: usize) -> Columns<View<'_, f32>> {
        Columns { values: self.view(), stride: self.cols, first_col }
    }

    /// As products on the CPU read them.
    pub(super) fn act(&self) -> ActRows<'_> {
        ActRows::new(self, self.cols, &self.forms.cpu)
    }

    /// Whether they lie with a GPU.
    pub(super) fn is_with_gpu(&self) -> bool {
        self.values.span().is_some()
    }

    /// All values, if they lie with a GPU.
    pub(super) fn span(&self) -> Option<Span<'_>> {
        Some(self.values.span()?.part(0..self.len * size_of::<f32>()))
    }

    /// All values to be written, if they lie with a GPU.
    pub(super) fn span_mut(&mut self) -> Option<SpanMut<'_>> {
        self.forms.blocks.take();
        self.forms.halves.take();
        Some(self.values.span_mut()?.split_at(self.len * size_of::<f32>()).0)
    }

    /// The GPU that they lie with.
    pub(super) fn gpu(&self) -> Option<&Gpu> {
        self.values.gpu()
    }

    /// All rows in a form that products read, if they lie with a GPU. The first caller makes it.
    pub(super) fn in_form(
        &self,
        form: RowForm,
        make: impl FnOnce(Span<'_>) -> GpuBuffer,
    ) -> Option<Span<'_>> {
        let x = self.span()?;
        let kept = match form {
            RowForm::Floats => return Some(x),
            RowForm::Blocks => &self.forms.blocks,
            RowForm::Halves => &self.forms.halves,
        };
        Some(kept.get_or_init(|| make(x)).span())
    }

    /// Becomes a copy of `rows`, in memory where these have theirs if its own does not suffice.
    pub fn set(&mut self, rows: &Self) {
        if self.values.len() < rows.len {
            *self = match &rows.home {
                Some(home) => home.copy_of(rows),
                None => Self::new(rows.to_vec(), rows.cols),
            };
            return;
        }
        (self.len, self.cols) = (rows.len, rows.cols);
        self.copy_values(rows);
    }

    /// Takes the values of others of as many. Those of the host go by way of a table while the GPU is at work.
    fn copy_values(&mut self, from: &Self) {
        let gpu = self.values.gpu().cloned();
        match (gpu, self.span_mut(), from.span()) {
            (Some(gpu), Some(to), Some(from)) => gpu.copy(from, to),
            (Some(gpu), Some(to), None) if !gpu.is_idle() => {
                gpu.copy(gpu.upload(bytemuck::cast_slice(from)), to);
            }
            _ => self.copy_from_slice(from),
        }
    }

    /// Keeps the last `width` values of each row.
    ///
    /// # Panics
    /// If a row has fewer.
    pub fn keep_last(&mut self, width: usize) {
        let (n_rows, cols) = (self.n_rows(), self.cols);
        assert!(width <= cols, "the last {width} of {cols} values");
        if width == 0 {
            (self.len, self.cols) = (0, 0);
        } else if let (Some(home), true) =
            (self.home.as_ref().filter(|_| self.is_with_gpu()), width < cols)
        {
            *self = home.columns_of(self, cols - width, width);
        } else if width < cols {
            for row in 0..n_rows {
                self.copy_within((row + 1) * cols - width..(row + 1) * cols, row * width);
            }
            (self.len, self.cols) = (n_rows * width, width);
        }
    }

    /// The values, to be kept beyond the pass: copied where the memory is the scratch's or a GPU's.
    pub fn into_vec(mut self) -> Vec<f32> {
        match (&self.home, std::mem::take(&mut self.values)) {
            (None, Store::Host(mut values)) => {
                values.truncate(self.len);
                values
            }
            (_, values) => {
                self.values = values;
                match self.is_with_gpu() {
                    true => self.fetched().into_vec(),
                    false => self.to_vec(),
                }
            }
        }
    }
}

impl<'a> RowsMut<'a> {
    /// The first `n_rows` rows, and the others.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(self, n_rows: usize) -> (Self, Self) {
        let cols = self.cols;
        let (first, rest) = self.values.split_at(n_rows * cols);
        (Self { values: first, cols }, Self { values: rest, cols })
    }

    /// Rows `rows`, for as long as these are not used.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&mut self, rows: Range<usize>) -> RowsMut<'_> {
        let values = self.values.part(rows.start * self.cols..rows.end * self.cols);
        RowsMut { values, cols: self.cols }
    }

    /// The values, as ops read them.
    pub fn view(&self) -> View<'_, f32> {
        self.values.as_view()
    }

    /// The values, as ops write them.
    pub fn view_mut(&mut self) -> ViewMut<'_, f32> {
        self.values.again()
    }

    /// The values, if they lie with the host.
    pub(super) fn host(&self) -> Option<&[f32]> {
        match &self.values {
            ViewMut::Host(values) => Some(values),
            ViewMut::Device(_) => None,
        }
    }

    /// The values to be written, if they lie with the host.
    pub(super) fn host_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.values {
            ViewMut::Host(values) => Some(values),
            ViewMut::Device(_) => None,
        }
    }

    /// The values to be written, if they lie with a GPU.
    pub(super) fn span_mut(&mut self) -> Option<SpanMut<'_>> {
        match self.values.again() {
            ViewMut::Host(_) => None,
            ViewMut::Device(part) => Some(there::span_mut_of(part)),
        }
    }
}

impl<'a> RowsPart<'a> {
    /// The values, as ops read them.
    pub fn view(&self) -> View<'a, f32> {
        let first = self.first * self.rows.cols;
        self.rows.view().part(first..first + self.n_rows * self.rows.cols)
    }

    /// The values.
    pub(super) fn on_host(&self) -> &'a [f32] {
        &self.rows[self.first * self.rows.cols..][..self.n_rows * self.rows.cols]
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.spare().stores.push(std::mem::take(&mut self.values));
        }
    }
}

impl Deref for Rows {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values.on_host()[..self.len]
    }
}

impl DerefMut for Rows {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.forms = Forms::default();
        &mut self.values.on_host_mut()[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_ask_alike_get_the_same_memory() {
        let scratch = Scratch::default();
        let layer = || {
            let (small, large) = (scratch.take(1, 10), scratch.take(10, 100));
            [small.as_ptr(), large.as_ptr()]
        };
        let first = layer();
        assert!((0..5).all(|_| layer() == first));
    }

    #[test]
    fn there_are_no_more_buffers_than_were_taken_at_once() {
        let scratch = Scratch::default();
        for n in 1..100 {
            let (a, b) = (scratch.take(n, 1), scratch.take(n, 2));
            assert_eq!([a.len(), b.len()], [n, 2 * n]);
            assert_eq!([a.n_rows(), b.n_rows()], [n; 2]);
            drop((a, b));
            assert!(scratch.n_spare() <= 2);
        }
    }

    #[test]
    fn what_is_kept_beyond_the_pass_leaves_the_memory_behind() {
        let scratch = Scratch::default();
        let own = vec![1.0, 2.0];
        let at = own.as_ptr();
        let rows = Rows::new(own, 2);
        assert_eq!(scratch.copy_of(&rows).into_vec(), [1.0, 2.0]);
        assert_eq!((scratch.n_spare(), scratch.n_grown()), (1, 1));
        let kept = rows.into_vec();
        assert_eq!(kept.as_ptr(), at, "moved, not copied");
        assert_eq!(scratch.n_spare(), 1);
    }

    #[test]
    fn columns_are_rows_of_their_own() {
        let scratch = Scratch::default();
        let mut rows = Rows::new((0..8).map(|i| i as f32).collect(), 4);
        let middle = scratch.columns_of(&rows, 1, 2);
        assert_eq!((&middle[..], middle.n_rows()), (&[1.0, 2.0, 5.0, 6.0][..], 2));
        rows.keep_last(1);
        assert_eq!((&rows[..], rows.cols(), rows.row(1)), (&[3.0, 7.0][..], 1, &[7.0][..]));
        let mut empty = Rows::default();
        assert_eq!((empty.n_rows(), empty.cols()), (0, 0));
        empty.set(&rows);
        assert_eq!((&empty[..], empty.n_rows()), (&[3.0, 7.0][..], 2));
    }

    /// A product that follows a change reads the new values, in whatever form.
    #[test]
    fn forms_of_old_values_are_forgotten() {
        use crate::kernels::{Compute, MatmulJob, PackedMatrix, select};
        use crate::quant::GgmlType;
        let compute = Compute::new(select(None).unwrap(), 1, None).unwrap();
        let weights: Vec<u8> = [[0, 0x3c], [1; 2]].concat().repeat(16)[..34].to_vec();
        let w = PackedMatrix::pack(&compute, GgmlType::Q8_0, 1, 32, &weights).unwrap();
        let product = |rows: &Rows| {
            let mut out = [f32::NAN];
            let job = MatmulJob { w: &w, x: rows.act(), rows: 0..1, out: &mut out };
            compute.matmul(&mut [job]);
            out[0]
        };
        let mut rows = Rows::new(vec![1.0; 32], 32);
        let first = product(&rows);
        rows.iter_mut().for_each(|x| *x *= 2.0);
        assert_eq!(product(&rows), 2.0 * first);
        assert!(first != 0.0);
    }
}
