//! Reads the states of kept sequences from the line and puts them back, beside the ubatches.
//!
//! A transfer may start only when no row of its sequence is on its way any more. So it waits for the last
//! ubatch that was sent before it was asked for, or for the one that opens its slot.

use brigade_proto::task;
use std::sync::Arc;

use brigade_engine::batch::{SeqOp, SlotId, UBatch};
use brigade_sched::{Event, KeptId, KeptInfo};
use tokio::sync::{mpsc, oneshot};

use super::Driver;
use super::records::{self, Load, Loaded, Save, Saved};
use crate::handle::StateError;
use crate::stages::states::{PutSlot, StateAccess};

/// Transfers that may end before the driver has heard of the first.
const DONE_QUEUE: usize = 16;

/// A transfer of a kept sequence's state, with the channel for its result.
#[derive(Debug)]
pub(super) enum Transfer {
    /// Reads the state as a snapshot for a client.
    Save(oneshot::Sender<Result<Vec<u8>, StateError>>),
    /// Writes a client's snapshot to the stages.
    Load(Vec<u8>, oneshot::Sender<Result<(), StateError>>),
    /// Writes the state to the workers' records.
    SavePrefix(Box<Save>),
    /// Loads the state from the workers' records.
    LoadPrefix(Box<Load>),
}

/// When a transfer may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// When the ubatch that opens the slot has been sent and has come back.
    Opened,
    /// When this ubatch has come back.
    After(u64),
    /// The call may start at once.
    Now,
}

#[derive(Debug)]
struct Waiting {
    due: Due,
    kept: KeptInfo,
    transfer: Transfer,
}

/// A transfer that is over.
#[derive(Debug)]
pub(super) struct Done {
    /// The epoch of the line of the transfer.
    pub epoch: u64,
    /// The sequence whose state was moved.
    pub id: KeptId,
    /// The result, with its receiver.
    pub outcome: Outcome,
}

/// The result of a transfer. Its receiver is told after the scheduler knows.
#[derive(Debug)]
pub(super) enum Outcome {
    Saved(Result<Vec<u8>, StateError>, oneshot::Sender<Result<Vec<u8>, StateError>>),
    Loaded(Result<(), StateError>, oneshot::Sender<Result<(), StateError>>),
    PrefixSaved(Saved),
    PrefixLoaded(Loaded),
}

impl Outcome {
    /// What became of the sequence, for the scheduler.
    fn event(&self, id: KeptId) -> Event {
        let is_there = match self {
            Self::Loaded(result, _) => result.is_ok(),
            Self::PrefixLoaded(loaded) => loaded.result.is_ok(),
            Self::PrefixSaved(Saved { was_pinned: false, .. }) => return Event::KeptWritten(id),
            Self::Saved(..) | Self::PrefixSaved(_) => true,
        };
        if is_there { Event::KeptReady(id) } else { Event::DropKept(id) }
    }
}

/// All transfers of the line that is up.
#[derive(Debug)]
pub(super) struct States {
    waiting: Vec<Waiting>,
    /// The last ubatch that went out.
    newest: Option<u64>,
    done: mpsc::Sender<Done>,
}

impl States {
    /// Without transfers. The receiver gets those that end.
    pub(super) fn new() -> (Self, mpsc::Receiver<Done>) {
        let (done, receiver) = mpsc::channel(DONE_QUEUE);
        (Self { waiting: Vec::new(), newest: None, done }, receiver)
    }

    pub(super) fn push(&mut self, due: Due, kept: KeptInfo, transfer: Transfer) {
        self.waiting.push(Waiting { due, kept, transfer });
    }

    /// The last ubatch that went out on this line; `None`: there was none.
    pub(super) fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// A ubatch goes out: it may open the slot that a transfer waits for.
    pub(super) fn sent(&mut self, ubatch: &UBatch) {
        self.newest = Some(ubatch.id);
        let opens = |slot: SlotId| {
            let is = |op: &SeqOp| matches!(op, SeqOp::Open { slot: opened, .. } if *opened == slot);
            ubatch.ops.iter().any(is)
        };
        for waiting in self.waiting.iter_mut().filter(|w| w.due == Due::Opened) {
            if opens(waiting.kept.slot) {
                waiting.due = Due::After(ubatch.id);
            }
        }
    }

    /// Starts what may start; `oldest` is the first ubatch that is not back.
    pub(super) fn start(&mut self, oldest: Option<u64>, epoch: u64, access: &Arc<dyn StateAccess>) {
        let may_start = |waiting: &mut Waiting| match waiting.due {
            Due::Opened => false,
            Due::After(id) => oldest.is_none_or(|oldest| oldest > id),
            Due::Now => true,
        };
        for Waiting { kept, transfer, .. } in self.waiting.extract_if(.., may_start) {
            let (access, done) = (access.clone(), self.done.clone());
            let to = PutSlot { slot: kept.slot, unchanged_since: self.newest };
            task::spawn(async move {
                let outcome = perform(&access, to, transfer).await;
                // The driver may be gone; then who waits hears that.
                let _ = done.send(Done { epoch, id: kept.id, outcome }).await;
            });
        }
    }

    /// The line is gone, and the sequences with it: who waits is told by the end of his channel.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.newest = None;
    }
}

impl Driver {
    pub(super) fn start_transfers(&mut self) {
        if let Some(line) = &self.line {
            let oldest = self.in_flight.keys().min().copied();
            self.states.start(oldest, line.epoch, &line.states);
            let newest = self.states.newest();
            self.checkpoints.start(oldest, newest, line.epoch, &line.states);
        }
    }

    /// A state has left the line or is in it; the scheduler knows before who waits does.
    pub(super) fn transferred(&mut self, done: Done) {
        let Done { epoch, id, mut outcome } = done;
        if let Outcome::PrefixLoaded(loaded) = &mut outcome {
            self.doubt(loaded);
        }
        let is_up = self.line.as_ref().is_some_and(|line| line.epoch == epoch);
        if is_up {
            self.step(outcome.event(id));
        }
        // The client may have gone.
        match outcome {
            Outcome::Saved(result, reply) => drop(reply.send(result)),
            Outcome::Loaded(result, reply) => drop(reply.send(result)),
            Outcome::PrefixSaved(saved) if is_up => self.prefix_saved(id, saved),
            Outcome::PrefixLoaded(loaded) if is_up => self.prefix_loaded(id, loaded),
            Outcome::PrefixSaved(_) | Outcome::PrefixLoaded(_) => {}
        }
    }
}

async fn perform(access: &Arc<dyn StateAccess>, to: PutSlot, transfer: Transfer) -> Outcome {
    let slot = to.slot;
    let failed = |reason: String| StateError::Failed { reason };
    match transfer {
        Transfer::Save(reply) => Outcome::Saved(access.read(slot).await.map_err(failed), reply),
        Transfer::Load(snapshot, reply) => {
            Outcome::Loaded(access.write(slot, snapshot).await.map_err(failed), reply)
        }
        Transfer::SavePrefix(save) => Outcome::PrefixSaved(records::save(access, *save).await),
        Transfer::LoadPrefix(load) => Outcome::PrefixLoaded(records::load(access, to, *load).await),
    }
}
