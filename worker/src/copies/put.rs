//! What the executor is told when a sequence's state comes back: part by part, and then that it is whole.

use std::any::Any;
use std::sync::Arc;

use brigade_engine::batch::CopyName;

use super::gathered::Gathered;

/// A part of a sequence's state that is to be written.
#[derive(Debug)]
pub struct PutPart {
    /// The sequence's slot.
    pub slot: u32,
    /// As in [`PutBack`].
    pub name: Option<CopyName>,
    /// The position of the whole state.
    pub len: u32,
    /// Whether it is the first one. What parts brought before it does not count.
    pub is_first: bool,
    /// The part.
    pub gathered: Gathered,
    /// Held, not read, until it is written: the memory that was granted for it.
    pub grant: Arc<dyn Any + Send + Sync>,
}

/// A sequence to restore, from parts that were written, from what this worker has in memory, and from pages in place.
#[derive(Debug)]
pub struct PutBack {
    /// The sequence's slot.
    pub slot: u32,
    /// The sequence's name, which the slot must have been given. `None`: a kept state, which has none.
    pub name: Option<CopyName>,
    /// The position, as a number of tokens.
    pub len: u32,
    /// The tokens of the sequences, on the last stage.
    pub tokens: Vec<u32>,
    /// Positions whose full pages are already where copies go.
    pub kept_len: u32,
    /// Whether parts of it were written.
    pub has_parts: bool,
}
