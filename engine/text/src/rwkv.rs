//! RWKV's World tokenizer: at each place the longest token that fits, over bytes.
//!
//! Files have tokens as Python writes bytes (`b'\xff\n'` without the quotes), since not all are text.

use aho_corasick::{AhoCorasick, MatchKind};

use super::TextError;
use super::vocab::{Vocab, attr};

/// Token for a byte that no token has, where the file names none.
const UNKNOWN: u32 = 0;

/// Finds the tokens of a text.
pub(super) struct Rwkv {
    finder: AhoCorasick,
    /// The token of each pattern of `finder`.
    ids: Vec<u32>,
    unknown: u32,
}

impl Rwkv {
    /// Over all tokens that are text.
    pub fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let is_text = |id: &u32| {
            !vocab.has(*id, attr::CONTROL | attr::UNKNOWN | attr::UNUSED)
                && !vocab.piece(*id).is_empty()
        };
        let ids: Vec<u32> = (0..vocab.len() as u32).filter(is_text).collect();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|id| vocab.piece(*id)))
            .map_err(|e| TextError::BadVocab(format!("tokenizer.ggml.tokens: {e}")))?;
        Ok(Self { finder, ids, unknown: vocab.ids.unk.unwrap_or(UNKNOWN) })
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut at = 0;
        for found in self.finder.find_iter(text) {
            out.extend((at..found.start()).map(|_| self.unknown));
            out.push(self.ids[found.pattern().as_usize()]);
            at = found.end();
        }
        out.extend((at..text.len()).map(|_| self.unknown));
    }
}
