//! The lane as one stage sees it: frames from the stage before are checked and put into the executor's queue.
//! The executor sends results on by itself. So receiving, computing and sending overlap.
//!
//! Opening runs down the line: a stage answers its upstream only when its downstream has answered. A failure
//! runs both ways: to the upstream as a status, and to the downstream as an abort frame. At the end of the
//! line it is in the last frame of the results. Either way it reaches the coordinator with the stage and the
//! reason.

use brigade_proto::task;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_proto::control::WireType;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::frame::{FrameError, check_ubatch};
use brigade_proto::limits::{MAX_FRAME_BYTES, MAX_SMALL_BYTES};
use brigade_proto::net::{Caller, Intake, Peer};
use brigade_proto::pipeline::pipeline_client::PipelineClient;
use brigade_proto::pipeline::pipeline_server::Pipeline;
use brigade_proto::pipeline::{
    LaneEvent, LaneFrame, LaneOpen, ResultFrame, ResultsRequest, Ubatch, lane_frame,
};
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::{Role, Who};
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::copy_sender;
use crate::copies::taker::LaneCopies;
use crate::executor::gone;
use crate::executor::jobs::{Job, Work};
use crate::executor::output::{LaneOut, LaneRun, ResultSender, SEND_QUEUE};
use crate::executor::wire::{boundary_from_wire, ubatch_from_wire};
use crate::machine::pace::Pace;
use crate::state::{LaneGrant, Worker};

/// Time limit for the rest of the line to open, and for a peer to say which lane it opens.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Time to pass the reason of a failure on.
const ABORT_WITHIN: Duration = Duration::from_secs(1);
/// Time for the rest of the line to finish its ubatches, once no more come.
const CLOSE_WITHIN: Duration = Duration::from_secs(30);

/// The pipeline service of a worker.
#[derive(Clone)]
pub struct PipelineService {
    worker: Arc<Worker>,
    pace: Arc<Pace>,
}

impl PipelineService {
    /// Serves `worker`, strangers at `pace`.
    pub fn new(worker: Arc<Worker>, pace: Arc<Pace>) -> Self {
        Self { worker, pace }
    }
}

/// The caller of a stream, and the meter of bytes that it may bring.
struct Call {
    pace: Arc<Pace>,
    intake: Option<Intake>,
    peer: Option<Peer>,
    who: Who,
}

impl Call {
    fn of<T>(pace: &Arc<Pace>, request: &Request<T>) -> Self {
        let (pace, extensions) = (pace.clone(), request.extensions());
        let caller = extensions.get::<Caller>();
        let (peer, who) = (caller.map(Caller::peer), caller.map(Caller::who).unwrap_or_default());
        Self { pace, intake: extensions.get().cloned(), peer, who }
    }

    fn accept(&self, max_bytes: usize) {
        self.intake.iter().for_each(|intake| intake.accept(max_bytes));
    }
}

#[tonic::async_trait]
impl Pipeline for PipelineService {
    type LaneStream = ReceiverStream<Result<LaneEvent, Status>>;
    type ResultsStream = ReceiverStream<Result<ResultFrame, Status>>;

    async fn lane(
        &self,
        request: Request<Streaming<LaneFrame>>,
    ) -> Result<Response<Self::LaneStream>, Status> {
        let (events, stream) = mpsc::channel(1);
        let (worker, call) = (self.worker.clone(), Call::of(&self.pace, &request));
        let inbound = request.into_inner();
        // The answer's headers must not wait for the first frame: the peer sends it after them.
        task::spawn(async move {
            if let Err(failure) = serve_lane(&worker, inbound, &call, &events).await {
                // The upstream may be what failed.
                let _ = events.send(Err(failure.into())).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn results(
        &self,
        request: Request<ResultsRequest>,
    ) -> Result<Response<Self::ResultsStream>, Status> {
        let call = Call::of(&self.pace, &request);
        let receiver = match self.worker.attach_results(request.get_ref(), &call.who) {
            Ok(receiver) => receiver,
            Err(failure) => {
                call.pace.turn(call.peer).await?;
                return Err(failure.into());
            }
        };
        call.accept(MAX_SMALL_BYTES);
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

type Events = mpsc::Sender<Result<LaneEvent, Status>>;

async fn serve_lane(
    worker: &Worker,
    inbound: Streaming<LaneFrame>,
    call: &Call,
    events: &Events,
) -> Result<(), Failure> {
    let (grant, inbound) = match admit(worker, inbound, &call.who).await {
        Ok(admitted) => admitted,
        Err(refusal) => {
            call.pace.turn(call.peer).await?;
            return Err(refusal);
        }
    };
    call.accept(grant.limits.max_frame_bytes());
    let stage = grant.stage();
    tracing::info!(epoch = grant.epoch, stage, "lane opens");
    let result = run_lane(worker, &grant, inbound, events).await;
    grant.cancel.cancel();
    match &result {
        Ok(()) => tracing::info!(epoch = grant.epoch, stage, "lane closed"),
        Err(failure) if is_ordered(failure) => {
            tracing::info!(epoch = grant.epoch, stage, %failure, "lane ended");
        }
        Err(failure) => tracing::warn!(epoch = grant.epoch, stage, %failure, "lane failed"),
    }
    worker.end_lane(&grant, &result);
    result
}

/// Lets a lane begin by its first frame. From a peer that may not, no more is taken in.
async fn admit(
    worker: &Worker,
    mut inbound: Streaming<LaneFrame>,
    who: &Who,
) -> Result<(LaneGrant, Streaming<LaneFrame>), Failure> {
    let open = first_frame(&mut inbound).await?;
    Ok((worker.begin_lane(&open, who)?, inbound))
}

/// Whether the lane was ended on purpose: by another epoch, an unload, or by stopping a worker.
fn is_ordered(failure: &Failure) -> bool {
    matches!(failure.kind(), FailureKind::StaleEpoch | FailureKind::Draining)
}

async fn first_frame(inbound: &mut Streaming<LaneFrame>) -> Result<LaneOpen, Failure> {
    let bad = |why: &str| Failure::refusal(FailureKind::BadMessage, why);
    let frame = timeout(OPEN_WITHIN, inbound.message())
        .await
        .map_err(|_| bad("a lane was called and nothing sent on it"))?
        .map_err(|status| Failure::from_status(&status))?;
    match frame.and_then(|frame| frame.body) {
        Some(lane_frame::Body::Open(open)) => Ok(open),
        _ => Err(bad("the first frame of a lane must open it")),
    }
}

/// The type that rows leave in: the line's, unless they must not be rounded.
fn boundary_type(grant: &LaneGrant) -> WireType {
    let of_line = grant.order.wire_type;
    if !grant.output_exact || of_line == WireType::F32 {
        return of_line;
    }
    tracing::info!(
        of_line = of_line.as_str_name(),
        "rows of this cut contain positions, so they are sent as f32 instead of the line's --wire-type"
    );
    WireType::F32
}

async fn run_lane(
    worker: &Worker,
    grant: &LaneGrant,
    inbound: Streaming<LaneFrame>,
    events: &Events,
) -> Result<(), Failure> {
    let (mut downstream, stages_open) = tokio::select! {
        () = grant.cancel.cancelled() => return Err(worker.why_over(grant.epoch)),
        opened = open_downstream(worker, grant) => opened?,
    };
    let (failed, mut failure) = oneshot::channel();
    let copies = LaneCopies {
        outbox: copy_sender::start(worker, grant),
        parting: worker.copies().parting.clone(),
        wire_type: grant.order.wire_type.into(),
    };
    let run = LaneRun {
        stage: grant.stage(),
        epoch: grant.epoch,
        out: downstream.out(),
        dtype: boundary_type(grant),
        output_width: grant.output_width,
        cancel: grant.cancel.clone(),
        failed,
        meter: grant.meter.clone(),
        pool: grant.pool.clone(),
        copies,
        opened: Instant::now(),
    };
    grant.jobs.send(Job::Begin(run)).await.map_err(|_| gone())?;
    let upstream_gone = || peer_lost(grant, upstream(grant), "it no longer listens".into());
    events.send(Ok(LaneEvent { stages_open })).await.map_err(|_| upstream_gone())?;
    let ended = tokio::select! {
        biased;
        () = grant.cancel.cancelled() => Err(worker.why_over(grant.epoch)),
        Ok(failure) = &mut failure => Err(failure),
        failure = downstream.lost(grant) => Err(failure),
        received = receive(grant, inbound) => match received {
            Ok(()) => finish_work(worker, grant, &mut failure).await,
            Err(failure) => Err(failure),
        },
        () = events.closed() => Err(upstream_gone()),
    };
    match ended {
        Ok(()) => downstream.close(grant).await,
        Err(failure) => {
            grant.cancel.cancel();
            // The heartbeat must have the failure before the peer hears of it.
            let ended = Err(failure.clone());
            worker.end_lane(grant, &ended);
            release_executor(grant);
            downstream.abort(grant, &failure).await;
            ended
        }
    }
}

/// Frames until the upstream closes the lane.
async fn receive(grant: &LaneGrant, mut inbound: Streaming<LaneFrame>) -> Result<(), Failure> {
    let mut next_id = 0;
    loop {
        match inbound.message().await {
            Ok(None) => return Ok(()),
            Ok(Some(frame)) => {
                let work = check(grant, frame, next_id)?;
                next_id += 1;
                grant.meter.received(work.wire_bytes);
                grant.jobs.send(Job::Run(work)).await.map_err(|_| gone())?;
            }
            Err(status) => return Err(upstream_failed(grant, &status)),
        }
    }
}

/// A frame that belongs here, as work; anything else is the lane's end.
fn check(grant: &LaneGrant, frame: LaneFrame, next_id: u64) -> Result<Work, Failure> {
    let received = Instant::now();
    let wire_bytes = frame.encoded_len();
    let bad = |error: FrameError| {
        let why = format!("stage {}: bad frame from {}: {error}", grant.stage(), upstream(grant));
        Failure::new(FailureKind::BadMessage, grant.stage(), why)
    };
    let ubatch = match frame.body {
        Some(lane_frame::Body::Ubatch(ubatch)) => ubatch,
        Some(lane_frame::Body::Abort(failure)) => return Err(failure),
        Some(lane_frame::Body::Open(_)) => {
            return Err(bad(FrameError::Invalid { field: "frame", why: "the lane is open" }));
        }
        None => return Err(bad(FrameError::Missing("frame.body"))),
    };
    let equal = |field, value, expected| {
        if value == expected {
            Ok(())
        } else {
            Err(bad(FrameError::Mismatch { field, value, expected }))
        }
    };
    equal("ubatch.epoch", ubatch.epoch, grant.epoch)?;
    equal("ubatch.lane", ubatch.lane.into(), grant.lane.into())?;
    equal("ubatch.id", ubatch.id, next_id)?;
    let shape = check_ubatch(&ubatch, &grant.limits).map_err(bad)?;
    let engine = ubatch_from_wire(&ubatch).map_err(bad)?;
    let input = shape
        .zip(ubatch.boundary.as_ref())
        .map(|(shape, boundary)| boundary_from_wire(&boundary.data, shape, &grant.pool));
    let frame = Ubatch { boundary: None, ..ubatch };
    Ok(Work { ubatch: engine, frame, input, wire_bytes, received, checked: Instant::now() })
}

/// Waits until the executor has done all it was given.
async fn finish_work(
    worker: &Worker,
    grant: &LaneGrant,
    failure: &mut oneshot::Receiver<Failure>,
) -> Result<(), Failure> {
    let (done, all_done) = oneshot::channel();
    grant.jobs.send(Job::End(done)).await.map_err(|_| gone())?;
    let finished = tokio::select! {
        () = grant.cancel.cancelled() => return Err(worker.why_over(grant.epoch)),
        finished = all_done => finished,
    };
    match failure.try_recv() {
        Ok(failure) => Err(failure),
        Err(_) => finished.map_err(|_| gone()),
    }
}

/// Makes the executor let go of a cancelled lane's output, when it gets to it: it may be
/// computing, or its queue be full.
fn release_executor(grant: &LaneGrant) {
    let jobs = grant.jobs.clone();
    task::spawn(async move {
        // A stage that is gone has let go already.
        let _ = jobs.send(Job::End(oneshot::channel().0)).await;
    });
}

/// The next station of a lane, as this stage reaches it.
enum Downstream {
    Next { stage: u32, frames: mpsc::Sender<LaneFrame>, events: Box<Streaming<LaneEvent>> },
    Results(ResultSender),
}

async fn open_downstream(worker: &Worker, grant: &LaneGrant) -> Result<(Downstream, u32), Failure> {
    let Some(address) = &grant.order.next_hop else {
        let results = grant.results.clone().ok_or_else(gone)?;
        return Ok((Downstream::Results(results), 1));
    };
    let stage = grant.stage() + 1;
    let unreachable = |why: String| peer_lost(grant, format!("stage {stage} ({address})"), why);
    let expected = grant.order.next_key.map(|key| Expected { role: Role::Worker, key: Some(key) });
    let channel = worker
        .network()
        .dial(address, expected)
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let mut client = PipelineClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
    let (frames, stream) = mpsc::channel(SEND_QUEUE);
    let open = LaneOpen {
        epoch: grant.epoch,
        coordinator_id: grant.coordinator_id.clone(),
        lane: grant.lane,
        stage,
    };
    let open = LaneFrame { body: Some(lane_frame::Body::Open(open)) };
    frames.send(open).await.map_err(|_| gone())?;
    let opened = timeout(OPEN_WITHIN, async {
        let mut events = client.lane(ReceiverStream::new(stream)).await?.into_inner();
        let first = events.message().await?;
        Ok::<_, Status>((events, first))
    });
    match opened.await {
        Err(_) => Err(unreachable(format!("no answer within {} s", OPEN_WITHIN.as_secs()))),
        Ok(Err(status)) => Err(downstream_failed(grant, stage, &status)),
        Ok(Ok((_, None))) => Err(unreachable("it closed the lane at once".into())),
        Ok(Ok((events, Some(event)))) => {
            let events = Box::new(events);
            let stages_open = event.stages_open.saturating_add(1);
            Ok((Downstream::Next { stage, frames, events }, stages_open))
        }
    }
}

impl Downstream {
    fn out(&self) -> LaneOut {
        match self {
            Self::Next { frames, .. } => LaneOut::Next(frames.clone()),
            Self::Results(results) => LaneOut::Results(results.clone()),
        }
    }

    /// Ready when the downstream is gone or has failed, with the reason.
    async fn lost(&mut self, grant: &LaneGrant) -> Failure {
        match self {
            Self::Results(results) => {
                results.closed().await;
                peer_lost(grant, "the coordinator".into(), "it no longer takes results".into())
            }
            Self::Next { stage, events, .. } => loop {
                match events.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        let peer = format!("stage {stage}");
                        return peer_lost(grant, peer, "it closed the lane".into());
                    }
                    Err(status) => return downstream_failed(grant, *stage, &status),
                }
            },
        }
    }

    /// Closes the lane after its last frame, and waits for the rest of the line to do so.
    async fn close(self, grant: &LaneGrant) -> Result<(), Failure> {
        let Self::Next { stage, frames, mut events } = self else { return Ok(()) };
        drop(frames);
        let closed = timeout(CLOSE_WITHIN, async {
            while events.message().await?.is_some() {}
            Ok::<_, Status>(())
        });
        match closed.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => Err(downstream_failed(grant, stage, &status)),
            Err(_) => {
                let why = format!("it did not finish within {} s", CLOSE_WITHIN.as_secs());
                Err(peer_lost(grant, format!("stage {stage}"), why))
            }
        }
    }

    /// Passes the reason on, as far as that is possible.
    async fn abort(self, grant: &LaneGrant, failure: &Failure) {
        let passed = async {
            match self {
                Self::Results(results) => {
                    let frame = ResultFrame {
                        epoch: grant.epoch,
                        lane: grant.lane,
                        last: true,
                        failure: Some(failure.clone()),
                        ..ResultFrame::default()
                    };
                    let _ = results.send(Ok(frame)).await;
                }
                Self::Next { frames, mut events, .. } => {
                    let body = Some(lane_frame::Body::Abort(failure.clone()));
                    if frames.send(LaneFrame { body }).await.is_ok() {
                        drop(frames);
                        // Dropping the call would cancel it before the frame has left.
                        while let Ok(Some(_)) = events.message().await {}
                    }
                }
            }
        };
        within(ABORT_WITHIN, passed).await;
    }
}

/// Runs `work` for a bounded time; being late is of no consequence.
async fn within(bound: Duration, work: impl Future<Output = ()>) {
    let _ = timeout(bound, work).await;
}

fn upstream(grant: &LaneGrant) -> String {
    match grant.stage().checked_sub(1) {
        None => "the coordinator".into(),
        Some(stage) => format!("stage {stage}"),
    }
}

fn upstream_failed(grant: &LaneGrant, status: &Status) -> Failure {
    // A message that cannot be decoded is refused by the transport, without a cause of ours.
    let undecodable =
        status.code() == Code::Internal && std::error::Error::source(status).is_none();
    let failure = Failure::from_status(status);
    if undecodable || failure.kind() == FailureKind::BadMessage {
        let why = format!(
            "stage {}: bad frame from {}: {}",
            grant.stage(),
            upstream(grant),
            status.message()
        );
        return Failure::new(FailureKind::BadMessage, grant.stage(), why);
    }
    peer_lost(grant, upstream(grant), failure.reason)
}

/// The downstream's own failure as it is; a broken connection as the loss of that stage.
fn downstream_failed(grant: &LaneGrant, stage: u32, status: &Status) -> Failure {
    if status.details().is_empty() {
        let failure = Failure::from_status(status);
        return Failure { stage, ..peer_lost(grant, format!("stage {stage}"), failure.reason) };
    }
    Failure::from_status(status)
}

fn peer_lost(grant: &LaneGrant, peer: String, why: String) -> Failure {
    let reason = format!("stage {}: lost {peer}: {why}", grant.stage());
    Failure::new(FailureKind::PeerLost, grant.stage(), reason)
}
