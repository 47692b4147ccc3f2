//! Attention: over pages, over chosen positions and entries, over depth; and the rotation of queries and keys.

pub(crate) mod attend_entries;
pub(crate) mod chosen;
pub(super) mod copied_keys;
pub(crate) mod depth;
pub(crate) mod paged;
pub(crate) mod rope;
