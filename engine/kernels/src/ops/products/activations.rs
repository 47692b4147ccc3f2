//! The forms in which products read activations, made on all threads.

use crate::compute::Compute;
use crate::cpu::products::matmul_many::MANY_ROWS;
use crate::cpu::products::matmul_pairs::Round;
use crate::tiles::products::activations::{
    ACT_BLOCK, ActRows, BlockSlice, FLOAT_SLICE, FloatSlice, PairSlice, SLICE,
};
use crate::tiles::products::column_slices::SlicedRows;
use crate::tiles::products::pack::Panels;

impl<'a> ActRows<'a> {
    /// Makes the form in which `w` reads rows, unless it was made before. Rows are quantised for products in integers,
    /// and laid out in slices for products of many rows in f32 or in pairs.
    pub(crate) fn prepare(&self, compute: &Compute, w: Panels<'_>) {
        if w.wants_blocks() {
            self.forms.blocks.get_or_init(|| self.quantized(compute));
        } else if let Some(pairs) = compute.kernels().pairs_for(w.ty, self.n_rows) {
            self.forms.pairs.get_or_init(|| self.paired(compute, pairs.round));
        } else if self.n_rows >= MANY_ROWS {
            self.forms.floats.get_or_init(|| self.laid_out(compute));
        }
    }

    fn quantized(&self, compute: &Compute) -> SlicedRows<BlockSlice> {
        let (x, cols) = (self.x, self.cols);
        assert!(cols.is_multiple_of(ACT_BLOCK), "integer products need rows of whole blocks");
        let quantize = compute.kernels().quantize;
        let n_slices = cols.div_ceil(SLICE);
        let reused = &compute.reused.blocks;
        SlicedRows::new(compute, reused, self.n_rows, n_slices, SLICE, &|r, i, out| {
            let x = &x[r * cols..(r + 1) * cols][i * SLICE..];
            let x = &x[..x.len().min(SLICE)];
            quantize(x, &mut out[..x.len() / ACT_BLOCK]);
        })
    }

    fn paired(&self, compute: &Compute, round: Round) -> SlicedRows<PairSlice> {
        let (x, cols) = (self.x, self.cols);
        let n_slices = cols.div_ceil(FLOAT_SLICE);
        let reused = &compute.reused.pairs;
        SlicedRows::new(compute, reused, self.n_rows, n_slices, FLOAT_SLICE, &|r, i, out| {
            let x = &x[r * cols..(r + 1) * cols][i * FLOAT_SLICE..];
            round(&x[..x.len().min(FLOAT_SLICE)], out);
        })
    }

    fn laid_out(&self, compute: &Compute) -> SlicedRows<FloatSlice> {
        let (x, cols) = (self.x, self.cols);
        let n_slices = cols.div_ceil(FLOAT_SLICE);
        let reused = &compute.reused.floats;
        SlicedRows::new(compute, reused, self.n_rows, n_slices, FLOAT_SLICE, &|r, i, out| {
            let x = &x[r * cols..(r + 1) * cols][i * FLOAT_SLICE..];
            let x = &x[..x.len().min(FLOAT_SLICE)];
            out[..x.len()].copy_from_slice(x);
        })
    }
}
