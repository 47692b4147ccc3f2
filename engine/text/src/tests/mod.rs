//! Rules of text, shown with vocabularies made by hand. The workspace's tests compare whole vocabularies with
//! published vectors.

mod plamo2;
mod pretok;
mod rules;
mod rwkv;
mod unigram;
mod word_pieces;

use super::{SpecialIds, Tokenizer, VocabData, VocabFlags};

/// A token of a hand-made vocabulary: text, type (as in the file), score.
type Entry<'a> = (&'a str, i32, f32);

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const BYTE: i32 = 6;

fn data(model: &str, entries: &[Entry<'_>]) -> VocabData {
    VocabData {
        model: model.into(),
        tokens: entries.iter().map(|e| e.0.to_owned()).collect(),
        types: entries.iter().map(|e| e.1).collect(),
        scores: entries.iter().map(|e| e.2).collect(),
        ..VocabData::default()
    }
}

/// A llama vocabulary: three special tokens, all bytes, then `entries` from id 259 on.
fn spm(entries: &[Entry<'_>]) -> VocabData {
    let bytes: Vec<String> = (0..=255u8).map(|b| format!("<0x{b:02X}>")).collect();
    let mut all = vec![("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)];
    all.extend(bytes.iter().map(|b| (b.as_str(), BYTE, 0.0)));
    all.extend_from_slice(entries);
    data("llama", &all)
}

/// A byte-level vocabulary: all bytes in their order, then the results of `merges` from id 256 on,
/// then `entries`.
fn bpe(pre: &str, merges: &[(&str, &str)], entries: &[(&str, i32)]) -> VocabData {
    let alphabet = super::bytes::byte_to_char();
    let mut tokens: Vec<String> = alphabet.iter().map(char::to_string).collect();
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let mut types = vec![NORMAL; tokens.len()];
    tokens.extend(entries.iter().map(|e| e.0.to_owned()));
    types.extend(entries.iter().map(|e| e.1));
    VocabData {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens,
        types,
        merges: merges.iter().map(|(a, b)| format!("{a} {b}")).collect(),
        ids: SpecialIds::default(),
        flags: VocabFlags { add_bos: Some(false), ..VocabFlags::default() },
        ..VocabData::default()
    }
}

fn build(data: VocabData) -> Tokenizer {
    Tokenizer::new(data).expect("a good vocabulary")
}

fn texts(tokenizer: &Tokenizer, text: &str, add: bool, parse: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, add, parse).expect("a good text");
    ids.iter().map(|id| tokenizer.token_text(*id).expect("an id").to_owned()).collect()
}
