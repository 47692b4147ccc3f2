//! Special tokens inside a text: the text becomes an alternation of plain parts and tokens.
//!
//! Longer tokens win over shorter ones wherever they are. Among tokens of equal length the smaller id wins. A
//! token is looked for only in what the tokens before it left over.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, MatchKind};

use super::TextError;
use super::vocab::{Vocab, attr};

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Text that the algorithm is to cut.
    Text(&'a str),
    /// A special token that stood there.
    Token(u32),
}

/// A finder of special tokens in text.
pub(super) struct Partition {
    /// Ids of matchable tokens, in the order they are tried.
    order: Vec<u32>,
    /// Pattern `i` is the text of `order[i]`. Only tells which tokens occur at all.
    finder: Option<AhoCorasick>,
}

/// A fragment while tokens are still being tried, keyed by its start.
#[derive(Clone, Copy)]
struct Span {
    end: usize,
    token: Option<u32>,
}

impl Partition {
    /// Collects the special tokens of a vocabulary.
    pub fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let special = attr::CONTROL | attr::USER | attr::UNKNOWN;
        let mut order: Vec<u32> =
            (0..vocab.len() as u32).filter(|&id| vocab.has(id, special)).collect();
        order.sort_by_key(|&id| std::cmp::Reverse(vocab.texts[id as usize].len()));
        if order.is_empty() {
            return Ok(Self { order, finder: None });
        }
        let patterns = order.iter().map(|&id| vocab.texts[id as usize].as_bytes());
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(patterns)
            .map_err(|e| TextError::BadVocab(format!("special tokens: {e}")))?;
        Ok(Self { order, finder: Some(finder) })
    }

    /// Splits `text`; empty parts are left out.
    pub fn split<'a>(
        &self,
        text: &'a str,
        parse_special: bool,
        vocab: &Vocab,
    ) -> Vec<Fragment<'a>> {
        let mut spans = BTreeMap::new();
        if !text.is_empty() {
            spans.insert(0, Span { end: text.len(), token: None });
        }
        for id in self.present(text) {
            if parse_special || !vocab.has(id, attr::CONTROL | attr::UNKNOWN) {
                split_by(&mut spans, text, id, vocab);
            }
        }
        spans
            .into_iter()
            .map(|(start, span)| match span.token {
                Some(id) => Fragment::Token(id),
                None => Fragment::Text(&text[start..span.end]),
            })
            .collect()
    }

    /// Tokens whose text occurs somewhere, in the order they are tried.
    fn present(&self, text: &str) -> Vec<u32> {
        let Some(finder) = &self.finder else { return Vec::new() };
        let mut seen = vec![false; self.order.len()];
        for m in finder.find_overlapping_iter(text) {
            seen[m.pattern().as_usize()] = true;
        }
        self.order.iter().zip(seen).filter(|(_, s)| *s).map(|(&id, _)| id).collect()
    }
}

/// Takes every occurrence of one token out of the plain spans, from left to right.
fn split_by(spans: &mut BTreeMap<usize, Span>, text: &str, id: u32, vocab: &Vocab) {
    let needle = vocab.texts[id as usize].as_str();
    let plain: Vec<(usize, usize)> =
        spans.iter().filter(|(_, s)| s.token.is_none()).map(|(&a, s)| (a, s.end)).collect();
    for (mut start, end) in plain {
        while let Some(at) = text[start..end].find(needle).map(|i| start + i) {
            let mut left_end = at;
            if vocab.has(id, attr::LSTRIP) {
                left_end = start + text[start..at].trim_end_matches(is_c_space).len();
            }
            let after = at + needle.len();
            let mut right = after;
            if vocab.has(id, attr::RSTRIP) {
                right = end - text[after..end].trim_start_matches(is_c_space).len();
            }
            spans.remove(&start);
            if left_end > start {
                spans.insert(start, Span { end: left_end, token: None });
            }
            spans.insert(at, Span { end: after, token: Some(id) });
            start = right;
            if start < end {
                spans.insert(start, Span { end, token: None });
            }
        }
    }
}

/// C's `isspace` in the "C" locale.
fn is_c_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}
