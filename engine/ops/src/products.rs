//! Products of rows with packed weights.

use std::ops::Range;

use brigade_quant::GgmlType;

use crate::carry::{carried, mapped};
use crate::derived::Derived;
use crate::place::Place;

/// Packed weights `[rows, cols]`, as products read them.
#[derive(Clone, Copy, Debug)]
pub struct Weights<V> {
    /// Type of the packed values.
    pub ty: GgmlType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Factor on the finished products.
    pub scale: f32,
    /// Bytes of the panels: sixteen rows each, the last one filled up with zero rows.
    pub panels: V,
}

mapped!(Weights { ty: same, rows: same, cols: same, scale: same, panels: read });

/// One product: `out[i, o] = scale * Σ_k x[rows.start + i, k] * w[o, k]`.
pub struct Product<'a, P: Place> {
    /// Weights `[out features, cols]`.
    pub w: Weights<P::Read<'a, u8>>,
    /// Rows `[_, cols]`.
    pub x: P::Read<'a, f32>,
    /// The other forms of `x` that products read.
    pub forms: &'a Derived,
    /// The rows to multiply.
    pub rows: Range<usize>,
    /// `[rows.len(), w.rows]`.
    pub out: P::Write<'a, f32>,
}

carried!(Product { w: rows, x: read, forms: derived, rows: same, out: write });

/// Several products, none of which reads what another writes.
pub struct Products<'a, P: Place> {
    /// The products, in any order.
    pub jobs: Vec<Product<'a, P>>,
}

carried!(Products { jobs: all });

impl<P: Place> Product<'_, P> {
    /// Holds the shapes to each other.
    ///
    /// # Panics
    /// If they disagree.
    #[inline]
    pub fn check(&self) {
        let (cols, n) = (self.w.cols, P::len(&self.x));
        assert!(cols > 0 && n.is_multiple_of(cols), "product: {n} values in rows of {cols}");
        let Range { start, end } = self.rows;
        assert!(start <= end && end <= n / cols, "product: rows {start} to {end} of {}", n / cols);
        let n_out = (end - start) * self.w.rows;
        assert_eq!(P::len_mut(&self.out), n_out, "product: values of the output");
    }
}
