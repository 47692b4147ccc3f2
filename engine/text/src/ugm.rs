//! Unigram tokenizers (T5): the text is normalised, then cut along the path of tokens with the best sum of
//! scores. The time is linear in the text plus the number of token occurrences in it.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

use super::TextError;
use super::charsmap::Charsmap;
use super::vocab::{Vocab, VocabData, attr};

/// Difference by which an unknown character scores below the worst token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Automata over token texts, and the normaliser.
pub(super) struct Ugm {
    /// Pattern `i` is the text of `matchable[i]`.
    tokens: AhoCorasick,
    matchable: Vec<u32>,
    /// Texts that normalisation passes through untouched.
    user_defined: Option<AhoCorasick>,
    charsmap: Charsmap,
    merge_spaces: bool,
    unknown_score: f64,
}

/// The best way to reach a position.
#[derive(Clone, Copy)]
struct Step {
    id: u32,
    from: usize,
    score: f64,
}

impl Ugm {
    /// Builds the automata of the tokens and their scores.
    pub fn new(vocab: &Vocab, data: &VocabData) -> Result<Self, TextError> {
        let all = 0..vocab.len() as u32;
        let min_score = all
            .clone()
            .filter(|&id| vocab.has(id, attr::NORMAL))
            .map(|id| vocab.scores[id as usize])
            .fold(f32::MAX, f32::min);
        let mut seen = HashSet::new();
        // Of tokens with equal texts the last one counts.
        let matchable: Vec<u32> = all
            .clone()
            .rev()
            .filter(|&id| vocab.has(id, attr::NORMAL | attr::USER | attr::UNUSED))
            .filter(|&id| seen.insert(vocab.texts[id as usize].as_str()))
            .collect();
        let text = |&id: &u32| vocab.texts[id as usize].as_str();
        let build_error = |e| TextError::BadVocab(format!("tokenizer.ggml.tokens: {e}"));
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(matchable.iter().map(text))
            .map_err(build_error)?;
        let user: Vec<u32> = all.filter(|&id| vocab.has(id, attr::USER)).collect();
        let user_defined = if user.is_empty() {
            None
        } else {
            Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .start_kind(StartKind::Anchored)
                    .build(user.iter().map(text))
                    .map_err(build_error)?,
            )
        };
        Ok(Self {
            tokens,
            matchable,
            user_defined,
            charsmap: Charsmap::new(&data.charsmap)?,
            merge_spaces: data.flags.remove_extra_whitespaces.unwrap_or(false),
            unknown_score: f64::from(min_score - UNKNOWN_PENALTY),
        })
    }

    /// Appends the ids of `text`. `space_prefix`: a space goes before the first word.
    pub fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        space_prefix: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        let text = self.normalise(text, space_prefix)?;
        let unknown = vocab.ids.unk.ok_or_else(|| {
            TextError::BadVocab("tokenizer.ggml.unknown_token_id is missing".into())
        })?;
        let path = self.best_path(vocab, &text, unknown);
        let first = out.len();
        let mut at = text.len();
        while at > 0 {
            let step = path[at];
            // A run of unknown characters is one unknown token.
            if step.id != unknown || out.len() == first || out.last() != Some(&unknown) {
                out.push(step.id);
            }
            at = step.from;
        }
        out[first..].reverse();
        Ok(())
    }

    fn best_path(&self, vocab: &Vocab, text: &str, unknown: u32) -> Vec<Step> {
        let unreached = Step { id: unknown, from: 0, score: f64::NEG_INFINITY };
        let mut path = vec![unreached; text.len() + 1];
        path[0].score = 0.0;
        let mut matches = self.tokens.find_overlapping_iter(text).peekable();
        for (start, c) in text.char_indices() {
            let end = start + c.len_utf8();
            let mut char_is_token = false;
            // Occurrences come by end, longer ones first: the order of their starts.
            while let Some(m) = matches.next_if(|m| m.end() <= end) {
                let id = self.matchable[m.pattern().as_usize()];
                let user = vocab.has(id, attr::USER);
                let score = if user { 0.0 } else { f64::from(vocab.scores[id as usize]) };
                char_is_token |= m.start() == start;
                improve(&mut path, m.start(), m.end(), id, score);
            }
            if !char_is_token {
                improve(&mut path, start, end, unknown, self.unknown_score);
            }
        }
        path
    }

    /// Replaces what the charsmap says, writes spaces as U+2581, and merges them if asked to.
    fn normalise(&self, text: &str, space_prefix: bool) -> Result<String, TextError> {
        let mut out = String::with_capacity(text.len() + text.len() / 2);
        let mut in_word = false;
        let mut prefixed = false;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let user = self
                .user_defined
                .as_ref()
                .and_then(|ac| ac.find(Input::new(rest).anchored(Anchored::Yes)).map(|m| m.end()));
            let (replacement, used) = match user {
                Some(end) => (&rest[..end], end),
                None => self
                    .charsmap
                    .longest_prefix(rest)?
                    .unwrap_or((&rest[..c.len_utf8()], c.len_utf8())),
            };
            for c in replacement.chars() {
                if c == ' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        out.push('\u{2581}');
                    }
                    continue;
                }
                if !in_word && (self.merge_spaces || (space_prefix && !prefixed)) {
                    out.push('\u{2581}');
                    prefixed = true;
                }
                in_word = true;
                out.push(c);
            }
            rest = &rest[used..];
        }
        Ok(out)
    }
}

fn improve(path: &mut [Step], from: usize, to: usize, id: u32, score: f64) {
    let score = path[from].score + score;
    if score > path[to].score {
        path[to] = Step { id, from, score };
    }
}
