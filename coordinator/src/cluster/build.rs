//! Builds a line: from connected workers to stages that are placed, loaded and joined by an open lane.
//!
//! It runs as one task beside the supervisor, which meanwhile hears what else happens. Dropping the task ends
//! the attempt.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::config::StageOptions;
use super::conn::{Conn, WorkerError};
use super::lane::{self, OpenLine};
use super::link::LineEvent;
use super::load;
use super::place::{self, PlaceError};
use super::placed_stage::{Identity, PlacedStage};
use super::progress::Progress;
use super::reconcile::MemberId;
use crate::model::Model;

/// What a line is built from.
#[derive(Debug)]
pub struct Order {
    /// The workers, in the line's order.
    pub conns: Vec<(MemberId, Conn)>,
    /// The model to place.
    pub model: Arc<Model>,
    /// For every stage.
    pub options: StageOptions,
    /// Who builds, in which epoch.
    pub identity: Identity,
    /// Where progress goes.
    pub events: mpsc::Sender<LineEvent>,
}

/// A line that is open.
#[derive(Debug)]
pub struct Built {
    /// For the driver.
    pub line: OpenLine,
    /// Who is in it, first stage first.
    pub stages: Vec<PlacedStage>,
}

/// Why there is no line.
#[derive(Debug)]
pub enum BuildError {
    /// These workers cannot or will not take or load their stages.
    Workers(Vec<(MemberId, WorkerError)>),
    /// All stages have loaded, and the line did not open.
    Open(WorkerError),
    /// No worker is to blame.
    Other(String),
}

/// Builds a line.
///
/// # Errors
/// [`BuildError`]; stages that have loaded stay so, for the next attempt.
pub async fn build(order: Order) -> Result<Built, BuildError> {
    let Order { conns, model, options, identity, events } = order;
    let Identity { epoch, coordinator_id } = identity.clone();
    let progress = Progress::new(events);
    let placed = place::place(&model, conns, &options, identity, &progress).await;
    let placement = placed.map_err(|error| match error {
        PlaceError::Workers(failed) => BuildError::Workers(failed),
        error => BuildError::Other(error.to_string()),
    })?;
    let loaded = load::load(&placement, &model, &progress).await;
    loaded.map_err(|failed| BuildError::Workers(vec![failed]))?;
    let info = Arc::new(placement.info());
    let (ends, state_access) = (placement.ends(), placement.state_access());
    let opened =
        lane::open(&ends, epoch, &coordinator_id, placement.line, info, state_access).await;
    let line = opened.map_err(BuildError::Open)?;
    Ok(Built { line, stages: placement.stages })
}
