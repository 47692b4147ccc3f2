//! Attention, and what stands around it: pages of keys and values, scores of an index, pools of rows, rotary positions.

pub(crate) mod depth;
pub(crate) mod index_scores;
pub(crate) mod kv_pages;
pub(crate) mod paged;
pub(crate) mod pooling;
pub(crate) mod rope;
