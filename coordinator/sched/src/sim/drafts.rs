//! A drafter that knows the next tokens of the simulated stages, with a given share of errors.

use std::collections::BTreeMap;

use brigade_draft::{Draft, Drafter, OwnerId, Source, StreamId};

use super::rng::mix;
use super::tokens::{STOP_TOKEN, next_token};

/// Knows the right tokens of requests without adapters and companions; others never get a right one.
#[derive(Debug)]
pub(super) struct Oracle {
    odds: f64,
    seed: u64,
    stop_every: u64,
    streams: BTreeMap<StreamId, Vec<u32>>,
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
        self.streams.insert(stream, tokens.to_vec());
    }

    fn push(&mut self, stream: StreamId, token: u32) {
        self.streams.entry(stream).or_default().push(token);
    }

    fn draft(&mut self, stream: StreamId, ahead: &[u32], most: usize) -> Draft {
        let mut tokens = self.streams.get(&stream).cloned().unwrap_or_default();
        tokens.extend_from_slice(ahead);
        let mut draft = Draft { source: Source::Forced, is_proven: true, ..Draft::default() };
        for _ in 0..most {
            let mut token = next_token(&tokens, &[], self.stop_every);
            if token == STOP_TOKEN {
                break;
            }
            if !self.is_right(stream, tokens.len()) {
                token += 1;
            }
            tokens.push(token);
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
