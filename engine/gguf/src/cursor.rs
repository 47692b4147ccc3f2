//! A reader over bytes that checks every length before it uses it, and names the field that it was reading.
//!
//! It never panics, and allocates nothing but errors. Strings and arrays are views into the input.

use super::error::GgufError;
use std::fmt::Arguments;

/// Longest string accepted anywhere in a header. The longest in use, chat templates and
/// tokenizer models, are below 1 MiB.
pub const MAX_STRING_BYTES: u64 = 64 << 20;

/// A position in `bytes`; `file` is for messages only.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
    file: &'a str,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], file: &'a str) -> Self {
        Self { bytes, pos: 0, file }
    }

    pub fn pos(&self) -> usize {
        self.pos
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// An error about `field` in this file.
    pub fn bad(&self, field: Arguments<'_>, problem: impl std::fmt::Display) -> GgufError {
        GgufError::malformed(self.file, field, problem)
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: u64, field: Arguments<'_>) -> Result<&'a [u8], GgufError> {
        let left = self.remaining();
        let Some(n) = usize::try_from(n).ok().filter(|n| *n <= left) else {
            let problem =
                format!("needs {n} bytes at offset {}, the file has {left} left", self.pos);
            return Err(self.bad(field, problem));
        };
        let taken = &self.bytes[self.pos..self.pos + n];
        self.pos += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    /// Reads a little-endian u32.
    pub fn u32(&mut self, field: Arguments<'_>) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// Reads a little-endian u64.
    pub fn u64(&mut self, field: Arguments<'_>) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A length-prefixed string, not checked for UTF-8.
    pub fn string(&mut self, field: Arguments<'_>) -> Result<&'a [u8], GgufError> {
        let len = self.u64(field)?;
        if len > MAX_STRING_BYTES {
            return Err(
                self.bad(field, format!("string of {len} bytes, the limit is {MAX_STRING_BYTES}"))
            );
        }
        self.take(len, field)
    }
}
