//! The data plane in the worker's state: attaches streams of results, and grants and ends lanes.

use std::sync::Arc;
use std::time::Instant;

use brigade_proto::control::Phase;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::frame::FrameLimits;
use brigade_proto::limits::MAX_LANES;
use brigade_proto::pipeline::{LaneOpen, ResultFrame, ResultsRequest};
use brigade_proto::tls::{KeyId, Who};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::session::shown;
use super::{Worker, over};
use crate::backend::StageShape;
use crate::executor::gone;
use crate::executor::jobs::Job;
use crate::executor::metrics::Meter;
use crate::executor::output::ResultSender;
use crate::executor::wire::BufferPool;
use crate::loading::order::Order;

/// Result frames made and not yet taken by the transport.
const RESULT_QUEUE: usize = 8;

/// Everything of its epoch that a lane needs to run.
pub struct LaneGrant {
    /// The order of the stage.
    pub order: Arc<Order>,
    /// The epoch of the lane.
    pub epoch: u64,
    /// The coordinator that runs the line.
    pub coordinator_id: String,
    /// Number of the lane.
    pub lane: u32,
    /// The queue of the executor.
    pub jobs: mpsc::Sender<Job>,
    /// Limits of the frames' sizes.
    pub limits: FrameLimits,
    /// f32 values of an outgoing boundary row; 0 on the last stage.
    pub output_width: u32,
    /// Whether outgoing rows must not be rounded on their way.
    pub output_exact: bool,
    /// Where results go, on the last stage.
    pub results: Option<ResultSender>,
    /// Cancelled when the lane is over, or its epoch.
    pub cancel: CancellationToken,
    /// The worker's counters.
    pub meter: Arc<Meter>,
    /// The pool of buffers for boundaries.
    pub pool: BufferPool,
}

impl LaneGrant {
    /// The number of this stage in the line.
    pub fn stage(&self) -> u32 {
        self.order.spec.stage
    }
}

impl Worker {
    /// Attaches the coordinator's result stream to the epoch.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; the session's refusals; WrongPhase on a stage that is not the
    /// last.
    pub fn attach_results(
        &self,
        request: &ResultsRequest,
        who: &Who,
    ) -> Result<mpsc::Receiver<Result<ResultFrame, Status>>, Failure> {
        let mut inner = self.inner();
        let ResultsRequest { epoch, coordinator_id, lane } = request;
        check_speaker(who, coordinator_id)?;
        inner.session.check_phase(Instant::now(), coordinator_id, *epoch, Phase::Ready)?;
        check_lane(*lane)?;
        if inner.order.as_ref().is_some_and(|order| order.next_hop.is_some()) {
            let why = "results come from the last stage, which this is not";
            return Err(Failure::refusal(FailureKind::WrongPhase, why));
        }
        let (sender, receiver) = mpsc::channel(RESULT_QUEUE);
        inner.results = Some(sender);
        Ok(receiver)
    }

    /// Grants a lane; an epoch has one.
    ///
    /// # Errors
    /// Forbidden, over TLS, for any peer but the stage before this one; the session's refusals; BadMessage for
    /// another stage's lane; WrongPhase on the last stage while no one takes results.
    pub fn begin_lane(&self, open: &LaneOpen, who: &Who) -> Result<LaneGrant, Failure> {
        let mut inner = self.inner();
        let LaneOpen { epoch, coordinator_id, lane, stage } = open;
        if let Some(order) = &inner.order {
            check_opener(order, coordinator_id, who)?;
        }
        inner.session.check_phase(Instant::now(), coordinator_id, *epoch, Phase::Ready)?;
        check_lane(*lane)?;
        let order = inner.order.clone().ok_or_else(gone)?;
        if order.spec.stage != *stage {
            let why = format!("a lane for stage {stage} reached stage {}", order.spec.stage);
            return Err(Failure::refusal(FailureKind::BadMessage, why));
        }
        let results = inner.results.take().filter(|results| !results.is_closed());
        if order.next_hop.is_none() && results.is_none() {
            let why = "no one takes results: open Results before the lane";
            return Err(Failure::refusal(FailureKind::WrongPhase, why));
        }
        let resident = inner.resident.as_ref().filter(|r| r.executor.is_alive());
        let (resident, stage) =
            resident.and_then(|r| Some((r, r.stage.as_ref()?))).ok_or_else(gone)?;
        let (jobs, shape) = (resident.executor.jobs(), stage.shape);
        inner.meter = Arc::default();
        inner.session.advance(coordinator_id, *epoch, Phase::Running);
        Ok(LaneGrant {
            limits: limits(&order, shape),
            output_width: shape.output_width.unwrap_or(0),
            output_exact: shape.output_exact,
            epoch: *epoch,
            coordinator_id: coordinator_id.clone(),
            lane: *lane,
            jobs,
            results,
            cancel: inner.epoch_over.child_token(),
            meter: inner.meter.clone(),
            pool: BufferPool::default(),
            order,
        })
    }

    /// A lane is over, as wished or not.
    pub fn end_lane(&self, grant: &LaneGrant, result: &Result<(), Failure>) {
        let (mut inner, owner) = (self.inner(), &grant.coordinator_id);
        match result {
            Ok(()) => drop(inner.session.advance(owner, grant.epoch, Phase::Closed)),
            Err(failure) => inner.session.fail(owner, grant.epoch, failure.clone()),
        }
        self.lane_ended.notify_waiters();
    }

    /// Why an epoch's lane was cancelled.
    pub fn why_over(&self, epoch: u64) -> Failure {
        if self.stop.is_cancelled() {
            return Failure::refusal(FailureKind::Draining, "the worker is shutting down");
        }
        over(epoch, &self.inner().session)
    }
}

fn limits(order: &Order, shape: StageShape) -> FrameLimits {
    FrameLimits {
        max_rows: order.spec.max_rows,
        max_seqs: order.spec.max_seqs,
        n_blocks: order.spec.n_blocks,
        max_ctx: order.spec.max_ctx,
        n_vocab: shape.n_vocab,
        input_width: shape.input_width,
    }
}

/// Checks that the caller may speak as the coordinator `id`.
///
/// # Errors
/// Forbidden.
pub fn check_speaker(who: &Who, id: &str) -> Result<(), Failure> {
    // Over plain connections the id itself is the secret.
    if *who == Who::Anybody || who.speaks_for(id) {
        return Ok(());
    }
    let why = format!("{who} may not speak as coordinator {}", shown(id));
    Err(Failure::refusal(FailureKind::Forbidden, why))
}

/// Whether the caller shows a key that the order names. Over plain connections callers show none.
pub(super) fn is_named(who: &Who, is_one: impl FnOnce(KeyId) -> bool) -> bool {
    match who {
        Who::Anybody => true,
        Who::Known(party) => is_one(party.key),
        Who::Stranger(_) => false,
    }
}

/// Checks that the peer that opens a lane is the stage before this one in the present epoch.
fn check_opener(order: &Order, coordinator_id: &str, who: &Who) -> Result<(), Failure> {
    if order.spec.stage == 0 {
        return check_speaker(who, coordinator_id);
    }
    if is_named(who, |key| order.previous_key == Some(key)) {
        return Ok(());
    }
    let why = format!("{who} is not the stage before stage {}", order.spec.stage);
    Err(Failure::refusal(FailureKind::Forbidden, why))
}

fn check_lane(lane: u32) -> Result<(), Failure> {
    if lane < MAX_LANES {
        return Ok(());
    }
    let why = format!("lane {lane}: a pipeline has {MAX_LANES} lane, counted from 0");
    Err(Failure::refusal(FailureKind::BadMessage, why))
}
