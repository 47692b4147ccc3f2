//! A drafter that knows the next tokens of the simulated stages, with a given share of errors.

use std::collections::BTreeMap;

use brigade_draft::{Draft, Drafter, OwnerId, Source, StreamId};

use super::rng::mix;
use super::tokens::{Chain, STOP_TOKEN};

/// Knows the right tokens of requests without adapters and companions; others never get a right one.
#[derive(Debug)]
pub(super) struct Oracle {
    odds: f64,
    seed: u64,
    stop_every: u64,
    streams: BTreeMap<StreamId, Known>,
}

/// What is known of a stream: what decides its next token, and how many tokens it has.
#[derive(Debug, Clone, Copy)]
struct Known {
    chain: Chain,
    len: usize,
}

impl Known {
    fn of(tokens: &[u32]) -> Self {
        Self { chain: Chain::of(tokens, &[]), len: tokens.len() }
    }

    fn push(&mut self, token: u32) {
        self.chain.push(token);
        self.len += 1;
    }
}

impl Oracle {
    /// One whose drafts are right with probability `odds`.
    pub fn new(odds: f64, seed: u64, stop_every: u64) -> Self {
        Self { odds, seed, stop_every, streams: BTreeMap::new() }
    }

    /// Whether the draft for a position is to be right.
    fn is_right(&self, stream: StreamId, pos: usize) -> bool {
        let hash = mix(self.seed ^ mix(stream.0 ^ mix(pos as u64)));
        (hash as f64) < self.odds * u64::MAX as f64
    }
}

impl Drafter for Oracle {
    fn begin(&mut self, stream: StreamId, _: OwnerId, tokens: &[u32], _: usize, _: &[u32]) {
        self.streams.insert(stream, Known::of(tokens));
    }

    fn push(&mut self, stream: StreamId, token: u32) {
        self.streams.entry(stream).or_insert_with(|| Known::of(&[])).push(token);
    }

    fn draft(&mut self, stream: StreamId, ahead: &[u32], most: usize) -> Draft {
        let mut known = self.streams.get(&stream).copied().unwrap_or_else(|| Known::of(&[]));
        ahead.iter().for_each(|&token| known.push(token));
        let mut draft = Draft { source: Source::Forced, is_proven: true, ..Draft::default() };
        for _ in 0..most {
            let mut token = known.chain.next(self.stop_every);
            if token == STOP_TOKEN {
                break;
            }
            if !self.is_right(stream, known.len) {
                token += 1;
            }
            known.push(token);
            draft.tokens.push(token);
            draft.odds.push(self.odds as f32);
        }
        draft
    }

    fn judged(&mut self, _: StreamId, _: Source, _: usize, _: bool) {}

    fn end(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    fn forget(&mut self, _: u64) {}

    fn nbytes(&self) -> u64 {
        0
    }
}
