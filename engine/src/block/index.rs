//! The index of sparse attention (DeepSeek-V3.2, section 2.1) as weights: it makes a few narrow queries and one narrow key
//! of each row, and chooses the positions that the block attends to.

use super::BlockCx;
use super::linear::Linear;
use crate::arch::{IndexSpec, Rotation};
use crate::error::ModelError;
use crate::kernels::RopeTable;
use crate::state::KvCache;
use crate::weights::WeightLoader;

/// Weights of a block's index.
pub(super) struct Index {
    spec: IndexSpec,
    /// Positions of a row at most.
    per_row: usize,
    /// From the narrow rows that queries of the block are made of, `[n_head * head_dim, q_rank]`.
    pub(super) query: Linear,
    /// From the block's input, `[head_dim, n_embd]`.
    pub(super) key: Linear,
    /// Weight and bias.
    key_norm: [Vec<f32>; 2],
    /// From the block's input, `[n_head, n_embd]`.
    pub(super) weights: Linear,
}

impl Index {
    /// Loads `<stem>.indexer.attn_q_b`, `attn_k`, `k_norm` with its bias, and `proj`.
    pub(super) fn load(
        (spec, per_row): (IndexSpec, usize),
        stem: &str,
        [n_embd, q_rank]: [usize; 2],
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.indexer.{part}");
        let (n_head, dim) = (spec.n_head, spec.head_dim);
        let matrix = |loader: &mut WeightLoader<'_>, part, rows, cols| {
            Linear::matrix(loader, &format!("{}.weight", name(part)), rows, cols)
        };
        Ok(Self {
            query: matrix(loader, "attn_q_b", n_head * dim, q_rank)?,
            key: matrix(loader, "attn_k", dim, n_embd)?,
            key_norm: [
                loader.vector(&name("k_norm.weight"), dim)?,
                loader.vector(&name("k_norm.bias"), dim)?,
            ],
            weights: matrix(loader, "proj", n_head, n_embd)?,
            spec,
            per_row,
        })
    }

    /// Makes keys `[n, head_dim]` of the projected rows, in place.
    pub(super) fn finish_keys(&self, cx: &BlockCx<'_>, keys: &mut [f32]) {
        let ([weight, bias], IndexSpec { head_dim, eps, .. }) = (&self.key_norm, self.spec);
        cx.compute.group_layer_norm(keys, weight, bias, head_dim, eps);
        self.rotate(cx, keys);
    }

    /// The positions of each row, `[n, per_row]`, in a borrowed buffer. `q` is `[n, n_head * head_dim]` as projected,
    /// `weights` is `[n, n_head]`; keys of the rows are in their pages. What other blocks attend to as well goes along
    /// beside the rows.
    pub(super) fn choose(
        &self,
        cx: &mut BlockCx<'_>,
        kv: &KvCache,
        q: &mut [f32],
        weights: &[f32],
    ) -> Vec<f32> {
        self.rotate(cx, q);
        let n_rows = weights.len() / self.spec.n_head;
        let mut positions = cx.scratch.take(n_rows * self.per_row);
        kv.choose((cx.compute, cx.parts, cx.sequences), self.per_row, (q, weights), &mut positions);
        if self.spec.shared {
            cx.beside.clear();
            cx.beside.push(positions.clone());
        }
        positions
    }

    /// Rotates the first elements of each head, in place.
    fn rotate(&self, cx: &BlockCx<'_>, heads: &mut [f32]) {
        let table: Option<&RopeTable> = match self.spec.rotation {
            Rotation::None => None,
            Rotation::Model => cx.rope,
            Rotation::Local => cx.local_rope,
        };
        if let Some(table) = table {
            cx.compute.rope(heads, self.spec.head_dim, table);
        }
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        [&self.query, &self.key, &self.weights].map(Linear::nbytes).iter().sum()
    }
}
