//! Word pieces (BERT): text is cleaned and cut into words, and each word into its longest tokens.

use unicode_normalization::char::decompose_canonical;

use super::pretok::{CONTROL, MARK, PUNCTUATION, SPACE, SYMBOL, class_of};
use super::vocab::{Vocab, VocabData};

/// Marks the start of a word in token texts.
const WORD_START: char = '\u{2581}';

/// Rules by which text is cleaned.
pub(super) struct Wpm {
    lowercase: bool,
    strip_accents: bool,
}

impl Wpm {
    /// Lower-casing is on unless the file says otherwise, and accents go with it.
    pub fn new(data: &VocabData) -> Self {
        let lowercase = data.flags.lowercase.unwrap_or(true);
        Self { lowercase, strip_accents: data.flags.strip_accents.unwrap_or(lowercase) }
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        for c in text.chars() {
            let c = if self.strip_accents { base_of(c) } else { c };
            let class = class_of(c);
            if class & SPACE != 0 {
                end_word(vocab, &mut word, out);
                continue;
            }
            let dropped = matches!(c, '\0' | '\u{fffd}') || class & CONTROL != 0;
            if dropped || (self.strip_accents && class & MARK != 0) {
                continue;
            }
            let alone = class & PUNCTUATION != 0
                || (c.is_ascii() && class & SYMBOL != 0)
                || is_ideograph(c);
            if alone {
                end_word(vocab, &mut word, out);
            }
            word.push(if self.lowercase { c.to_lowercase().next().unwrap_or(c) } else { c });
            if alone {
                end_word(vocab, &mut word, out);
            }
        }
        end_word(vocab, &mut word, out);
    }
}

/// The first character of the canonical decomposition.
fn base_of(c: char) -> char {
    let mut base = None;
    decompose_canonical(c, |d| {
        base.get_or_insert(d);
    });
    base.unwrap_or(c)
}

/// Longest tokens from the left; if any position has none, the whole word is unknown.
fn end_word(vocab: &Vocab, word: &mut String, out: &mut Vec<u32>) {
    if word.is_empty() {
        return;
    }
    word.insert(0, WORD_START);
    let before = out.len();
    let mut at = 0;
    while at < word.len() {
        // Longest first. Byte positions inside a character give no `str`, hence no token.
        let longest = word.len().min(at + vocab.max_len);
        let found = (at + 1..=longest)
            .rev()
            .find_map(|end| vocab.find(word.get(at..end)?).map(|id| (id, end)));
        let Some((id, end)) = found else {
            out.truncate(before);
            out.extend(vocab.ids.unk);
            break;
        };
        out.push(id);
        at = end;
    }
    word.clear();
}

/// Chinese characters as BERT counts them (its own range for extension E included).
fn is_ideograph(c: char) -> bool {
    matches!(c as u32,
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}
