//! The executor: one OS thread that owns the stage. It takes ubatches from a short queue, in order. It also
//! hands each result to the transport itself, so that a hop costs no further switch of threads.
//!
//! A panic or an error of the stage ends the lane with a reason, never the process. Only a stage that is
//! stuck ends the process ([`Stuck`]). A thread cannot be ended from outside, and a new stage beside it would
//! take its memory and its CPUs twice. The executor knows nothing of models: [`StageRunner`] says what a
//! stage is.

pub mod changes;
pub mod jobs;
pub(super) mod lane_work;
pub mod metrics;
pub mod output;
pub mod requests;
pub mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use brigade_proto::failure::{Failure, FailureKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::backend::{KeptWeights, StageRunner};
use crate::copies::parting::{COPY_WITHIN, Keep};
use jobs::{Build, Job};
use lane_work::{LaneWork, Progress, panic_text};

/// Ubatches received ahead of the one in work: enough to overlap receipt with compute. More wait
/// in HTTP/2's windows.
const QUEUE_UBATCHES: usize = 2;

/// How long a stage may take to finish its ubatch, once it is not wanted any more. A ubatch takes well under this; a
/// stage that takes longer is stuck, unless [`SLOWER_THAN_EVER`] allows more.
pub const REST_WITHIN: Duration = Duration::from_secs(10);
/// A stage that has taken long for a ubatch before is given as many times that.
const SLOWER_THAN_EVER: u64 = 3;

/// Handle of the thread; dropping it (see [`Executor::stop`]) ends the stage.
#[derive(Debug)]
pub struct Executor {
    jobs: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
    progress: Arc<Progress>,
}

/// A stage that is stuck in a computation: its thread cannot be ended, nor its memory freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the stage has been computing one ubatch for more than {} s and cannot be stopped", .waited.as_secs()
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
        let progress = Arc::<Progress>::default();
        let of_thread = progress.clone();
        let body = move || run(queue, &runtime, &of_thread);
        let spawned = std::thread::Builder::new().name("stage".into()).spawn(body);
        let thread = spawned.map_err(|error| {
            Failure::refusal(FailureKind::Io, format!("cannot start the stage's thread: {error}"))
        })?;
        Ok(Self { jobs, thread, progress })
    }

    /// Builds a stage on the thread, and returns when it is ready. `build` may take the weights that the thread has:
    /// those of its stage until now, or those that the last failure has left. Weights that it does not take are
    /// dropped with the next one.
    ///
    /// # Errors
    /// The error of `build`; Compute if it panics. The thread has no stage then.
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

    /// Forgets all sequences, after all queued jobs, and keeps parting copies of their states. Lanes must have been
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
        at_rest(&self.progress, waited, reset).await
    }

    /// Drops the stage; returns when its memory is free. Lanes must have been cancelled.
    ///
    /// # Errors
    /// [`Stuck`]: it is not, and will not be.
    pub async fn stop(self) -> Result<(), Stuck> {
        let waited = self.patience();
        let Self { jobs, thread, progress } = self;
        drop(jobs);
        let joined = tokio::task::spawn_blocking(move || thread.join());
        // A panic of the stage was reported when it happened.
        at_rest(&progress, waited, joined).await.map(drop)
    }

    fn patience(&self) -> Duration {
        let longest = self.progress.longest_us.load(Ordering::Relaxed);
        REST_WITHIN.max(Duration::from_micros(longest.saturating_mul(SLOWER_THAN_EVER)))
    }
}

/// Waits until the thread is at rest, `within` a time. The time in which it waits for another stage's turn does not
/// count.
async fn at_rest<T>(
    progress: &Progress,
    within: Duration,
    rest: impl Future<Output = T>,
) -> Result<T, Stuck> {
    let mut rest = std::pin::pin!(rest);
    loop {
        match timeout(within, &mut rest).await {
            Ok(done) => return Ok(done),
            Err(_) if progress.waits.load(Ordering::Relaxed) => {}
            Err(_) => return Err(Stuck { waited: within }),
        }
    }
}

/// The failure of anything asked of a stage that has panicked.
pub fn gone() -> Failure {
    Failure::refusal(FailureKind::Compute, "the stage has stopped after a failure: load it again")
}

/// The thread's body: builds stages and runs them, until all senders of jobs are gone. Each stage may take weights of
/// the one before.
fn run(mut queue: mpsc::Receiver<Job>, runtime: &tokio::runtime::Handle, progress: &Progress) {
    let mut kept = KeptWeights::default();
    let mut asked = None;
    while let Some(Build(build)) = asked.or_else(|| without_stage(&mut queue)) {
        asked = None;
        if let Some(mut stage) = build(&mut kept) {
            asked = run_stage(stage.as_mut(), &mut queue, runtime, progress);
            if asked.is_none() {
                return;
            }
            kept = stage.into_kept();
        }
    }
}

/// Waits until a stage is to be built. All other jobs are answered with the error that there is no stage.
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

/// Runs a stage until another one is asked for. Returns `None` when all senders of jobs are gone, or the stage cannot
/// be used again.
fn run_stage(
    runner: &mut dyn StageRunner,
    queue: &mut mpsc::Receiver<Job>,
    runtime: &tokio::runtime::Handle,
    progress: &Progress,
) -> Option<Build> {
    let mut work = LaneWork::new(runner, runtime, progress);
    loop {
        let job = match work.next_job(queue) {
            Some(Job::Run(next)) => {
                work.begin(next).ok()?;
                continue;
            }
            job => job,
        };
        // All but a further ubatch stays behind those in work.
        work.finish_all().ok()?;
        match job? {
            Job::Build(build) => return Some(build),
            Job::Begin(lane) => work.begin_lane(lane),
            Job::Run(_) => unreachable!("begun above"),
            Job::End(done) => {
                work.end_lane();
                let _ = done.send(());
            }
            Job::Snapshot { slot, answer } => {
                let _ = answer.send(work.snapshot(slot));
            }
            Job::Restore { slot, bytes, answer } => work.restore(slot, &bytes, answer).ok()?,
            Job::FindHeld { names, answer } => {
                let _ = answer.send(Ok(work.find_held(&names)));
            }
            Job::Copy { wanted, unchanged, answer } => {
                let _ = answer.send(work.copy(wanted.as_ref(), unchanged));
            }
            Job::PutPart { part, unchanged, answer } => {
                work.put_part(&part, unchanged, answer).ok()?;
            }
            Job::PutBack { put, unchanged, answer } => {
                work.put_back(&put, unchanged, answer).ok()?;
            }
            Job::Reset { keep, done } => {
                let result = work.reset(keep.as_ref());
                let usable = result.is_ok();
                let _ = done.send(result);
                if !usable {
                    return None;
                }
            }
        }
    }
}
