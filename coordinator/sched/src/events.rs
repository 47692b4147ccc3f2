//! The scheduler's input and output.
//!
//! The driver turns what happens into [`Event`]s, and carries out [`Action`]s. Text, sockets and JSON never get here:
//! a request is token ids. Stop strings are found by the reader of the stream's text; to the scheduler they are
//! cancelled requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_engine::batch::{
    AdapterUse, CopyName, RowOutput, SampledToken, SamplerSetup, SlotId, UBatch,
};
use brigade_spec::Prefixes;

use crate::memory::namespace::Namespace;

/// A point in time or a duration in microseconds. The driver picks the origin; it never goes back.
pub type Micros = u64;

/// The driver's name for a request; unique among those that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Names a kept sequence for as long as it is kept; never used twice on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeptId(pub u64);

/// A sequence to compute. `n` completions of a prompt are `n` requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The request's id in all its events and actions.
    pub id: RequestId,
    /// The request's id in the logs of all processes; several may share one.
    pub label: Arc<str>,
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// The kind of work and its settings.
    pub work: Work,
    /// LoRA adapters of its rows.
    pub adapters: Arc<[AdapterUse]>,
    /// The owner and its share of the line.
    pub share: Share,
    /// The namespace of kept prompts that it may begin with; `None`: its owner's.
    pub namespace: Option<Namespace>,
    /// The time after which its client does not want it any more.
    pub deadline: Option<Micros>,
    /// Whether copies of its state are taken while it runs, where any are. Without, it is computed again after a lost
    /// line.
    pub copied: bool,
    /// The prompt of its companion, a second sequence beside whose rows its tokens are drawn; at least one token. There is
    /// one if and only if its sampler has a [`Companion`](brigade_engine::batch::Companion).
    pub companion: Option<Arc<[u32]>>,
    /// Tokens that the answer is expected to resemble, for drafts; `None`: no drafts.
    pub drafts: Option<Arc<[u32]>>,
    /// Positions of its prompt at which other prompts are likely to diverge, the more important first: borders of a
    /// chat's messages. May be empty.
    pub borders: Arc<[u32]>,
}

impl Request {
    /// A request without key, adapters, deadline, copies, companion and drafts.
    pub fn new(id: RequestId, prompt: Vec<u32>, work: Work) -> Self {
        Self {
            id,
            label: id.0.to_string().into(),
            prompt,
            work,
            adapters: [].into(),
            share: Share::default(),
            namespace: None,
            deadline: None,
            copied: false,
            companion: None,
            drafts: None,
            borders: [].into(),
        }
    }
}

/// Whether draws with these settings need a companion.
pub(crate) fn has_companion(sampler: &SamplerSetup) -> bool {
    sampler.companion.is_some()
}

/// The owner of a request, and the owner's share of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The owner's number.
    pub owner: u64,
    /// The owner's weight: its share of the line's rows beside those of others.
    pub weight: u32,
    /// Whether it leaves room for other owners, because there are some.
    pub leaves_room: bool,
}

impl Default for Share {
    /// The common share, where owners are not told apart.
    fn default() -> Self {
        Self { owner: 0, weight: 1, leaves_room: false }
    }
}

impl Request {
    /// The namespace of the request's prompt.
    pub(crate) fn namespace(&self) -> Namespace {
        self.namespace.unwrap_or_else(|| Namespace::of_owner(self.share.owner))
    }

    /// Positions that must be reserved before the request may start: its prompt, and the assured part of its answer.
    pub fn positions(&self) -> u64 {
        self.prompt.len() as u64 + self.most_generated()
    }

    /// The same of its companion.
    pub fn companion_positions(&self) -> Option<u64> {
        let companion = self.companion.as_ref()?;
        Some(companion.len() as u64 + self.most_generated())
    }

    fn most_generated(&self) -> u64 {
        match self.work {
            Work::Generate { max_tokens, sure, .. } => u64::from(sure.min(max_tokens)),
            Work::Logits | Work::Hidden(_) => 0,
        }
    }

    /// Notes that so many tokens of the answer exist already: a place must have room for them and for the next token.
    pub(super) fn has_generated(&mut self, n: usize) {
        if let Work::Generate { sure, .. } = &mut self.work {
            *sure = (*sure).max(n as u32 + 1);
        }
    }
}

impl Request {
    /// The name of copies of its sequence's state. Only equal requests have equal names, on every line and in every
    /// process. `None` for logits alone, and for a request with a companion, which has two states.
    pub fn copy_name(&self) -> Option<CopyName> {
        let Work::Generate { sampler, max_tokens, .. } = &self.work else { return None };
        if self.companion.is_some() {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.label.len() as u64).to_le_bytes());
        hasher.update(self.label.as_bytes());
        hasher.update(&self.share.owner.to_le_bytes());
        hasher.update(&sampler.seed.to_le_bytes());
        hasher.update(&max_tokens.to_le_bytes());
        for token in &self.prompt {
            hasher.update(&token.to_le_bytes());
        }
        for used in self.adapters.iter() {
            hasher.update(&used.adapter.to_le_bytes());
            hasher.update(&used.scale.to_bits().to_le_bytes());
        }
        let hash = hasher.finalize();
        hash.as_bytes().first_chunk().map(|name| CopyName(*name))
    }
}

/// The kind of computation that a request wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Tokens after the prompt.
    Generate {
        /// Ends with [`FinishReason::Length`] after this many; at least one.
        max_tokens: u32,
        /// The part of these tokens whose places are reserved before it starts. It gets further ones while there are
        /// free ones that no request waits for, and ends with [`FinishReason::Length`] where there are none.
        sure: u32,
        /// How each token is drawn.
        sampler: Arc<SamplerSetup>,
        /// Drawing one of these ends the request (end-of-generation ids); sorted or not.
        stop_tokens: Arc<[u32]>,
    },
    /// The logits row at every position of the prompt, nothing generated.
    Logits,
    /// Rows that the last norm makes of the prompt, nothing generated.
    Hidden(HiddenRows),
}

/// The positions whose hidden rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenRows {
    /// The rows at every position.
    All,
    /// The first, of an encoder.
    First,
    /// The last, of an encoder.
    Last,
}

impl HiddenRows {
    /// How many they are of a prompt of `n` tokens.
    pub fn count(self, n: u32) -> u32 {
        match self {
            Self::All => n,
            Self::First | Self::Last => 1,
        }
    }
}

/// An input of the scheduler.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request arrives. It ends with exactly one of [`Action::Finished`], [`Action::Failed`], [`Action::Rejected`],
    /// or with an [`Event::Cancel`] and no action.
    Submit(Request),
    /// A request that another scheduler had begun, with the tokens that it had reported, fewer than all. It has its
    /// place before those that never had one, and waits for a line as if one had been lost under it. It ends as after
    /// [`Event::Submit`]. Its next token has the next index.
    GoOn {
        /// The request as it was submitted to the other scheduler.
        request: Request,
        /// The sequence's tokens so far.
        generated: Vec<u32>,
        /// Mirostat's, after the last of them.
        mu: Option<f32>,
    },
    /// The client does not want the request any more. No action names it from now on, and its places are free for the
    /// next one. Unknown ids are ignored (the request may just have ended).
    Cancel(RequestId),
    /// Rows came back from the last stage.
    Results(Results),
    /// A line of stages is loaded and empty: no sequence open, next ubatch id 0.
    LineUp {
        /// Names this incarnation of the line; later than every one before.
        epoch: u64,
        /// Sizes and capabilities of the line.
        line: LineSpec,
    },
    /// Before [`Event::LineUp`]: positions that every stage of that line can go back to, for some of
    /// [`super::Scheduler::interrupted`].
    Restorable(BTreeMap<RequestId, u32>),
    /// The state that [`Action::Restore`] asked for is on every stage, or will not be.
    Restored {
        /// The request whose state it is.
        request: RequestId,
        /// Whether it is there.
        is_there: bool,
    },
    /// The line is about to be taken down as planned: nothing more is begun on it, and its stages are told to keep the
    /// states of their sequences. [`Action::Parted`] follows, unless the line is lost before.
    Part,
    /// The line is gone, with all its states. Its requests wait for the next line and go on there.
    LineDown {
        /// The reason, for errors of requests that get no other line.
        reason: String,
        /// Whether it was taken down in order, so that no request can have broken it.
        planned: bool,
    },
    /// Drops every kept sequence that is not pinned.
    ClearKept,
    /// Drops the kept states of an owner, or of all owners. Pinned states stay.
    Forget(Option<u64>),
    /// The answer of an ended request calls a tool, so its client will soon come back with the result. Until then its
    /// kept state is evicted last of its owner's.
    Linger(RequestId),
    /// The kept sequence of [`super::Scheduler::pin_kept`] was read, or the state of the one of
    /// [`super::Scheduler::open_kept`] was put in: it may be used and evicted again.
    KeptReady(KeptId),
    /// The kept sequence of [`super::Scheduler::begin_writing`] was written, or could not be.
    KeptWritten(KeptId),
    /// The state of the kept sequence of [`super::Scheduler::open_kept`] did not come.
    DropKept(KeptId),
    /// Time passed; send a few times a second. Finds ubatches that are overdue, and requests that have
    /// waited too long for another line.
    Tick,
}

/// Part or all of what one ubatch returned. A ubatch without wanted rows returns once, with none.
#[derive(Clone, Debug)]
pub struct Results {
    /// The epoch of the line that computed them; results of an earlier epoch are ignored.
    pub epoch: u64,
    /// Ubatches end in the order they were sent; rows of one may come in several events.
    pub ubatch: u64,
    /// Rows not returned before.
    pub rows: Vec<RowOutput>,
    /// With the last rows of the ubatch: how long each stage took, `[n_stages]`, first stage first.
    pub done: Option<Vec<StageTime>>,
}

/// Time that one ubatch spent at one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Time of computing.
    pub compute_us: Micros,
    /// Waiting there for the ubatches before it.
    pub queued_us: Micros,
    /// The part of the computing that made the model's own drafts.
    pub drafting_us: Micros,
}

/// Sizes and capabilities of a line, equal on every stage, so that one allocator serves them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSpec {
    /// Number of stages, at least 1.
    pub n_stages: usize,
    /// KV pages on each stage.
    pub n_blocks: u32,
    /// Sequences that may run at once.
    pub n_slots: u32,
    /// Slots beyond those, for sequences that are kept for later requests that begin alike. Slots in which nothing runs are
    /// for these as well; 0: nothing is kept.
    pub n_kept: u32,
    /// The prefixes of a kept sequence with which another can begin.
    pub prefixes: Prefixes,
    /// Positions in a KV page (the engine's `KV_PAGE`).
    pub block_positions: u32,
    /// Longest sequence, prompt and generated (`--ctx`).
    pub max_positions: u32,
    /// Most rows in a ubatch.
    pub max_rows: u32,
    /// Whether every stage knows what a companion is.
    pub companions: bool,
    /// Whether every stage supports sequences that run ahead of their last drawn token.
    pub ahead: bool,
    /// Whether every stage lets sequences have more pages than they began with.
    pub grows: bool,
    /// How many tokens the model's own block drafts behind a drawn one, at most; 0: it has none, or that is not loaded.
    pub own_drafts: u32,
}

/// An output of the scheduler. Actions are carried out in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send to stage 0.
    Send(UBatch),
    /// The first tokens of a request's prompt are taken from a kept sequence and are not computed. Comes before any
    /// other action of the request. Absent where nothing is reused.
    Reused {
        /// The request that begins with them.
        request: RequestId,
        /// The number of reused tokens.
        tokens: u32,
    },
    /// A request has a place again after its line was lost. When the ubatch that opens its slot is back, its state
    /// at a position is to be put back there on every stage; then [`Event::Restored`].
    Restore {
        /// The request to restore.
        request: RequestId,
        /// The slot on every stage.
        slot: SlotId,
        /// The name of its copies.
        name: CopyName,
        /// Tokens of the restored positions.
        tokens: Vec<u32>,
    },
    /// A request has a place again after its line was lost. The positions that its state lacks are computed again.
    /// Tokens that were reported are not reported again: the next token has the next index.
    Replayed {
        /// The request that goes on.
        request: RequestId,
        /// Positions that are computed again.
        tokens: u32,
    },
    /// Counts of drafts from a client's prediction. Comes before the request's end. Absent where no predicted token
    /// was drafted.
    Expected {
        /// The request with the prediction.
        request: RequestId,
        /// Tokens that were drafted and drawn.
        right: u32,
        /// Tokens that were drafted, and others were drawn.
        wrong: u32,
    },
    /// A request's next generated token.
    Token {
        /// The request that drew it.
        request: RequestId,
        /// Counts from 0 without gaps.
        index: u32,
        /// The drawn token.
        token: SampledToken,
    },
    /// The row at one position of a [`Work::Logits`] or [`Work::Hidden`] request, positions ascending.
    Logits {
        /// The request that asked for rows.
        request: RequestId,
        /// Position of the row's token; the row predicts the next one.
        pos: u32,
        /// Logits `[n_vocab]`, or hidden values `[n_embd]`.
        row: Vec<f32>,
    },
    /// The request ended well.
    Finished {
        /// The request that ended.
        request: RequestId,
        /// How it ended.
        reason: FinishReason,
        /// Number of [`Action::Token`]s it had.
        generated: u32,
    },
    /// The request was running and cannot go on.
    Failed {
        /// The request that failed.
        request: RequestId,
        /// The reason, without words.
        error: Unfinished,
    },
    /// The request never started and will not.
    Rejected {
        /// The request that is refused.
        request: RequestId,
        /// The reason, with the limit.
        why: Rejection,
    },
    /// After [`Event::Part`]: the stages keep the states, and the line may be taken down.
    Parted,
    /// The line broke a promise: take it down ([`Event::LineDown`]) and build a new one.
    LineFault(LineFault),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub enum FinishReason {
    /// One of its stop tokens was drawn. It is not reported as a [`Action::Token`].
    Stop(SampledToken),
    /// `max_tokens` were generated, or all that there was room for.
    Length,
    /// All logits rows were returned.
    LogitsDone,
}

/// Why a request did not come to its end. It has no words: the layer that reports it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The line of workers it ran on is gone, and it cannot go on on another one.
    LineLost {
        /// The reason of [`Event::LineDown`], and why it was not computed again.
        reason: String,
        /// Tokens that were reported before.
        generated: u32,
    },
    /// The request's deadline passed.
    TooLate {
        /// Tokens that were reported before.
        generated: u32,
    },
    /// The request waited, and its place in the full queue went to an owner that has fewer there.
    Displaced {
        /// Whole seconds until a place is likely to be free.
        retry_after_s: u64,
    },
    /// The model's output gave no token; every other request goes on.
    NoToken {
        /// The reason from the last stage.
        reason: String,
        /// Tokens that were reported before.
        generated: u32,
    },
}

/// The queue of waiting requests is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests are waiting already, the limit: try again in {retry_after_s} s")]
pub struct QueueFull {
    /// Length of the queue, which is its limit.
    pub waiting: usize,
    /// Whole seconds until a place is likely to be free.
    pub retry_after_s: u64,
}

/// A request needs more positions than a sequence can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this model's maximum context length is {limit} tokens here, but {}: shorten it or start the server with a larger \
     --ctx",
    self.needs()
)]
pub struct TooLong {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens to generate, as asked; 0 where the prompt alone leaves no room.
    pub max_tokens: u64,
    /// Positions that one sequence can have.
    pub limit: u64,
}

impl TooLong {
    fn needs(&self) -> String {
        let Self { prompt, max_tokens, .. } = self;
        if *max_tokens == 0 {
            return format!("the prompt has {prompt}");
        }
        let needed = prompt.saturating_add(*max_tokens);
        format!("the request needs {needed} ({prompt} of the prompt and {max_tokens} to generate)")
    }
}

/// Why a request did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Try again later (HTTP 429).
    #[error(transparent)]
    QueueFull(QueueFull),
    /// The request can never run on this line (HTTP 400).
    #[error(transparent)]
    TooLong(TooLong),
    /// The request has a companion, and this line cannot do that (HTTP 400).
    #[error("it runs as two sequences: {0}")]
    NoCompanion(NoCompanion),
    /// The request makes no sense (HTTP 400).
    #[error("invalid request: {0}")]
    Invalid(&'static str),
}

/// Why a line cannot run a sequence with its companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCompanion {
    /// A stage does not know what one is.
    #[error("a worker of the line is of an older release")]
    OlderWorker,
    /// There is one slot.
    #[error("the line has a place for one")]
    OneSlot,
    /// A ubatch has one row.
    #[error("a ubatch has one row")]
    OneRow,
    /// Both need more pages than there are.
    #[error("together they do not fit the KV cache")]
    FewPages,
}

/// A promise that the line broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineFault {
    /// A ubatch is not back though all stages together should have long been done.
    #[error(
        "ubatch {ubatch} was sent {waited_us} us ago and not expected to take more than {allowed_us} us"
    )]
    Overdue {
        /// The oldest in flight.
        ubatch: u64,
        /// Microseconds since it was sent.
        waited_us: Micros,
        /// Several times what measured stage times predict.
        allowed_us: Micros,
    },
    /// Results that belong to no question.
    #[error("unexpected result of ubatch {ubatch}: {what}")]
    Unexpected {
        /// The ubatch's id in the results.
        ubatch: u64,
        /// The mismatch, in words.
        what: String,
    },
}
