//! Products of rows with packed weights.

use std::ops::Range;

use crate::device::{Device, Rows, RowsMut, Values, ValuesMut};
use crate::kernels::PackedMatrix;
use crate::ops::{Anywhere, Derived, Product, Products};

/// The product of `w`, weights `[out features, cols]`, with rows `rows` of `x`, `[_, cols]`, to `out`, `[rows.len(), w.rows()]`.
pub fn product<'a>(
    w: &'a PackedMatrix,
    x: &'a Rows,
    rows: Range<usize>,
    out: RowsMut<'a>,
) -> Product<'a, Anywhere> {
    Product { w: w.weights(), x: x.view(), forms: x.forms(), rows, out: out.into_view() }
}

impl Device {
    /// Computes several products, which do not wait for each other.
    ///
    /// # Panics
    /// If a product's shapes disagree.
    pub fn products(&self, jobs: Vec<Product<'_, Anywhere>>) {
        self.run(Products { jobs });
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
        let (w, x, forms) = (w.weights(), x.view(), &Derived::default());
        let rows = 0..x.len().checked_div(w.cols).unwrap_or(0);
        self.products(vec![Product { w, x, forms, rows, out: out.view_mut() }]);
    }
}
