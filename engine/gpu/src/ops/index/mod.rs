//! Indexers of sparse attention: what scores earlier positions, blocks or entries cheaply, and chooses which of them a row
//! attends to.

pub(super) mod blocks;
pub(super) mod entries;
pub(super) mod means;
pub(super) mod positions;
