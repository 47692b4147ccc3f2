//! Simulated clients: what they ask and when, and whether they get what they were promised.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_engine::batch::{SamplerSetup, SamplingParams};

use super::mirror::{STOP_TOKEN, next_token};
use super::rng::{Rng, mix};
use crate::sched::{Action, FinishReason, Micros, Request, RequestId, Work};

/// One client's request.
#[derive(Clone, Debug)]
pub struct SimRequest {
    /// When it is submitted.
    pub at: Micros,
    /// Prompt tokens.
    pub prompt: u32,
    /// Tokens to generate; `None`: the prompt's logits instead.
    pub max_tokens: Option<u32>,
    /// When the client goes away, if it has not got everything by then.
    pub cancel_at: Option<Micros>,
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
        let request = SimRequest { at: 0, prompt, max_tokens: Some(max_tokens), cancel_at: None };
        Self { requests: vec![request; n], stop_every: 0 }
    }

    /// `n` requests of all kinds: short and long, bursts and pauses, stops, cancellations.
    pub fn random(seed: u64, n: usize) -> Self {
        let mut rng = Rng::new(seed);
        let (mut at, mut requests) = (0, Vec::new());
        let longest = [40, 400, 3_000][rng.between(0, 2) as usize];
        let pause = [0, 20_000, 500_000][rng.between(0, 2) as usize];
        for _ in 0..n {
            at += if rng.one_in(3) { rng.between(0, pause) } else { 0 };
            let prompt = 1 + rng.between(0, longest).min(rng.between(0, longest)) as u32;
            let max_tokens = (!rng.one_in(10)).then(|| rng.between(1, 80) as u32);
            let cancel_at = rng.one_in(5).then(|| at + rng.between(0, 2_000_000));
            requests.push(SimRequest { at, prompt, max_tokens, cancel_at });
        }
        Self { requests, stop_every: [0, 10, 60][rng.between(0, 2) as usize] }
    }
}

/// How a client's request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All it asked for.
    Finished,
    /// The line was lost under it.
    Failed,
    /// It never started.
    Rejected,
    /// The client went away.
    Cancelled,
}

/// One client and what it got so far.
#[derive(Debug)]
pub struct Client {
    /// What it asked.
    pub request: SimRequest,
    /// Prompt, then the tokens received.
    pub tokens: Vec<u32>,
    /// When each generated token (or logits row) came.
    pub received: Vec<Micros>,
    /// When and how it ended.
    pub ended: Option<(Micros, Ending)>,
    submitted: bool,
}

impl Client {
    fn new(index: usize, request: SimRequest) -> Self {
        // The first token names the client, so that a stage's sequence can be traced to it.
        let token = |i: u32| 1 + (mix((index as u64) << 32 | u64::from(i)) % 31_000) as u32;
        let tokens = (0..request.prompt).map(|i| if i == 0 { index as u32 } else { token(i) });
        let tokens = tokens.collect();
        Self { request, tokens, received: Vec::new(), ended: None, submitted: false }
    }

    fn is_live(&self) -> bool {
        self.submitted && self.ended.is_none()
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
    sampler: Arc<SamplerSetup>,
}

impl Clients {
    pub fn new(workload: &Workload) -> Self {
        let numbered = workload.requests.iter().cloned().enumerate();
        let params = SamplingParams::greedy();
        Self {
            all: numbered.map(|(i, request)| Client::new(i, request)).collect(),
            stop_every: workload.stop_every,
            sampler: Arc::new(SamplerSetup { params, seed: 0, top_logprobs: None }),
        }
    }

    pub fn submit(&mut self, index: usize) -> Request {
        let client = &mut self.all[index];
        client.submitted = true;
        let work = match client.request.max_tokens {
            None => Work::Logits,
            Some(max_tokens) => Work::Generate {
                max_tokens,
                sampler: self.sampler.clone(),
                stop_tokens: [STOP_TOKEN].into(),
            },
        };
        Request { id: RequestId(index as u64), prompt: client.tokens.clone(), work }
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
            Action::Send(_) => return Ok(()),
            Action::LineFault(fault) => return Err(format!("line fault: {fault}")),
            Action::Token { request, .. }
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

    /// Requests submitted and not ended.
    pub fn n_live(&self) -> usize {
        self.all.iter().filter(|c| c.is_live()).count()
    }

    /// Of the sequences open on the line: how many have tokens that were not sent yet.
    pub fn unsent<'a>(&self, open: impl Iterator<Item = &'a [u32]>) -> usize {
        let known = |sent: &&[u32]| {
            let client = sent.first().map(|&index| &self.all[index as usize]);
            client.is_some_and(|client| client.is_live() && client.tokens.len() > sent.len())
        };
        open.filter(known).count()
    }

    /// Of the sequences open on the line: how many are past their prompt and still wanted.
    pub fn decoding<'a>(&self, open: impl Iterator<Item = &'a [u32]>) -> usize {
        let past = |sent: &&[u32]| {
            let client = sent.first().map(|&index| &self.all[index as usize]);
            client.is_some_and(|client| {
                let generates = client.request.max_tokens.is_some();
                client.is_live() && generates && sent.len() >= client.request.prompt as usize
            })
        };
        open.filter(past).count()
    }

    /// Whether position `pos` of the sequence `tokens` on the line is past its prompt.
    pub fn is_past_prompt(&self, tokens: &[u32], pos: u32) -> bool {
        let client = tokens.first().map(|&index| &self.all[index as usize]);
        client.is_some_and(|client| pos >= client.request.prompt)
    }

    /// Endings, counted.
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
    fn take(&mut self, now: Micros, action: &Action, stop_every: u64) -> Result<(), String> {
        match action {
            Action::Token { index, token, .. } => {
                let expected = next_token(&self.tokens, stop_every);
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
                    FinishReason::Stop(_) => next_token(&self.tokens, stop_every) == STOP_TOKEN,
                    FinishReason::Length => self.request.max_tokens == Some(got),
                    FinishReason::LogitsDone => got == self.request.prompt,
                };
                check(right, || format!("ended after {got}: {reason:?}"))?;
                let counted = if self.request.max_tokens.is_some() { got } else { 0 };
                check(*generated == counted, || format!("{generated} reported, {counted} came"))?;
                self.ended = Some((now, Ending::Finished));
            }
            Action::Failed { .. } => self.ended = Some((now, Ending::Failed)),
            Action::Rejected { .. } => self.ended = Some((now, Ending::Rejected)),
            Action::Send(_) | Action::LineFault(_) => {}
        }
        Ok(())
    }
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
