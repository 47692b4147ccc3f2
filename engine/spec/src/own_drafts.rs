//! Blocks behind a model's layers that draft the tokens behind the next one (multi-token prediction, NextN).
//!
//! A block reads a hidden row of the model and the token behind that row, and gives logits of the token behind that one. Where
//! there is one block, it goes on from what it gave itself. Where there are several, each is used once.

use brigade_shapes::KV_PAGE;

use super::names::layer_of;
use super::{LayerSpec, NormKind, StateRoom, StateSpec};

/// Positions of which the last stage keeps the hidden row for each sequence that a block reads: as many as windows in flight
/// have rows at most, and the one before them.
pub const KEPT_HIDDEN: usize = 65;

/// Keys that a block with a window remembers besides those that a row sees. They are more than the rows of windows in
/// flight and the drafts behind them, all of which may be taken back.
pub const SPARE_KEYS: usize = 128;

/// Blocks that draft tokens behind a model's layers.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnDraftsSpec {
    /// The blocks, in the order of the tokens that they draft.
    pub heads: Vec<DraftHeadSpec>,
    /// Rows of the model, or of the block before, that a block reads.
    pub reads: DraftInput,
}

/// One block, and what turns its rows into logits.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftHeadSpec {
    /// Number of the block among the layers of the file.
    pub in_file: usize,
    /// Computation of the block, from the joined rows on.
    pub layer: LayerSpec,
    /// Tensor of the weight of the norm behind it.
    pub norm: String,
    /// Kind and epsilon of that norm, where they are not those of the norm before the model's head.
    pub own_norm: Option<(NormKind, f32)>,
    /// Part of the names of the block's tensors that are not read.
    pub unread: Option<&'static str>,
    /// Whether it has an embedding of its own; else it embeds as the model does.
    pub own_embedding: bool,
    /// Whether it has an output matrix of its own; else it has the model's.
    pub own_output: bool,
}

/// Hidden rows that blocks of drafts read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftInput {
    /// Rows behind the norm before the head.
    Normed,
    /// The residual stream behind the last layer.
    Stream,
    /// All residual streams behind the last layer, of which there are so many: one row after the other.
    Streams(usize),
}

impl DraftInput {
    /// Residual streams that a block has.
    #[inline]
    pub fn n_streams(self) -> usize {
        match self {
            Self::Normed | Self::Stream => 1,
            Self::Streams(n) => n,
        }
    }
}

impl OwnDraftsSpec {
    /// Number of blocks of drafts.
    #[inline]
    pub fn n_blocks(&self) -> usize {
        self.heads.len()
    }

    /// Tokens that can be drafted behind one; `most` where a block goes on from what it gave itself.
    pub fn depth(&self, most: usize) -> usize {
        match self.n_blocks() {
            0 | 1 => most,
            n => n.min(most),
        }
    }

    /// Sizes of each block's state of a sequence. All pages are kept, also where the block has a window.
    pub fn state(&self) -> StateSpec {
        let blocks = self.heads.iter().flat_map(|head| &head.layer.blocks);
        let mut states = blocks.map(|block| block.kind.state());
        match states.find(|state| matches!(state, StateSpec::Paged { .. })) {
            Some(StateSpec::Paged { n_head, per_head, index, .. }) => {
                StateSpec::Paged { n_head, per_head, index, window: None }
            }
            _ => StateSpec::None,
        }
    }

    /// Bytes of a sequence besides pages: its hidden rows, of a model `n_embd` wide, and what blocks remember in slots.
    pub fn bytes_per_sequence(&self, n_embd: usize) -> usize {
        let blocks = self.heads.iter().flat_map(|head| &head.layer.blocks);
        let in_slots: usize = blocks.map(|block| block.kind.state().bytes_per_sequence()).sum();
        KEPT_HIDDEN * self.reads.n_streams() * n_embd * size_of::<f32>() + in_slots
    }

    /// Bytes that all blocks and the hidden rows, of a model `n_embd` wide, take on the last stage with this room.
    pub fn state_bytes(&self, n_embd: usize, room: &StateRoom) -> u64 {
        let of_slots = room.n_slots as usize * self.bytes_per_sequence(n_embd);
        let page = KV_PAGE * self.state().bytes_per_token(room.kv_type);
        self.n_blocks() as u64 * u64::from(room.n_blocks) * page as u64 + of_slots as u64
    }

    /// Whether a block keeps entries of the last positions only.
    pub fn has_rings(&self) -> bool {
        let mut blocks = self.heads.iter().flat_map(|head| &head.layer.blocks);
        blocks.any(|block| matches!(block.kind.state(), StateSpec::Slot { .. }))
    }

    /// Whether a block reads a tensor that has the name of one of the file's layers.
    pub fn reads(&self, tensor: &str) -> bool {
        let Some(layer) = layer_of(tensor) else { return false };
        let is_read = |head: &DraftHeadSpec| !head.unread.is_some_and(|part| tensor.contains(part));
        self.heads.iter().any(|head| head.in_file == layer && is_read(head))
    }
}
