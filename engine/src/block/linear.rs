//! A projection: a matrix with its optional bias. Most are parts of blocks; in few models one is a block.

use super::BlockCx;
use crate::error::ModelError;
use crate::kernels::{ActRows, MatmulJob, PackedMatrix};
use crate::weights::WeightLoader;

/// Weights of `y = W x + b`.
pub struct Linear {
    /// `[out features, in features]`.
    pub(super) weight: PackedMatrix,
    /// `[out features]`.
    pub(super) bias: Option<Vec<f32>>,
}

impl Linear {
    /// Loads `<stem>.weight` and, where the file has it, `<stem>.bias`.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            weight: loader.matrix(&format!("{stem}.weight"), rows, cols)?,
            bias: loader.opt_vector(&format!("{stem}.bias"), rows)?,
        })
    }

    /// `<stem>.attn_output` as a block of its own.
    pub fn load_block(
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        Self::load(loader, &format!("{stem}.attn_output"), n_embd, n_embd)
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`.
    pub fn forward_block(&self, cx: &BlockCx<'_>, x: &ActRows<'_>, out: &mut [f32]) {
        cx.compute.matmul(&mut [self.job(x, out)]);
        self.add_bias(cx, out);
    }

    /// The matrix.
    pub fn matrix(&self) -> &PackedMatrix {
        &self.weight
    }

    /// The product with all rows of `x`, without the bias: several of them run in one fork-join.
    pub(super) fn job<'a>(&'a self, x: &'a ActRows<'a>, out: &'a mut [f32]) -> MatmulJob<'a> {
        MatmulJob { w: &self.weight, x, rows: 0..x.n_rows(), out }
    }

    /// Adds the bias to the rows of `out`, if there is one.
    pub(super) fn add_bias(&self, cx: &BlockCx<'_>, out: &mut [f32]) {
        cx.add_bias(out, self.bias.as_deref());
    }

    /// `out[n_rows, out features]` from `x[n_rows, in features]`.
    pub(super) fn forward(&self, cx: &BlockCx<'_>, x: &[f32], out: &mut [f32]) {
        cx.compute.multiply(&self.weight, x, out);
        self.add_bias(cx, out);
    }
}
