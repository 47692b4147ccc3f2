//! Jobs of the executor's thread.

use std::time::Instant;

use brigade_engine::batch::{Boundary, CopyName, UBatch};
use brigade_proto::failure::Failure;
use brigade_proto::pipeline as pb;
use tokio::sync::oneshot;

use super::changes::Unchanged;
use super::output::LaneRun;
use crate::backend::{CopyFacts, KeptWeights, StageRunner};
use crate::copies::parting::Keep;
use crate::copies::put::{PutBack, PutPart};
use crate::copies::stage_copy::{Copied, Wanted};

/// A checked ubatch on its way into the stage.
#[derive(Debug)]
pub struct Work {
    /// Operations and rows to compute.
    pub ubatch: UBatch,
    /// The frame it came in, without its boundary: passed on to the next stage.
    pub frame: pb::Ubatch,
    /// Hidden rows from the previous stage.
    pub input: Option<Boundary>,
    /// Bytes of the frame as received.
    pub wire_bytes: usize,
    /// When the frame was complete.
    pub received: Instant,
    /// When it had been checked and copied.
    pub checked: Instant,
}

/// The receiver of a job's outcome; it may be gone.
pub type Answer<T> = oneshot::Sender<Result<T, Failure>>;

/// A job of the executor's thread. Jobs run in order.
#[derive(Debug)]
pub enum Job {
    /// The following work belongs to this lane.
    Begin(LaneRun),
    /// Compute and send on.
    Run(Work),
    /// The lane is complete: close its output.
    End(oneshot::Sender<()>),
    /// Read a sequence's state.
    Snapshot {
        /// The sequence's slot.
        slot: u32,
        /// Gets the snapshot.
        answer: Answer<Vec<u8>>,
    },
    /// Give a sequence another state.
    Restore {
        /// The sequence's slot.
        slot: u32,
        /// The snapshot's bytes.
        bytes: Vec<u8>,
        /// Notified when it is done.
        answer: Answer<()>,
    },
    /// Say which sequences of a line before this one the stage still holds.
    FindHeld {
        /// Names of the sequences in question.
        names: Vec<CopyName>,
        /// Gets the states that are held.
        answer: Answer<HeldFound>,
    },
    /// Copy some of a sequence's state.
    Copy {
        /// `None`: report only the properties that the stage's states depend on.
        wanted: Option<Wanted>,
        /// `None`: nothing changes the slot before the last copy.
        unchanged: Option<Unchanged>,
        /// Gets the copied part.
        answer: Answer<Copied>,
    },
    /// Write a part of a sequence's state.
    PutPart {
        /// The part, and whose it is.
        part: Box<PutPart>,
        /// The lane, and the last ubatch that may have changed the slot.
        unchanged: Unchanged,
        /// Gets the last ubatch that did.
        answer: Answer<Unchanged>,
    },
    /// Give a sequence the state of a checkpoint.
    PutBack {
        /// The sequence to restore.
        put: Box<PutBack>,
        /// As with a part.
        unchanged: Unchanged,
        /// Notified when it is done.
        answer: Answer<()>,
    },
    /// Forget all sequences of the stage.
    Reset {
        /// How their states are kept; `None`: they are dropped.
        keep: Option<Keep>,
        /// Notified when it is done.
        done: Answer<()>,
    },
    /// Build another stage out of the one there is.
    Build(Build),
}

/// Makes a stage, reusing the weights that are in memory. It reports to the asker where each weight came from.
pub struct Build(pub Box<dyn FnOnce(&mut KeptWeights) -> Built + Send>);

/// The result: the stage, or `None` where it could not be built.
pub type Built = Option<Box<dyn StageRunner>>;

impl std::fmt::Debug for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Build")
    }
}

/// States of a lost line's sequences that a stage still holds.
#[derive(Debug)]
pub struct HeldFound {
    /// Properties on which its copies depend; `None`: it takes none.
    pub facts: Option<CopyFacts>,
    /// For each of the given sequences, the position up to which its pages are there.
    pub up_to: Vec<u32>,
}
