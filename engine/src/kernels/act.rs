//! Activations as the matrix products read them: f32 rows, and their 8-bit form.
//!
//! One 8-bit form serves every quantised weight type: blocks of 32 with one f32 scale
//! `d = amax / 127` and `q = round_half_even(x * 127 / amax)`, so `x ≈ d * q`. Promises that a row's
//! form depends on that row alone. A block that holds an infinity or a NaN gets a NaN scale, so that
//! the damage shows in every product instead of vanishing in an integer.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Zeroable;

use super::compute::Compute;
use super::pack::PackedMatrix;

/// Elements that share a scale.
pub(crate) const ACT_BLOCK: usize = 32;

/// One block of 8-bit activations with what the kernels want to know about it: one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct ActBlock {
    /// The quantised values.
    pub(crate) q: [i8; ACT_BLOCK],
    /// Scale: `x ≈ d * q`.
    pub(crate) d: f32,
    /// `d * Σq` over the whole block.
    pub(crate) d_sum: f32,
    /// `d * Σq` over each half.
    pub(crate) d_sum_half: [f32; 2],
    /// `-Σq` over the whole block: where offset weights start their integer sums.
    pub(crate) neg_sum: i32,
    /// `-Σq` over each half.
    pub(crate) neg_sum_half: [i32; 2],
    pad: i32,
}

impl ActBlock {
    pub(crate) const ZERO: Self = Self {
        q: [0; ACT_BLOCK],
        d: 0.0,
        d_sum: 0.0,
        d_sum_half: [0.0; 2],
        neg_sum: 0,
        neg_sum_half: [0; 2],
        pad: 0,
    };

    /// The `N` groups of four values from group `first` on.
    ///
    /// # Panics
    /// If the block has not as many.
    #[inline(always)]
    pub(crate) fn quads<const N: usize>(&self, first: usize) -> &[[i8; 4]; N] {
        let (quads, _) = self.q.as_chunks::<4>();
        quads[first..].first_chunk().expect("a block has that many groups of four")
    }

    /// Completes a block from its values, its scale and the sums of its halves.
    #[inline(always)]
    pub(crate) fn new(q: [i8; ACT_BLOCK], d: f32, sums: [i32; 2]) -> Self {
        let sum = sums[0] + sums[1];
        Self {
            q,
            d,
            d_sum: d * sum as f32,
            d_sum_half: [d * sums[0] as f32, d * sums[1] as f32],
            neg_sum: -sum,
            neg_sum_half: [-sums[0], -sums[1]],
            pad: 0,
        }
    }
}

/// Buffers of finished [`ActRows`], kept for the next ones.
pub(crate) type SpareBlocks = Vec<Vec<ActBlock>>;

/// Buffers kept at most.
const MAX_SPARE: usize = 8;

/// Rows of activations `[n_rows, cols]`, ready for products with given weights.
pub struct ActRows<'a> {
    x: &'a [f32],
    n_rows: usize,
    cols: usize,
    blocks: Option<Blocks>,
}

/// The 8-bit form: rows of `stride` blocks. The stride is one block longer than a row, so that
/// equal columns of neighbouring rows do not fall on the same cache set.
struct Blocks {
    blocks: Vec<ActBlock>,
    stride: usize,
    home: Arc<Mutex<SpareBlocks>>,
}

impl<'a> ActRows<'a> {
    /// Prepares `x` (`[n_rows, cols]`, row-major) for products with `weights`: borrowed as it is,
    /// and quantised as well if any of them multiplies in integers.
    ///
    /// # Panics
    /// If `x` is not whole rows, or a weight has other columns.
    pub fn new(compute: &Compute, x: &'a [f32], cols: usize, weights: &[&PackedMatrix]) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values in rows of {cols}", x.len());
        for w in weights {
            assert_eq!(w.cols(), cols, "columns of the weights and of the activations");
        }
        let mut rows = Self { x, n_rows: x.len() / cols, cols, blocks: None };
        if weights.iter().any(|w| w.wants_blocks()) {
            rows.quantize(compute);
        }
        rows
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All rows in f32.
    pub(crate) fn values(&self) -> &'a [f32] {
        self.x
    }

    /// Row `r` in f32.
    #[inline]
    pub(crate) fn row(&self, r: usize) -> &[f32] {
        &self.x[r * self.cols..(r + 1) * self.cols]
    }

    /// Row `r` in its 8-bit form.
    ///
    /// # Panics
    /// If these rows were not made for integer products.
    #[inline]
    pub(crate) fn row_blocks(&self, r: usize) -> &[ActBlock] {
        let form = self.blocks.as_ref().expect("rows made for these weights have the 8-bit form");
        &form.blocks[r * form.stride..][..self.cols / ACT_BLOCK]
    }

    pub(crate) fn has_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    fn quantize(&mut self, compute: &Compute) {
        let (n_rows, cols) = (self.n_rows, self.cols);
        assert!(cols.is_multiple_of(ACT_BLOCK), "integer products need rows of whole blocks");
        let stride = cols / ACT_BLOCK + 1;
        let home = Arc::clone(&compute.spare);
        let mut blocks =
            home.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        blocks.resize(n_rows * stride, ActBlock::ZERO);
        let out = super::ops::Rows::new(&mut blocks, stride);
        let quantize = compute.kernels().quantize;
        compute.for_rows(n_rows, cols, &|range| {
            // SAFETY: `for_rows` hands out each row once.
            let out = unsafe { out.rows(range.clone()) };
            for (r, out) in range.zip(out.chunks_exact_mut(stride)) {
                quantize(&self.x[r * cols..(r + 1) * cols], &mut out[..cols / ACT_BLOCK]);
            }
        });
        self.blocks = Some(Blocks { blocks, stride, home });
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let mut spare = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MAX_SPARE {
            spare.push(std::mem::take(&mut self.blocks));
        }
    }
}
