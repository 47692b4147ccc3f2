//! Sends a lane's results: as frames to the next stage, or as result frames to the coordinator.
//!
//! This runs on the executor's thread. A full queue makes the thread wait, so a slow network slows the stage down.

use std::sync::Arc;
use std::time::Instant;

use brigade_engine::batch::{RowOutput, RowValue};
use brigade_proto::control::WireType;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::pipeline::{self as pb, LaneFrame, ResultFrame, lane_frame};
use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::metrics::Meter;
use super::wire::{BufferPool, boundary_to_wire, row_to_wire};
use crate::backend::StageOutput;
use crate::copies::taker::LaneCopies;

/// Frames handed to the transport and not yet taken by it.
pub const SEND_QUEUE: usize = 2;

/// Sending end of the coordinator's result stream.
pub type ResultSender = mpsc::Sender<Result<ResultFrame, Status>>;

/// The next station of a lane.
#[derive(Clone, Debug)]
pub enum LaneOut {
    /// The stream to the next stage.
    Next(mpsc::Sender<LaneFrame>),
    /// The stream of results to the coordinator.
    Results(ResultSender),
}

/// A lane's use of the stage, with everything that its results need on their way.
#[derive(Debug)]
pub struct LaneRun {
    /// Number of this worker's stage, for failures and timings.
    pub stage: u32,
    /// The epoch of its line.
    pub epoch: u64,
    /// The destination of results.
    pub out: LaneOut,
    /// Type of outgoing boundaries.
    pub dtype: WireType,
    /// f32 values of an outgoing boundary row; 0 on the last stage.
    pub output_width: u32,
    /// Set when the lane is over: queued work is dropped, a blocked send gives up.
    pub cancel: CancellationToken,
    /// Notified once if a ubatch fails.
    pub failed: oneshot::Sender<Failure>,
    /// The worker's counters.
    pub meter: Arc<Meter>,
    /// The pool of buffers for boundaries.
    pub pool: BufferPool,
    /// Where copies of states go.
    pub copies: LaneCopies,
    /// The origin of this stage's times.
    pub opened: Instant,
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
            (Self::Results(results), StageOutput::Rows(rows)) => {
                result_frames(frame, rows).into_iter().try_for_each(|frame| {
                    lane.meter.sent(frame.encoded_len());
                    send(results, Ok(frame), &lane.cancel, runtime)
                })
            }
            (Self::Next(_), StageOutput::Rows(_)) => {
                Err(Some(broken(lane, "it made rows, but is not the last stage")))
            }
            (Self::Results(_), StageOutput::Boundary(_)) => {
                Err(Some(broken(lane, "it made a boundary, but is the last stage")))
            }
        }
    }
}

/// The rows in their order, as the coordinator expects them. Each logits row has a frame of its own. Tokens
/// (or failures) between two of them share one frame, and those after the last one are in the last frame.
fn result_frames(ubatch: pb::Ubatch, rows: Vec<RowOutput>) -> Vec<ResultFrame> {
    let pb::Ubatch { id, epoch, lane, timings, .. } = ubatch;
    let frame =
        |rows, last, timings| ResultFrame { id, epoch, lane, rows, last, timings, failure: None };
    let (mut frames, mut tokens) = (Vec::new(), Vec::new());
    for row in rows {
        if !matches!(row.value, RowValue::Logits(_) | RowValue::Hidden(_)) {
            tokens.push(row_to_wire(row));
            continue;
        }
        if !tokens.is_empty() {
            frames.push(frame(std::mem::take(&mut tokens), false, Vec::new()));
        }
        frames.push(frame(vec![row_to_wire(row)], false, Vec::new()));
    }
    frames.push(frame(tokens, true, timings));
    frames
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

#[cfg(test)]
mod tests {
    use brigade_engine::batch::{SampledToken, SlotId};

    use super::*;

    #[test]
    fn a_ubatch_has_one_last_frame_behind_its_rows() {
        let row = |value| RowOutput { slot: SlotId(0), pos: 0, value, mask_us: 0 };
        let token = || row(RowValue::Sampled(SampledToken::default()));
        let logits = || row(RowValue::Logits(vec![0.0]));
        for (rows, in_frames) in [
            (vec![], vec![0]),
            (vec![token(), token()], vec![2]),
            (vec![token(), logits(), token()], vec![1, 1, 1]),
            (vec![logits()], vec![1, 0]),
        ] {
            let frames = result_frames(pb::Ubatch::default(), rows);
            let n_rows: Vec<usize> = frames.iter().map(|frame| frame.rows.len()).collect();
            assert_eq!(n_rows, in_frames);
            let last: Vec<bool> = frames.iter().map(|frame| frame.last).collect();
            assert_eq!(last.iter().filter(|last| **last).count(), 1, "{last:?}");
            assert_eq!(last.last(), Some(&true));
        }
    }
}
