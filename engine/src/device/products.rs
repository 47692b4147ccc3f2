//! Products of rows with packed weights.

use std::ops::Range;

use super::{Device, Rows, RowsMut, Values, ValuesMut};
use crate::kernels::{MatmulJob, PackedMatrix};

/// One product: `out[i, o] = Σ_k x[rows.start + i, k] * w[o, k]`.
pub struct Product<'a> {
    /// Weights `[out features, cols]`.
    pub w: &'a PackedMatrix,
    /// Rows `[_, cols]`.
    pub x: &'a Rows,
    /// Those to multiply.
    pub rows: Range<usize>,
    /// `[rows.len(), w.rows()]`.
    pub out: RowsMut<'a>,
}

impl Product<'_> {
    fn on_host(&mut self) -> MatmulJob<'_> {
        let Self { w, x, rows, out } = self;
        MatmulJob { w, x: x.act(), rows: rows.clone(), out: out.on_host_mut() }
    }
}

impl Device {
    /// Computes several products, which do not wait for each other.
    ///
    /// # Panics
    /// If a product's shapes disagree.
    pub fn products(&self, products: &mut [Product<'_>]) {
        self.compute.matmul(&mut products.iter_mut().map(Product::on_host).collect::<Vec<_>>());
    }

    /// One product of rows that no other matrix multiplies: `out[n_rows, w.rows()]` from `x[n_rows, w.cols()]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn multiply(
        &self,
        w: &PackedMatrix,
        x: &(impl Values + ?Sized),
        out: &mut (impl ValuesMut + ?Sized),
    ) {
        self.compute.multiply(w, x.on_host(), out.on_host_mut());
    }
}
