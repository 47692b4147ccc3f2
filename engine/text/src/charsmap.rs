//! SentencePiece's precompiled normaliser: a trie of text prefixes, each with a replacement.
//!
//! The file has the length of the trie (u32), the trie (a double array of 32-bit entries), and the
//! replacements, each ended by a NUL. All of it is little-endian. The file is not trusted, so every index is
//! checked.

use super::TextError;

/// The decoded map; empty if the file has none.
#[derive(Debug, Default)]
pub(super) struct Charsmap {
    trie: Vec<u32>,
    replacements: Vec<u8>,
}

/// Entry flag: the node ends a prefix, and its base leads to the replacement's offset.
const LEAF: u32 = 1 << 8;
/// Entry flag: the base is shifted by eight bits.
const SHIFTED: u32 = 1 << 9;

impl Charsmap {
    /// Splits the blob of a file into its trie and its texts.
    pub fn new(blob: &[u8]) -> Result<Self, TextError> {
        if blob.is_empty() {
            return Ok(Self::default());
        }
        let (head, rest) =
            blob.split_first_chunk::<4>().ok_or_else(|| broken("shorter than its header"))?;
        let bytes = u32::from_le_bytes(*head) as usize;
        if bytes >= rest.len() {
            return Err(broken("the trie is longer than the blob"));
        }
        let (trie, replacements) = rest.split_at(bytes);
        let trie = trie.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Ok(Self { trie, replacements: replacements.to_vec() })
    }

    /// The replacement of the longest known prefix of `text` and that prefix's length in bytes.
    pub fn longest_prefix(&self, text: &str) -> Result<Option<(&str, usize)>, TextError> {
        if self.trie.is_empty() {
            return Ok(None);
        }
        let mut best = None;
        let mut node = base(self.entry(0)?);
        for (i, &byte) in text.as_bytes().iter().enumerate() {
            if byte == 0 {
                break;
            }
            node ^= u32::from(byte);
            let entry = self.entry(node)?;
            if entry & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            node ^= base(entry);
            if entry & LEAF != 0 {
                best = Some((self.entry(node)? & !(1 << 31), i + 1));
            }
        }
        // A prefix that ends inside a character would leave half of it: such a map is refused.
        let Some((offset, len)) = best else { return Ok(None) };
        if !text.is_char_boundary(len) {
            return Err(broken("a prefix ends inside a character"));
        }
        let tail = self.replacements.get(offset as usize..).unwrap_or(&[]);
        let end =
            tail.iter().position(|b| *b == 0).ok_or_else(|| broken("a replacement has no end"))?;
        let text =
            str::from_utf8(&tail[..end]).map_err(|_| broken("a replacement is not UTF-8"))?;
        Ok(Some((text, len)))
    }

    fn entry(&self, index: u32) -> Result<u32, TextError> {
        self.trie.get(index as usize).copied().ok_or_else(|| broken("an index leaves the trie"))
    }
}

fn base(entry: u32) -> u32 {
    (entry >> 10) << ((entry & SHIFTED) >> 6)
}

fn broken(what: &str) -> TextError {
    TextError::BadVocab(format!("tokenizer.ggml.precompiled_charsmap: {what}"))
}
