//! Rows that blocks compute with, and the scratch that they come from: memory that is used again, so that a forward
//! pass asks the system for some only until it is warm. Rows go back by themselves when they are dropped. Beside them,
//! memory for states, and what ops take of either.

pub(super) mod fetched;
pub(super) mod memory;
pub(super) mod store;
pub(super) mod values;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ops::{Buffer, Columns, Copy, Derived, Function, Map, View, ViewMut};

use super::accelerator::{There, first, first_mut};
use super::give_up;
use crate::kernels::ActRows;
use store::Store;

/// Memory for rows, which is taken and given back.
#[derive(Clone, Default)]
pub struct Scratch {
    there: Option<There>,
    spare: Arc<Mutex<Spare>>,
}

/// Free memory, at the greatest length that was asked for.
#[derive(Default)]
struct Spare {
    stores: Vec<Store>,
    n_grown: usize,
}

/// Rows of values, `[n_rows, cols]`, in memory of a scratch, to which it goes back, or in memory of their own. They
/// read as one slice, row after row. Forms that products make of them are kept until a value changes.
#[derive(Default)]
pub struct Rows {
    /// At least `len` of them, so that nothing is filled when longer rows are taken again.
    values: Store,
    len: usize,
    cols: usize,
    forms: Derived,
    home: Option<Scratch>,
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
    /// A scratch in the host's memory, or in a device's.
    pub(super) fn new(there: Option<There>) -> Self {
        Self { there, spare: Arc::default() }
    }

    /// Rows `[n_rows, cols]` of stale values.
    pub fn take(&self, n_rows: usize, cols: usize) -> Rows {
        let len = n_rows * cols;
        let spare = &mut *self.spare();
        // The tightest fit, and of several of a device's the one that lies first: layers, and there passes too, that ask for the same
        // lengths in turn get the same memory again.
        let fits = (0..spare.stores.len()).filter(|i| spare.stores[*i].len() >= len);
        let place = |i: &usize| (spare.stores[*i].len(), spare.stores[*i].address());
        let values = match fits.min_by_key(place) {
            Some(i) => spare.stores.swap_remove(i),
            None => {
                spare.n_grown += 1;
                // Longer memory takes the place of shorter memory.
                drop(spare.stores.pop());
                Store::new(self.there.as_ref(), len)
            }
        };
        let home = Some(self.clone());
        Rows { values, len, cols, forms: Derived::default(), home }
    }

    /// Rows `[n_rows, cols]` of zeros.
    pub fn zeros(&self, n_rows: usize, cols: usize) -> Rows {
        let mut rows = self.take(n_rows, cols);
        match &self.there {
            Some(there) => there.do_now(Map { x: rows.view_mut(), with: Function::Constant(0.0) }),
            None => rows.host_mut().fill(0.0),
        }
        rows
    }

    /// Rows that begin as a copy of others.
    pub fn copy_of(&self, rows: &Rows) -> Rows {
        let mut copy = self.take(rows.n_rows(), rows.cols);
        copy.copy_values(rows);
        copy
    }

    /// Rows with the values of others that may lie elsewhere: with the scratch's device, where it has one, else they stay as
    /// they are.
    pub fn adopt(&self, rows: Rows) -> Rows {
        match self.there {
            Some(_) if !rows.is_there() && rows.len > 0 => {
                let mut here = self.take(rows.n_rows(), rows.cols);
                here.copy_values(&rows);
                here
            }
            _ => rows,
        }
    }

    /// Number of times that memory was asked of the system so far. It stays the same once the pass is warm.
    pub fn n_grown(&self) -> usize {
        self.spare().n_grown
    }

    /// Number of free buffers. It is the same after every pass, unless a buffer is kept.
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
        Self { values: Store::Host(values), len, cols, forms: Derived::default(), home: None }
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.len.checked_div(self.cols).unwrap_or(0)
    }

    /// Number of values, in whatever memory.
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

    /// The values, for the host. Values of a device are copied, which waits for all work that the device was given.
    /// If it fails in that they are anything, which [`Device::finish`](super::Device::finish) tells.
    ///
    /// # Panics
    /// If a device has no room for a copy, with [`GaveUp`](super::GaveUp).
    pub fn read(&self) -> Cow<'_, [f32]> {
        let Store::There(buffer) = &self.values else { return Cow::Borrowed(self.host()) };
        let mut bytes = Vec::with_capacity(self.len * size_of::<f32>());
        if let Err(error) = buffer.read(0..self.len * size_of::<f32>(), &mut bytes) {
            give_up("a copy of rows", &error);
        }
        Cow::Owned(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Takes these values, as many as there are. With a device that waits for all that it was told.
    ///
    /// # Panics
    /// If these are not as many.
    pub fn write(&mut self, values: &[f32]) {
        assert_eq!(values.len(), self.len, "values of rows");
        self.forms = Derived::default();
        match &mut self.values {
            Store::There(buffer) => buffer.write(0, bytemuck::cast_slice(values)),
            own => own.host_mut()[..self.len].copy_from_slice(values),
        }
    }

    /// The values, which lie with the host.
    ///
    /// # Panics
    /// If they lie with a device: [`Rows::read`] brings them.
    pub fn host(&self) -> &[f32] {
        &self.values.host()[..self.len]
    }

    /// The values, which lie with the host, to be written there.
    ///
    /// # Panics
    /// If they lie with a device: [`Rows::write`] brings others.
    pub fn host_mut(&mut self) -> &mut [f32] {
        self.forms = Derived::default();
        &mut self.values.host_mut()[..self.len]
    }

    /// Row `r` of those that lie with the host.
    ///
    /// # Panics
    /// As [`Rows::host`].
    pub fn row(&self, r: usize) -> &[f32] {
        &self.host()[r * self.cols..(r + 1) * self.cols]
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
            Store::There(buffer) => View::Device(first(&**buffer, self.len * size_of::<f32>())),
            values => View::Host(&values.host()[..self.len]),
        }
    }

    /// The values, as ops write them.
    pub fn view_mut(&mut self) -> ViewMut<'_, f32> {
        self.forms = Derived::default();
        match &mut self.values {
            Store::There(buffer) => {
                ViewMut::Device(first_mut(&mut **buffer, self.len * size_of::<f32>()))
            }
            values => ViewMut::Host(&mut values.host_mut()[..self.len]),
        }
    }

    /// Columns from `first_col` on, as ops read them.
    pub fn columns(&self, first_col: usize) -> Columns<View<'_, f32>> {
        Columns { values: self.view(), stride: self.cols, first_col }
    }

    /// Forms of the rows that products have made.
    pub(super) fn forms(&self) -> &Derived {
        &self.forms
    }

    /// The rows in the form that products on the CPU read.
    pub(super) fn act(&self) -> ActRows<'_> {
        ActRows::new(self.host(), self.cols, &self.forms)
    }

    /// Whether they lie with a device.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.values, Store::There(_))
    }

    /// The device that they lie with, and where.
    pub(super) fn place_there(&self) -> Option<(&There, &dyn Buffer)> {
        match &self.values {
            Store::Host(_) | Store::Mapped(_) => None,
            Store::There(buffer) => Some((self.home.as_ref()?.there.as_ref()?, &**buffer)),
        }
    }

    /// Becomes a copy of `rows`, in memory where these have theirs if its own does not suffice.
    pub fn set(&mut self, rows: &Self) {
        if self.values.len() < rows.len {
            *self = match &rows.home {
                Some(home) => home.copy_of(rows),
                None => Self::new(rows.read().into_owned(), rows.cols),
            };
            return;
        }
        (self.len, self.cols) = (rows.len, rows.cols);
        self.copy_values(rows);
    }

    /// Takes the values of others of as many. Rows of the host go by way of a table while the device is at work.
    fn copy_values(&mut self, from: &Self) {
        let there = self.place_there().map(|(there, _)| there.clone());
        match there {
            Some(there) if from.is_there() || !there.state().is_idle => {
                there.do_now(Copy { from: from.view(), to: self.view_mut() });
            }
            _ => self.write(from.host()),
        }
    }

    /// The values, to be kept beyond the pass: copied where the memory is the scratch's or a device's.
    pub fn into_vec(mut self) -> Vec<f32> {
        match (&self.home, std::mem::take(&mut self.values)) {
            (None, Store::Host(mut values)) => {
                values.truncate(self.len);
                values
            }
            (_, values) => {
                self.values = values;
                if self.is_there() { self.fetched().into_vec() } else { self.host().to_vec() }
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

    /// The values, as ops write them, for as long as these rows were borrowed.
    pub fn into_view(self) -> ViewMut<'a, f32> {
        self.values
    }
}

impl<'a> RowsPart<'a> {
    /// The values, as ops read them.
    pub fn view(&self) -> View<'a, f32> {
        let first = self.first * self.rows.cols;
        self.rows.view().part(first..first + self.n_rows * self.rows.cols)
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.spare().stores.push(std::mem::take(&mut self.values));
        }
    }
}

/// For tests, which look at rows wherever they lie.
#[cfg(test)]
impl std::ops::Deref for Rows {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values.on_host()[..self.len]
    }
}

#[cfg(test)]
impl std::ops::DerefMut for Rows {
    fn deref_mut(&mut self) -> &mut [f32] {
        self.forms = Derived::default();
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

    /// A product that follows a change reads the new values, in whatever form.
    #[test]
    fn forms_of_old_values_are_forgotten() {
        use crate::device::{Device, product};
        use crate::kernels::{Compute, PackedMatrix, select};
        use crate::quant::GgmlType;
        let compute = Compute::new(select(None).unwrap(), 1, None).unwrap();
        let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
        let weights: Vec<u8> = [[0, 0x3c], [1; 2]].concat().repeat(16)[..34].to_vec();
        let w = PackedMatrix::pack(&compute, GgmlType::Q8_0, 1, 32, &weights).unwrap();
        let product = |rows: &Rows| {
            let mut out = Rows::new(vec![f32::NAN], 1);
            device.products(vec![product(&w, rows, 0..1, out.to_write())]);
            out[0]
        };
        let mut rows = Rows::new(vec![1.0; 32], 32);
        let first = product(&rows);
        rows.iter_mut().for_each(|x| *x *= 2.0);
        assert_eq!(product(&rows), 2.0 * first);
        assert!(first != 0.0);
    }
}
