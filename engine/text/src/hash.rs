//! A fast hash without a secret key, for tables whose keys no client chooses: they come from the model file, or are
//! addresses of values in memory.
//!
//! A prompt only looks up texts and inserts none, and where a value lies is not for its writer to choose. So no client can
//! make such a table slow.

use std::hash::{BuildHasherDefault, Hasher};

/// Hasher state for `HashMap`s of token texts, of symbol pairs and of addresses.
pub(crate) type FastHash = BuildHasherDefault<MulHasher>;

/// Multiplies and rotates eight bytes at a time.
#[derive(Default)]
pub(crate) struct MulHasher(u64);

// An odd constant with evenly spread bits: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl MulHasher {
    #[inline]
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(SPREAD);
    }
}

impl Hasher for MulHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        let mut last = [0u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes its bucket from the low bits; the good ones are high.
        self.0 ^ (self.0 >> 32)
    }
}
