//! Attention: over pages, over chosen blocks, positions and entries, over depth; and the rotation of queries and keys.

pub(super) mod attend_entries;
pub(super) mod chosen;
pub(super) mod depth;
pub(super) mod page_lists;
pub(super) mod paged;
pub(super) mod rope;
pub(super) mod tiling;
