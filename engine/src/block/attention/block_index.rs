//! The weights of an index of blocks, that of MiniMax Sparse Attention or of Qwen Sparse Attention. The index makes a
//! few narrow queries and one narrow key of each row. By these it chooses the blocks of positions that the row's heads
//! attend to.

use crate::block::BlockCx;
use crate::block::linear::Linear;
use crate::device::{Device, IndexOfMeans, Lists, Rows};
use crate::kernels::{RopeTable, Vector};
use crate::spec::{BlockIndexSpec, BlockScoring, ModelError};
use crate::state::KvCache;
use crate::weights::WeightLoader;

/// Weights of an attention block's index.
pub(super) struct BlockIndex {
    spec: BlockIndexSpec,
    /// From the block's input, `[n_queries * head_dim, n_embd]`.
    pub(super) query: Linear,
    query_norm: Vector,
    /// From the block's input, `[head_dim, n_embd]`.
    pub(super) key: Linear,
    key_norm: Vector,
}

/// Queries and keys that an index makes of rows.
pub(super) struct IndexRows {
    /// `[n, n_queries * head_dim]`.
    pub(super) query: Rows,
    /// `[n, head_dim]`.
    pub(super) key: Rows,
}

impl BlockIndex {
    /// Loads `<stem>.indexer.q_proj`, `k_proj`, `q_norm` and `k_norm`.
    pub(super) fn load(
        spec: BlockIndexSpec,
        stem: &str,
        n_kv_head: usize,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.indexer.{part}.weight");
        let dim = spec.head_dim;
        let n_queries = match spec.scoring {
            BlockScoring::BestPosition => n_kv_head,
            BlockScoring::Mean { n_head } => n_head,
        };
        Ok(Self {
            query: Linear::matrix(loader, &name("q_proj"), n_queries * dim, n_embd)?,
            query_norm: loader.vector(&name("q_norm"), dim)?,
            key: Linear::matrix(loader, &name("k_proj"), dim, n_embd)?,
            key_norm: loader.vector(&name("k_norm"), dim)?,
            spec,
        })
    }

    /// Norms and rotates the projected rows, in place. Keys of which means are made stay as they are.
    pub(super) fn finish(&self, device: &Device, rope: Option<&RopeTable>, rows: &mut IndexRows) {
        let BlockIndexSpec { head_dim, eps, scoring, .. } = self.spec;
        let finish = |x: &mut Rows, norm: &Vector| {
            device.rms_norm_inplace(x, norm, eps);
            if let Some(rope) = rope {
                device.rope(x, head_dim, rope);
            }
        };
        finish(&mut rows.query, &self.query_norm);
        if scoring == BlockScoring::BestPosition {
            finish(&mut rows.key, &self.key_norm);
        }
    }

    /// The blocks of each row's heads ([`Device::choose_blocks`](crate::device::Device::choose_blocks),
    /// [`Device::choose_by_means`](crate::device::Device::choose_by_means)). Keys of the rows are in their pages. `rope` is
    /// what rotates the block's own.
    pub(super) fn choose(
        &self,
        cx: &BlockCx<'_>,
        kv: &KvCache,
        rope: Option<&RopeTable>,
        rows: &IndexRows,
    ) -> Option<Lists> {
        let of = cx.ubatch();
        let BlockIndexSpec { sizes, eps, scoring, .. } = self.spec;
        match scoring {
            BlockScoring::BestPosition => kv.choose_blocks(of, sizes, &rows.query),
            BlockScoring::Mean { n_head } => {
                let index = IndexOfMeans { n_head, sizes, norm: &self.key_norm, eps, rope };
                kv.choose_by_means(of, &index, &rows.query)
            }
        }
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        self.query.nbytes() + self.key.nbytes()
    }
}
