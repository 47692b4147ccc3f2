//! Turns validated requests into choices. It submits all sequences of a request, then either collects their whole
//! texts or passes the pieces on as they come.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use brigade_engine::batch::{AdapterUse, Constraint};
use brigade_line::adapters::AdapterWish;
use brigade_line::generation::{End, EndReason, Generation, Part, TokenPiece};
use brigade_line::handle::{Failure, FinishReason, Lingering, RequestId, Sequence};
use brigade_line::journal::Drawn;
use brigade_line::request::{Drawing, Request};

use crate::answer::types::{CompletionDetails, FinishWord, PromptDetails, Timings, Usage};
use crate::app::App;
use crate::clients::name::Name;
use crate::clients::usage::RequestUsage;
use crate::error::ApiError;
use crate::events::resumable::Resumable;
use crate::request::params::Common;

/// A finished choice, with its text unparsed.
#[derive(Debug)]
pub struct Choice {
    /// All of its text.
    pub text: String,
    /// The choice's tokens, without those of a stop string.
    pub tokens: Vec<TokenPiece>,
    /// How it ended, with its counts.
    pub end: End,
}

/// Counts summed over the choices that have ended: prompt tokens reused, and tokens computed twice.
#[derive(Debug, Default)]
pub struct Ended {
    /// Prompt tokens that were not computed, by prompt: of several choices of a prompt, what all of them were
    /// spared.
    reused: Vec<Option<u32>>,
    recomputed: u32,
    /// Counts of all choices, as in [`End::expected`].
    expected: [u32; 2],
    numerics_changed: bool,
}

impl Ended {
    /// A choice of prompt number `prompt` ended.
    pub fn note(&mut self, prompt: usize, end: &End) {
        if self.reused.len() <= prompt {
            self.reused.resize(prompt + 1, None);
        }
        let least = &mut self.reused[prompt];
        *least = Some(least.map_or(end.n_reused, |n| n.min(end.n_reused)));
        self.recomputed = self.recomputed.saturating_add(end.n_recomputed);
        for (sum, n) in self.expected.iter_mut().zip(end.expected) {
            *sum = sum.saturating_add(n);
        }
        self.numerics_changed |= end.numerics_changed;
    }

    /// The counts of a request with so many prompt tokens and drawn tokens.
    pub fn usage(&self, prompt_tokens: u32, completion_tokens: u32) -> Usage {
        let cached_tokens = self.reused.iter().flatten().sum();
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens },
            completion_tokens_details: CompletionDetails::of(self.expected),
            recomputed_tokens: self.recomputed,
            numerics_changed: self.numerics_changed,
        }
    }
}

/// A sequence of a request, which counts what it does.
#[derive(Debug)]
pub struct Running {
    generation: Generation,
    usage: Arc<RequestUsage>,
    /// Tokens that are counted.
    drawn: usize,
    /// Rows that each of them is.
    rows_each: u64,
}

impl Running {
    /// Shows these control tokens in the text too. Parsers know what they mean.
    pub fn show(&mut self, markers: Arc<[u32]>) {
        self.generation.show(markers);
    }

    /// A handle that asks the line to keep the sequence's state for a while.
    pub fn lingering(&self) -> Lingering {
        self.generation.lingering()
    }

    /// Ends the sequence before its natural end, when the answer is already complete.
    pub fn stop(self) -> End {
        let Self { generation, usage, drawn, rows_each } = self;
        let end = generation.stop();
        usage.ended(drawn, &end, rows_each);
        end
    }

    /// The next part of the text; counts it in the request's usage.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part, Failure>> {
        let part = ready!(self.generation.poll_next(cx));
        match &part {
            Ok(Part::Piece(piece)) => {
                self.drawn += piece.tokens.len();
                self.usage.drew(piece.tokens.len(), self.rows_each);
            }
            Ok(Part::End(end)) => {
                self.usage.ended(self.drawn, end, self.rows_each);
                let (sequence, generated) = (self.generation.id().0, end.n_generated);
                tracing::debug!(sequence, generated, "sequence ended");
            }
            Err(failure) => self.usage.failed(failure),
        }
        Poll::Ready(part)
    }
}

impl Chosen for Running {
    type Part = Part;

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part, Failure>> {
        self.poll_next(cx)
    }

    fn is_last(part: &Part) -> bool {
        matches!(part, Part::End(_))
    }
}

/// Submits `common.n` sequences for each prompt, under the HTTP request's name. If one is refused,
/// all are dropped. Sequences of a `resumable` request go on where they were.
pub async fn submit(
    app: &App,
    name: &Name,
    prompts: &[Vec<u32>],
    common: &Common,
    top_logprobs: Option<u32>,
    resumable: Option<&Resumable>,
) -> Result<Vec<Running>, ApiError> {
    let stop_tokens = if common.stop_at_eog { app.text.eog() } else { Arc::from([]) };
    let adapters = app.adapters_of(common.lora.as_deref())?;
    let (share, force) = (name.usage.share(), name.usage.force());
    let namespace = name.usage.namespace();
    let namespace = match &common.cache_salt {
        Some(salt) => namespace.salted(salt),
        None => namespace,
    };
    let mut requests = Vec::new();
    for tokens in prompts {
        for i in 0..common.n {
            let drawing = Drawing {
                max_tokens: common.max_tokens,
                params: common.params.clone(),
                seed: common.seed.wrapping_add(i as u64),
                top_logprobs,
                stop_tokens: stop_tokens.clone(),
                ends: app.text.eog(),
                min_tokens: common.min_tokens,
                constraint: common
                    .constraint
                    .clone()
                    .map(|held| Constraint { owner: share.owner, ..held }),
                companion: common.companion.of_drawing(),
                drafts: common.drafts.clone(),
                borders: common.borders.clone(),
            };
            let request = Request::generate(tokens.clone(), drawing, &app.limits.now())?;
            let request = request.adapted(adapters.clone()).with_copies(common.checkpoint);
            let request = request.in_namespace(namespace).named(&name.id);
            requests.push(request.owned(share, force.clone(), common.within));
        }
    }
    let mut generations = Vec::new();
    for (i, request) in requests.into_iter().enumerate() {
        let (n_prompt, n_rows) = (request.tokens.len(), request.prompt_rows());
        let rows_each = request.rows_per_token();
        let sequence = sequence(app, request, resumable, i).await?;
        let generation = Generation::new(app.text.clone(), sequence, &common.stops)?;
        name.usage.submitted(n_prompt, n_rows);
        generations.push(Running { generation, usage: name.usage.clone(), drawn: 0, rows_each });
    }
    Ok(generations)
}

/// Submits sequence number `i` of a request, unless it is over already.
async fn sequence(
    app: &App,
    request: Request,
    resumable: Option<&Resumable>,
    i: usize,
) -> Result<Sequence, ApiError> {
    let id = app.next_id();
    let Some(resumable) = resumable else { return Ok(app.engine.submit(id, request).await?) };
    if let Some(Drawn { tokens, finish, .. }) = resumable.drawn(i) {
        // Its last token may have been noted, and its end not.
        let is_long = tokens.len() >= request.max_tokens() as usize;
        let finish = finish.clone().or(is_long.then_some(FinishReason::Length));
        if let Some(reason) = finish {
            return Ok(Sequence::ended(id, tokens.clone(), reason));
        }
    }
    Ok(app.engine.submit_with(id, request, resumable.past(i)).await?)
}

/// Waits for the end of a choice. The other choices go on running: their channels hold everything that they draw.
pub async fn collect(mut generation: Running) -> Result<Choice, Failure> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    loop {
        match poll_fn(|cx| generation.poll_next(cx)).await? {
            Part::Piece(piece) => {
                text.push_str(&piece.text);
                tokens.extend(piece.tokens);
            }
            Part::End(end) => return Ok(Choice { text, tokens, end }),
        }
    }
}

/// One of several choices that are drawn at once.
pub trait Chosen {
    /// The parts that a choice yields.
    type Part;

    /// The answer's next part; not called again behind the last one.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Self::Part, Failure>>;

    /// Whether nothing comes behind this part.
    fn is_last(part: &Self::Part) -> bool;
}

/// The number of a choice, with its next part or the failure that ended it.
type OfChoice<C> = (usize, Result<<C as Chosen>::Part, Failure>);

/// All choices of a request as one stream. Dropping it cancels what still runs.
#[derive(Debug)]
pub struct Choices<C> {
    /// `None`: its last part has come.
    open: Vec<Option<C>>,
    /// The one that is asked first: they take turns.
    first: usize,
}

impl<C: Chosen> Choices<C> {
    /// The parts of these.
    pub fn of(choices: Vec<C>) -> Self {
        Self { open: choices.into_iter().map(Some).collect(), first: 0 }
    }

    /// The next part of any choice, with the choice's number; `None` behind the last part of all, or a failure.
    pub async fn next(&mut self) -> Option<OfChoice<C>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<OfChoice<C>>> {
        let n = self.open.len();
        let turns = (self.first..n).chain(0..self.first);
        let mut is_open = false;
        for index in turns {
            let Some(choice) = &mut self.open[index] else { continue };
            is_open = true;
            let Poll::Ready(part) = choice.poll_part(cx) else { continue };
            self.first = (index + 1) % n;
            match &part {
                Ok(part) if C::is_last(part) => self.open[index] = None,
                Ok(_) => {}
                Err(_) => self.open.fill_with(|| None),
            }
            return Poll::Ready(Some((index, part)));
        }
        if is_open { Poll::Pending } else { Poll::Ready(None) }
    }
}

/// The word for why a choice ended.
pub fn finish_word(end: &End) -> FinishWord {
    match end.reason {
        EndReason::Stop => FinishWord::Stop,
        EndReason::Length => FinishWord::Length,
    }
}

/// Times of a choice.
pub fn timings(n_prompt: usize, end: &End) -> Timings {
    let per_second = |n: f64, s: f64| if s > 0.0 { n / s } else { 0.0 };
    let (first, after) = (end.to_first.as_secs_f64(), end.after_first.as_secs_f64());
    let prompt_n = (n_prompt as u32).saturating_sub(end.n_reused);
    Timings {
        cache_n: end.n_reused,
        prompt_n,
        prompt_ms: first * 1e3,
        prompt_per_second: per_second(f64::from(prompt_n), first),
        predicted_n: end.n_generated,
        predicted_ms: after * 1e3,
        predicted_per_second: per_second(f64::from(end.n_generated.saturating_sub(1)), after),
    }
}

impl App {
    /// A number no other sequence of this server has.
    pub(crate) fn next_id(&self) -> RequestId {
        let counter = &self.door.sequences;
        RequestId(counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    /// The adapters that a request asks for; `None` where it says nothing.
    ///
    /// # Errors
    /// One that is not here.
    pub(crate) fn adapters_of(
        &self,
        wishes: Option<&[AdapterWish]>,
    ) -> Result<Option<Arc<[AdapterUse]>>, ApiError> {
        let resolved = wishes.map(|wishes| self.adapters.resolve(wishes)).transpose();
        resolved.map_err(|error| ApiError::field("lora", error.to_string()))
    }
}
