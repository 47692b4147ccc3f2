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
        match self.gpu_of(to) {
            Some((gpu, to)) => {
                gpu.heads_apart(from.on_gpu(gpu), n_head, on_gpu(columns), to);
            }
            None => self.compute.heads_apart(from.on_host(), n_head, columns, to.on_host_mut()),
        }
    }

    /// [`Compute::heads_together`](crate::kernels::Compute::heads_together).
    pub fn heads_together(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        match self.gpu_of(to) {
            Some((gpu, to)) => {
                gpu.heads_together(from.on_gpu(gpu), n_head, on_gpu(columns), to);
            }
            None => self.compute.heads_together(from.on_host(), n_head, columns, to.on_host_mut()),
        }
    }

    /// Rotates heads of `x`, `[n, n_head * head_dim]`, by the positions of `table`.
    pub fn rope(&self, x: &mut (impl ValuesMut + ?Sized), head_dim: usize, table: &RopeTable) {
        match self.gpu_of(x) {
            Some((gpu, x)) => {
                gpu.rope(x, head_dim, table.by_pair().on_gpu(gpu), table.n_rot, table.layout);
            }
            None => self.compute.rope(x.on_host_mut(), head_dim, table),
        }
    }

    /// Rows `picked` of `x`, in this order: `out` is `[picked.len(), x.cols()]`.
    pub fn gather_rows(&self, x: &Rows, picked: &[u32], out: &mut Rows) {
        match self.gpu_of(out) {
            Some((gpu, out)) => {
                let list = gpu.upload(bytemuck::cast_slice(picked));
                gpu.gather_rows(x.on_gpu(gpu), x.cols(), list, out);
            }
            None => {
                for (row, out) in picked.iter().zip(out.chunks_exact_mut(x.cols())) {
                    out.copy_from_slice(x.row(*row as usize));
                }
            }
        }
    }

    /// Adds rows of `x` to `out`, `[n_rows, x.cols()]`, times their weights: to each row in turn those that its
    /// `shares.len() / n_rows` shares name.
    pub fn add_shares(&self, out: &mut Rows, x: &Rows, shares: &[Share]) {
        let (n_rows, width) = (out.n_rows(), x.cols());
        let per_row = shares.len() / n_rows.max(1);
        if let Some((gpu, out)) = self.gpu_of(out) {
            let (pairs, weights): (Vec<u32>, Vec<f32>) =
                shares.iter().map(|share| (share.row, share.weight)).unzip();
            let pairs = gpu.upload(bytemuck::cast_slice(&pairs));
            let weights = gpu.upload(bytemuck::cast_slice(&weights));
            gpu.scatter_add(out, width, x.on_gpu(gpu), pairs, weights);
            return;
        }
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

fn on_gpu(columns: HeadColumns) -> brigade_gpu::Columns {
    let HeadColumns { stride, first, width } = columns;
    brigade_gpu::Columns { stride, first, width }
}
