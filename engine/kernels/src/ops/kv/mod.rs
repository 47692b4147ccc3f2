//! Writes to the pages of sequences: keys and values, entries, and pools of rows.

pub(crate) mod entries;
pub(crate) mod pages;
pub(crate) mod pooling;
