//! The open line: ubatches go into stage 0, results come out of the last stage.
//!
//! The stream of results is opened first, so that no stage can have a result that nobody listens to. Each
//! stream has a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::failure::Failure;
use brigade_proto::limits::MAX_FRAME_BYTES;
use brigade_proto::net::{Connection, with_causes};
use brigade_proto::pipeline::pipeline_client::PipelineClient;
use brigade_proto::pipeline::{
    LaneEvent, LaneFrame, LaneOpen, ResultFrame, ResultsRequest, lane_frame,
};
use brigade_sched::LineSpec;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::conn::WorkerError;
use super::reach::Reach;
use super::states::StateAccess;
use crate::handle::LineInfo;

/// The one lane of a line.
pub const LANE: u32 = 0;

/// Ubatches between the driver and the connection. The scheduler keeps fewer in flight, so that
/// a full queue means a line that takes nothing any more.
const LANE_QUEUE: usize = 256;

/// How long a loaded line may take to connect all its hops.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// How long a line may take to finish what is on its way when no one wants it any more.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// A line that is ready for ubatches from id 0 on.
#[derive(Debug)]
pub struct OpenLine {
    /// Names this incarnation.
    pub epoch: u64,
    /// What it holds, for the scheduler.
    pub spec: LineSpec,
    /// Who is in it, for people.
    pub info: Arc<LineInfo>,
    /// Who has its sequences' states.
    pub state_access: StateAccess,
    /// Where ubatches go.
    pub ubatches: mpsc::Sender<LaneFrame>,
    /// Where their results come from.
    pub results: Streaming<ResultFrame>,
    /// Says nothing more once the lane is open; its end says why the lane ended.
    pub lane: Streaming<LaneEvent>,
    /// Told once the sequences of lines before this one have their states.
    pub settled: Option<oneshot::Sender<Moved>>,
}

impl OpenLine {
    /// Ends the lane in order: nothing more is sent, and what is on its way comes out unread.
    /// Returns the line if it still computes after a second; it is best dropped when its workers
    /// have been told that the epoch is over.
    pub async fn close(mut self) -> Option<OpenLine> {
        // The stages see the lane's end when the only sender is gone.
        self.ubatches = mpsc::channel(1).0;
        let ended = async {
            loop {
                tokio::select! {
                    event = self.lane.next() => if !matches!(event, Some(Ok(_))) { return },
                    Some(_) = self.results.next() => {}
                }
            }
        };
        let ended = timeout(CLOSE_WITHIN, ended).await;
        ended.is_err().then_some(self)
    }
}

/// What came back of sequences that were on a line before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sequences whose states were put back.
    pub sequences: usize,
    /// Bytes of states that went from one worker to another.
    pub bytes: u64,
}

/// The two ends of a line.
#[derive(Clone, Debug)]
pub struct LineEnds {
    /// Worker of stage 0.
    pub first: Reach,
    /// Worker of the last stage.
    pub last: Reach,
    /// Number of stages.
    pub n_stages: u32,
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
    state_access: StateAccess,
) -> Result<OpenLine, WorkerError> {
    let opened = timeout(OPEN_WITHIN, async {
        let results = open_results(ends, epoch, coordinator_id).await?;
        let (ubatches, lane) = open_lane(ends, epoch, coordinator_id).await?;
        let settled = None;
        Ok(OpenLine { epoch, spec, info, state_access, ubatches, results, lane, settled })
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

/// A lane that does not open is retried: what cannot run was refused before it was loaded.
fn failed(worker: &Address, status: &tonic::Status) -> WorkerError {
    WorkerError::Lost { worker: worker.to_string(), reason: describe(status) }
}

/// What the status that ended a stream says, with the stage it happened at.
pub fn describe(status: &tonic::Status) -> String {
    describe_failure(&Failure::from_status(status))
}

/// A failure of a running line, for people.
pub fn describe_failure(failure: &Failure) -> String {
    format!("stage {}: {}", failure.stage, failure.reason)
}

#[cfg(test)]
mod silence {
    //! A line for tests of what is sent: it answers nothing.

    use std::marker::PhantomData;

    use brigade_plan::Checkpoint;
    use tonic::codec::{DecodeBuf, Decoder};
    use tonic::{Status, body::Body};

    use super::*;
    use crate::cluster::placed_stage::Identity;

    /// A stream of nothing.
    struct Nothing<T>(PhantomData<T>);

    impl<T: Send + 'static> Decoder for Nothing<T> {
        type Item = T;
        type Error = Status;

        fn decode(&mut self, _: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
            Ok(None)
        }
    }

    fn nothing<T: Send + 'static>() -> Streaming<T> {
        Streaming::new_empty(Nothing(PhantomData), Body::empty())
    }

    impl OpenLine {
        /// A line without stages, and what is sent into it.
        pub(crate) fn of_nobody(epoch: u64, spec: LineSpec) -> (Self, mpsc::Receiver<LaneFrame>) {
            let (ubatches, sent) = mpsc::channel(LANE_QUEUE);
            let identity = Identity { epoch, coordinator_id: "test".to_string() };
            let state_access = StateAccess::new(identity, Vec::new(), Vec::new(), Checkpoint::Off);
            let (results, lane) = (nothing(), nothing());
            let info = Arc::default();
            let settled = None;
            (Self { epoch, spec, info, state_access, ubatches, results, lane, settled }, sent)
        }
    }
}
