//! Drafts of a known quality: a recorded answer, with a chosen share of its tokens made wrong.

use std::collections::BTreeMap;

use crate::{Draft, Drafter, OwnerId, Source, StreamId};

/// Drafts the recorded answer of a stream, with each token made wrong with probability `1 - acceptance`.
///
/// The seed and the token's position in the answer decide whether a token is wrong. So it does not depend on how or
/// how often drafts are asked for. A wrong token is followed by the rest of the right answer.
#[derive(Clone, Debug)]
pub struct Forced {
    acceptance: f64,
    seed: u64,
    n_vocab: u32,
    streams: BTreeMap<StreamId, Stream>,
}

/// A stream that runs.
#[derive(Clone, Debug)]
struct Stream {
    /// The recorded answer.
    answer: Vec<u32>,
    /// Tokens of it that are sure.
    n_sure: usize,
}

impl Forced {
    /// `acceptance` is a probability; what lies outside of 0 to 1 is taken as the nearer of them. Wrong tokens are ids below
    /// `n_vocab`; with fewer than two ids no token can be wrong, and none is.
    pub fn new(acceptance: f64, seed: u64, n_vocab: u32) -> Self {
        let acceptance = acceptance.clamp(0.0, 1.0);
        Self { acceptance, seed, n_vocab, streams: BTreeMap::new() }
    }

    /// The draft of an answer's token at `pos`.
    fn drafted(&self, pos: usize, token: u32) -> u32 {
        let bits = mix(self.seed ^ mix(pos as u64));
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        if unit < self.acceptance || self.n_vocab < 2 {
            return token;
        }
        let step = 1 + mix(bits) % u64::from(self.n_vocab - 1);
        ((u64::from(token) + step) % u64::from(self.n_vocab)) as u32
    }
}

impl Drafter for Forced {
    fn begin(
        &mut self,
        id: StreamId,
        _: OwnerId,
        tokens: &[u32],
        n_prompt: usize,
        expected: &[u32],
    ) {
        let n_sure = tokens.len().saturating_sub(n_prompt);
        self.streams.insert(id, Stream { answer: expected.to_vec(), n_sure });
    }

    fn push(&mut self, id: StreamId, _: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.n_sure += 1;
        }
    }

    fn draft(&mut self, id: StreamId, ahead: &[u32], most: usize) -> Draft {
        let Some(Stream { answer, n_sure }) = self.streams.get(&id) else {
            return Draft { source: Source::Forced, ..Draft::default() };
        };
        let from = (n_sure + ahead.len()).min(answer.len());
        let rest = answer[from..].iter().take(most).enumerate();
        let tokens: Vec<u32> = rest.map(|(i, token)| self.drafted(from + i, *token)).collect();
        let odds = vec![self.acceptance as f32; tokens.len()];
        Draft { tokens, odds, source: Source::Forced, matched: from, is_proven: true }
    }

    fn judged(&mut self, _: StreamId, _: Source, _: usize, _: bool) {}

    fn end(&mut self, id: StreamId) {
        self.streams.remove(&id);
    }

    fn forget(&mut self, _: u64) {}

    fn nbytes(&self) -> u64 {
        let of = |stream: &Stream| stream.answer.capacity() * 4 + size_of::<(StreamId, Stream)>();
        self.streams.values().map(of).sum::<usize>() as u64
    }
}

/// Scatters the bits of `z` (the end of SplitMix64, Steele, Lea, Flood 2014).
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const N_VOCAB: u32 = 50;

    fn begun(answer: &[u32], acceptance: f64) -> Forced {
        let mut forced = Forced::new(acceptance, 7, N_VOCAB);
        forced.begin(StreamId(1), OwnerId::of(1), &[1, 2, 3], 3, answer);
        forced
    }

    fn answer(n: u32) -> Vec<u32> {
        (0..n).map(|i| i * 7 % N_VOCAB).collect()
    }

    #[test]
    fn the_share_of_right_tokens_is_the_acceptance() {
        let answer = answer(20_000);
        for acceptance in [0.0, 0.6, 0.9, 1.0] {
            let draft = begun(&answer, acceptance).draft(StreamId(1), &[], 20_000);
            let right = draft.tokens.iter().zip(&answer).filter(|(a, b)| a == b).count();
            let share = right as f64 / answer.len() as f64;
            assert!((share - acceptance).abs() < 0.01, "{share} for {acceptance}");
            assert!(draft.tokens.iter().all(|token| *token < N_VOCAB));
            assert_eq!(draft.odds, vec![acceptance as f32; answer.len()]);
        }
    }

    #[test]
    fn what_is_spoiled_does_not_depend_on_how_it_is_asked() {
        let answer = answer(60);
        let mut forced = begun(&answer, 0.5);
        let whole = forced.draft(StreamId(1), &[], 60).tokens;
        for (sure, token) in answer.iter().enumerate() {
            for ahead in 0..60 - sure {
                let draft = forced.draft(StreamId(1), &vec![0; ahead], 4).tokens;
                let from = sure + ahead;
                assert_eq!(draft, whole[from..(from + 4).min(60)], "{sure} sure, {ahead} ahead");
            }
            forced.push(StreamId(1), *token);
        }
        assert!(forced.draft(StreamId(1), &[], 4).tokens.is_empty());
    }

    #[test]
    fn each_stream_has_its_answer_and_goes_on_behind_what_is_sure() {
        let mut forced = begun(&[1; 8], 1.0);
        forced.begin(StreamId(9), OwnerId::of(1), &[5, 2, 2, 2], 1, &[2; 8]);
        assert_eq!(forced.draft(StreamId(1), &[], 1).tokens, [1]);
        assert_eq!(forced.draft(StreamId(9), &[], 9).tokens, [2; 5]);
        forced.end(StreamId(9));
        assert!(forced.draft(StreamId(9), &[], 9).tokens.is_empty());
    }

    #[test]
    fn odd_numbers_are_no_fault() {
        assert_eq!(begun(&[3; 4], f64::INFINITY).draft(StreamId(1), &[], 2).tokens, [3; 2]);
        assert!(begun(&[], 0.5).draft(StreamId(1), &[1], 2).tokens.is_empty());
        let mut one = Forced::new(0.0, 1, 1);
        one.begin(StreamId(1), OwnerId::of(1), &[], 3, &[0; 4]);
        assert_eq!(one.draft(StreamId(1), &[], 9).tokens, [0; 4]);
    }
}
