//! Rows of activations in slices: for each slice of columns, the values of all rows lie side by side.
//!
//! Products of many rows take a slice of all rows while some panels of weights pass. They cannot use rows as
//! these lie in memory. Where a row's length is a power of two, equal columns of all rows share a few sets of
//! the cache, which holds only a few of them at once.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Zeroable;

/// Buffers of rows that are gone, kept for the next ones.
pub(crate) type Reused<R> = Arc<Mutex<Vec<Vec<R>>>>;

/// Buffers kept at most.
const MAX_SPARE: usize = 8;

/// Rows of which each slice is an `R`, a fixed number of columns; a row's last one may be filled in part.
pub(crate) struct SlicedRows<R> {
    pub(crate) slices: Vec<R>,
    pub(crate) n_rows: usize,
    pub(crate) home: Reused<R>,
}

impl<R: Copy + Zeroable + Send> SlicedRows<R> {
    /// Slice `slice` of row `row` and of those after it, as many as a tile may read; values beyond the last row have no
    /// meaning.
    #[inline(always)]
    pub(crate) fn slice_from(&self, slice: usize, row: usize) -> &[R] {
        &self.slices[slice * self.n_rows + row..]
    }
}

impl<R> Drop for SlicedRows<R> {
    fn drop(&mut self) {
        let mut home = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if home.len() < MAX_SPARE {
            home.push(std::mem::take(&mut self.slices));
        }
    }
}
