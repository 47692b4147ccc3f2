//! PLaMo's tokenizer: a text is cut along the path of tokens that costs least, looked for from its end. A token costs
//! its score in ten-thousandths, rounded and negated. A character that no token has costs a lot, and becomes its
//! bytes. If two paths cost the same, the one with the longer token in front is taken.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};

use super::TextError;
use super::vocab::{Vocab, attr, byte_token};

/// Cost of a character that becomes bytes.
const UNKNOWN_COST: i64 = 10_000_000;
/// Tokens that cost this much or more are in no path.
const COST_LIMIT: i64 = 20_000_000;
/// Factor from a score to a cost.
const SCORE_UNIT: f64 = 1e4;
/// Left out where a text begins with it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Finds the tokens of a text.
pub(super) struct Plamo2 {
    /// Pattern `i` is the text of `tokens[i]`, last byte first.
    finder: AhoCorasick,
    tokens: Vec<Costed>,
    /// The token of each byte.
    bytes: [u32; 256],
}

/// A token that paths may go through.
#[derive(Clone, Copy)]
struct Costed {
    id: u32,
    cost: i64,
}

/// The best way on from a position.
#[derive(Clone, Copy)]
struct Step {
    /// Cost of everything up to the text's end.
    cost: i64,
    /// `None`: the bytes of a character.
    id: Option<u32>,
    to: usize,
}

impl Plamo2 {
    /// Over all tokens that are no bytes. If tokens have equal texts, the last one counts.
    pub fn new(vocab: &Vocab) -> Result<Self, TextError> {
        let mut by_text = HashMap::new();
        for id in (0..vocab.len() as u32).filter(|&id| !vocab.has(id, attr::BYTE)) {
            by_text.insert(vocab.texts[id as usize].as_str(), vocab.scores[id as usize]);
        }
        let costed = by_text.into_iter().filter_map(|(text, score)| {
            let cost = cost(score)?;
            Some((text, Costed { id: vocab.find(text)?, cost }))
        });
        let (texts, tokens): (Vec<&str>, Vec<Costed>) = costed.unzip();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(texts.iter().map(|text| text.bytes().rev().collect::<Vec<u8>>()))
            .map_err(|e| TextError::BadVocab(format!("tokenizer.ggml.tokens: {e}")))?;
        Ok(Self { finder, tokens, bytes: bytes_of(vocab)? })
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let path = self.best_path(text);
        let mut at = 0;
        while at < text.len() {
            let step = path[at];
            match step.id {
                Some(id) => out.push(id),
                None => {
                    let bytes = &text.as_bytes()[at..step.to];
                    out.extend(bytes.iter().map(|byte| self.bytes[usize::from(*byte)]));
                }
            }
            at = step.to;
        }
    }

    /// The best way on from each character of `text`.
    fn best_path(&self, text: &str) -> Vec<Step> {
        let n = text.len();
        let end = Step { cost: 0, id: None, to: n };
        let mut path = vec![end; n + 1];
        let backwards: Vec<u8> = text.bytes().rev().collect();
        // Occurrences come by the place of their first byte, the last first; longer ones come first.
        let mut matches = self.finder.find_overlapping_iter(&backwards).peekable();
        for (at, c) in text.char_indices().rev() {
            let after = at + c.len_utf8();
            let mut best = Step { cost: i64::MAX, id: None, to: after };
            while let Some(found) = matches.next_if(|found| found.end() <= n - at) {
                let token = self.tokens[found.pattern().as_usize()];
                let to = n - found.start();
                let cost = path[to].cost + token.cost;
                if cost < best.cost {
                    best = Step { cost, id: Some(token.id), to };
                }
            }
            let unknown = path[after].cost + UNKNOWN_COST;
            if unknown < best.cost {
                best = Step { cost: unknown, id: None, to: after };
            }
            path[at] = best;
        }
        path
    }
}

/// Cost of a token with this score; `None` where no path goes through it.
fn cost(score: f32) -> Option<i64> {
    let cost = -((f64::from(score) * SCORE_UNIT).round() as i64);
    (score.is_finite() && cost < COST_LIMIT).then_some(cost)
}

/// The token of each byte.
fn bytes_of(vocab: &Vocab) -> Result<[u32; 256], TextError> {
    let mut found = [None; 256];
    for id in (0..vocab.len() as u32).filter(|&id| vocab.has(id, attr::BYTE)) {
        if let Some(byte) = byte_token(&vocab.texts[id as usize]) {
            found[usize::from(byte)] = Some(id);
        }
    }
    let mut bytes = [0; 256];
    for (byte, (to, id)) in bytes.iter_mut().zip(found).enumerate() {
        *to = id.ok_or_else(|| {
            let problem = format!("tokenizer.ggml.tokens has no byte token <0x{byte:02X}>");
            TextError::BadVocab(format!(
                "{problem}, which a plamo2 vocabulary needs: convert it again"
            ))
        })?;
    }
    Ok(bytes)
}
