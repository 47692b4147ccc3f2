//! Checkpoints on a worker: copies of sequences' states, taken between two ubatches, kept elsewhere, put back.
//!
//! A stage copies what is new of a sequence when a ubatch tells it to: every stage at the same ubatch, so that the
//! copies of all of them belong to one position. The executor's thread only copies memory, into a bounded room
//! ([`taker`]); a task sends it to a neighbour of the line ([`copy_sender`](crate::services::copy_sender)) or writes it to the disk ([`disk`]), at a
//! bounded rate. What others send is kept in a [`store`], layer by layer.
//!
//! When a line was lost, a stage that stays loaded still holds the pages of its sequences: they are used where they
//! are, unless they were written to since. Of recurrent states it keeps its last copies itself. What it does not
//! hold it fetches from whoever has it ([`fetch`]). When a line is taken down as planned, each worker keeps the states of
//! its own stage until the next line has them ([`parting`]). Nothing here decides whether and to which position a sequence
//! goes back: that is the coordinator's.

pub mod buffers;
pub mod disk;
pub mod fetch;
pub mod parting;
pub mod parts;
pub mod piece;
pub mod rate;
pub mod stage_copy;
pub mod store;
pub mod taker;

/// What copies belong to: model, cache type, numerics, and the type that values cross cuts in.
pub type Kind = [u8; 32];

/// Bytes of copies that wait to be sent; a checkpoint for which there is no room is taken in part, or later.
pub const QUEUE_BYTES: usize = 128 << 20;

/// Bytes of a neighbour's copy that have come while it is not whole: as many as that had waiting.
pub const IN_QUEUE_BYTES: usize = QUEUE_BYTES;

/// Bytes of copies a second that a worker sends or writes at most.
pub const BYTES_PER_SECOND: u64 = 256 << 20;

/// Positions of a sequence for which recurrent states, and pages that were not full, are kept. Stages may be this
/// many checkpoints apart.
pub const RESTS_KEPT: usize = 3;
