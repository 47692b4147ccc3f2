//! A sequence's state as bytes, out of the running stage and into it, between two ubatches.
//!
//! The sequence must be at rest: none of its rows on their way anywhere. Only the coordinator can
//! know that, and it is the only one who asks.

use std::time::Instant;

use brigade_proto::control::{Phase, RestoreHead, SnapshotRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::SNAPSHOT_FRAME_BYTES;
use tokio::sync::{mpsc, oneshot};

use super::Worker;
use crate::executor::{Job, gone};

/// A stage whose sequences may be read or written.
struct Door {
    jobs: mpsc::Sender<Job>,
    /// Bytes that a snapshot of one sequence may have here.
    limit: u64,
}

impl Worker {
    /// The state of an open sequence.
    ///
    /// # Errors
    /// The session's refusals; WrongPhase without a lane; BadMessage for a slot that is not open.
    pub async fn snapshot(&self, request: &SnapshotRequest) -> Result<Vec<u8>, Failure> {
        let SnapshotRequest { epoch, coordinator_id, slot } = request;
        let door = self.door(coordinator_id, *epoch, *slot)?;
        let (answer, taken) = oneshot::channel();
        door.jobs.send(Job::Snapshot { slot: *slot, answer }).await.map_err(|_| gone())?;
        taken.await.map_err(|_| gone())?
    }

    /// Checks what a restore announces, before any of it is received: returns its length.
    ///
    /// # Errors
    /// The session's refusals; WrongPhase without a lane; BadMessage for a slot that does not
    /// exist, or more bytes than the stage's state has.
    pub fn check_restore(&self, head: &RestoreHead) -> Result<usize, Failure> {
        let door = self.door(&head.coordinator_id, head.epoch, head.slot)?;
        let RestoreHead { total_bytes, .. } = *head;
        if total_bytes > door.limit {
            let limit = door.limit;
            let why = format!("restore.total_bytes is {total_bytes}, the limit is {limit}");
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        let too_large = |_| Failure::refusal(FailureKind::NoMemory, "the snapshot is too large");
        usize::try_from(total_bytes).map_err(too_large)
    }

    /// Gives an open sequence the state of a snapshot.
    ///
    /// # Errors
    /// As [`Worker::check_restore`]; BadMessage for a slot that is not open or has too few pages;
    /// Corrupt for damaged bytes; Unsupported for a snapshot of something else. Nothing has
    /// changed then.
    pub async fn restore(&self, head: &RestoreHead, bytes: Vec<u8>) -> Result<(), Failure> {
        let slot = head.slot;
        let door = self.door(&head.coordinator_id, head.epoch, slot)?;
        let (answer, done) = oneshot::channel();
        door.jobs.send(Job::Restore { slot, bytes, answer }).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    fn door(&self, coordinator_id: &str, epoch: u64, slot: u32) -> Result<Door, Failure> {
        let mut inner = self.inner();
        inner.session.check_phase(Instant::now(), coordinator_id, epoch, Phase::Running)?;
        let order = inner.order.clone().ok_or_else(gone)?;
        let max_seqs = order.spec.max_seqs;
        if slot >= max_seqs {
            let why = format!("slot is {slot}, the limit is {}", max_seqs.saturating_sub(1));
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        let resident = inner.resident.as_ref().filter(|r| r.executor.is_alive());
        let resident = resident.ok_or_else(gone)?;
        let tokens = u64::from(order.spec.max_ctx) * size_of::<u32>() as u64;
        let limit = resident.loaded.facts.state_bytes + tokens + SNAPSHOT_FRAME_BYTES;
        Ok(Door { jobs: resident.executor.jobs(), limit })
    }
}
