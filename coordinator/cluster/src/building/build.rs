//! Builds a line: from connected workers to stages that are placed, loaded and joined by an open lane.
//!
//! It runs as one task beside the supervisor, which goes on handling other news. Dropping the task ends the attempt.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::building::lane;
use crate::building::load;
use crate::building::place::{self, PlaceError, Placement};
use crate::config::StageOptions;
use crate::members::conn::{Conn, Present, WorkerError};
use crate::members::placed_stage::{Identity, PlacedStage};
use crate::progress::Progress;
use crate::reconcile::MemberId;
use brigade_line::model::Model;
use brigade_line::stages::link::LineEvent;
use brigade_line::stages::open_line::OpenLine;

/// The workers and settings of a line to build.
#[derive(Debug)]
pub struct Order {
    /// The workers, in the line's order.
    pub conns: Vec<(MemberId, Conn)>,
    /// The model to place.
    pub model: Arc<Model>,
    /// Settings of every stage.
    pub options: StageOptions,
    /// The coordinator's id, and the line's epoch.
    pub identity: Identity,
    /// Workers of the last line, which have the states of its sequences.
    pub before: Vec<(MemberId, Conn)>,
    /// All workers that are there, which may have weights.
    pub holders: Vec<Conn>,
    /// All workers that are there at any time, while the line is up too.
    pub present: Present,
    /// Receives reports of progress.
    pub events: mpsc::Sender<LineEvent>,
}

/// A line that is open.
#[derive(Debug)]
pub struct Built {
    /// The open line, for the driver.
    pub line: OpenLine,
    /// The line's workers, first stage first.
    pub stages: Vec<PlacedStage>,
    /// Bytes of weights that were read for it.
    pub read_bytes: u64,
}

/// Why there is no line.
#[derive(Debug)]
pub enum BuildError {
    /// Workers cannot or will not take or load their stages.
    Workers(Vec<(MemberId, WorkerError)>),
    /// All stages have loaded, and the line did not open.
    Open(WorkerError),
    /// No worker is to blame.
    Other(String),
}

/// Builds a line: places, loads, and opens the lane.
///
/// # Errors
/// [`BuildError`]; stages that have loaded stay so, for the next attempt.
pub async fn build(order: Order) -> Result<Built, BuildError> {
    let Order { conns, model, options, identity, before, holders, present, events } = order;
    let Identity { epoch, coordinator_id } = identity.clone();
    let progress = Progress::new(events);
    let placed = place::place(&model, conns, &options, identity, &progress, &holders).await;
    let placement = placed.map_err(|error| match error {
        PlaceError::Workers(failed) => BuildError::Workers(failed),
        error => BuildError::Other(error.to_string()),
    })?;
    let loading = load::load(&placement, &model, &progress);
    let (loaded, beside) = tokio::join!(loading, retire(&placement, before));
    let read_bytes = loaded.map_err(|failed| BuildError::Workers(vec![failed]))?;
    let info = Arc::new(placement.info());
    let (ends, states) = (placement.ends(), placement.state_access(beside, present));
    let opened =
        lane::open(&ends, epoch, &coordinator_id, placement.line, info, Arc::new(states)).await;
    let line = opened.map_err(BuildError::Open)?;
    Ok(Built { line, stages: placement.stages, read_bytes })
}

/// Releases the last line's workers that have no layers any more. Returns those that keep states of its sequences.
async fn retire(placement: &Placement, before: Vec<(MemberId, Conn)>) -> Vec<Conn> {
    let is_on_line = |id: &MemberId| placement.stages.iter().any(|stage| stage.member == *id);
    let mut retiring = JoinSet::new();
    for (_, conn) in before.into_iter().filter(|(id, _)| !is_on_line(id)) {
        let (epoch, line_keys) = (placement.identity.epoch, placement.line_keys());
        retiring.spawn(async move { (conn.retire(epoch, line_keys).await, conn) });
    }
    let mut beside = Vec::new();
    while let Some(retired) = retiring.join_next().await {
        match retired {
            Ok((Ok(()), conn)) => beside.push(conn),
            Ok((Err(error), _)) => {
                tracing::warn!(%error, "a worker that left the line does not keep its states for the new one")
            }
            // A task that was ended early, with this one.
            Err(_) => {}
        }
    }
    beside
}
