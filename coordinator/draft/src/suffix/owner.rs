//! The memory of an owner: recent answers, and the accuracy of its drafts.

use super::calibration::Calibration;
use super::cursor::{Context, DEPTH, Part};
use super::filter::{Filter, MAX_ANSWERS};
use super::index::Index;

/// Tokens of the shortest answer that is kept.
const MIN_ANSWER: usize = 4;

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// The end of the prompt, which is compared and never drafted, and the answer.
    tokens: Vec<u32>,
    /// Where the answer begins.
    base: usize,
    /// The index of the answer's places.
    index: Index,
    last_use: u64,
    /// The answer's bit in the owner's filter.
    bit: u32,
}

impl Answer {
    /// The answer at the end of `tokens`, behind a prompt of `n_prompt`; `None` where it is too short. `index` has all
    /// of its places, or is empty.
    pub fn new(tokens: &[u32], n_prompt: usize, mut index: Index) -> Option<Self> {
        if tokens.len() < n_prompt + MIN_ANSWER {
            return None;
        }
        let base = n_prompt.min(DEPTH);
        let tokens = tokens[n_prompt - base..].to_vec();
        if index.nbytes() == 0 {
            (base..tokens.len()).for_each(|_| index.add_newest(&tokens, base));
        }
        index.shrink();
        Some(Self { tokens, base, index, last_use: 0, bit: 0 })
    }

    /// Bytes held, with the place among its owner's answers.
    fn nbytes(&self) -> usize {
        size_of::<Self>() + self.tokens.capacity() * size_of::<u32>() + self.index.nbytes()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn n_places(&self) -> usize {
        self.tokens.len() - self.base
    }

    /// The tokens before each of its places.
    fn contexts(&self) -> impl Iterator<Item = &[u32]> {
        (self.base..self.tokens.len()).map(|next| &self.tokens[..next])
    }
}

/// For each bit of the filter: an answer's number.
type Bits = [u8; MAX_ANSWERS];

/// Recent answers of an owner, and the accuracy of its drafts.
#[derive(Debug)]
pub struct Owner {
    /// The owner's recent answers, the newest last.
    answers: Vec<Answer>,
    filter: Filter,
    /// For each bit of the filter: the answer that has it.
    by_bit: Bits,
    n_places: usize,
    answer_bytes: usize,
    /// How often `answers` changed: places in them that were found before are void.
    pub changes: u64,
    n_uses: u64,
    /// The number of running streams.
    pub n_streams: usize,
    /// Bytes of its streams.
    pub stream_bytes: usize,
    pub seen: Calibration,
}

impl Default for Owner {
    fn default() -> Self {
        Self {
            answers: Vec::new(),
            filter: Filter::default(),
            by_bit: [0; MAX_ANSWERS],
            n_places: 0,
            answer_bytes: 0,
            changes: 0,
            n_uses: 0,
            n_streams: 0,
            stream_bytes: 0,
            seen: Calibration::default(),
        }
    }
}

impl Owner {
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Bytes of its answers, and of what finds them.
    pub fn answer_bytes(&self) -> usize {
        self.answer_bytes + self.filter.nbytes()
    }

    /// Bytes that keeping an answer would take.
    pub fn bytes_to_keep(&self, answer: &Answer) -> usize {
        let filter = Filter::bytes_for(self.n_places + answer.n_places());
        answer.nbytes() + filter.saturating_sub(self.filter.nbytes())
    }

    /// Whether there is nothing of it.
    pub fn is_idle(&self) -> bool {
        self.n_streams == 0 && self.answers.is_empty()
    }

    /// The owner's answers that may have what `context` ends with, the newest first.
    pub fn parts(&self, context: &Context) -> impl Iterator<Item = Part<'_>> + Clone {
        let mut mask = self.filter.answers(context.tokens());
        let (mut texts, mut n) = ([0; MAX_ANSWERS], 0);
        while mask != 0 {
            texts[n] = self.by_bit[mask.trailing_zeros() as usize];
            (mask, n) = (mask & (mask - 1), n + 1);
        }
        texts[..n].sort_unstable();
        texts.into_iter().take(n).rev().map(|text| {
            let answer = &self.answers[usize::from(text)];
            Part {
                text: u32::from(text),
                tokens: &answer.tokens,
                index: &answer.index,
                base: answer.base,
            }
        })
    }

    /// Keeps an answer. There are fewer than [`MAX_ANSWERS`].
    pub fn keep(&mut self, mut answer: Answer) {
        let taken = self.answers.iter().fold(0u64, |taken, answer| taken | 1 << answer.bit);
        answer.bit = taken.trailing_ones().min(MAX_ANSWERS as u32 - 1);
        self.n_uses += 1;
        answer.last_use = self.n_uses;
        self.n_places += answer.n_places();
        self.answer_bytes += answer.nbytes();
        self.answers.reserve_exact(1);
        self.answers.push(answer);
        self.number();
        let mut new = &self.answers[self.answers.len() - 1..];
        if Filter::bytes_for(self.n_places) > self.filter.nbytes() {
            // Free the old one first: both together might be more than was asked for.
            self.filter = Filter::default();
            self.filter = Filter::new(self.n_places);
            new = &self.answers;
        }
        for answer in new {
            answer.contexts().for_each(|context| self.filter.add(context, answer.bit));
        }
    }

    /// The answers have other numbers than before.
    fn number(&mut self) {
        self.changes += 1;
        for (text, answer) in self.answers.iter().enumerate() {
            self.by_bit[answer.bit as usize] = text as u8;
        }
    }

    /// An answer was drafted from.
    pub fn used(&mut self, text: u32) {
        self.n_uses += 1;
        self.answers[text as usize].last_use = self.n_uses;
    }

    /// Drops the answer whose last use is longest ago; there must be one.
    pub fn drop_oldest(&mut self) {
        let oldest = (0..self.answers.len()).min_by_key(|i| self.answers[*i].last_use);
        let answer = self.answers.remove(oldest.expect("asked for an owner that has answers"));
        self.answers.shrink_to_fit();
        self.n_places -= answer.n_places();
        self.answer_bytes -= answer.nbytes();
        self.number();
        if self.answers.is_empty() {
            self.filter = Filter::default()
        } else {
            answer.contexts().for_each(|context| self.filter.remove(context, answer.bit))
        }
    }

    /// Bytes of its answers, counted anew; the filter must be as if it were made anew too.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        assert_eq!(self.answers.len(), self.answers.capacity());
        let mut filter = self.filter.emptied();
        for answer in &self.answers {
            answer.contexts().for_each(|context| filter.add(context, answer.bit));
        }
        assert_eq!(filter, self.filter);
        self.answers.iter().map(Answer::nbytes).sum::<usize>() + self.filter.nbytes()
    }
}
