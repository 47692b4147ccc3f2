//! A slice that several threads write, each its own rows.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice as rows that several threads may take apart.
pub(crate) struct Rows<'a, T> {
    start: *mut T,
    len: usize,
    row: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is borrowed mutably for 'a, and `rows` obliges its callers to take disjoint
// parts; sending the parts to other threads needs `T: Send`.
unsafe impl<T: Send> Sync for Rows<'_, T> {}

impl<'a, T> Rows<'a, T> {
    /// `slice` as rows of `row` elements.
    #[inline]
    pub(crate) fn new(slice: &'a mut [T], row: usize) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), row, owner: PhantomData }
    }

    /// The rows of `range`.
    ///
    /// # Safety
    /// No other part of these rows that overlaps `range` is alive.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    #[inline]
    pub(crate) unsafe fn rows(&self, range: Range<usize>) -> &'a mut [T] {
        let (start, end) = (range.start * self.row, range.end * self.row);
        assert!(start <= end && end <= self.len, "rows {range:?} of {} elements", self.len);
        // SAFETY: in bounds (asserted) of a slice borrowed mutably for 'a, and disjoint from every
        // other part by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), end - start) }
    }

    /// Pointer to the start of row `row`, for writers of parts of rows. Nothing is borrowed.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(crate) fn start_of(&self, row: usize) -> *mut T {
        assert!(row * self.row <= self.len, "row {row} of {} elements", self.len);
        // SAFETY: inside the slice, or at its end (asserted).
        unsafe { self.start.add(row * self.row) }
    }

    /// The rows of `range`, to be read.
    ///
    /// # Safety
    /// None of these rows is written while the result is alive.
    #[inline]
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        let (start, end) = (range.start * self.row, range.end * self.row);
        assert!(start <= end && end <= self.len, "rows {range:?} of {} elements", self.len);
        // SAFETY: in bounds (asserted) of a slice borrowed for 'a, which nobody writes meanwhile by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start.add(start), end - start) }
    }
}
