//! A stage that a worker has accepted, and for whom: what is left of a placement once the line is open.

use std::ops::Range;

use crate::conn::Conn;
use crate::reconcile::MemberId;

/// Who places, and in which epoch.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Of the line that is being built.
    pub epoch: u64,
    /// Of this process.
    pub coordinator_id: String,
}

/// What a unit of work takes on a stage, as it was planned, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// To compute.
    pub computing_us: f64,
    /// To send on.
    pub sending_us: f64,
    /// How many times slower than it says the worker was taken to be.
    pub slowdown: f64,
}

impl Pace {
    /// A unit of work on a worker that is so many times slower than it says: whichever is slower, computing or sending.
    pub fn unit_us(&self, slowdown: f64) -> f64 {
        (self.computing_us / self.slowdown * slowdown).max(self.sending_us)
    }
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
    /// Layers whose routed experts lie with the host beside its GPU: the first so many of the model. `None` of a worker that has
    /// no such place.
    pub host_experts: Option<u32>,
    /// What it takes, by our own plan.
    pub pace: Pace,
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
