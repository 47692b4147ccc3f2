//! The front door of a running line: submit a [`Request`], receive its events.
//!
//! HTTP handlers and all commands use this one handle, and the [`driver`](crate::driver) is behind it. Each
//! channel has room for all that its request can cause, so the driver never waits for a reader. Dropping a
//! [`Sequence`] cancels it. Only tokens pass here: [`generation`](crate::generation) makes text of them.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use brigade_engine::batch::SampledToken;
use brigade_sched::QueueFull;
use serde::Serialize;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::cached::{Cached, Dropped};
pub use crate::failure::Failure;
use crate::health::Loading;
use crate::journal::Recorder;
use crate::keys::Force;
use crate::request::{Request, RequestError};
use crate::stages::numerics::Numerics;
pub use brigade_sched::{FinishReason, RequestId, Running};

/// Submissions that may wait for the driver's attention; it takes them within microseconds.
const SUBMIT_QUEUE: usize = 256;

/// State of the line as clients see it.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    /// Workers are being started, dialled or loaded.
    Loading(Loading),
    /// Requests run on this line.
    Ready(Arc<LineInfo>),
    /// The line is broken and being repaired.
    Down {
        /// The reason why the line broke.
        reason: String,
        /// How far the next one is.
        next: Option<Loading>,
    },
    /// The process is leaving; nothing new is taken.
    Stopping,
    /// The line cannot be made to work; the process is about to end.
    Failed {
        /// The reason, for operators.
        reason: String,
    },
}

/// The line that runs, for people and tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineInfo {
    /// Stages of the line, in order.
    pub stages: Vec<StageInfo>,
    /// Positions of the longest sequence; 0 where it is not known.
    pub n_ctx: u32,
    /// Positions there are KV pages for, by the sequences that may share them.
    pub share: u32,
    /// About what a KV page takes on all stages together, and what a sequence takes besides, in bytes.
    pub kept_bytes: (u64, u64),
}

impl LineInfo {
    /// The fingerprint of the line's numerics, by its layers' kernels.
    pub fn numerics(&self) -> Numerics {
        let of_stage = |stage: &StageInfo| vec![stage.numerics; stage.layers.len()];
        Numerics::of_layers(self.stages.iter().flat_map(of_stage))
    }
}

/// One stage of the line that runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageInfo {
    /// Address of its worker.
    pub worker: String,
    /// Layers of the stage.
    pub layers: Range<usize>,
    /// Name of the kernel table.
    pub kernels: String,
    /// Number of compute threads.
    pub threads: u32,
    /// Memory read measured there, 10^9 bytes a second.
    pub gb_per_second: f64,
    /// Products with weights of few bits measured there, 10^9 operations a second.
    pub gop_per_second: f64,
    /// The version number of its kernel table's arithmetic.
    pub numerics: u32,
}

impl StageInfo {
    /// A line of text about the stage.
    pub fn describe(&self) -> String {
        let Range { start, end } = &self.layers;
        format!("layers {start}..{end}, {}, {} threads", self.kernels, self.threads)
    }
}

/// An event of one sequence, in order. `Finished` or `Failed` is the last one.
#[derive(Clone, Debug, PartialEq)]
pub enum SeqEvent {
    /// A token was drawn.
    Token(SampledToken),
    /// The logits `[n_vocab]` of prompt position `pos`.
    Logits {
        /// Position of the row.
        pos: u32,
        /// Logits of all tokens, `[n_vocab]`.
        row: Vec<f32>,
    },
    /// The sequence ended as asked.
    Finished(Finish),
    /// The sequence ended otherwise.
    Failed(Failure),
}

/// Why a sequence ended without an error, with its counts and times.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Whether a stop or the length ended it.
    pub reason: FinishReason,
    /// Time from submission to the first drawn token (or logits row): queue and prefill.
    pub to_first: Duration,
    /// Time from there to the end.
    pub after_first: Duration,
}

/// Why a request was not taken.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SubmitError {
    /// Try again later.
    #[error(transparent)]
    QueueFull(QueueFull),
    /// There is no line to run it.
    #[error("no requests can run now: {reason}")]
    Unavailable {
        /// The reason, for the client.
        reason: String,
    },
    /// The model has no line yet, so nothing can be said but that the request itself is good.
    #[error("the model is not loaded")]
    NotLoaded,
    /// The request can never run here.
    #[error(transparent)]
    Invalid(#[from] RequestError),
}

/// A request on its way to the driver.
#[derive(Debug)]
pub struct Submission {
    /// The sequence's number, unique in this process.
    pub id: RequestId,
    /// The request to run.
    pub request: Request,
    /// The channel of its events; has room for all that the request can cause.
    pub events: mpsc::Sender<SeqEvent>,
    /// Answered when the scheduler has taken or refused the request.
    pub verdict: oneshot::Sender<Result<(), SubmitError>>,
    /// Cells that tell [`Sequence::reused`] and [`Sequence::recomputed`].
    pub counts: Arc<Counts>,
    /// The journal's record of it, if it is resumable.
    pub past: Option<Past>,
}

/// The journal's place for a sequence, and the tokens that it had drawn under the coordinator before this one.
#[derive(Clone, Debug)]
pub struct Past {
    /// Records the tokens that it draws from now on.
    pub recorder: Recorder,
    /// Tokens that it had drawn before; `None`: it is new.
    pub drawn: Option<Vec<SampledToken>>,
    /// Numerics of the line that drew the last of them.
    pub numerics: Option<Numerics>,
}

/// Rows of a sequence that were not computed, or computed twice.
#[derive(Debug, Default)]
pub struct Counts {
    reused: AtomicU32,
    recomputed: AtomicU32,
    /// Tokens that its client had said to expect: drafted and drawn, and drafted in vain.
    expected: [AtomicU32; 2],
    numerics_changed: AtomicBool,
}

impl Counts {
    /// An earlier sequence's state stands for the first `tokens` of the prompt.
    pub fn set_reused(&self, tokens: u32) {
        self.reused.store(tokens, Ordering::Release);
    }

    /// Counts of the predicted tokens that were drafted: right and wrong ones.
    pub fn set_expected(&self, right: u32, wrong: u32) {
        for (count, n) in self.expected.iter().zip([right, wrong]) {
            count.store(n, Ordering::Release);
        }
    }

    /// The line was lost, and `tokens` more are computed a second time.
    pub fn add_recomputed(&self, tokens: u32) {
        self.recomputed.fetch_add(tokens, Ordering::AcqRel);
    }

    /// Notes that it goes on with other numerics than before.
    pub fn set_numerics_changed(&self) {
        self.numerics_changed.store(true, Ordering::Release);
    }

    /// Whether the numerics changed during the sequence.
    pub fn has_changed_numerics(&self) -> bool {
        self.numerics_changed.load(Ordering::Acquire)
    }
}

/// Why a sequence's state could not be saved or put back.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum StateError {
    /// The request's state is not there (any more).
    #[error("the state of the request was not kept")]
    NotKept,
    /// Nowhere to put it.
    #[error("there is no room for a sequence of {tokens} tokens")]
    NoRoom {
        /// Length of the sequence in tokens.
        tokens: usize,
    },
    /// The line refused, or broke.
    #[error("{reason}")]
    Failed {
        /// The stage's or the line's reason.
        reason: String,
    },
}

/// Bytes that a stage holds, as its worker reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageResident {
    /// Weights as the kernels hold them.
    pub weight_bytes: u64,
    /// KV pages and recurrent states.
    pub state_bytes: u64,
    /// Resident memory of its process now; 0 where that cannot be known.
    pub resident_bytes: u64,
    /// Most that was resident since the process began; 0 where that cannot be known.
    pub peak_bytes: u64,
    /// Work of its routed experts since it was loaded.
    pub experts: StageExperts,
}

/// Work of a stage's routed experts, on a GPU and with the host beside it; zeros on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StageExperts {
    /// Rows that the GPU computed, those with copies of the host's experts among them.
    pub device_rows: u64,
    /// Rows that it computed with such copies.
    pub copied_rows: u64,
    /// Rows that the host computed.
    pub host_rows: u64,
    /// Bytes of weights that were sent to the GPU.
    pub sent_bytes: u64,
    /// Microseconds that the host waited for the GPU's rows.
    pub host_waited_us: u64,
    /// Microseconds that the host computed, while the GPU waited or computed what it had besides.
    pub host_computed_us: u64,
}

impl StageExperts {
    /// The work since an earlier reading of the same stage.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            device_rows: self.device_rows.saturating_sub(before.device_rows),
            copied_rows: self.copied_rows.saturating_sub(before.copied_rows),
            host_rows: self.host_rows.saturating_sub(before.host_rows),
            sent_bytes: self.sent_bytes.saturating_sub(before.sent_bytes),
            host_waited_us: self.host_waited_us.saturating_sub(before.host_waited_us),
            host_computed_us: self.host_computed_us.saturating_sub(before.host_computed_us),
        }
    }
}

/// A question for the stages: a sequence's state, or which sequences they hold.
#[derive(Debug)]
pub enum StateCall {
    /// Keep the state of an ended request for a while, since its client will come back. One that runs is cancelled.
    Linger(RequestId),
    /// Read the state of an ended request; one that runs is cancelled.
    Save {
        /// The request whose state is read.
        request: RequestId,
        /// Gets the snapshot.
        reply: oneshot::Sender<Result<Vec<u8>, StateError>>,
    },
    /// Keep a sequence that was computed elsewhere, for requests that begin with its tokens.
    Load {
        /// Tokens of its positions.
        tokens: Vec<u32>,
        /// The bytes of an earlier [`StateCall::Save`].
        snapshot: Vec<u8>,
        /// Notified when the state is there.
        reply: oneshot::Sender<Result<(), StateError>>,
    },
    /// Drop the kept states of an owner, or of all; the sender is answered when it is done.
    DropCached(Option<u64>, oneshot::Sender<Result<Dropped, StateError>>),
    /// Memory of every stage's process.
    Memory {
        /// Gets the bytes of each stage, in order.
        reply: oneshot::Sender<Result<Vec<StageResident>, StateError>>,
    },
}

/// Handle to a driver; clones share it.
#[derive(Clone, Debug)]
pub struct Engine {
    submissions: mpsc::Sender<Submission>,
    states: mpsc::Sender<StateCall>,
    status: watch::Receiver<Status>,
    running: watch::Receiver<Arc<[Running]>>,
    cached: watch::Receiver<Arc<Cached>>,
}

/// The driver's ends of an [`Engine`].
#[derive(Debug)]
pub struct EngineEnds {
    /// Requests to take or refuse.
    pub submissions: mpsc::Receiver<Submission>,
    /// States to save or to put back.
    pub states: mpsc::Receiver<StateCall>,
    /// Publishes [`Engine::status`].
    pub status: watch::Sender<Status>,
    /// Publishes [`Engine::running`].
    pub running: watch::Sender<Arc<[Running]>>,
    /// Publishes [`Engine::cached`].
    pub cached: watch::Sender<Arc<Cached>>,
}

impl Engine {
    /// A handle and the ends that someone must serve.
    pub fn channel() -> (Self, EngineEnds) {
        let (submit, submissions) = mpsc::channel(SUBMIT_QUEUE);
        let (call, states) = mpsc::channel(SUBMIT_QUEUE);
        let (status, watch) = watch::channel(Status::Loading(Loading::step("starting")));
        let (running, now) = watch::channel(Arc::from([]));
        let (cached, kept) = watch::channel(Arc::default());
        let engine =
            Self { submissions: submit, states: call, status: watch, running: now, cached: kept };
        (engine, EngineEnds { submissions, states, status, running, cached })
    }

    /// A handle of a model that is not loaded: it takes no request ([`SubmitError::NotLoaded`]).
    pub fn not_loaded() -> Self {
        Self::channel().0
    }

    /// The line's state now.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The sequences that run, as they were some tens of milliseconds ago.
    pub fn running(&self) -> Arc<[Running]> {
        self.running.borrow().clone()
    }

    /// Kept prompt states, as they were at most a second ago.
    pub fn cached(&self) -> Arc<Cached> {
        self.cached.borrow().clone()
    }

    /// Drops the kept prompts of an owner, or of all owners, in memory and in the workers' records. Running requests
    /// go on.
    pub async fn drop_cached(&self, owner: Option<u64>) -> Result<Dropped, StateError> {
        let (reply, dropped) = oneshot::channel();
        let call = StateCall::DropCached(owner, reply);
        self.states.send(call).await.map_err(|_| line_gone())?;
        dropped.await.map_err(|_| line_gone())?
    }

    /// A receiver that follows the status.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// The state of a request that has ended, as one snapshot over all layers.
    pub async fn save_state(&self, request: RequestId) -> Result<Vec<u8>, StateError> {
        let (reply, saved) = oneshot::channel();
        self.states.send(StateCall::Save { request, reply }).await.map_err(|_| line_gone())?;
        saved.await.map_err(|_| line_gone())?
    }

    /// Keeps a sequence of `tokens` whose state was saved, so that requests that begin with them
    /// need not compute them.
    pub async fn load_state(&self, tokens: Vec<u32>, snapshot: Vec<u8>) -> Result<(), StateError> {
        let (reply, loaded) = oneshot::channel();
        let call = StateCall::Load { tokens, snapshot, reply };
        self.states.send(call).await.map_err(|_| line_gone())?;
        loaded.await.map_err(|_| line_gone())?
    }

    /// Bytes that each stage holds now, first stage first.
    pub async fn memory(&self) -> Result<Vec<StageResident>, StateError> {
        let (reply, told) = oneshot::channel();
        self.states.send(StateCall::Memory { reply }).await.map_err(|_| line_gone())?;
        told.await.map_err(|_| line_gone())?
    }

    /// Hands in a request; returns once it is queued or refused.
    pub async fn submit(&self, id: RequestId, request: Request) -> Result<Sequence, SubmitError> {
        self.submit_with(id, request, None).await
    }

    /// The same as [`Engine::submit`], for a sequence of the journal. A sequence that had begun waits for a line in
    /// any case; its tokens so far come first.
    pub async fn submit_with(
        &self,
        id: RequestId,
        request: Request,
        past: Option<Past>,
    ) -> Result<Sequence, SubmitError> {
        let (events, receiver) = mpsc::channel(request.max_events());
        let (verdict, taken) = oneshot::channel();
        let counts = Arc::new(Counts::default());
        let force = request.force.clone();
        let submission = Submission { id, request, events, verdict, counts: counts.clone(), past };
        let gone = || {
            let reason = match &*self.status.borrow() {
                Status::Loading(_) => return SubmitError::NotLoaded,
                Status::Failed { reason } => reason.clone(),
                _ => "the driver has stopped".to_string(),
            };
            SubmitError::Unavailable { reason }
        };
        self.submissions.send(submission).await.map_err(|_| gone())?;
        taken.await.map_err(|_| gone())??;
        let lingering = Lingering { id, states: Some(self.states.clone()) };
        Ok(Sequence { id, events: receiver, counts, force, ended: false, lingering })
    }
}

fn line_gone() -> StateError {
    StateError::Failed { reason: "the line broke meanwhile".to_string() }
}

/// Asks for the state of a sequence to be kept a while.
#[derive(Clone, Debug)]
pub struct Lingering {
    id: RequestId,
    states: Option<mpsc::Sender<StateCall>>,
}

impl Lingering {
    /// The sequence has ended, and its client is expected back.
    pub fn ask(&self) {
        if let Some(states) = &self.states {
            // Where many ask at once, one of them does without.
            let _ = states.try_send(StateCall::Linger(self.id));
        }
    }
}

/// Events of one submitted request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Sequence {
    id: RequestId,
    events: mpsc::Receiver<SeqEvent>,
    counts: Arc<Counts>,
    force: Force,
    ended: bool,
    lingering: Lingering,
}

impl Sequence {
    /// A handle that asks the driver to keep the sequence's state for a while.
    pub fn lingering(&self) -> Lingering {
        self.lingering.clone()
    }

    /// A sequence that has ended already, with its tokens and the reason.
    pub fn ended(id: RequestId, tokens: Vec<SampledToken>, reason: FinishReason) -> Self {
        let (events, receiver) = mpsc::channel(tokens.len() + 1);
        let (to_first, after_first) = (Duration::ZERO, Duration::ZERO);
        let finish = SeqEvent::Finished(Finish { reason, to_first, after_first });
        for event in tokens.into_iter().map(SeqEvent::Token).chain([finish]) {
            // There is room for all.
            let _ = events.try_send(event);
        }
        let (counts, force) = (Arc::default(), Force::default());
        let lingering = Lingering { id, states: None };
        Self { id, events: receiver, counts, force, ended: false, lingering }
    }

    /// The sequence's number.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Tokens of the prompt that an earlier sequence's state stood for; settled with the first event.
    pub fn reused(&self) -> u32 {
        self.counts.reused.load(Ordering::Acquire)
    }

    /// Tokens that its client had said to expect: those that were drafted and drawn, and those drafted in vain; settled with
    /// its end.
    pub fn expected(&self) -> [u32; 2] {
        [0, 1].map(|i: usize| self.counts.expected[i].load(Ordering::Acquire))
    }

    /// Positions that were computed again because a line was lost.
    pub fn recomputed(&self) -> u32 {
        self.counts.recomputed.load(Ordering::Acquire)
    }

    /// Whether it went on where other bits are computed than before.
    pub fn numerics_changed(&self) -> bool {
        self.counts.has_changed_numerics()
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<SeqEvent> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same as [`Self::next`], for callers that poll several sequences.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<SeqEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut event = ready!(self.events.poll_recv(cx)).unwrap_or_else(|| {
            let reason = "the driver dropped the request".to_string();
            SeqEvent::Failed(Failure::Internal { reason })
        });
        // A slow reader does not get tokens that were drawn before its key ended.
        if let Some(end) = self.force.end() {
            event = SeqEvent::Failed(Failure::KeyEnded(end));
        }
        self.ended = matches!(event, SeqEvent::Finished(_) | SeqEvent::Failed(_));
        Poll::Ready(Some(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Limits;

    fn request() -> Request {
        Request::logits(vec![1], &Limits { n_ctx: 4, n_vocab: 4, answer: 1024, encoder: None })
            .unwrap()
    }

    #[tokio::test]
    async fn a_vanished_driver_is_an_error_and_an_end() {
        let (engine, mut ends) = Engine::channel();
        ends.status.send_replace(Status::Ready(Arc::default()));
        let driver = tokio::spawn(async move {
            let submission = ends.submissions.recv().await.unwrap();
            submission.verdict.send(Ok(())).unwrap();
        });
        let mut sequence = engine.submit(RequestId(7), request()).await.unwrap();
        driver.await.unwrap();
        assert!(matches!(sequence.next().await, Some(SeqEvent::Failed(Failure::Internal { .. }))));
        assert_eq!(sequence.next().await, None);
        assert!(matches!(
            engine.submit(RequestId(8), request()).await,
            Err(SubmitError::Unavailable { .. })
        ));
        let not_loaded = Engine::not_loaded().submit(RequestId(9), request()).await;
        assert!(matches!(not_loaded, Err(SubmitError::NotLoaded)));
    }

    #[tokio::test]
    async fn dropping_a_sequence_closes_its_channel() {
        let (engine, mut ends) = Engine::channel();
        let submitted = tokio::spawn(async move { engine.submit(RequestId(1), request()).await });
        let submission = ends.submissions.recv().await.unwrap();
        submission.verdict.send(Ok(())).unwrap();
        drop(submitted.await.unwrap().unwrap());
        assert!(submission.events.is_closed());
    }
}
