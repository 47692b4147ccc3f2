//! The work of the executor's thread for a lane: it runs ubatches through the stage, in order, with their operations.
//!
//! A stage on a GPU computes while the thread goes on. So the next ubatch is begun there before the first one is
//! finished, and the first one's result leaves while the next one computes. A stage on the CPU is done when it has
//! begun.

mod states;

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade_engine::batch::RowValue;
use brigade_engine::device::GaveUp;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::pipeline::{self as pb, StageTiming};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TryRecvError};

use super::changes::Changes;
use super::jobs::{Job, Work};
use super::output::LaneRun;
use super::requests::Requests;
use crate::backend::{Finished, StageError, StageOutput, StageRunner};
use crate::copies::taker::Taker;
use crate::machine::turns::Turn;

/// Most ubatches in work: one that computes, and the one behind it.
const MOST_IN_WORK: usize = 2;

/// How long a look at the ubatch in work takes, between two looks at the queue.
const LOOK: Duration = Duration::from_micros(200);

/// The stage's state cannot be trusted any more.
#[derive(Debug)]
pub struct Unusable;

/// The state of the thread, for observers.
#[derive(Debug, Default)]
pub struct Progress {
    /// Microseconds of the ubatch that took longest.
    pub longest_us: AtomicU64,
    /// Whether it waits for another stage of this machine.
    pub waits: AtomicBool,
}

/// A lane's work on a stage.
pub struct LaneWork<'a> {
    runner: &'a mut dyn StageRunner,
    runtime: &'a Handle,
    progress: &'a Progress,
    lane: Option<LaneRun>,
    requests: Requests,
    changes: Changes,
    taker: Taker,
    /// Begun and not finished, the first one first.
    in_work: VecDeque<InWork>,
    /// When the stage was done with the last one.
    idle_since: Instant,
    last_send_us: u32,
}

/// A ubatch that the stage has begun.
struct InWork {
    id: u64,
    frame: pb::Ubatch,
    wire_bytes: usize,
    received: Instant,
    checked: Instant,
    begun: Instant,
    /// The turn of a device that computes on.
    turn: Option<Turn>,
}

impl<'a> LaneWork<'a> {
    /// A stage without a lane.
    pub fn new(
        runner: &'a mut dyn StageRunner,
        runtime: &'a Handle,
        progress: &'a Progress,
    ) -> Self {
        let taker = Taker::new(runner.copy_facts());
        let (requests, changes, in_work) = Default::default();
        let idle_since = Instant::now();
        Self {
            runner,
            runtime,
            progress,
            lane: None,
            requests,
            changes,
            taker,
            in_work,
            idle_since,
            last_send_us: 0,
        }
    }

    /// The next job. Work in progress is finished while there is none. `None` when the queue is closed.
    pub fn next_job(&mut self, queue: &mut mpsc::Receiver<Job>) -> Option<Job> {
        while !self.in_work.is_empty() {
            match queue.try_recv() {
                Ok(job) => return Some(job),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            if self.runner.is_done_within(LOOK) {
                self.finish_first().ok()?;
            }
        }
        queue.blocking_recv()
    }

    /// The following work belongs to this lane.
    pub fn begin_lane(&mut self, lane: LaneRun) {
        self.taker.begin(lane.copies.clone());
        let lane_epoch = lane.epoch;
        self.lane = Some(lane);
        self.requests = Requests::default();
        self.changes = Changes::of_lane(lane_epoch);
        self.last_send_us = 0;
    }

    /// The lane is complete: its output is closed.
    pub fn end_lane(&mut self) {
        self.lane = None;
    }

    /// Begins a ubatch, if its lane is not over. Finishes ubatches that are computed, or of which too many are in
    /// progress.
    ///
    /// # Errors
    /// The stage cannot be used again; the lane has got the reason.
    pub fn begin(&mut self, work: Work) -> Result<(), Unusable> {
        if !self.runner.may_begin(&work.ubatch) {
            self.finish_all()?;
        }
        let Some(lane) = self.lane.as_ref().filter(|lane| !lane.cancel.is_cancelled()) else {
            return Ok(());
        };
        let Work { ubatch, frame, input, wire_bytes, received, checked } = work;
        self.requests.follow(&frame.ops);
        self.changes.follow(&ubatch);
        self.progress.waits.store(true, Ordering::Relaxed);
        // The time until it is there is the others', as a queue's is.
        let turn = self.runner.take_turn();
        self.progress.waits.store(false, Ordering::Relaxed);
        let begun = Instant::now();
        lane.meter.taken();
        if self.in_work.is_empty() {
            lane.meter.started(begun);
        }
        let result = catch_unwind(AssertUnwindSafe(|| {
            self.taker.before(self.runner, &ubatch)?;
            self.runner.begin(&ubatch, input)?;
            self.taker.after(self.runner, &ubatch);
            Ok::<_, StageError>(())
        }));
        let turn = turn.filter(|_| self.runner.computes_on());
        if let Some((lost, why)) = self.problem(result) {
            drop(turn);
            if !lost {
                // Ubatches before it are sound.
                self.finish_all()?;
            }
            return self.stop(|lane| failed(lane, ubatch.id, &why), lost);
        }
        let id = ubatch.id;
        self.in_work.push_back(InWork { id, frame, wire_bytes, received, checked, begun, turn });
        while self.in_work.len() >= MOST_IN_WORK
            || (!self.in_work.is_empty() && self.runner.is_done_within(Duration::ZERO))
        {
            self.finish_first()?;
        }
        Ok(())
    }

    /// Finishes all ubatches in work.
    ///
    /// # Errors
    /// As [`LaneWork::begin`].
    pub fn finish_all(&mut self) -> Result<(), Unusable> {
        while !self.in_work.is_empty() {
            self.finish_first()?;
        }
        Ok(())
    }

    /// Waits for the first ubatch in work, and sends its results on, if its lane is not over.
    fn finish_first(&mut self) -> Result<(), Unusable> {
        let Some(InWork { id, mut frame, wire_bytes, received, checked, begun, turn }) =
            self.in_work.pop_front()
        else {
            return Ok(());
        };
        let result = catch_unwind(AssertUnwindSafe(|| self.runner.finish()));
        drop(turn);
        // The stage was at the one before it until then.
        let started = begun.max(self.idle_since);
        self.idle_since = Instant::now();
        let took = self.idle_since - started;
        let Finished { output, drafting, waited } = match result {
            Ok(Ok(finished)) => finished,
            failed_so => {
                let problem = self.problem(failed_so.map(|result| result.map(drop)));
                let (lost, why) = problem.unwrap_or_default();
                return self.stop(|lane| failed(lane, id, &why), lost);
            }
        };
        let compute_us = micros(took.saturating_sub(waited));
        let Some(lane) = &self.lane else { return Ok(()) };
        lane.meter.finished(u64::from(compute_us));
        lane.meter.experts(self.runner.expert_counts());
        if !self.in_work.is_empty() {
            lane.meter.started(self.idle_since);
        }
        tell_failed_rows(&output, &self.requests);
        frame.timings.push(StageTiming {
            queue_us: micros(started - received),
            compute_us,
            wire_bytes: u32::try_from(wire_bytes).unwrap_or(u32::MAX),
            started_us: u64::try_from((started - lane.opened).as_micros()).unwrap_or(u64::MAX),
            receive_us: micros(checked - received),
            last_send_us: self.last_send_us,
            draft_us: micros(drafting),
        });
        let sending = Instant::now();
        let sent = lane.out.send(frame, output, lane, self.runtime);
        self.last_send_us = micros(sending.elapsed());
        self.progress.longest_us.fetch_max(micros(started.elapsed()).into(), Ordering::Relaxed);
        match sent {
            Ok(()) => Ok(()),
            Err(failure) => self.stop(|_| failure, false),
        }
    }

    /// The problem, in words, and whether the stage's state is lost.
    fn problem(
        &self,
        result: std::thread::Result<Result<(), StageError>>,
    ) -> Option<(bool, String)> {
        match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some((error.lost, about(&error, &self.requests))),
            Err(panic) => Some((true, panic_text("computing", &*panic))),
        }
    }

    /// Leaves the lane for a reason; `None`: the reason is known.
    fn stop(
        &mut self,
        reason: impl FnOnce(&LaneRun) -> Option<Failure>,
        lost: bool,
    ) -> Result<(), Unusable> {
        if let Some(lane) = self.lane.take() {
            lane.meter.stopped();
            if let Some(failure) = reason(&lane) {
                // If the lane has ended in between, its reason is known already.
                let _ = lane.failed.send(failure);
            }
        }
        if lost { Err(Unusable) } else { Ok(()) }
    }
}

/// A ubatch's failure, for the coordinator.
fn failed(lane: &LaneRun, ubatch: u64, why: &str) -> Option<Failure> {
    let reason = format!("stage {}, ubatch {ubatch}: {why}", lane.stage);
    Some(Failure::new(FailureKind::Compute, lane.stage, reason))
}

/// A row that gave no token fails its request alone; here is where it can be looked into.
fn tell_failed_rows(output: &StageOutput, requests: &Requests) {
    let StageOutput::Rows(rows) = output else { return };
    for row in rows {
        if let RowValue::Failed(reason) = &row.value {
            let (slot, pos) = (row.slot.0, row.pos);
            tracing::warn!(slot, request = requests.of(slot), pos, reason, "no token can be drawn");
        }
    }
}

/// The error, in words, with the request that it concerns.
fn about(error: &StageError, requests: &Requests) -> String {
    match error.slot.and_then(|slot| requests.of(slot)) {
        Some(request) => format!("request {request}: {error}"),
        None => error.to_string(),
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// The message of a panic, or the reason why a ubatch was given up.
pub fn panic_text(doing: &str, panic: &(dyn Any + Send)) -> String {
    if let Some(GaveUp(why)) = panic.downcast_ref() {
        return format!("{doing} was given up: {why}");
    }
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    format!("{doing} panicked: {text}")
}
