//! The operands of a product's kernel: some panels of the weights, some rows, and the place of the results.

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::ActRows;
use super::pack::Panels;
use crate::simd::LANES;

/// A part of a job, as a kernel sees it.
pub(crate) struct MatmulChunk<'a> {
    pub(crate) w: Panels<'a>,
    pub(crate) x: &'a ActRows<'a>,
    /// Panels of `w` to multiply.
    pub(crate) panels: Range<usize>,
    /// Rows of `x` to multiply.
    pub(crate) rows: Range<usize>,
    /// Rows of the whole product.
    pub(crate) n_rows: usize,
    pub(crate) out: OutMatrix<'a>,
}

/// The output of a job, shared by its chunks.
#[derive(Clone, Copy)]
pub(crate) struct OutMatrix<'a> {
    pub(crate) start: *mut f32,
    /// Row of `x` that output row 0 belongs to.
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    pub(crate) owner: PhantomData<&'a mut [f32]>,
}

// SAFETY: the matrix is borrowed mutably for 'a; chunks write disjoint panels and rows (see `put`).
unsafe impl Send for OutMatrix<'_> {}

// SAFETY: as above.
unsafe impl Sync for OutMatrix<'_> {}

impl<'a> OutMatrix<'a> {
    /// The outputs of row `row` (counted in `x`) at `panels`, as many as exist.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the result is alive.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, row: usize, panels: Range<usize>) -> &'a mut [f32] {
        let row = row.wrapping_sub(self.first_row);
        let (first, end) = (panels.start * LANES, self.cols.min(panels.end * LANES));
        assert!(row < self.n_rows && first <= end, "outputs outside their matrix");
        // SAFETY: the row and its columns before `cols` lie inside the `n_rows * cols` values that `start` points to
        // (asserted), and nobody else uses them now (the caller's promise).
        unsafe {
            let start = self.start.add(row * self.cols + first);
            std::slice::from_raw_parts_mut(start, end - first)
        }
    }

    /// Writes sixteen outputs of row `row` (counted in `x`) at panel `panel`, as many as exist.
    ///
    /// # Safety
    /// No other thread writes the same row and panel at the same time.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, row: usize, panel: usize, values: &[f32; LANES]) {
        let (row, col) = (row.wrapping_sub(self.first_row), panel * LANES);
        assert!(row < self.n_rows && col < self.cols, "an output outside its matrix");
        let n = LANES.min(self.cols - col);
        // SAFETY: the row and `n` columns from `col` lie inside the `n_rows * cols` values that
        // `start` points to (asserted), and nobody else writes them now (the caller's promise).
        unsafe {
            let to = self.start.add(row * self.cols + col);
            if n == LANES {
                // Of known length, and so without a call.
                to.cast::<[f32; LANES]>().write_unaligned(*values);
            } else {
                std::ptr::copy_nonoverlapping(values.as_ptr(), to, n);
            }
        }
    }
}
