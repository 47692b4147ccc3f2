//! A stage that a worker has accepted, and for whom: what is left of a placement once the line is open.

use std::ops::Range;

use super::conn::Conn;
use super::reconcile::MemberId;

/// Who places, and in which epoch.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Of the line that is being built.
    pub epoch: u64,
    /// Of this process.
    pub coordinator_id: String,
}

/// A stage and the worker that has it.
#[derive(Clone, Debug)]
pub struct PlacedStage {
    /// Number of the member.
    pub member: MemberId,
    /// Its connection.
    pub conn: Conn,
    /// Its layers.
    pub layers: Range<usize>,
    /// Bytes of its weights, by our own plan.
    pub weight_bytes: u64,
    /// Bytes that the state of a sequence has there at most.
    pub max_sequence_bytes: u64,
    /// Bytes that copies of states may take there.
    pub copy_bytes: u64,
}

impl PlacedStage {
    /// Its layers, as the wire counts them.
    pub fn layer_range(&self) -> Range<u32> {
        self.layers.start as u32..self.layers.end as u32
    }
}
