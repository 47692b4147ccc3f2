//! Rows of activations in slices: for each slice of columns, the values of all rows lie side by side.
//!
//! Products of many rows take a slice of all rows while some panels of weights pass. They cannot use rows as
//! these lie in memory. Where a row's length is a power of two, equal columns of all rows share a few sets of
//! the cache, which holds only a few of them at once.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Zeroable;

use super::compute::Compute;
use super::ops::Rows;
use super::simd::MAX_TILE;

/// Buffers of rows that are gone, kept for the next ones.
pub(super) type Spare<R> = Arc<Mutex<Vec<Vec<R>>>>;

/// Buffers kept at most.
const MAX_SPARE: usize = 8;

/// Rows of which each slice is an `R`, a fixed number of columns; a row's last one may be filled in part.
pub(super) struct SlicedRows<R> {
    slices: Vec<R>,
    n_rows: usize,
    home: Spare<R>,
}

impl<R: Copy + Zeroable + Send> SlicedRows<R> {
    /// `n_rows` rows of `n_slices` slices, each of `slice_cols` columns and filled by
    /// `fill(row, slice, out)`, on all threads if it is worth it.
    pub(super) fn new(
        compute: &Compute,
        home: &Spare<R>,
        n_rows: usize,
        (n_slices, slice_cols): (usize, usize),
        fill: &(dyn Fn(usize, usize, &mut R) + Sync),
    ) -> Self {
        let mut slices =
            home.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        // A tile that begins in the last row reads beyond it.
        slices.resize(n_rows * n_slices + MAX_TILE - 1, R::zeroed());
        let out = Rows::new(&mut slices, 1);
        compute.for_rows(n_rows, n_slices * slice_cols, &|rows: Range<usize>| {
            for slice in 0..n_slices {
                let first = slice * n_rows;
                // SAFETY: `for_rows` hands out each row once, and slices lie apart.
                let out = unsafe { out.rows(first + rows.start..first + rows.end) };
                for (row, out) in rows.clone().zip(out) {
                    fill(row, slice, out);
                }
            }
        });
        Self { slices, n_rows, home: Arc::clone(home) }
    }

    /// Slice `slice` of row `row` and of those after it, as many as a tile may read; what lies beyond the
    /// last row belongs to nobody.
    #[inline(always)]
    pub(super) fn slice_from(&self, slice: usize, row: usize) -> &[R] {
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
