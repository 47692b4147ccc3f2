//! The state of one block, whatever its kind: zeroed, copied, read and written the same way.

use super::{KvCache, Sequence, StateCopy};
use crate::arch::BlockKind;
use crate::batch::SlotId;
use crate::error::ModelError;
use crate::kernels::{KvLayout, KvType};

/// What one loaded block remembers of all sequences.
pub enum BlockState {
    /// Nothing.
    None,
    /// Keys and values in pages.
    Kv(KvCache),
}

impl BlockState {
    /// Room for what `kind` remembers, over `n_blocks` pages.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(kind: &BlockKind, kv_type: KvType, n_blocks: u32) -> Result<Self, ModelError> {
        Ok(match kind {
            BlockKind::Attention(spec) => {
                let layout = KvLayout {
                    n_kv_head: spec.n_kv_head,
                    head_dim_k: spec.head_dim_k,
                    head_dim_v: spec.head_dim_v,
                    ty: kv_type,
                };
                Self::Kv(KvCache::new(layout, n_blocks)?)
            }
            BlockKind::Mlp(_) | BlockKind::Moe(_) => Self::None,
        })
    }

    /// Bytes reserved.
    pub fn nbytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Kv(kv) => kv.nbytes() as u64,
        }
    }

    /// Starts a sequence from nothing. Pages need none of it: positions beyond a sequence's length
    /// are never read.
    pub fn zero(&mut self, _slot: SlotId) {
        match self {
            Self::None | Self::Kv(_) => {}
        }
    }

    /// Starts a sequence as a copy of another.
    pub fn copy(&mut self, copy: &StateCopy) {
        match self {
            Self::None => {}
            Self::Kv(kv) => {
                for (src, dst) in copy.src_blocks.iter().zip(&copy.dst_blocks) {
                    kv.copy_page(*src, *dst);
                }
            }
        }
    }

    /// Bytes that [`Self::read`] returns for a sequence; 0 for a block without state.
    pub fn n_bytes_of(&self, sequence: &Sequence) -> usize {
        match self {
            Self::None => 0,
            Self::Kv(kv) => sequence.used_blocks().len() * kv.layout().page_bytes(),
        }
    }

    /// A sequence's state as bytes; `None` for a block without state.
    pub fn read(&self, _slot: SlotId, sequence: &Sequence) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Kv(kv) => {
                let mut bytes = Vec::with_capacity(self.n_bytes_of(sequence));
                for block in sequence.used_blocks() {
                    bytes.extend_from_slice(kv.page(*block));
                }
                Some(bytes)
            }
        }
    }

    /// Puts back what [`Self::read`] returned for a sequence of the same length.
    pub fn write(&mut self, _slot: SlotId, sequence: &Sequence, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Kv(kv) => {
                let pages = bytes.chunks_exact(kv.layout().page_bytes());
                for (block, page) in sequence.used_blocks().iter().zip(pages) {
                    kv.page_mut(*block).copy_from_slice(page);
                }
            }
        }
    }
}
