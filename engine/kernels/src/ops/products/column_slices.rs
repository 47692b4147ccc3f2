//! Laying rows out in slices, on all threads.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use bytemuck::Zeroable;

use crate::compute::Compute;
use crate::simd::MAX_TILE;
use crate::tiles::out_rows::Rows;
use crate::tiles::products::column_slices::{Reused, SlicedRows};

impl<R: Copy + Zeroable + Send> SlicedRows<R> {
    /// `n_rows` rows of `n_slices` slices, each of `slice_cols` columns and filled by
    /// `fill(row, slice, out)`, on all threads if it is worth it.
    pub(super) fn new(
        compute: &Compute,
        home: &Reused<R>,
        n_rows: usize,
        n_slices: usize,
        slice_cols: usize,
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
}
