//! Bytes and characters: the printable alphabet in which byte-level BPE writes bytes, and a compact table of
//! byte strings.

use std::collections::HashMap;

/// GPT-2's alphabet: a printable character for each byte. Printable Latin-1 stands for itself,
/// the other bytes take the characters from U+0100 on, in order.
pub(super) fn byte_to_char() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 256u32;
    for (byte, slot) in table.iter_mut().enumerate() {
        let byte = byte as u32;
        let own = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if own { byte } else { next };
        next += u32::from(!own);
        *slot = char::from_u32(code).expect("codes below 512 are characters");
    }
    table
}

/// The inverse of [`byte_to_char`].
pub(super) fn char_to_byte() -> HashMap<char, u8> {
    byte_to_char().iter().enumerate().map(|(b, &c)| (c, b as u8)).collect()
}

/// Appends the bytes that a token text stands for. A character outside the alphabet (files have
/// them in added tokens) stands for itself.
pub(super) fn decode_alphabet(alphabet: &HashMap<char, u8>, text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match alphabet.get(&c) {
            Some(&byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Many short byte strings in one allocation.
#[derive(Default)]
pub(super) struct ByteTable {
    data: Vec<u8>,
    ends: Vec<usize>,
}

/// Average bytes of a token, for the first allocation only.
const MEAN_PIECE: usize = 8;

impl ByteTable {
    /// Room for `n` strings of at most `max_len` bytes.
    pub fn with_capacity(n: usize, max_len: usize) -> Self {
        Self { data: Vec::with_capacity(n * max_len.min(MEAN_PIECE)), ends: Vec::with_capacity(n) }
    }

    /// Appends a string of bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.ends.push(self.data.len());
    }

    /// Bytes of string `i`.
    pub fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.data[start..self.ends[i]]
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
    fn the_alphabet_is_a_bijection_with_known_members() {
        let table = byte_to_char();
        assert_eq!(char_to_byte().len(), 256);
        assert_eq!(table[b' ' as usize], 'Ġ');
        assert_eq!(table[b'\n' as usize], 'Ċ');
        assert_eq!(table[b'a' as usize], 'a');
        assert_eq!(table[0], 'Ā');
        assert_eq!(table[255], 'ÿ');
    }

    #[test]
    fn decoding_inverts_the_alphabet_and_passes_others_through() {
        let alphabet = char_to_byte();
        let all: Vec<u8> = (0..=255).collect();
        let text: String = all.iter().map(|&b| byte_to_char()[b as usize]).collect();
        let mut out = Vec::new();
        decode_alphabet(&alphabet, &text, &mut out);
        assert_eq!(out, all);
        out.clear();
        decode_alphabet(&alphabet, "日", &mut out);
        assert_eq!(out, "日".as_bytes());
    }

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
