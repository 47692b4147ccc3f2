//! Pages of keys and values, of an index and of pools: how shaders address them, and writing to them.

pub(super) mod index_pages;
pub(super) mod pages;
pub(super) mod pooling;
pub(super) mod write;
