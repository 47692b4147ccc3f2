//! Simulated clients: their requests, and checks that the scheduler keeps its promises to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_engine::batch::{AdapterUse, Companion, SamplerSetup, SamplingParams};

use super::mirror::OpenSequence;
use super::rng::{Rng, mix};
use super::tokens::{STOP_TOKEN, next_token};
use crate::{Action, FinishReason, Micros, Namespace, Request, RequestId, Share, Unfinished, Work};

/// First token of the first client that wants logits; tokens of others are below it.
const LOGITS_CLIENT: u32 = 1 << 20;

/// A client's request.
#[derive(Clone, Debug, Default)]
pub struct SimRequest {
    /// When it is submitted.
    pub at: Micros,
    /// The client with whose tokens the prompt begins, as far as they are known by then, and how many of them at
    /// most.
    pub after: Option<(usize, u32)>,
    /// Prompt tokens of its own, after those.
    pub prompt: u32,
    /// Tokens to generate; `None`: the prompt's logits instead.
    pub max_tokens: Option<u32>,
    /// How many of these tokens have places reserved at once; `None`: all.
    pub sure: Option<u32>,
    /// When the client goes away, if it has not got everything by then.
    pub cancel_at: Option<Micros>,
    /// The owner and its share of the line.
    pub share: Share,
    /// The namespace of kept prompts that it may begin with; `None`: its owner's.
    pub namespace: Option<Namespace>,
    /// How long after its submission it is wanted.
    pub within: Option<Micros>,
    /// Number of the adapter that its rows pass through, if they do.
    pub adapter: Option<u32>,
    /// Whether it does without copies of its state.
    pub without_copies: bool,
    /// Tokens of its companion's prompt, the same ones for all clients. Not of those that want logits.
    pub companion: Option<u32>,
    /// Whether nothing of it is drafted.
    pub without_drafts: bool,
    /// After so many of its own prompt tokens another one is likely to go on otherwise, as it says.
    pub border: Option<u32>,
}

impl SimRequest {
    /// The adapters of the request's rows.
    fn adapters(&self) -> Arc<[AdapterUse]> {
        self.adapter.into_iter().map(|adapter| AdapterUse { adapter, scale: 1.0 }).collect()
    }
}

/// All that clients do in one simulation.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Requests; their index is their id.
    pub requests: Vec<SimRequest>,
    /// A generated token ends its sequence once in this many; 0: never.
    pub stop_every: u64,
}

impl Workload {
    /// `n` equal requests at time 0.
    pub fn at_once(n: usize, prompt: u32, max_tokens: u32) -> Self {
        let request = SimRequest { prompt, max_tokens: Some(max_tokens), ..SimRequest::default() };
        Self { requests: vec![request; n], stop_every: 0 }
    }

    /// `n` conversations of `turns` turns that take turns, 5 s apart: each prompt is all that was said
    /// before and `prompt` tokens more. `keep` of the last answer's tokens are repeated as they were; a
    /// template may rewrite the others.
    pub fn chats(n: usize, turns: usize, prompt: u32, max_tokens: u32, keep: u32) -> Self {
        let requests = (0..n * turns).map(|i| {
            let turn = i / n;
            let said = (prompt + max_tokens) * turn as u32;
            SimRequest {
                at: 5_000_000 * i as u64,
                after: (turn > 0).then(|| (i - n, said - max_tokens + keep)),
                prompt: if turn > 0 { prompt + max_tokens - keep } else { prompt },
                max_tokens: Some(max_tokens),
                ..SimRequest::default()
            }
        });
        Self { requests: requests.collect(), stop_every: 0 }
    }

    /// `n` requests of all kinds: short and long, bursts and pauses, stops, cancellations, and prompts that
    /// begin as others did.
    pub fn random(seed: u64, n: usize) -> Self {
        let mut rng = Rng::new(seed);
        let (mut at, mut requests) = (0, Vec::<SimRequest>::new());
        let longest = [40, 400, 3_000][rng.between(0, 2) as usize];
        let pause = [0, 20_000, 500_000][rng.between(0, 2) as usize];
        for i in 0..n as u64 {
            at += if rng.one_in(3) { rng.between(0, pause) } else { 0 };
            let prompt = 1 + rng.between(0, longest).min(rng.between(0, longest)) as u32;
            let max_tokens = (!rng.one_in(10)).then(|| rng.between(1, 80) as u32);
            let cancel_at = rng.one_in(5).then(|| at + rng.between(0, 2_000_000));
            let other = rng.between(i.saturating_sub(8), i.saturating_sub(1)) as usize;
            let begins = rng.between(0, longest.min(800)) as u32;
            let after = (i > 0 && !rng.one_in(3)).then_some((other, begins));
            // Mostly those of the request whose tokens the prompt begins with. They are not drawn from `rng`, so that
            // its draws stay as they were before there were adapters.
            let drawn = mix(seed ^ mix(i));
            let own = (drawn % 5 < 2).then_some((drawn % 5) as u32);
            let same =
                after.filter(|_| !drawn.is_multiple_of(8)).map(|(other, _): (usize, u32)| other);
            let adapter = same.map_or(own, |other| requests[other].adapter);
            let without_copies = drawn >> 32 & 7 == 0;
            let rest = SimRequest { adapter, without_copies, ..SimRequest::default() };
            requests.push(SimRequest { at, after, prompt, max_tokens, cancel_at, ..rest });
        }
        Self { requests, stop_every: [0, 10, 60][rng.between(0, 2) as usize] }
    }

    /// The same with a companion for one in `one_in` of those that want tokens, with prompts of up to `longest` tokens.
    pub fn with_companions(mut self, seed: u64, one_in: u64, longest: u32) -> Self {
        let mut rng = Rng::new(seed ^ 0x9_01de);
        for request in self.requests.iter_mut().filter(|r| r.max_tokens.is_some()) {
            let n = rng.between(1, longest.into()) as u32;
            request.companion = rng.one_in(one_in).then_some(n);
        }
        self
    }

    /// The same with an answer for one in `one_in` of those that want tokens that is up to nine times as long, of which
    /// `sure` tokens or fewer are sure.
    pub fn open_ended(mut self, seed: u64, one_in: u64, sure: u32) -> Self {
        let mut rng = Rng::new(seed ^ 0x6_0e5);
        for request in self.requests.iter_mut().filter(|r| r.max_tokens.is_some()) {
            let n = rng.between(1, sure.into()) as u32;
            if rng.one_in(one_in) {
                request.sure = Some(n);
                request.max_tokens = request.max_tokens.map(|most| n + 8 * most);
            }
        }
        self
    }
}

/// The first `n` tokens of a companion.
fn companion_tokens(n: u32) -> Vec<u32> {
    (0..n).map(|i| 1 + (mix(0x9_01de ^ u64::from(i) << 40) % 31_000) as u32).collect()
}

/// How a client's request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All it asked for.
    Finished,
    /// The line was lost under it.
    Failed,
    /// The request was rejected and never started.
    Rejected,
    /// The client went away.
    Cancelled,
}

/// One client and what it got so far.
#[derive(Debug)]
pub struct Client {
    /// The request, as submitted.
    pub request: SimRequest,
    /// Prompt, then the tokens received.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt, those of others included.
    pub n_prompt: u32,
    /// Tokens of the prompt that the line did not compute again.
    pub reused: u32,
    /// Times that it went on after its line was lost.
    pub replays: u32,
    /// Tokens that its present line computes as a prompt: the prompt, and the tokens drawn before that line.
    n_known: u32,
    /// When each generated token (or logits row) came.
    pub received: Vec<Micros>,
    /// When and how it ended.
    pub ended: Option<(Micros, Ending)>,
    submitted: bool,
}

impl Client {
    fn new(index: usize, request: SimRequest) -> Self {
        let token = |i: u32| 1 + (mix((index as u64) << 32 | u64::from(i)) % 31_000) as u32;
        let mut tokens: Vec<u32> = (0..request.prompt).map(token).collect();
        // A stage's sequence is traced to its client by its sampler, or by this.
        if request.max_tokens.is_none() {
            tokens[0] = LOGITS_CLIENT + index as u32;
        }
        let n_prompt = request.prompt;
        let (received, ended, submitted) = (Vec::new(), None, false);
        let (reused, replays, n_known) = (0, 0, n_prompt);
        Self { request, tokens, n_prompt, reused, replays, n_known, received, ended, submitted }
    }

    fn is_live(&self) -> bool {
        self.submitted && self.ended.is_none()
    }

    /// Whether it got all it asked for, or all there was room for.
    pub fn finished(&self) -> bool {
        matches!(self.ended, Some((_, Ending::Finished)))
    }

    /// Longest time between two tokens.
    pub fn longest_gap(&self) -> Micros {
        self.received.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

/// All clients of a simulation.
#[derive(Debug)]
pub(super) struct Clients {
    pub all: Vec<Client>,
    stop_every: u64,
    /// Clients that have submitted, in order.
    submitted: Vec<usize>,
}

impl Clients {
    pub fn new(workload: &Workload) -> Self {
        let numbered = workload.requests.iter().cloned().enumerate();
        Self {
            all: numbered.map(|(i, request)| Client::new(i, request)).collect(),
            stop_every: workload.stop_every,
            submitted: Vec::new(),
        }
    }

    pub fn submit(&mut self, now: Micros, index: usize) -> Request {
        self.submitted.push(index);
        let begin = match self.all[index].request {
            SimRequest { after: Some((other, n)), max_tokens: Some(_), .. }
                if self.all[other].request.max_tokens.is_some() =>
            {
                let said = &self.all[other].tokens;
                said[..said.len().min(n as usize)].to_vec()
            }
            _ => Vec::new(),
        };
        let client = &mut self.all[index];
        client.submitted = true;
        client.tokens.splice(..0, begin);
        client.n_prompt = client.tokens.len() as u32;
        client.n_known = client.n_prompt;
        let (params, seed) = (SamplingParams::greedy(), index as u64);
        let work = match client.request.max_tokens {
            None => Work::Logits,
            Some(max_tokens) => Work::Generate {
                max_tokens,
                sure: client.request.sure.unwrap_or(max_tokens),
                sampler: Arc::new(SamplerSetup {
                    params,
                    seed,
                    top_logprobs: None,
                    companion: client.request.companion.map(|_| Companion { scale: 2.0 }),
                    ..SamplerSetup::default()
                }),
                stop_tokens: [STOP_TOKEN].into(),
            },
        };
        let label = format!("client {index}").into();
        let SimRequest { share, namespace, within, .. } = client.request;
        let deadline = within.map(|within| now + within);
        let (id, prompt) = (RequestId(index as u64), client.tokens.clone());
        let adapters = client.request.adapters();
        let companion = client.request.companion.map(|n| companion_tokens(n).into());
        let copied = !client.request.without_copies;
        let drafts = (!client.request.without_drafts).then(|| [].into());
        let begin = client.n_prompt - client.request.prompt.min(client.n_prompt);
        let borders = client.request.border.map(|at| begin + at).into_iter().collect();
        Request {
            id,
            label,
            prompt,
            work,
            adapters,
            share,
            namespace,
            deadline,
            copied,
            companion,
            drafts,
            borders,
        }
    }

    /// The client goes away; whether it was still waiting for something.
    pub fn cancel(&mut self, now: Micros, index: usize) -> bool {
        let waiting = self.all[index].is_live();
        if waiting {
            self.all[index].ended = Some((now, Ending::Cancelled));
        }
        waiting
    }

    /// Checks an action that concerns a client.
    pub fn observe(&mut self, now: Micros, action: &Action) -> Result<(), String> {
        let id = match action {
            Action::Send(_) | Action::Parted => return Ok(()),
            Action::LineFault(fault) => return Err(format!("line fault: {fault}")),
            Action::Reused { request, .. }
            | Action::Replayed { request, .. }
            | Action::Restore { request, .. }
            | Action::Expected { request, .. }
            | Action::Token { request, .. }
            | Action::Logits { request, .. }
            | Action::Finished { request, .. }
            | Action::Failed { request, .. }
            | Action::Rejected { request, .. } => request.0,
        };
        let client = &mut self.all[id as usize];
        if !client.is_live() {
            return Err(format!("client {id} is not waiting for {action:?}"));
        }
        let what = client.take(now, action, self.stop_every);
        what.map_err(|what| format!("client {id}: {what}"))
    }

    /// Whether a request has not ended.
    pub fn waits(&self, request: RequestId) -> bool {
        self.all.get(request.0 as usize).is_some_and(Client::is_live)
    }

    /// Requests submitted and not ended.
    pub fn n_live(&self) -> usize {
        self.all.iter().filter(|c| c.is_live()).count()
    }

    /// The client of an open sequence; `None` once it is served.
    fn client_of(&self, open: OpenSequence<'_>) -> Option<&Client> {
        let first = open.tokens.first().and_then(|token| token.checked_sub(LOGITS_CLIENT));
        let index = open.seed.or(first.map(u64::from))?;
        self.all.get(index as usize).filter(|client| client.is_live())
    }

    /// How many of the sequences open on the line have clients that still wait for them.
    pub fn served<'a>(&self, open: impl Iterator<Item = OpenSequence<'a>>) -> usize {
        open.filter(|open| self.client_of(*open).is_some()).count()
    }

    /// How many of the sequences open on the line have tokens that were not sent yet.
    pub fn unsent<'a>(&self, open: impl Iterator<Item = OpenSequence<'a>>) -> usize {
        let known = |open: &OpenSequence<'_>| {
            let client = self.client_of(*open);
            client.is_some_and(|client| client.tokens.len() > open.tokens.len())
        };
        open.filter(known).count()
    }

    /// How many of the sequences open on the line are past their prompt and still wanted.
    pub fn decoding<'a>(&self, open: impl Iterator<Item = OpenSequence<'a>>) -> usize {
        let past = |open: &OpenSequence<'_>| {
            self.client_of(*open).is_some_and(|client| {
                client.request.max_tokens.is_some() && open.tokens.len() >= client.n_known as usize
            })
        };
        open.filter(past).count()
    }

    /// Whether position `pos` of a sequence on the line is past what was known when it got its place.
    pub fn is_past_prompt(&self, open: Option<OpenSequence<'_>>, pos: u32) -> bool {
        open.and_then(|open| self.client_of(open)).is_some_and(|client| pos >= client.n_known)
    }

    /// The pages and slots that live clients need. Some of them wait, in this order. Counted are the needs of the
    /// others, and of the first one that waits for a place.
    pub fn demand(
        &self,
        waiting: &[(RequestId, Option<RequestId>)],
        page: u32,
    ) -> Option<[(u64, u64); 2]> {
        let needs = |client: &Client| {
            let generated = client.request.max_tokens.unwrap_or(0);
            let so_far = client.received.len() as u32 + 1;
            let generated = client.request.sure.map_or(generated, |sure| sure.max(so_far));
            let pages = |prompt: u32| u64::from(prompt + generated).div_ceil(page.into());
            let companion = client.request.companion;
            (
                pages(client.n_prompt) + companion.map_or(0, pages),
                1 + u64::from(companion.is_some()),
            )
        };
        let waits = |index: usize| waiting.iter().any(|(id, _)| id.0 == index as u64);
        let live = self.submitted.iter().filter(|&&i| self.all[i].is_live() && !waits(i));
        let running: Vec<(u64, u64)> = live.map(|&i| needs(&self.all[i])).collect();
        let (next, _) = waiting.iter().find(|(_, reader)| reader.is_none())?;
        let sum = |of: fn(&(u64, u64)) -> u64| running.iter().map(of).sum();
        Some([(sum(|n| n.0), sum(|n| n.1)), needs(self.all.get(next.0 as usize)?)])
    }

    /// Checks that each held request shares a beginning, the namespace and the adapters with the request for which it
    /// waits.
    pub fn check_holds(&self, waiting: &[(RequestId, Option<RequestId>)]) -> Result<(), String> {
        for (id, reader) in waiting {
            let Some(reader) = reader else { continue };
            let [waits, reads] = [id, reader].map(|id| &self.all[id.0 as usize]);
            let shared = waits.tokens.iter().zip(&reads.tokens).take_while(|(a, b)| a == b).count();
            let of = |client: &Client| {
                let SimRequest { share, namespace, adapter, .. } = client.request;
                (namespace.unwrap_or_else(|| Namespace::of_owner(share.owner)), adapter)
            };
            check(reads.is_live() && of(waits) == of(reads) && shared > 0, || {
                format!("{id:?} waits for {reader:?}, with which it shares {shared} tokens")
            })?;
            check(reads.received.is_empty() || reads.replays > 0, || {
                format!("{id:?} waits for {reader:?}, which has read its prompt")
            })?;
        }
        Ok(())
    }

    /// The number of clients for each kind of ending.
    pub fn endings(&self) -> Result<BTreeMap<&'static str, usize>, String> {
        let mut counts = BTreeMap::new();
        for (index, client) in self.all.iter().enumerate() {
            let Some((_, ending)) = client.ended else {
                return Err(format!("client {index} got no end: {:?}", client.request));
            };
            let name = match ending {
                Ending::Finished => "finished",
                Ending::Failed => "failed",
                Ending::Rejected => "rejected",
                Ending::Cancelled => "cancelled",
            };
            *counts.entry(name).or_insert(0) += 1;
        }
        Ok(counts)
    }
}

impl Client {
    /// The token that comes next.
    fn next(&self, stop_every: u64) -> u32 {
        let companion = self
            .request
            .companion
            .map(companion_tokens)
            .map(|prompt| [prompt.as_slice(), &self.tokens[self.n_prompt as usize..]].concat());
        let both = [self.tokens.as_slice(), &companion.unwrap_or_default()].concat();
        next_token(&both, &self.request.adapters(), stop_every)
    }

    fn take(&mut self, now: Micros, action: &Action, stop_every: u64) -> Result<(), String> {
        match action {
            Action::Reused { tokens, .. } => {
                let generates = self.request.max_tokens.is_some();
                let due = generates && self.reused == 0 && self.received.is_empty();
                check(due && (1..self.n_prompt).contains(tokens), || format!("{tokens} reused"))?;
                self.reused = *tokens;
            }
            Action::Replayed { tokens, .. } => {
                self.replays += 1;
                self.n_known = self.tokens.len() as u32;
                check(*tokens <= self.n_known, || format!("{tokens} replayed"))?;
            }
            Action::Expected { .. } => {}
            Action::Restore { tokens, .. } => {
                let known = self.tokens.starts_with(tokens) && tokens.len() < self.tokens.len();
                check(known, || format!("goes back to {} tokens", tokens.len()))?;
            }
            Action::Token { index, token, .. } => {
                let expected = self.next(stop_every);
                check(token.id == expected, || format!("token {} for {expected}", token.id))?;
                let due = self.received.len() as u32;
                check(*index == due, || format!("token {index} came as number {due}"))?;
                self.tokens.push(token.id);
                self.received.push(now);
            }
            Action::Logits { pos, .. } => {
                let due = self.received.len() as u32;
                check(*pos == due, || format!("row {pos} came as number {due}"))?;
                self.received.push(now);
            }
            Action::Finished { reason, generated, .. } => {
                let got = self.received.len() as u32;
                let right = match reason {
                    FinishReason::Stop(_) => self.next(stop_every) == STOP_TOKEN,
                    // Beyond the assured room, others may have left none.
                    FinishReason::Length => match self.request.sure {
                        Some(sure) => got > sure && Some(got) <= self.request.max_tokens,
                        None => self.request.max_tokens == Some(got),
                    },
                    FinishReason::LogitsDone => got == self.n_prompt,
                };
                check(right, || format!("ended after {got}: {reason:?}"))?;
                let counted = if self.request.max_tokens.is_some() { got } else { 0 };
                check(*generated == counted, || format!("{generated} reported, {counted} came"))?;
                self.ended = Some((now, Ending::Finished));
            }
            Action::Failed { error: Unfinished::Displaced { .. }, .. } => {
                check(self.received.is_empty(), || "it had a place and was displaced".to_string())?;
                self.ended = Some((now, Ending::Rejected));
            }
            Action::Failed { error: Unfinished::TooLate { .. }, .. } => {
                let due = self.request.within.map(|within| self.request.at + within);
                check(due.is_some_and(|due| due <= now), || "too late too early".to_string())?;
                self.ended = Some((now, Ending::Failed));
            }
            Action::Failed { error, .. } => {
                // At least two lost lines were replayed in any case.
                check(self.replays >= 2, || {
                    format!("failed after {} replays: {error:?}", self.replays)
                })?;
                self.ended = Some((now, Ending::Failed));
            }
            Action::Rejected { .. } => self.ended = Some((now, Ending::Rejected)),
            Action::Send(_) | Action::Parted | Action::LineFault(_) => {}
        }
        Ok(())
    }
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
