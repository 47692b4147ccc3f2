//! RWKV's World tokenizer: at each place the longest token that fits, over bytes.
//!
//! Files have tokens as Python writes bytes (`b'\xff\n'` without the quotes), since not all are text.

use aho_corasick::{AhoCorasick, MatchKind};

use super::TextError;
use super::vocab::{Vocab, attr};

/// What stands for a byte that no token has, where the file names none.
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

/// Appends the bytes of a token as Python writes them: `\t`, `\n`, `\r`, `\xNN`, and a backslash before any other
/// character, which stands for itself.
pub(super) fn unescape(text: &str, out: &mut Vec<u8>) {
    let mut left = text.as_bytes();
    while let Some((&byte, rest)) = left.split_first() {
        left = rest;
        let escaped = if byte == b'\\' { rest.split_first() } else { None };
        let Some((&escaped, rest)) = escaped else {
            out.push(byte);
            continue;
        };
        left = rest;
        match escaped {
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b'x' => match hex(rest) {
                Some(byte) => {
                    out.push(byte);
                    left = &rest[2..];
                }
                None => out.push(b'x'),
            },
            other => out.push(other),
        }
    }
}

fn hex(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.get(..2)?).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_s_escapes_are_bytes() {
        for (text, bytes) in [
            (r"a\tb\n\r", &b"a\tb\n\r"[..]),
            (r"\xff\x00z", b"\xff\0z"),
            (r"\\n\'", b"\\n'"),
            (r"\xzz\", b"xzz\\"),
            ("é", "é".as_bytes()),
        ] {
            let mut out = Vec::new();
            unescape(text, &mut out);
            assert_eq!(out, bytes, "{text}");
        }
    }
}
