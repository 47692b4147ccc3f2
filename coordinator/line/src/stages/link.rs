//! The messages between supervisor and driver. The supervisor reports the progress of a line, and when it is up or
//! down. The driver reports that its line is faulty.

use tokio::sync::{mpsc, oneshot};

use crate::handle::Status;
use crate::health::RollWatch;
use crate::stages::open_line::OpenLine;

/// News from the supervisor to the driver.
#[derive(Debug)]
pub enum LineEvent {
    /// Something to show while there is no line.
    Progress(Status),
    /// A new line: loaded, empty, ready for ubatch 0.
    Up(Box<OpenLine>),
    /// The line will be taken down as planned: its stages are to keep the states of their sequences.
    Part {
        /// Notified when they do; dropped where they will not.
        done: oneshot::Sender<()>,
    },
    /// The line is gone and a new one is being built.
    Down {
        /// The reason, for clients and logs.
        reason: String,
        /// The supervisor took it down to move layers: nothing broke.
        planned: bool,
    },
    /// There will be no line; the supervisor has ended.
    Failed {
        /// The reason, for operators.
        reason: String,
    },
}

/// A fault of the line that the driver found, for the supervisor to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The epoch of the line that broke.
    pub epoch: u64,
    /// The reason, as the driver saw it.
    pub reason: String,
    /// Stage that says that it failed by itself, and not because of a neighbour.
    pub stage: Option<u32>,
    /// A stage that has computed one ubatch for longer than this, in microseconds, is stuck; `None`
    /// where nothing was measured yet.
    pub stuck_after_us: Option<u64>,
}

/// The driver's ends towards the cluster.
#[derive(Debug)]
pub struct ClusterLink {
    /// Lines going up and down.
    pub events: mpsc::Receiver<LineEvent>,
    /// Faults that the driver found.
    pub faults: mpsc::Sender<Fault>,
    /// The workers that are connected, for the status pages.
    pub roll: RollWatch,
}
