//! Tiles of attention and of what stands around it: indices, pages of keys and values, pools, rotary positions.

pub(crate) mod block_index;
pub(crate) mod chosen_blocks;
pub(crate) mod depth;
pub(crate) mod index_scores;
pub(crate) mod kv_pages;
pub(crate) mod paged;
pub(crate) mod pooling;
pub(crate) mod rope;
