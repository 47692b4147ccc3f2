//! Ids by the texts of tokens: what tokenizers look up most.
//!
//! Most of these texts are short. Such a text lies in the table itself, as two numbers. So a look-up compares two numbers,
//! and follows no pointer to a text elsewhere in memory.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use crate::hash::FastHash;

/// Longest text that lies in the table, in bytes.
const SHORT: usize = 15;

/// A text of at most [`SHORT`] bytes, filled up with zeros; the last byte is its length.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ShortText(u64, u64);

impl ShortText {
    #[inline]
    fn of(text: &str) -> Option<Self> {
        let mut bytes = [0; SHORT + 1];
        bytes.get_mut(..SHORT)?.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        bytes[SHORT] = text.len() as u8;
        let [low, high] = bytes.as_chunks::<8>().0 else { return None };
        Some(Self(u64::from_le_bytes(*low), u64::from_le_bytes(*high)))
    }
}

impl Hash for ShortText {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0);
        state.write_u64(self.1);
    }
}

/// Ids by texts.
#[derive(Default)]
pub(super) struct TextTable {
    short: HashMap<ShortText, u32, FastHash>,
    long: HashMap<Box<str>, u32, FastHash>,
}

impl TextTable {
    /// A table with room for `n` short texts.
    pub fn with_capacity(n: usize) -> Self {
        let short = HashMap::with_capacity_and_hasher(n, FastHash::default());
        Self { short, long: HashMap::default() }
    }

    /// Sets a text's id. An earlier id of the same text is replaced.
    pub fn insert(&mut self, text: &str, id: u32) {
        match ShortText::of(text) {
            Some(short) => self.short.insert(short, id),
            None => self.long.insert(text.into(), id),
        };
    }

    /// The id of exactly this text.
    #[inline]
    pub fn get(&self, text: &str) -> Option<u32> {
        match ShortText::of(text) {
            Some(short) => self.short.get(&short).copied(),
            None => self.long.get(text).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_all_lengths_are_told_apart() {
        // Zeros are characters as well: "a" is not "a\0".
        let texts: Vec<String> = (0..40)
            .flat_map(|n| ["a".repeat(n), "\0".repeat(n), format!("a{}", "\0".repeat(n))])
            .collect();
        let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
        let mut table = TextTable::with_capacity(texts.len());
        for (id, text) in distinct.iter().enumerate() {
            assert_eq!(table.get(text), None, "{text:?}");
            table.insert(text, id as u32);
        }
        for (id, text) in distinct.iter().enumerate() {
            assert_eq!(table.get(text), Some(id as u32), "{text:?}");
        }
        table.insert("a", 1000);
        assert_eq!(table.get("a"), Some(1000));
    }
}
