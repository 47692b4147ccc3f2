//! The major Unicode category of a character, as one byte: letter, mark, number, punctuation, symbol,
//! separator or other. The patterns of pre-tokenizers ask for it.

use std::sync::OnceLock;

/// Unicode's letters, `\p{L}`.
pub const LETTER: u8 = 1;
/// Unicode's numbers, `\p{N}`.
pub const NUMBER: u8 = 2;
/// Unicode's punctuation, `\p{P}`.
pub const PUNCTUATION: u8 = 4;
/// Unicode's marks, `\p{M}`.
pub const MARK: u8 = 8;
/// Unicode's symbols, `\p{S}`.
pub const SYMBOL: u8 = 16;
/// White space in the regex sense; may come with no category at all.
pub const SPACE: u8 = 32;
/// Control, format and private characters that are not white space.
pub const CONTROL: u8 = 64;
/// None of the above (unassigned). Never zero: zero is "past the end".
pub const OTHER: u8 = 128;

/// The class of a character.
pub fn class_of(c: char) -> u8 {
    table()[c as usize]
}

/// One byte per code point (1.1 MB), filled at first use from the regex engine's own tables.
fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec![0u8; char::MAX as usize + 1];
        let classes = [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\p{P}", PUNCTUATION),
            (r"\p{M}", MARK),
            (r"\p{S}", SYMBOL),
            (r"[[\p{Cc}\p{Cf}\p{Co}]--\s]", CONTROL),
            (r"\s", SPACE),
        ];
        for (pattern, bit) in classes {
            for (first, last) in ranges(pattern) {
                table[first as usize..=last as usize].iter_mut().for_each(|c| *c |= bit);
            }
        }
        table.iter_mut().filter(|c| **c == 0).for_each(|c| *c = OTHER);
        table
    })
}

fn ranges(pattern: &str) -> Vec<(char, char)> {
    use regex_syntax::hir::{Class, HirKind};
    let hir = regex_syntax::parse(pattern).expect("the patterns above are valid");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().map(|r| (r.start(), r.end())).collect()
        }
        other => unreachable!("{pattern} is a class, not {other:?}"),
    }
}

/// Chinese characters by block, as the Kimi pre-tokenizer counts them.
pub fn is_han(c: char) -> bool {
    matches!(c as u32,
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b820..=0x2ceaf | 0x2ceb0..=0x2ebef | 0xf900..=0xfaff
        | 0x2f800..=0x2fa1f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_characters_have_their_class() {
        let cases = [
            ('a', LETTER),
            ('日', LETTER),
            ('7', NUMBER),
            ('½', NUMBER),
            ('!', PUNCTUATION),
            ('\u{301}', MARK),
            ('$', SYMBOL),
            ('~', SYMBOL),
            (' ', SPACE),
            ('\n', SPACE),
            ('\u{3000}', SPACE),
            ('\u{1}', CONTROL),
            ('\u{378}', OTHER),
        ];
        for (c, class) in cases {
            assert_eq!(class_of(c), class, "{c:?}");
        }
        assert_eq!(class_of(char::MAX), OTHER);
    }
}
