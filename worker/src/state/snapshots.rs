//! Reads a sequence's state from the running stage, or writes it to the stage, between two ubatches.
//!
//! The sequence must be at rest: none of its rows may be on its way anywhere. Only the coordinator can know that, and
//! only it may call this. A state in transfer is completely in memory, beside the stage. So few are transferred at a
//! time, and an incoming one must fit into the memory that `--memory` leaves.

use std::time::{Duration, Instant};

use brigade_proto::control::{Phase, RestoreHead, SnapshotRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{SNAPSHOT_FRAME_BYTES, STATE_STALL_MS, STATES_AT_ONCE};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;

use super::Worker;
use crate::executor::gone;
use crate::executor::jobs::Job;
use crate::machine::ledger::{Held, Lacking};

/// Patience with the other end of a transfer, and with the transfer before it.
pub const STALL: Duration = Duration::from_millis(STATE_STALL_MS);

/// A stage whose sequences may be read or written.
pub(super) struct Door {
    pub(super) jobs: mpsc::Sender<Job>,
    /// Bytes that a snapshot of one sequence may have here.
    pub(super) limit: u64,
    /// Bytes that `--memory` leaves beside the stage.
    pub(super) room: u64,
}

/// A transfer's turn, with the memory for an incoming state; the next one waits for its end.
#[derive(Debug)]
pub struct StateTurn {
    #[allow(dead_code, reason = "held, not read")]
    permit: OwnedSemaphorePermit,
    #[allow(dead_code, reason = "held, not read")]
    memory: Option<Held>,
}

/// The failure of a transfer for which the node has no memory.
pub(super) fn no_room(lacking: Lacking) -> Failure {
    let why = format!("no memory for a state on its way: {lacking}");
    Failure::refusal(FailureKind::NoMemory, why)
}

impl Worker {
    /// The state of an open sequence.
    ///
    /// # Errors
    /// The session's refusals; WrongPhase without a lane; BadMessage for a slot that is not open; Busy
    /// while other transfers do not end.
    pub async fn snapshot(
        &self,
        request: &SnapshotRequest,
    ) -> Result<(Vec<u8>, StateTurn), Failure> {
        let SnapshotRequest { epoch, coordinator_id, slot } = request;
        self.door(coordinator_id, *epoch, *slot)?;
        let turn = self.state_turn().await?;
        // Waiting may have taken a while.
        let door = self.door(coordinator_id, *epoch, *slot)?;
        let (answer, taken) = oneshot::channel();
        door.jobs.send(Job::Snapshot { slot: *slot, answer }).await.map_err(|_| gone())?;
        Ok((taken.await.map_err(|_| gone())??, turn))
    }

    pub(super) async fn state_turn(&self) -> Result<StateTurn, Failure> {
        match timeout(STALL, self.states.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(StateTurn { permit, memory: None }),
            // The semaphore is never closed.
            Ok(Err(_)) => Err(gone()),
            Err(_) => {
                let why = format!(
                    "{STATES_AT_ONCE} other transfer of a state has not ended within \
                     {STATE_STALL_MS} ms: try again when it has"
                );
                Err(Failure::refusal(FailureKind::Busy, why))
            }
        }
    }

    /// Checks what a restore announces, before any of it is received: returns its length.
    ///
    /// # Errors
    /// The session's refusals. WrongPhase: there is no lane. BadMessage: there is no such slot, or
    /// there are more bytes than a sequence has here. NoMemory: `--memory` has no room for them beside the
    /// stage. Busy: other transfers do not end.
    pub async fn begin_restore(&self, head: &RestoreHead) -> Result<(usize, StateTurn), Failure> {
        self.check_restore(head)?;
        let turn = self.state_turn().await?;
        // Waiting may have taken a while.
        let nbytes = self.check_restore(head)?;
        let memory = self.loader.ledger.beside(nbytes as u64).map_err(no_room)?;
        Ok((nbytes, StateTurn { memory: Some(memory), ..turn }))
    }

    fn check_restore(&self, head: &RestoreHead) -> Result<usize, Failure> {
        let door = self.door(&head.coordinator_id, head.epoch, head.slot)?;
        let RestoreHead { total_bytes, .. } = *head;
        if total_bytes > door.limit {
            let limit = door.limit;
            let why = format!(
                "restore.total_bytes is {total_bytes}, a sequence has {limit} here at most"
            );
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        if total_bytes > door.room {
            let why = format!(
                "a state of {total_bytes} bytes has no room beside the stage: --memory leaves {}; \
                 give the worker more, or fewer layers, or serve fewer or shorter sequences",
                door.room
            );
            return Err(Failure::refusal(FailureKind::NoMemory, why));
        }
        let too_large = |_| Failure::refusal(FailureKind::NoMemory, "the snapshot is too large");
        usize::try_from(total_bytes).map_err(too_large)
    }

    /// Gives an open sequence the state of a snapshot.
    ///
    /// # Errors
    /// As [`Worker::begin_restore`]; BadMessage for a slot that is not open or has too few pages;
    /// Corrupt for damaged bytes; Unsupported for a snapshot of something else. Nothing has
    /// changed then.
    pub async fn restore(&self, head: &RestoreHead, bytes: Vec<u8>) -> Result<(), Failure> {
        let slot = head.slot;
        let door = self.door(&head.coordinator_id, head.epoch, slot)?;
        let (answer, done) = oneshot::channel();
        door.jobs.send(Job::Restore { slot, bytes, answer }).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }

    /// The stage of a running lane, where there is such a slot.
    pub(super) fn door(
        &self,
        coordinator_id: &str,
        epoch: u64,
        slot: u32,
    ) -> Result<Door, Failure> {
        let mut inner = self.inner();
        inner.session.check_phase(Instant::now(), coordinator_id, epoch, Phase::Running)?;
        let order = inner.order.clone().ok_or_else(gone)?;
        let max_seqs = order.spec.max_seqs;
        if slot >= max_seqs {
            let why = format!("slot is {slot}, the limit is {}", max_seqs.saturating_sub(1));
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        let resident = inner.resident.as_ref().filter(|r| r.executor.is_alive());
        let (resident, stage) =
            resident.and_then(|r| Some((r, r.stage.as_ref()?))).ok_or_else(gone)?;
        let tokens = u64::from(order.spec.max_ctx) * size_of::<u32>() as u64;
        let facts = &stage.loaded.facts;
        let limit = facts.sequence_bytes + tokens + SNAPSHOT_FRAME_BYTES;
        let held = facts.weight_bytes.saturating_add(facts.state_bytes);
        let room = self.loader.ledger.limit().stage.saturating_sub(held);
        Ok(Door { jobs: resident.executor.jobs(), limit, room })
    }
}
