//! Opens a line: ubatches go into stage 0, results come out of the last stage.
//!
//! The stream of results is opened first, so that no result of a stage is lost. Each stream has a connection of its
//! own.

use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::limits::MAX_FRAME_BYTES;
use brigade_proto::net::{Connection, with_causes};
use brigade_proto::pipeline::pipeline_client::PipelineClient;
use brigade_proto::pipeline::{
    LaneEvent, LaneFrame, LaneOpen, ResultFrame, ResultsRequest, lane_frame,
};
use brigade_sched::LineSpec;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::members::conn::WorkerError;
use crate::members::reach::Reach;
use brigade_line::handle::LineInfo;
use brigade_line::stages::open_line::{LANE, LANE_QUEUE, OpenLine, describe};
use brigade_line::stages::stale::StaleTimes;
use brigade_line::stages::states::StateAccess;

/// How long a loaded line may take to connect all its hops.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// The two ends of a line.
#[derive(Clone, Debug)]
pub struct LineEnds {
    /// Worker of stage 0.
    pub first: Reach,
    /// Worker of the last stage.
    pub last: Reach,
    /// The number of stages.
    pub n_stages: u32,
    /// Whether all of them know draws that are put off.
    pub later: bool,
}

/// Connects to both ends and opens the lane through all stages.
///
/// # Errors
/// [`WorkerError`] of the end that failed; a hop further on is named in its reason.
pub async fn open(
    ends: &LineEnds,
    epoch: u64,
    coordinator_id: &str,
    spec: LineSpec,
    info: Arc<LineInfo>,
    states: Arc<dyn StateAccess>,
) -> Result<OpenLine, WorkerError> {
    let opened = timeout(OPEN_WITHIN, async {
        let results = open_results(ends, epoch, coordinator_id).await?;
        let (ubatches, lane) = open_lane(ends, epoch, coordinator_id).await?;
        let (later, settled) = (ends.later, None);
        let stale = StaleTimes::new(spec.n_stages);
        Ok(OpenLine { epoch, spec, later, info, states, stale, ubatches, results, lane, settled })
    });
    opened.await.unwrap_or_else(|_| {
        let reason = format!("the line did not open within {} s", OPEN_WITHIN.as_secs());
        Err(WorkerError::Lost { worker: ends.first.address().to_string(), reason })
    })
}

async fn client(reach: &Reach) -> Result<PipelineClient<Connection>, WorkerError> {
    let lost =
        |e| WorkerError::Lost { worker: reach.address().to_string(), reason: with_causes(&e) };
    let channel = reach.dial().await.map_err(lost)?;
    Ok(PipelineClient::new(channel)
        .max_decoding_message_size(MAX_FRAME_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES))
}

async fn open_results(
    ends: &LineEnds,
    epoch: u64,
    coordinator_id: &str,
) -> Result<Streaming<ResultFrame>, WorkerError> {
    let request = ResultsRequest { epoch, coordinator_id: coordinator_id.to_string(), lane: LANE };
    let mut client = client(&ends.last).await?;
    let reply = client.results(request).await.map_err(|s| failed(ends.last.address(), &s))?;
    Ok(reply.into_inner())
}

async fn open_lane(
    ends: &LineEnds,
    epoch: u64,
    coordinator_id: &str,
) -> Result<(mpsc::Sender<LaneFrame>, Streaming<LaneEvent>), WorkerError> {
    let (ubatches, frames) = mpsc::channel(LANE_QUEUE);
    let open = LaneOpen { epoch, coordinator_id: coordinator_id.to_string(), lane: LANE, stage: 0 };
    let first = LaneFrame { body: Some(lane_frame::Body::Open(open)) };
    ubatches.try_send(first).expect("a new channel has room");
    let mut client = client(&ends.first).await?;
    let reply = client
        .lane(ReceiverStream::new(frames))
        .await
        .map_err(|s| failed(ends.first.address(), &s))?;
    let mut lane = reply.into_inner();
    let lost =
        |reason: String| WorkerError::Lost { worker: ends.first.address().to_string(), reason };
    match lane.message().await {
        Ok(Some(event)) if event.stages_open == ends.n_stages => Ok((ubatches, lane)),
        Ok(Some(event)) => {
            let (got, want) = (event.stages_open, ends.n_stages);
            Err(lost(format!("the line has {got} stages instead of {want}")))
        }
        Ok(None) => Err(lost("the lane closed before it was open".to_string())),
        Err(status) => Err(failed(ends.first.address(), &status)),
    }
}

/// A lane that does not open is retried: a stage that cannot run was refused before it was loaded.
fn failed(worker: &Address, status: &tonic::Status) -> WorkerError {
    WorkerError::Lost { worker: worker.to_string(), reason: describe(status) }
}
