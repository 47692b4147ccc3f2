//! Checkpoints on a worker: copies of sequences' states, taken between two ubatches, kept elsewhere, put back.
//!
//! A stage copies the new part of a sequence's state when a ubatch tells it to. Every stage does so at the same
//! ubatch, so that all copies belong to one position. The executor's thread only copies memory, into a bounded room
//! ([`taker`]). A task sends the copies to a neighbour of the line ([`copy_sender`](crate::services::copy_sender)) or
//! writes them to its records on the disk ([`disk`]), at a bounded rate. Copies from other workers are kept in a [`store`], layer by
//! layer.
//!
//! When a line was lost, a stage that stays loaded still holds the pages of its sequences: they are used where they
//! are, unless they were written to since. It keeps the last copies of its own recurrent states itself. Missing
//! copies are fetched from other workers ([`fetch`]). The stage takes them in parts ([`source`]), between two ubatches each, so that
//! a long sequence needs no memory twice. When a line is taken down as planned, each worker keeps the
//! states of its own stage until the next line has them ([`parting`]). The coordinator decides whether and to which
//! position a sequence goes back.

pub mod buffers;
pub mod disk;
pub mod fetch;
pub mod gathered;
pub mod parting;
pub mod parts;
pub mod piece;
pub mod put;
pub mod source;
pub mod stage_copy;
pub mod store;
pub mod taker;

/// Bytes of copies that wait to be sent; a checkpoint for which there is no room is taken in part, or later.
pub const QUEUE_BYTES: usize = 128 << 20;

/// Bytes of a neighbour's copy that have come while it is not whole: as many as that had waiting.
pub const IN_QUEUE_BYTES: usize = QUEUE_BYTES;

/// Positions of a sequence for which recurrent states, and pages that were not full, are kept. Stages may be this
/// many checkpoints apart.
pub const RESTS_KEPT: usize = 3;

/// Bytes of a state that are in memory at once while the stage takes it in parts: those that are handed over, and those that
/// come meanwhile. They are a part of what a process takes itself ([`PROCESS_BYTES`](crate::machine::memory::PROCESS_BYTES)).
pub const PUTTING_BYTES: u64 = 16 << 20;

/// The same at most, where there is memory for it: ubatches wait while a stage takes a part.
pub const MAX_PUTTING_BYTES: u64 = 1 << 30;

/// The largest state that a sequence may have is this many times as large as what is in memory at once, where there is memory
/// for that: a stage that is busy takes one part between two ubatches.
pub const PUTTING_SHARE: u64 = 16;
