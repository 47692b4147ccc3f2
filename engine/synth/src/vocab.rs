//! A SentencePiece-style vocabulary of any size. It has special tokens, all bytes, printable characters, and
//! then strings of letters, shortest first. Any text can be tokenised with it and comes back as it was.
//!
//! Pieces grow letter by letter, so that each can be reached by merging two shorter ones.

use brigade_gguf::{GgufError, GgufWriter};
use std::ops::RangeInclusive;

/// Stands for a space in a piece.
const SPACE: &str = "\u{2581}";
const N_SPECIAL: usize = 3;
const PRINTABLE: std::ops::RangeInclusive<u8> = b'!'..=b'~';
const N_CHARACTERS: usize = 1 + (b'~' - b'!') as usize + 1;
/// Longest piece in letters.
const MAX_LETTERS: u32 = 4;

/// Sizes that a vocabulary can have.
pub(super) const SIZES: RangeInclusive<usize> = {
    let min = N_SPECIAL + 256 + N_CHARACTERS;
    // With and without a leading space, except that single letters are among the characters.
    let (mut n, mut letters) = (min + 26, 2);
    while letters <= MAX_LETTERS {
        n += 2 * 26_usize.pow(letters);
        letters += 1;
    }
    min..=n
};

/// Plain turns; the model ends its own with the end-of-sequence token.
const CHAT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '[' + message['role'] + ']\\n' + message['content'] }}\
    {% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '[assistant]\\n' }}{% endif %}";

/// Token types of the format.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// Adds a vocabulary of `n` tokens, within [`SIZES`], and a chat template.
pub(super) fn write(writer: &mut GgufWriter, n: usize) -> Result<(), GgufError> {
    let pieces = pieces(n);
    let types: Vec<i32> = (0..n).map(token_type).collect();
    // The earlier a piece stands the sooner it is merged, as in trained vocabularies.
    let scores: Vec<f32> =
        (0..n).map(|i| if types[i] == NORMAL { -(i as f32) } else { 0.0 }).collect();
    writer.set("tokenizer.ggml.model", "llama")?;
    writer.set("tokenizer.ggml.tokens", &pieces[..])?;
    writer.set("tokenizer.ggml.scores", &scores[..])?;
    writer.set("tokenizer.ggml.token_type", &types[..])?;
    writer.set("tokenizer.ggml.unknown_token_id", &0_u32)?;
    writer.set("tokenizer.ggml.bos_token_id", &1_u32)?;
    writer.set("tokenizer.ggml.eos_token_id", &2_u32)?;
    writer.set("tokenizer.ggml.add_bos_token", &true)?;
    writer.set("tokenizer.ggml.add_eos_token", &false)?;
    writer.set("tokenizer.chat_template", CHAT_TEMPLATE)
}

/// Special tokens of word pieces, by BERT's names.
const WORD_SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Adds a vocabulary of `n` word pieces, within [`SIZES`]: texts are put in lower case, and stand between two tokens.
pub(super) fn write_word_pieces(writer: &mut GgufWriter, n: usize) -> Result<(), GgufError> {
    let pieces = word_pieces(n);
    let special = |i| if i < WORD_SPECIAL.len() { CONTROL } else { NORMAL };
    let types: Vec<i32> = (0..n).map(special).collect();
    writer.set("tokenizer.ggml.model", "bert")?;
    writer.set("tokenizer.ggml.pre", "jina-v2-en")?;
    writer.set("tokenizer.ggml.tokens", &pieces[..])?;
    writer.set("tokenizer.ggml.token_type", &types[..])?;
    writer.set("tokenizer.ggml.token_type_count", &2_u32)?;
    for (id, key) in ["padding", "unknown", "bos", "seperator", "mask"].iter().enumerate() {
        writer.set(&format!("tokenizer.ggml.{key}_token_id"), &(id as u32))?;
    }
    writer.set("tokenizer.ggml.cls_token_id", &2_u32)
}

/// Begin words with a mark, and go on in words without one.
fn word_pieces(n: usize) -> Vec<String> {
    let spaced = |word: String| format!("{SPACE}{word}");
    let characters = || {
        let lower = PRINTABLE.filter(|byte| !byte.is_ascii_uppercase());
        lower.map(|byte| char::from(byte).to_string())
    };
    let longer =
        (2..=MAX_LETTERS).flat_map(|letters| words(letters).map(spaced).chain(words(letters)));
    WORD_SPECIAL
        .into_iter()
        .map(str::to_owned)
        .chain(characters().map(spaced))
        .chain(characters())
        .chain(longer)
        // There are fewer characters than elsewhere, and no bytes.
        .chain((0..).map(|i| format!("[unused{i}]")))
        .take(n)
        .collect()
}

fn token_type(id: usize) -> i32 {
    match id {
        0 => UNKNOWN,
        1 | 2 => CONTROL,
        _ if id < N_SPECIAL + 256 => BYTE,
        _ => NORMAL,
    }
}

fn pieces(n: usize) -> Vec<String> {
    let special = ["<unk>", "<s>", "</s>"].into_iter().map(str::to_owned);
    let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
    let characters = PRINTABLE.map(|byte| char::from(byte).to_string());
    let spaced = |word: String| format!("{SPACE}{word}");
    let longer =
        (2..=MAX_LETTERS).flat_map(|letters| words(letters).chain(words(letters).map(spaced)));
    special
        .chain(bytes)
        .chain([SPACE.to_owned()])
        .chain(characters)
        .chain(words(1).map(spaced))
        .chain(longer)
        .take(n)
        .collect()
}

/// All strings of this many lower-case letters.
fn words(letters: u32) -> impl Iterator<Item = String> {
    (0..26_usize.pow(letters)).map(move |i| {
        let letter = |place| char::from(b'a' + (i / 26_usize.pow(letters - 1 - place) % 26) as u8);
        (0..letters).map(letter).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_size_is_met_without_repeats() {
        for n in [*SIZES.start(), 512, 32000, 128256, 151936, *SIZES.end()] {
            for pieces in [pieces(n), word_pieces(n)] {
                assert_eq!(pieces.len(), n);
                assert_eq!(pieces.iter().collect::<HashSet<_>>().len(), n);
            }
        }
    }

    #[test]
    fn every_piece_is_two_shorter_ones() {
        let pieces = pieces(60000);
        let known: HashSet<&str> = pieces.iter().map(String::as_str).collect();
        for piece in pieces.iter().skip(N_SPECIAL + 256).filter(|piece| piece.chars().count() > 1) {
            let made = piece.char_indices().skip(1).any(|(i, _)| {
                let (left, right) = piece.split_at(i);
                known.contains(left) && known.contains(right)
            });
            assert!(made, "{piece}");
        }
    }
}
