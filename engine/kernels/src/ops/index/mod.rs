//! Indexers of sparse attention: what scores earlier positions, blocks or entries cheaply, and chooses which of them a row
//! attends to.

pub(crate) mod blocks;
pub(crate) mod entries;
pub(crate) mod means;
pub(crate) mod positions;
