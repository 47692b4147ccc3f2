//! The executor: one OS thread that owns the stage. It takes ubatches from a short queue, in order. It also
//! hands each result to the transport itself, so that a hop costs no further switch of threads.
//!
//! A panic or an error of the stage ends the lane with a reason, never the process. Only a stage that is
//! stuck ends the process ([`Stuck`]). A thread cannot be ended from outside, and a new stage beside it would
//! take its memory and its CPUs twice. The executor knows nothing of models: [`StageRunner`] says what a
//! stage is.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brigade_engine::batch::{Boundary, CopyName, RowValue, UBatch};
use brigade_engine::device::GaveUp;
use brigade_engine::error::SnapshotError;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::pipeline::{self as pb, StageTiming};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::backend::{CopyFacts, KeptWeights, StageError, StageOutput, StageRunner};
use crate::copies::parting::{COPY_WITHIN, Keep};
use crate::copies::taker::{PutBack, Taker};
use crate::output::LaneRun;
use crate::requests::Requests;
use crate::wire::snapshot_failure;

/// Ubatches received ahead of the one in work: enough to overlap receipt with compute. More wait
/// in HTTP/2's windows.
const QUEUE_UBATCHES: usize = 2;

/// How long a stage may take to come to an end of what it does, once nobody wants it any more. A
/// ubatch takes well under this; what takes longer is stuck, unless [`SLOWER_THAN_EVER`] says otherwise.
pub const REST_WITHIN: Duration = Duration::from_secs(10);
/// A stage that has taken long for a ubatch before is given as many times that.
const SLOWER_THAN_EVER: u64 = 3;

/// A checked ubatch on its way into the stage.
#[derive(Debug)]
pub struct Work {
    /// What to compute.
    pub ubatch: UBatch,
    /// The frame it came in, without its boundary: passed on to the next stage.
    pub frame: pb::Ubatch,
    /// Hidden rows from the previous stage.
    pub input: Option<Boundary>,
    /// Bytes of the frame as received.
    pub wire_bytes: usize,
    /// When the frame was complete.
    pub received: Instant,
    /// When it had been checked and copied.
    pub checked: Instant,
}

/// Where the outcome of a job goes; nobody may be there any more.
pub type Answer<T> = oneshot::Sender<Result<T, Failure>>;

/// What the executor's thread is asked to do, in order.
#[derive(Debug)]
pub enum Job {
    /// The following work belongs to this lane.
    Begin(LaneRun),
    /// Compute and send on.
    Run(Work),
    /// The lane is complete: close its output.
    End(oneshot::Sender<()>),
    /// Read a sequence's state.
    Snapshot {
        /// Whose.
        slot: u32,
        /// Told the bytes.
        answer: Answer<Vec<u8>>,
    },
    /// Give a sequence another state.
    Restore {
        /// Whose.
        slot: u32,
        /// The snapshot.
        bytes: Vec<u8>,
        /// Told when it is done.
        answer: Answer<()>,
    },
    /// Say which sequences of a line before this one the stage still holds.
    FindHeld {
        /// Those that matter.
        names: Vec<CopyName>,
        /// Told what is held.
        answer: Answer<HeldFound>,
    },
    /// Give a sequence the state of a checkpoint.
    PutBack {
        /// Which, and from what.
        put: Box<PutBack>,
        /// Told when it is done.
        answer: Answer<()>,
    },
    /// Forget all sequences.
    Reset {
        /// What is kept of their states; `None`: nothing.
        keep: Option<Keep>,
        /// Told when it is done.
        done: Answer<()>,
    },
    /// Build another stage out of the one there is.
    Build(Build),
}

/// Makes a stage, with the weights that there are: told where it comes from to whoever asked for it.
pub struct Build(Box<dyn FnOnce(&mut KeptWeights) -> Built + Send>);

/// What became of it.
type Built = Option<Box<dyn StageRunner>>;

impl std::fmt::Debug for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Build")
    }
}

/// What a stage still holds of sequences whose line was lost.
#[derive(Debug)]
pub struct HeldFound {
    /// What its copies belong to; `None`: it takes none.
    pub facts: Option<CopyFacts>,
    /// For each sequence asked for, up to which position its pages are there.
    pub up_to: Vec<u32>,
}

/// Handle of the thread; dropping it (see [`Executor::stop`]) ends the stage.
#[derive(Debug)]
pub struct Executor {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
    /// Microseconds of the ubatch that took longest.
    longest_us: Arc<AtomicU64>,
}

/// A stage that is stuck in what it does: its thread cannot be ended, nor its memory freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the stage has been at one ubatch for more than {} s and cannot be ended", .waited.as_secs()
)]
pub struct Stuck {
    /// How long it was waited for.
    pub waited: Duration,
}

impl Executor {
    /// Starts a thread that has no stage yet.
    ///
    /// # Errors
    /// Io if no thread can be started.
    pub fn start() -> Result<Self, Failure> {
        let (jobs, queue) = mpsc::channel(QUEUE_UBATCHES);
        let runtime = tokio::runtime::Handle::current();
        let longest_us = Arc::<AtomicU64>::default();
        let longest = longest_us.clone();
        let body = move || run(queue, &runtime, &longest);
        let spawned = std::thread::Builder::new().name("stage".into()).spawn(body);
        let thread = spawned.map_err(|error| {
            Failure::refusal(FailureKind::Io, format!("cannot start the stage's thread: {error}"))
        })?;
        Ok(Self { jobs, thread, longest_us })
    }

    /// Builds a stage on the thread, and returns when it is ready. `build` may take the weights that the thread
    /// has: those of its stage until now, or what the last failure has left. What it leaves of them is dropped with
    /// the next one.
    ///
    /// # Errors
    /// What `build` says; Compute if it panics. The thread has no stage then.
    pub async fn build<F, T>(&self, build: F) -> Result<T, Failure>
    where
        F: FnOnce(&mut KeptWeights) -> Result<(Box<dyn StageRunner>, T), Failure> + Send + 'static,
        T: Send + 'static,
    {
        let (ready, built) = oneshot::channel();
        let work = move |kept: &mut KeptWeights| {
            let result = catch_unwind(AssertUnwindSafe(|| build(kept))).unwrap_or_else(|panic| {
                *kept = KeptWeights::default();
                Err(Failure::refusal(FailureKind::Compute, panic_text("loading", &*panic)))
            });
            match result {
                Ok((runner, facts)) => match ready.send(Ok(facts)) {
                    Ok(()) => Some(runner),
                    Err(_) => {
                        *kept = runner.into_kept();
                        None
                    }
                },
                Err(failure) => {
                    // The caller may be gone; then no one is left to tell.
                    drop(ready.send(Err(failure)));
                    None
                }
            }
        };
        self.jobs.send(Job::Build(Build(Box::new(work)))).await.map_err(|_| gone())?;
        built.await.map_err(|_| gone())?
    }

    /// The queue's sending end.
    pub fn jobs(&self) -> mpsc::Sender<Job> {
        self.jobs.clone()
    }

    /// False after a panic, or when the device failed: the stage is gone.
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Forgets all sequences, after whatever is queued, and keeps parting copies of their states. Lanes must have been
    /// cancelled. The inner result says whether the stage can be used again.
    ///
    /// # Errors
    /// [`Stuck`].
    pub async fn reset(&self, keep: Option<Keep>) -> Result<Result<(), Failure>, Stuck> {
        let copies = keep.as_ref().is_some_and(|keep| keep.parting.is_awaited());
        let waited = self.patience() + if copies { COPY_WITHIN } else { Duration::ZERO };
        let (done, answer) = oneshot::channel();
        let reset = async {
            self.jobs.send(Job::Reset { keep, done }).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        timeout(waited, reset).await.map_err(|_| Stuck { waited })
    }

    /// Drops the stage; returns when its memory is free. Lanes must have been cancelled.
    ///
    /// # Errors
    /// [`Stuck`]: it is not, and will not be.
    pub async fn stop(self) -> Result<(), Stuck> {
        let waited = self.patience();
        let Self { jobs, thread, .. } = self;
        drop(jobs);
        let joined = tokio::task::spawn_blocking(move || thread.join());
        // A panic of the stage was reported when it happened.
        timeout(waited, joined).await.map(drop).map_err(|_| Stuck { waited })
    }

    fn patience(&self) -> Duration {
        let longest = self.longest_us.load(Ordering::Relaxed);
        REST_WITHIN.max(Duration::from_micros(longest.saturating_mul(SLOWER_THAN_EVER)))
    }
}

/// The failure of anything asked of a stage that has panicked.
pub fn gone() -> Failure {
    Failure::refusal(FailureKind::Compute, "the stage has stopped after a failure: load it again")
}

/// The thread: builds stages and runs them, each of the weights of the one before, until nobody asks any more.
fn run(mut queue: mpsc::Receiver<Job>, runtime: &tokio::runtime::Handle, longest_us: &AtomicU64) {
    let mut kept = KeptWeights::default();
    let mut asked = None;
    while let Some(Build(build)) = asked.or_else(|| without_stage(&mut queue)) {
        asked = None;
        if let Some(mut stage) = build(&mut kept) {
            asked = run_stage(stage.as_mut(), &mut queue, runtime, longest_us);
            if asked.is_none() {
                return;
            }
            kept = stage.into_kept();
        }
    }
}

/// Waits until a stage is asked for; whoever asks for anything of one hears that there is none.
fn without_stage(queue: &mut mpsc::Receiver<Job>) -> Option<Build> {
    loop {
        match queue.blocking_recv()? {
            Job::Build(build) => return Some(build),
            // There is nothing to forget.
            Job::Reset { done, .. } => drop(done.send(Ok(()))),
            _ => {}
        }
    }
}

/// Runs a stage until another one is asked for; `None` when nobody asks any more, or it cannot be used again.
fn run_stage(
    runner: &mut dyn StageRunner,
    queue: &mut mpsc::Receiver<Job>,
    runtime: &tokio::runtime::Handle,
    longest_us: &AtomicU64,
) -> Option<Build> {
    let mut lane: Option<LaneRun> = None;
    let mut requests = Requests::default();
    let mut taker = Taker::new(runner.copy_facts());
    let mut last_send_us = 0;
    while let Some(job) = queue.blocking_recv() {
        match job {
            Job::Build(build) => return Some(build),
            Job::Begin(begun) => {
                taker.begin(begun.copies.clone());
                lane = Some(begun);
                requests = Requests::default();
                last_send_us = 0;
            }
            Job::Run(work) => {
                let started = Instant::now();
                let followers = (&mut requests, &mut taker);
                let usable =
                    compute(runner, &mut lane, followers, work, &mut last_send_us, runtime);
                longest_us.fetch_max(micros(started.elapsed()).into(), Ordering::Relaxed);
                if !usable {
                    return None;
                }
            }
            Job::End(done) => {
                lane = None;
                let _ = done.send(());
            }
            Job::Snapshot { slot, answer } => {
                let read = || runner.snapshot(slot);
                let _ = answer.send(transfer(lane.as_ref(), &requests, slot, "snapshot", read));
            }
            Job::Restore { slot, bytes, answer } => {
                let write = || runner.restore(slot, &bytes);
                let done = transfer(lane.as_ref(), &requests, slot, "restore", write);
                if !written(done, answer, &mut lane) {
                    return None;
                }
            }
            Job::FindHeld { names, answer } => {
                let up_to = taker.find(&names);
                let _ = answer.send(Ok(HeldFound { facts: taker.facts().cloned(), up_to }));
            }
            Job::PutBack { put, answer } => {
                let write = || taker.put_back(runner, &put);
                let done = transfer(lane.as_ref(), &requests, put.slot, "checkpoint", write);
                if !written(done, answer, &mut lane) {
                    return None;
                }
            }
            Job::Reset { keep, done } => {
                lane = None;
                let result = reset(runner, &mut taker, keep.as_ref());
                let usable = result.is_ok();
                let _ = done.send(result);
                if !usable {
                    return None;
                }
            }
        }
    }
    None
}

/// Computes a ubatch, if its lane is not over. `false`: the stage's state cannot be trusted any more.
fn compute(
    runner: &mut dyn StageRunner,
    lane: &mut Option<LaneRun>,
    followers: (&mut Requests, &mut Taker),
    work: Work,
    last_send_us: &mut u32,
    runtime: &tokio::runtime::Handle,
) -> bool {
    let Some(current) = lane.as_ref().filter(|lane| !lane.cancel.is_cancelled()) else {
        return true;
    };
    let stop = match step(runner, current, followers, work, *last_send_us, runtime) {
        Ok(send_us) => {
            *last_send_us = send_us;
            return true;
        }
        Err(stop) => stop,
    };
    if let (Some(failure), Some(current)) = (stop.failure, lane.take()) {
        // The lane may have ended meanwhile; then its reason is known already.
        let _ = current.failed.send(failure);
    }
    !stop.lost
}

/// Tells what came of giving a sequence another state. `false`: the stage's state cannot be trusted any more.
fn written(done: Result<(), Failure>, answer: Answer<()>, lane: &mut Option<LaneRun>) -> bool {
    let failure = done.clone().err().filter(|failure| failure.kind() == FailureKind::Compute);
    let _ = answer.send(done);
    let Some(failure) = failure else { return true };
    let Some(current) = lane.take() else { return true };
    let _ = current.failed.send(failure);
    false
}

fn reset(
    runner: &mut dyn StageRunner,
    taker: &mut Taker,
    keep: Option<&Keep>,
) -> Result<(), Failure> {
    let failed = |why: String| Failure::refusal(FailureKind::Compute, why);
    let reset = || {
        taker.reset(runner, keep);
        runner.reset()
    };
    match catch_unwind(AssertUnwindSafe(reset)) {
        Ok(result) => result.map_err(|error| failed(error.to_string())),
        Err(panic) => Err(failed(panic_text("resetting", &*panic))),
    }
}

/// Reads or writes a sequence's state, as far as there is a lane whose sequence it could be.
fn transfer<T>(
    lane: Option<&LaneRun>,
    requests: &Requests,
    slot: u32,
    doing: &str,
    work: impl FnOnce() -> Result<T, SnapshotError>,
) -> Result<T, Failure> {
    let Some(lane) = lane.filter(|lane| !lane.cancel.is_cancelled()) else {
        return Err(Failure::refusal(FailureKind::StaleEpoch, "the lane is over"));
    };
    let request = requests.of(slot);
    let what = format!("{doing} of stage {}, slot {slot}", lane.stage);
    let result = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| snapshot_failure(&error, &what)),
        Err(panic) => Err(Failure::refusal(FailureKind::Compute, panic_text(&what, &*panic))),
    };
    match &result {
        Ok(_) => tracing::debug!(slot, request, "{doing} of a sequence"),
        Err(failure) => tracing::warn!(slot, request, %failure, "{doing} was refused"),
    }
    result
}

/// Why the executor leaves a lane.
struct Stop {
    /// `None`: the lane was cancelled, its reason is known.
    failure: Option<Failure>,
    /// The stage's state cannot be trusted any more.
    lost: bool,
}

/// Computes a ubatch and sends it on; returns the microseconds of the sending.
fn step(
    runner: &mut dyn StageRunner,
    lane: &LaneRun,
    (requests, taker): (&mut Requests, &mut Taker),
    work: Work,
    last_send_us: u32,
    runtime: &tokio::runtime::Handle,
) -> Result<u32, Stop> {
    let Work { ubatch, mut frame, input, wire_bytes, received, checked } = work;
    requests.follow(&frame.ops);
    let started = Instant::now();
    lane.meter.started(started);
    let computed = catch_unwind(AssertUnwindSafe(|| {
        taker.before(runner, &ubatch)?;
        let output = runner.forward(&ubatch, input)?;
        taker.after(runner, &ubatch);
        Ok::<_, StageError>(output)
    }));
    let compute_us = micros(started.elapsed());
    lane.meter.finished(u64::from(compute_us));
    let fail = |lost: bool, why: String| {
        let reason = format!("stage {}, ubatch {}: {why}", lane.stage, ubatch.id);
        let failure = Some(Failure::new(FailureKind::Compute, lane.stage, reason));
        Stop { failure, lost }
    };
    let output = match computed {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(fail(error.lost, about(&error, requests))),
        Err(panic) => return Err(fail(true, panic_text("computing", &*panic))),
    };
    tell_failed_rows(&output, requests);
    frame.timings.push(StageTiming {
        queue_us: micros(started - received),
        compute_us,
        wire_bytes: u32::try_from(wire_bytes).unwrap_or(u32::MAX),
        started_us: u64::try_from((started - lane.opened).as_micros()).unwrap_or(u64::MAX),
        receive_us: micros(checked - received),
        last_send_us,
    });
    let sending = Instant::now();
    let sent = lane.out.send(frame, output, lane, runtime);
    sent.map_err(|failure| Stop { failure, lost: false })?;
    Ok(micros(sending.elapsed()))
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

/// What went wrong, with the request it went wrong for.
fn about(error: &StageError, requests: &Requests) -> String {
    match error.slot.and_then(|slot| requests.of(slot)) {
        Some(request) => format!("request {request}: {error}"),
        None => error.to_string(),
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn panic_text(doing: &str, panic: &(dyn Any + Send)) -> String {
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
