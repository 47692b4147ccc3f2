//! The index of sparse attention (DeepSeek-V3.2, section 2.1) as weights: it makes a few narrow queries and one narrow key
//! of each row, and chooses the positions that the block attends to. In GLM-5.3 it chooses pools of positions, whose keys it
//! makes of those of their positions.

use crate::block::BlockCx;
use crate::block::linear::Linear;
use crate::device::{PoolingBy, Rows};
use crate::kernels::{HeadColumns, PoolSizes, Vector};
use crate::spec::{ChosenSpec, IndexSpec, ModelError};
use crate::state::KvCache;
use crate::weights::WeightLoader;

/// Weights of a block's index.
pub(super) struct Index {
    spec: IndexSpec,
    /// Positions or pools that are chosen for a row.
    sizes: PoolSizes,
    /// Number of the tensor beside the stream that has the chosen positions, if other blocks attend to them as well.
    place: usize,
    /// Elements of a query or key that are rotated.
    n_pe: usize,
    /// From the narrow rows that queries of the block are made of, `[n_head * head_dim, q_rank]`.
    pub(super) query: Linear,
    /// From the block's input, `[head_dim, n_embd]`.
    pub(super) key: Linear,
    /// Weight and bias of the keys' norm.
    key_norm: [Vector; 2],
    /// From the block's input, `[n_head, n_embd]`.
    pub(super) weights: Linear,
    /// Gates of the keys, where these are pooled.
    pub(super) gates: Option<Gates>,
}

/// The widths of what an index reads.
pub(super) struct IndexWidths {
    /// Width of the block's input.
    pub(super) n_embd: usize,
    /// Width of the rows that queries are made of.
    pub(super) q_rank: usize,
    /// Elements of a head that are rotated.
    pub(super) n_pe: usize,
}

/// Weights of the keys in a pool.
pub(super) struct Gates {
    /// From the block's input, `[head_dim, n_embd]`.
    pub(super) matrix: Linear,
    /// For each position of a pool, `[positions, head_dim]`.
    bias: Vector,
}

impl Index {
    /// Loads `<stem>.indexer.attn_q_b`, `attn_k`, `k_norm` with its bias, and `proj`; where it chooses pools, also
    /// `<stem>.indexer_compressor_gate` and `indexer_compressor_ape`.
    pub(super) fn load(
        spec: IndexSpec,
        chosen: &ChosenSpec,
        widths: IndexWidths,
        stem: &str,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let IndexWidths { n_embd, q_rank, n_pe } = widths;
        let name = |part: &str| format!("{stem}.indexer.{part}");
        let (n_head, dim) = (spec.n_head, spec.head_dim);
        loader.check_index(n_head)?;
        let matrix = |loader: &mut WeightLoader<'_>, part, rows, cols| {
            Linear::matrix(loader, &format!("{}.weight", name(part)), rows, cols)
        };
        let gates = match chosen.sizes.positions {
            1 => None,
            n => {
                let name = |part: &str| format!("{stem}.indexer_compressor_{part}.weight");
                let matrix = Linear::matrix(loader, &name("gate"), dim, n_embd)?;
                Some(Gates { matrix, bias: loader.values(&name("ape"), &[dim, n])? })
            }
        };
        Ok(Self {
            gates,
            query: matrix(loader, "attn_q_b", n_head * dim, q_rank)?,
            key: matrix(loader, "attn_k", dim, n_embd)?,
            key_norm: [
                loader.vector(&name("k_norm.weight"), dim)?,
                loader.vector(&name("k_norm.bias"), dim)?,
            ],
            weights: matrix(loader, "proj", n_head, n_embd)?,
            spec,
            sizes: chosen.sizes,
            place: chosen.place,
            n_pe,
        })
    }

    /// Makes keys `[n, head_dim]` of the projected rows, in place; where keys are pooled, the rows' gates come to stand
    /// behind them, `[n, 2 * head_dim]`.
    pub(super) fn finish_keys(&self, cx: &BlockCx<'_>, keys: &mut Rows, gates: &Rows) {
        let ([weight, bias], IndexSpec { head_dim, eps, .. }) = (&self.key_norm, self.spec);
        cx.device.group_layer_norm(keys, weight, bias, head_dim, eps);
        self.rotate(cx, keys);
        if self.gates.is_some() {
            let mut both = cx.scratch.take(keys.n_rows(), 2 * head_dim);
            for (part, first) in [(&*keys, 0), (gates, head_dim)] {
                let columns = HeadColumns { stride: 2 * head_dim, first, width: head_dim };
                cx.device.heads_together(part, 1, columns, &mut both);
            }
            *keys = both;
        }
    }

    /// Makes the keys of pools that the rows complete. Keys and gates of the rows are in their pages.
    pub(super) fn pool_keys(&self, cx: &BlockCx<'_>, kv: &mut KvCache) {
        if let Some(gates) = &self.gates {
            let pooling = PoolingBy { positions: self.sizes.positions, bias: &gates.bias };
            kv.pool_keys(cx.ubatch(), pooling);
        }
    }

    /// The positions or pools of each row, `[n, per_row]`. `q` is `[n, n_head * head_dim]` as projected, `weights` is
    /// `[n, n_head]`; keys of the rows are in their pages. A choice that other blocks use as well goes along beside the
    /// rows.
    pub(super) fn choose(
        &self,
        cx: &mut BlockCx<'_>,
        kv: &KvCache,
        q: &mut Rows,
        weights: &Rows,
    ) -> Rows {
        self.rotate(cx, q);
        let mut chosen = cx.scratch.take(weights.n_rows(), self.sizes.per_row);
        kv.choose(cx.ubatch(), self.sizes, q, weights, &mut chosen);
        if self.spec.shared {
            cx.beside.truncate(self.place);
            cx.beside.push(cx.scratch.copy_of(&chosen));
        }
        chosen
    }

    /// Rotates the first or the last elements of each head, in place.
    fn rotate(&self, cx: &BlockCx<'_>, heads: &mut Rows) {
        let table = cx.rope_of(self.spec.rotation);
        let IndexSpec { head_dim: stride, rotates_last, halves, .. } = self.spec;
        let Some(table) = table else { return };
        if !rotates_last && !halves {
            return cx.device.rope(heads, stride, table);
        }
        let first = if rotates_last { stride - self.n_pe } else { 0 };
        let columns = HeadColumns { stride, first, width: self.n_pe };
        let mut pe = cx.scratch.take(heads.len() / stride, self.n_pe);
        cx.device.heads_apart(heads, 1, columns, &mut pe);
        if halves {
            // They stay so: queries and keys are in the same order, and no product of them changes.
            cx.device.halves_to_pairs(&mut pe);
        }
        cx.device.rope(&mut pe, self.n_pe, table);
        cx.device.heads_together(&pe, 1, columns, heads);
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        let gates = self.gates.iter().map(|gates| &gates.matrix);
        let matrices = [&self.query, &self.key, &self.weights].into_iter().chain(gates);
        matrices.map(Linear::nbytes).sum()
    }
}
