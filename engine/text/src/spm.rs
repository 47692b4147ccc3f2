//! SentencePiece as llama models use it. Characters merge by the score of the token that they form, best first. Text
//! that is no token falls apart into byte tokens.

use super::merge::{MergeRule, Merger, NONE, Symbol};
use super::vocab::Vocab;

/// Character for a space in the texts of tokens.
const ESCAPED_SPACE: char = '\u{2581}';

/// A score turned so that the best one is the smallest key. Scores are never NaN.
#[derive(Clone, Copy, PartialEq)]
struct Key(f32);

impl Eq for Key {}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct ByScore<'a> {
    vocab: &'a Vocab,
    text: &'a str,
}

impl MergeRule for ByScore<'_> {
    type Key = Key;

    fn pair(&self, left: &Symbol, right: &Symbol) -> Option<(Key, u32)> {
        let end = (right.start + right.len) as usize;
        let id = self.vocab.find(&self.text[left.start as usize..end])?;
        // Adding zero makes -0.0 equal to 0.0 under the total order.
        Some((Key(self.vocab.scores[id as usize] + 0.0), id))
    }
}

/// Appends the ids of `text`. `prefix`: a space is put before it.
pub(super) fn encode(vocab: &Vocab, text: &str, prefix: bool, out: &mut Vec<u32>) {
    let mut escaped = String::with_capacity(text.len() + text.len() / 4 + 4);
    if prefix {
        escaped.push(ESCAPED_SPACE);
    }
    escaped.extend(text.chars().map(|c| if c == ' ' { ESCAPED_SPACE } else { c }));
    let mut merger = Merger::new();
    let mut buffer = [0; 4];
    for (start, c) in escaped.char_indices() {
        let id = vocab.find(c.encode_utf8(&mut buffer)).unwrap_or(NONE);
        merger.push(start, c.len_utf8(), id);
    }
    for symbol in merger.run(&ByScore { vocab, text: &escaped }) {
        if symbol.id == NONE {
            let start = symbol.start as usize;
            push_bytes(vocab, &escaped.as_bytes()[start..start + symbol.len as usize], out);
        } else {
            out.push(symbol.id);
        }
    }
}

/// Byte tokens `<0xXX>`, or where those are missing the one-byte text itself, or unknown.
fn push_bytes(vocab: &Vocab, bytes: &[u8], out: &mut Vec<u32>) {
    for &byte in bytes {
        let id = vocab
            .find(&format!("<0x{byte:02X}>"))
            .or_else(|| {
                if byte.is_ascii() {
                    vocab.find((byte as char).encode_utf8(&mut [0; 4]))
                } else {
                    None
                }
            })
            .or(vocab.ids.unk);
        out.extend(id);
    }
}
