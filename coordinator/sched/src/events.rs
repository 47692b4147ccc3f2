//! What goes into the scheduler and what comes out: its whole vocabulary.
//!
//! The driver turns what happens into [`Event`]s, and carries out [`Action`]s. Text, sockets and JSON never
//! get here: a request is token ids. A stop string is found by whoever reads the stream's text
//! ([`crate::generation`]); to the scheduler it is a cancelled request.

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

/// One sequence that somebody wants computed. `n` completions of a prompt are `n` requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its name in every event and action about it.
    pub id: RequestId,
    /// What every process calls it in its log; several may share one.
    pub label: Arc<str>,
    /// Token ids; at least one.
    pub prompt: Vec<u32>,
    /// What is wanted of it.
    pub work: Work,
    /// What its rows pass through besides the model.
    pub adapters: Arc<[AdapterUse]>,
    /// Whose it is beside others.
    pub share: Share,
    /// Whose prompts it may begin with; `None`: its owner's.
    pub namespace: Option<Namespace>,
    /// When nobody wants it any more.
    pub deadline: Option<Micros>,
    /// Whether copies of its state are taken while it runs, where any are. Without, it is computed again after a lost
    /// line.
    pub copied: bool,
    /// The prompt of its companion, a second sequence beside whose rows its tokens are drawn; at least one token. There is one
    /// if and only if its sampler has a [`Companion`](brigade_engine::batch::Companion).
    pub companion: Option<Arc<[u32]>>,
    /// Whether its next tokens may be drafted: what its answer is expected to be like, as far as anybody says; `None`: no.
    pub drafts: Option<Arc<[u32]>>,
    /// Positions of its prompt, the more important first, at which others are likely to go on otherwise, as far as anybody
    /// says: borders of a chat's messages.
    pub borders: Arc<[u32]>,
}

impl Request {
    /// One that shows no key and asks for nothing besides: no adapters, no deadline, no copies, no companion, no drafts.
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

/// Whose a request is, and how much of the line that owner gets beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Names the owner.
    pub owner: u64,
    /// Its share of the line's rows, beside those of others.
    pub weight: u32,
    /// Whether it leaves room for other owners, because there are some.
    pub leaves_room: bool,
}

impl Default for Share {
    /// Everybody's, where nobody is told apart.
    fn default() -> Self {
        Self { owner: 0, weight: 1, leaves_room: false }
    }
}

impl Request {
    /// Where its prompt stands with others.
    pub(crate) fn namespace(&self) -> Namespace {
        self.namespace.unwrap_or_else(|| Namespace::of_owner(self.share.owner))
    }

    /// Positions that must be reserved before the request may start: prompt and what is sure of what it may
    /// generate.
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

    /// So much of the answer is there: it needs its place, and that of the next token, wherever the request begins again.
    pub(super) fn has_generated(&mut self, n: usize) {
        if let Work::Generate { sure, .. } = &mut self.work {
            *sure = (*sure).max(n as u32 + 1);
        }
    }
}

impl Request {
    /// What copies of its sequence's state are called: equal for equal requests only, on every line and in every
    /// process. `None` where only logits are wanted, and of one with a companion: two states would have to be put back.
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

/// What a request wants computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Tokens after the prompt.
    Generate {
        /// Ends with [`FinishReason::Length`] after this many; at least one.
        max_tokens: u32,
        /// Of these, those whose places are reserved before it starts. It gets the others' while there are free ones that
        /// nobody waits for, and ends with [`FinishReason::Length`] where there are none.
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

/// Which of the last norm's rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenRows {
    /// That at every position.
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

/// What the scheduler hears.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request arrives. It ends with exactly one of [`Action::Finished`], [`Action::Failed`],
    /// [`Action::Rejected`], or with a [`Event::Cancel`] and silence.
    Submit(Request),
    /// A request that another scheduler had begun, with the tokens that it had reported, fewer than all. It has its
    /// place before those that never had one, waits for a line as if one had been lost under it, and ends as after
    /// [`Event::Submit`]; its next token has the next index.
    GoOn {
        /// As it was submitted there.
        request: Request,
        /// Its tokens so far.
        generated: Vec<u32>,
        /// Mirostat's, after the last of them.
        mu: Option<f32>,
    },
    /// Nobody wants it any more: no action names this request from now on, and its places are free
    /// for the next one. Unknown ids are ignored (the request may just have ended).
    Cancel(RequestId),
    /// Rows came back from the last stage.
    Results(Results),
    /// A line of stages is loaded and empty: no sequence open, next ubatch id 0.
    LineUp {
        /// Names this incarnation of the line; later than every one before.
        epoch: u64,
        /// What it can hold.
        line: LineSpec,
    },
    /// Before [`Event::LineUp`]: positions that every stage of that line can go back to, for some of
    /// [`super::Scheduler::interrupted`].
    Restorable(BTreeMap<RequestId, u32>),
    /// The state that [`Action::Restore`] asked for is on every stage, or will not be.
    Restored {
        /// Whose.
        request: RequestId,
        /// Whether it is there.
        is_there: bool,
    },
    /// The line is about to be taken down as planned: nothing more is begun on it, and its stages are told to keep the
    /// states of their sequences. [`Action::Parted`] follows, unless the line is lost before.
    Part,
    /// The line is gone, with all it held. Whoever was on it waits for the next one and goes on there.
    LineDown {
        /// For the error message of those for whom no other comes.
        reason: String,
        /// It was taken down in order: nobody on it can be what broke it.
        planned: bool,
    },
    /// Every kept sequence is given up, but those somebody holds on to.
    ClearKept,
    /// What is kept of an owner is dropped, or all; but not what somebody holds on to.
    Forget(Option<u64>),
    /// The answer of a request that has ended calls a tool: its client comes back with the result, mostly soon. What is kept of
    /// it stays meanwhile, before all else of its owner's.
    Linger(RequestId),
    /// Somebody has read the kept sequence of [`super::Scheduler::pin_kept`], or put its state into the
    /// one of [`super::Scheduler::open_kept`]: it may be used and may go.
    KeptReady(KeptId),
    /// The state of the kept sequence of [`super::Scheduler::open_kept`] did not come.
    DropKept(KeptId),
    /// Time passed; send a few times a second. Finds ubatches that are overdue, and requests that have
    /// waited too long for another line.
    Tick,
}

/// Part or all of what one ubatch returned. A ubatch without wanted rows returns once, with none.
#[derive(Clone, Debug)]
pub struct Results {
    /// Of the line that computed them; results of an earlier epoch are ignored.
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
    /// Computing.
    pub compute_us: Micros,
    /// Waiting there for the ubatches before it.
    pub queued_us: Micros,
    /// What of the computing went into the model's own drafts.
    pub drafting_us: Micros,
}

/// What a line of stages can hold; equal on every stage, so one allocator serves them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSpec {
    /// Number of stages, at least 1.
    pub n_stages: usize,
    /// KV pages on each stage.
    pub n_blocks: u32,
    /// Sequences that may run at once.
    pub n_slots: u32,
    /// Slots beyond those, for sequences that are kept for later requests that begin alike.
    pub n_kept: u32,
    /// What of a kept sequence can begin another.
    pub prefixes: Prefixes,
    /// Positions in a KV page (the engine's `KV_PAGE`).
    pub block_positions: u32,
    /// Longest sequence, prompt and generated (`--ctx`).
    pub max_positions: u32,
    /// Most rows in a ubatch.
    pub max_rows: u32,
    /// Whether every stage knows what a companion is.
    pub companions: bool,
    /// Whether every stage knows sequences that run ahead of what was drawn.
    pub ahead: bool,
    /// Whether every stage lets sequences have more pages than they began with.
    pub grows: bool,
    /// How many tokens the model's own block drafts behind a drawn one, at most; 0: it has none, or that is not loaded.
    pub own_drafts: u32,
}

/// What the scheduler wants done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send to stage 0.
    Send(UBatch),
    /// The first tokens of a request's prompt need not be computed: a kept sequence stands for them.
    /// Comes before anything else about the request, and not at all where there is none.
    Reused {
        /// Whose.
        request: RequestId,
        /// How many.
        tokens: u32,
    },
    /// A request has a place again after its line was lost. When the ubatch that opens its slot is back, its state
    /// at a position is to be put back there on every stage; then [`Event::Restored`].
    Restore {
        /// Whose.
        request: RequestId,
        /// Where.
        slot: SlotId,
        /// What its copies are called.
        name: CopyName,
        /// Those of the positions.
        tokens: Vec<u32>,
    },
    /// A request has a place again after its line was lost, and computes again what it had before, or what of that
    /// its state has not. What was reported is not reported again: the next token has the next index.
    Replayed {
        /// Whose.
        request: RequestId,
        /// Positions that are computed again.
        tokens: u32,
    },
    /// What became of the tokens that a client had said to expect. Comes before the request's end, and not at all where it
    /// expected nothing or nothing of that was drafted.
    Expected {
        /// Whose.
        request: RequestId,
        /// Tokens that were drafted and drawn.
        right: u32,
        /// Tokens that were drafted, and others were drawn.
        wrong: u32,
    },
    /// A request's next generated token.
    Token {
        /// Whose.
        request: RequestId,
        /// Counts from 0 without gaps.
        index: u32,
        /// The token.
        token: SampledToken,
    },
    /// The row at one position of a [`Work::Logits`] or [`Work::Hidden`] request, positions ascending.
    Logits {
        /// Whose.
        request: RequestId,
        /// Position of the row's token; the row predicts the next one.
        pos: u32,
        /// `[n_vocab]`, or `[n_embd]`.
        row: Vec<f32>,
    },
    /// The request ended well.
    Finished {
        /// Which.
        request: RequestId,
        /// How.
        reason: FinishReason,
        /// Number of [`Action::Token`]s it had.
        generated: u32,
    },
    /// The request was running and cannot go on.
    Failed {
        /// Which.
        request: RequestId,
        /// Why.
        error: Unfinished,
    },
    /// The request never started and will not.
    Rejected {
        /// Which.
        request: RequestId,
        /// Why.
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

/// Why a request that ran or waited did not come to its end. It has no words: whoever tells somebody has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The line of workers it ran on is gone, and it cannot go on on another one.
    LineLost {
        /// From [`Event::LineDown`], and why it was not computed again.
        reason: String,
        /// Tokens already reported.
        generated: u32,
    },
    /// Its deadline passed.
    TooLate {
        /// Tokens already reported.
        generated: u32,
    },
    /// It waited, and its place in the full queue went to somebody who has fewer there.
    Displaced {
        /// Whole seconds until a place is likely to be free.
        retry_after_s: u64,
    },
    /// The model's output gave no token; every other request goes on.
    NoToken {
        /// From the last stage.
        reason: String,
        /// Tokens already reported.
        generated: u32,
    },
}

/// Why a request did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Try again later (HTTP 429).
    #[error("{waiting} requests are waiting already, the limit; try again in {retry_after_s} s")]
    QueueFull {
        /// Length of the queue, which is its limit.
        waiting: usize,
        /// Whole seconds until a place is likely to be free.
        retry_after_s: u64,
    },
    /// It can never run on this line (HTTP 400).
    #[error(
        "the request needs {needed} positions ({prompt} prompt tokens + {max_tokens} to generate) \
         but a sequence holds at most {limit}; shorten it or start the server with a larger --ctx"
    )]
    TooLong {
        /// Prompt plus tokens to generate.
        needed: u64,
        /// Prompt tokens.
        prompt: u64,
        /// Tokens to generate.
        max_tokens: u64,
        /// Positions that one sequence can have on this line.
        limit: u64,
    },
    /// It has a companion, and this line cannot do that (HTTP 400).
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
        /// Since it was sent.
        waited_us: Micros,
        /// Several times what measured stage times predict.
        allowed_us: Micros,
    },
    /// Results that belong to no question.
    #[error("unexpected result of ubatch {ubatch}: {what}")]
    Unexpected {
        /// As named in the results.
        ubatch: u64,
        /// What does not fit.
        what: String,
    },
}
