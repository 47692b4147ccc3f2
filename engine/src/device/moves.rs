//! Values that change their place, and rotations.

use super::{Device, Rows, Values, ValuesMut};
use crate::kernels::{HeadColumns, RopeTable};

impl Device {
    /// [`Compute::heads_apart`](crate::kernels::Compute::heads_apart).
    pub fn heads_apart(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        self.compute.heads_apart(from.on_host(), n_head, columns, to.on_host_mut());
    }

    /// [`Compute::heads_together`](crate::kernels::Compute::heads_together).
    pub fn heads_together(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        self.compute.heads_together(from.on_host(), n_head, columns, to.on_host_mut());
    }

    /// Rotates heads of `x`, `[n, n_head * head_dim]`, by the positions of `table`.
    pub fn rope(&self, x: &mut (impl ValuesMut + ?Sized), head_dim: usize, table: &RopeTable) {
        self.compute.rope(x.on_host_mut(), head_dim, table);
    }

    /// Rows `picked` of `x`, in this order: `out` is `[picked.len(), x.cols()]`.
    pub fn gather_rows(&self, x: &Rows, picked: &[u32], out: &mut Rows) {
        for (row, out) in picked.iter().zip(out.chunks_exact_mut(x.cols())) {
            out.copy_from_slice(x.row(*row as usize));
        }
    }

    /// Adds rows of `x` to `out`, `[n_rows, x.cols()]`, times their weights: to each row in turn those that its
    /// `shares.len() / n_rows` shares name.
    pub fn add_shares(&self, out: &mut Rows, x: &Rows, shares: &[Share]) {
        let per_row = shares.len() / out.n_rows().max(1);
        let width = x.cols();
        for (out, shares) in out.chunks_exact_mut(width).zip(shares.chunks_exact(per_row)) {
            for share in shares {
                self.compute.add_scaled(out, x.row(share.row as usize), share.weight);
            }
        }
    }
}

/// A row times a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The row.
    pub row: u32,
    /// What multiplies it.
    pub weight: f32,
}
