//! Byte-pair encoding: the pieces of the pre-tokenizer are merged by rank.
//!
//! Texts are in GPT-2's byte alphabet, or (gemma4 and its relatives) plain UTF-8 with escaped spaces. Symbols
//! are numbered. A symbol that is a token has the token's id. Symbols that occur only inside merges have
//! further numbers.

use std::collections::HashMap;

use super::hash::FastHash;
use super::merge::{MergeRule, Merger, NONE, Symbol};
use super::pretok::{Pretok, Splitter};
use super::vocab::{Vocab, VocabData};
use super::{TextError, bytes};

/// Most merges a file may have (the largest published vocabularies have about 450,000).
const MAX_MERGES: usize = 1 << 23;

/// The merge table and the pre-tokenizer of a model.
pub(super) struct Bpe {
    pre: Pretok,
    splitter: Splitter,
    merges: Merges,
    alphabet: [char; 256],
    /// Symbol of each byte in the byte alphabet.
    byte_symbols: [u32; 256],
}

/// (left symbol, right symbol) -> (rank, merged symbol).
struct Merges {
    table: HashMap<u64, (u32, u32), FastHash>,
    /// Symbols that are no tokens, numbered from the vocabulary's size on.
    extra: HashMap<Box<str>, u32, FastHash>,
}

impl MergeRule for Merges {
    type Key = u32;

    fn pair(&self, left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
        self.table.get(&pair_key(left.id, right.id)).copied()
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Bpe {
    /// Numbers the symbols of all merges.
    pub fn new(vocab: &Vocab, data: &VocabData, pre: Pretok) -> Result<Self, TextError> {
        if data.merges.is_empty() && !pre.merges_optional {
            return Err(TextError::BadVocab("tokenizer.ggml.merges is missing or empty".into()));
        }
        let merges = Merges::new(vocab, &data.merges)?;
        let alphabet = bytes::byte_to_char();
        let mut byte_symbols = [NONE; 256];
        for (symbol, c) in byte_symbols.iter_mut().zip(alphabet) {
            *symbol = merges.symbol(vocab, c.encode_utf8(&mut [0; 4]));
        }
        let splitter = Splitter::new(&pre)?;
        Ok(Self { pre, splitter, merges, alphabet, byte_symbols })
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let escaped;
        let text = if self.pre.escape_spaces {
            escaped = text.replace(' ', "\u{2581}");
            &escaped
        } else {
            text
        };
        let mut merger = Merger::new();
        let mut encoded = String::new();
        self.splitter.split(text, |piece| {
            if self.pre.raw_utf8 {
                self.encode_raw(vocab, piece, &mut merger, out);
            } else {
                encoded.clear();
                encoded.extend(piece.bytes().map(|b| self.alphabet[b as usize]));
                self.encode_bytes(vocab, piece, &encoded, &mut merger, out);
            }
        })
    }

    fn encode_bytes(
        &self,
        vocab: &Vocab,
        piece: &str,
        encoded: &str,
        merger: &mut Merger<u32>,
        out: &mut Vec<u32>,
    ) {
        if self.pre.ignore_merges
            && let Some(id) = vocab.find(encoded)
        {
            out.push(id);
            return;
        }
        merger.clear();
        for (i, byte) in piece.bytes().enumerate() {
            merger.push(i, 1, self.byte_symbols[byte as usize]);
        }
        for symbol in merger.run(&self.merges) {
            if (symbol.id as usize) < vocab.len() {
                out.push(symbol.id);
                continue;
            }
            // No token: single characters of the encoded text are tried, the rest vanishes. Only
            // ASCII ones can be found, since a token's text is whole characters.
            let start = symbol.start as usize;
            for &byte in &piece.as_bytes()[start..start + symbol.len as usize] {
                let c = self.alphabet[byte as usize];
                if c.is_ascii() {
                    out.extend(vocab.find(c.encode_utf8(&mut [0; 4])));
                }
            }
        }
    }

    fn encode_raw(&self, vocab: &Vocab, piece: &str, merger: &mut Merger<u32>, out: &mut Vec<u32>) {
        let whole = self.pre.ignore_merges
            || (self.pre.newlines_whole && piece.bytes().all(|b| b == b'\n'));
        if whole && let Some(id) = vocab.find(piece) {
            out.push(id);
            return;
        }
        merger.clear();
        let mut buffer = [0; 4];
        for (start, c) in piece.char_indices() {
            let symbol = self.merges.symbol(vocab, c.encode_utf8(&mut buffer));
            merger.push(start, c.len_utf8(), symbol);
        }
        for symbol in merger.run(&self.merges) {
            if (symbol.id as usize) < vocab.len() {
                out.push(symbol.id);
                continue;
            }
            let start = symbol.start as usize;
            for byte in &piece.as_bytes()[start..start + symbol.len as usize] {
                out.extend(vocab.find(&format!("<0x{byte:02X}>")));
            }
        }
    }
}

impl Merges {
    fn new(vocab: &Vocab, lines: &[String]) -> Result<Self, TextError> {
        if lines.len() > MAX_MERGES {
            return Err(TextError::BadVocab(format!(
                "tokenizer.ggml.merges has {} entries, the limit is {MAX_MERGES}",
                lines.len()
            )));
        }
        let mut merges = Self {
            table: HashMap::with_capacity_and_hasher(lines.len(), FastHash::default()),
            extra: HashMap::default(),
        };
        let mut joined = String::new();
        for (rank, line) in lines.iter().enumerate() {
            // A space as the first byte belongs to the left side.
            let space = line.bytes().skip(1).position(|b| b == b' ').ok_or_else(|| {
                TextError::BadVocab(format!("tokenizer.ggml.merges[{rank}] is {line:?}: no space"))
            })?;
            let (left, right) = (&line[..space + 1], &line[space + 2..]);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let key = pair_key(merges.number(vocab, left), merges.number(vocab, right));
            let merged = merges.number(vocab, &joined);
            // A pair listed twice keeps its better rank.
            merges.table.entry(key).or_insert((rank as u32, merged));
        }
        Ok(merges)
    }

    fn symbol(&self, vocab: &Vocab, text: &str) -> u32 {
        vocab.find(text).or_else(|| self.extra.get(text).copied()).unwrap_or(NONE)
    }

    fn number(&mut self, vocab: &Vocab, text: &str) -> u32 {
        let known = self.symbol(vocab, text);
        if known != NONE {
            return known;
        }
        let id = (vocab.len() + self.extra.len()) as u32;
        self.extra.insert(text.into(), id);
        id
    }
}
