//! Tokenizers against llama.cpp's ids: every name that `tokenizer.ggml.pre` may have, and PLaMo's tokenizer. The
//! vocabularies are made for this (see `tests/oracle/tokenizers.py`): bytes or characters, and merges over the borders
//! of words. Only a hash of a text's ids is kept.

use std::collections::BTreeMap;

use brigade_text::{SpecialIds, Tokenizer, VocabData, VocabFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// Pre-tokenizers of vocabularies in plain UTF-8.
const RAW: [&str; 4] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"];

/// Results of llama.cpp for every pre-tokenizer.
#[derive(Deserialize)]
struct PreTokenizers {
    texts: Vec<String>,
    merges: Vec<String>,
    raw_letters: Vec<String>,
    raw_merges: Vec<String>,
    /// For each name, the number of its hash in `hashes`.
    names: BTreeMap<String, usize>,
    /// A hash for each text.
    hashes: Vec<Vec<String>>,
}

/// Results of llama.cpp for PLaMo's tokenizer.
#[derive(Deserialize)]
struct Plamo {
    pieces: Vec<(String, f32)>,
    hashes: Vec<String>,
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let folder = brigade_model_tests::places::of_tests("data/tokenizers");
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

/// FNV-1a, 32 bits, of ids as little-endian u32.
fn hash(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let step = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", bytes.fold(0x811c_9dc5, step))
}

fn byte_tokens() -> impl Iterator<Item = String> {
    (0..=255u8).map(|byte| format!("<0x{byte:02X}>"))
}

/// GPT-2's letters for bytes: those that print stand for themselves, the others for U+0100 and what follows.
fn byte_letters() -> impl Iterator<Item = String> {
    let prints = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let letter = move |byte: u8| {
        if prints(byte) {
            char::from(byte)
        } else {
            let n_before = (0..byte).filter(|&other| !prints(other)).count();
            char::from_u32(256 + n_before as u32).unwrap()
        }
    };
    (0..=255u8).map(move |byte| letter(byte).to_string())
}

impl PreTokenizers {
    fn vocabulary(&self, name: &str) -> VocabData {
        let raw = RAW.contains(&name);
        let merges = if raw { &self.raw_merges } else { &self.merges };
        let mut tokens: Vec<String> =
            if raw { byte_tokens().collect() } else { byte_letters().collect() };
        let mut types = vec![if raw { BYTE } else { NORMAL }; tokens.len()];
        if raw {
            tokens.extend(self.raw_letters.iter().cloned());
        }
        tokens.extend(merges.iter().map(|pair| pair.replace(' ', "")));
        types.resize(tokens.len(), NORMAL);
        VocabData {
            model: if name == "gemma4" { "gemma4" } else { "gpt2" }.into(),
            pre: Some(name.into()),
            tokens,
            types,
            merges: merges.clone(),
            // Some put BOS first whatever a file says: there must be one.
            ids: SpecialIds { bos: Some(0), ..SpecialIds::default() },
            flags: VocabFlags { add_bos: Some(false), ..VocabFlags::default() },
            ..VocabData::default()
        }
    }
}

/// Texts whose ids are not those with the hashes `wanted`.
fn wrong<'t>(
    tokenizer: &Tokenizer,
    texts: impl IntoIterator<Item = &'t str>,
    wanted: &[String],
) -> Vec<String> {
    let texts: Vec<&str> = texts.into_iter().collect();
    assert_eq!(texts.len(), wanted.len());
    let mut wrong = Vec::new();
    for (text, wanted) in texts.into_iter().zip(wanted) {
        let ids = tokenizer.encode(text, false, false).unwrap();
        if hash(&ids) != *wanted {
            let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect();
            wrong.push(format!("{text:?}: {pieces:?}"));
        }
    }
    wrong
}

fn every_pre_tokenizer_cuts_as_llama_cpp_does() {
    let found: PreTokenizers = read("pre_tokenizers.json");
    let mut differ = Vec::new();
    for (name, &group) in &found.names {
        let tokenizer = Tokenizer::new(found.vocabulary(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        // llama.cpp aborts at a space under this name.
        let without_spaces = name == "whitespace";
        let texts: Vec<String> = if without_spaces {
            found.texts.iter().map(|text| text.split_whitespace().collect()).collect()
        } else {
            found.texts.clone()
        };
        let wrong = wrong(&tokenizer, texts.iter().map(String::as_str), &found.hashes[group]);
        differ.extend(wrong.into_iter().map(|text| format!("{name}: {text}")));
    }
    println!(
        "{} names, {} behaviours, {} texts, {} differ",
        found.names.len(),
        found.hashes.len(),
        found.texts.len(),
        differ.len()
    );
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

fn a_name_that_is_not_known_is_refused_with_what_to_do() {
    let found: PreTokenizers = read("pre_tokenizers.json");
    let unknown = VocabData { pre: Some("gpt-5".into()), ..found.vocabulary("gpt-2") };
    let message = Tokenizer::new(unknown).unwrap_err().to_string();
    for word in ["gpt-5", "tokenizer.ggml.pre", "token ids"] {
        assert!(message.contains(word), "{message}");
    }
}

fn plamo_goes_the_paths_that_llama_cpp_goes() {
    let texts = read::<PreTokenizers>("pre_tokenizers.json").texts;
    let plamo: Plamo = read("plamo2.json");
    let special = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"];
    let mut tokens: Vec<String> = special.map(str::to_owned).into();
    tokens.extend(byte_tokens());
    let mut types = vec![UNKNOWN, CONTROL, CONTROL, CONTROL];
    types.resize(tokens.len(), BYTE);
    let mut scores = vec![0.0; tokens.len()];
    for (text, score) in plamo.pieces {
        tokens.push(text);
        scores.push(score);
    }
    types.resize(tokens.len(), NORMAL);
    let data = VocabData { model: "plamo2".into(), tokens, types, scores, ..VocabData::default() };
    let tokenizer = Tokenizer::new(data).unwrap();
    let wrong = wrong(&tokenizer, texts.iter().map(String::as_str), &plamo.hashes);
    println!("{} texts, {} differ", texts.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        every_pre_tokenizer_cuts_as_llama_cpp_does,
        a_name_that_is_not_known_is_refused_with_what_to_do,
        plamo_goes_the_paths_that_llama_cpp_goes;
];
