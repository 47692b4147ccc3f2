//! Where a lane's results go: frames to the next stage, or result frames to the coordinator.
//! Runs on the executor's thread; a full queue there is the network's back-pressure.

use brigade_engine::batch::{RowOutput, RowValue};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::pipeline::{self as pb, LaneFrame, ResultFrame, lane_frame};
use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::executor::{LaneRun, StageOutput};
use crate::wire::{boundary_to_wire, row_to_wire};

/// Frames handed to the transport and not yet taken by it.
pub const SEND_QUEUE: usize = 2;

/// Sending end of the coordinator's result stream.
pub type ResultSender = mpsc::Sender<Result<ResultFrame, Status>>;

/// The next station of a lane.
#[derive(Clone, Debug)]
pub enum LaneOut {
    /// The next stage.
    Next(mpsc::Sender<LaneFrame>),
    /// The coordinator.
    Results(ResultSender),
}

impl LaneOut {
    /// Sends what a ubatch became; blocks while the transport is behind.
    ///
    /// # Errors
    /// `Some`: why it cannot be sent; `None`: the lane was cancelled or its transport is gone,
    /// which the lane itself notices and reports.
    pub fn send(
        &self,
        frame: pb::Ubatch,
        output: StageOutput,
        lane: &LaneRun,
        runtime: &Handle,
    ) -> Result<(), Option<Failure>> {
        match (self, output) {
            (Self::Next(next), StageOutput::Boundary(boundary)) => {
                let boundary =
                    boundary_to_wire(boundary, lane.output_width, lane.dtype, &lane.pool)
                        .map_err(|error| Some(broken(lane, &error.to_string())))?;
                let ubatch = pb::Ubatch { boundary: Some(boundary), ..frame };
                let frame = LaneFrame { body: Some(lane_frame::Body::Ubatch(ubatch)) };
                lane.meter.sent(frame.encoded_len());
                send(next, frame, &lane.cancel, runtime)
            }
            (Self::Results(results), StageOutput::Rows(rows)) => result_frames(frame, rows)
                .try_for_each(|frame| {
                    lane.meter.sent(frame.encoded_len());
                    send(results, Ok(frame), &lane.cancel, runtime)
                }),
            (Self::Next(_), StageOutput::Rows(_)) => {
                Err(Some(broken(lane, "it made rows and is not the last")))
            }
            (Self::Results(_), StageOutput::Boundary(_)) => {
                Err(Some(broken(lane, "it made a boundary and is the last")))
            }
        }
    }
}

/// All sampled (or failed) rows in one last frame, each logits row in a frame of its own before it.
fn result_frames(ubatch: pb::Ubatch, rows: Vec<RowOutput>) -> impl Iterator<Item = ResultFrame> {
    let (sampled, logits): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| !matches!(row.value, RowValue::Logits(_)));
    let pb::Ubatch { id, epoch, lane, timings, .. } = ubatch;
    let frame = move |rows, last, timings| ResultFrame {
        id,
        epoch,
        lane,
        rows,
        last,
        timings,
        failure: None,
    };
    let singles = logits.into_iter().map(move |row| frame(vec![row_to_wire(row)], false, vec![]));
    let sampled = sampled.into_iter().map(row_to_wire).collect();
    singles.chain(std::iter::once(frame(sampled, true, timings)))
}

fn send<T>(
    to: &mpsc::Sender<T>,
    frame: T,
    cancel: &CancellationToken,
    runtime: &Handle,
) -> Result<(), Option<Failure>> {
    match to.try_send(frame) {
        Ok(()) => Ok(()),
        Err(mpsc::error::TrySendError::Closed(_)) => Err(None),
        Err(mpsc::error::TrySendError::Full(frame)) => runtime.block_on(async {
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(None),
                sent = to.send(frame) => sent.map_err(|_| None),
            }
        }),
    }
}

/// The stage itself is at fault.
fn broken(lane: &LaneRun, why: &str) -> Failure {
    let reason = format!("stage {}: {why}", lane.stage);
    Failure::new(FailureKind::Compute, lane.stage, reason)
}
