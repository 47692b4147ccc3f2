//! Activations as matrix products read them: f32 rows, and their 8-bit form.
//!
//! One 8-bit form serves every quantised weight type. It has blocks of 32 elements with one f32 scale each:
//! `d = amax / 127` and `q = round_half_even(x * 127 / amax)`, so `x ≈ d * q`. A row's form depends on that
//! row alone. A block that holds an infinity or a NaN gets a NaN as its scale, so that the damage shows in
//! every product and does not vanish in an integer.

use std::sync::OnceLock;

use brigade_ops::Derived;
use bytemuck::Zeroable;

use super::column_slices::{Reused, SlicedRows};

/// Elements that share a scale.
pub const ACT_BLOCK: usize = crate::format::BLOCK;

/// Columns of a slice of 8-bit activations: of 4-bit weights they take half of the smallest first-level
/// caches, with the activations of a tile.
pub(crate) const SLICE: usize = 512;

/// Columns of a slice of f32 activations.
pub(crate) const FLOAT_SLICE: usize = 256;

/// A row's slice in the 8-bit form.
pub(crate) type BlockSlice = [ActBlock; SLICE / ACT_BLOCK];

/// A row's slice in f32.
pub(crate) type FloatSlice = [f32; FLOAT_SLICE];

/// A row's slice in pairs of bfloat16 values, the first of each in the low half. A last value without another one has zero
/// beside it.
pub(crate) type PairSlice = [u32; FLOAT_SLICE / 2];

/// One block of 8-bit activations with what the kernels want to know about it: one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Zeroable)]
#[repr(C, align(64))]
pub struct ActBlock {
    /// Quantised values of the block.
    pub q: [i8; ACT_BLOCK],
    /// Scale: `x ≈ d * q`.
    pub d: f32,
    /// `d * Σq` over the whole block.
    pub d_sum: f32,
    /// `d * Σq` over each half.
    pub d_sum_half: [f32; 2],
    /// `-Σq` over the whole block: where offset weights start their integer sums.
    pub neg_sum: i32,
    /// `-Σq` over each half.
    pub neg_sum_half: [i32; 2],
    pad: i32,
}

impl ActBlock {
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

/// Memory of activations that are gone, kept for the next ones.
#[derive(Default)]
pub(crate) struct ReusedRows {
    pub(crate) blocks: Reused<BlockSlice>,
    pub(crate) floats: Reused<FloatSlice>,
    pub(crate) pairs: Reused<PairSlice>,
}

/// The other forms of some rows that products have read so far.
#[derive(Default)]
pub(crate) struct ActForms {
    pub(crate) blocks: OnceLock<SlicedRows<BlockSlice>>,
    pub(crate) floats: OnceLock<SlicedRows<FloatSlice>>,
    pub(crate) pairs: OnceLock<SlicedRows<PairSlice>>,
}

/// Rows of activations `[n_rows, cols]` for products. The first product that reads them in another form makes that form,
/// and those after it find it.
#[derive(Clone, Copy)]
pub struct ActRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    pub(crate) forms: &'a ActForms,
}

impl<'a> ActRows<'a> {
    /// Rows `x` (`[n_rows, cols]`, row-major), which are borrowed as they are; `derived` is theirs, and has the host's forms or
    /// none.
    ///
    /// # Panics
    /// If `x` is not whole rows, or a device keeps something of them.
    #[inline]
    pub fn new(x: &'a [f32], cols: usize, derived: &'a Derived) -> Self {
        let forms = derived.kept(ActForms::default).expect("rows of the host have its forms");
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values in rows of {cols}", x.len());
        Self { x, n_rows: x.len() / cols, cols, forms }
    }

    /// Number of rows in the matrix.
    #[inline]
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements in a row.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r` in f32.
    #[inline]
    pub(crate) fn row(&self, r: usize) -> &[f32] {
        &self.x[r * self.cols..(r + 1) * self.cols]
    }

    /// All rows in 8-bit form.
    ///
    /// # Panics
    /// If these rows were not prepared for integer products.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> &SlicedRows<BlockSlice> {
        self.forms.blocks.get().expect("rows prepared for these weights have the 8-bit form")
    }

    /// Slice `slice` of row `r` and of the rows after it (see [`SlicedRows::slice_from`]), in f32.
    ///
    /// # Panics
    /// If these rows were not prepared for f32 products, or are few.
    #[inline(always)]
    pub(crate) fn floats(&self, slice: usize, r: usize) -> &[FloatSlice] {
        let floats = self.forms.floats.get();
        floats.expect("many rows prepared for these weights lie in slices").slice_from(slice, r)
    }

    /// As [`ActRows::floats`], in pairs.
    ///
    /// # Panics
    /// If these rows were not prepared for products in pairs, or are few.
    #[inline(always)]
    pub(crate) fn pairs(&self, slice: usize, r: usize) -> &[PairSlice] {
        let pairs = self.forms.pairs.get();
        pairs.expect("many rows prepared for these weights lie in pairs").slice_from(slice, r)
    }
}
