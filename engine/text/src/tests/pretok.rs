//! Pre-tokenizers: texts whose pieces are known, and properties that all of them have.

use proptest::prelude::*;

use super::*;
use crate::pretok::{Splitter, find};

/// Every name that is known, one a family at least.
const NAMES: &[&str] = &[
    "default",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "gpt-2",
    "starcoder",
    "falcon",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
    "bloom",
    "viking",
    "tekken",
    "gpt-4o",
    "kimi-k2",
    "spark2_5",
    "youtu",
    "jais-2",
    "chameleon",
    "superbpe",
    "bailingmoe",
    "seed-coder",
    "ufakzeka",
    "afmoe",
    "laguna",
    "exaone-moe",
    "minicpm5",
    "tiny_aya",
    "granite-embed-multi-97m",
    "gemma4",
    "sarvam-moe",
    "whitespace",
];

fn pieces(pre: &str, text: &str) -> Vec<String> {
    let found = find(&bpe(pre, &[("a", "b")], &[])).expect("a known name");
    let mut out = Vec::new();
    let splitter = Splitter::new(&found).expect("patterns compile");
    splitter.split(text, |piece| out.push(piece.to_owned())).expect("an easy text");
    out
}

#[test]
fn known_texts_fall_into_known_pieces() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("gpt-2", "I'm  12 été!\n\n x", &["I", "'m", " ", " 12", " été", "!", "\n\n", " x"]),
        ("gpt-2", "'S a\u{a0}b ", &["'", "S", " a", "\u{a0}", "b", " "]),
        (
            "llama-bpe",
            "I'LL take 12345.\r\n\n  go",
            &["I", "'LL", " take", " ", "123", "45", ".\r\n\n", " ", " go"],
        ),
        ("qwen2", "a12 \n \n b", &["a", "1", "2", " \n \n", " b"]),
        ("qwen35", "नमस्ते", &["नमस्ते"]),
        ("qwen2", "नमस्ते", &["नमस", "्त", "े"]),
        ("kimi-k2", "中文abc's 中", &["中文", "abc's", " ", "中"]),
        ("starcoder", "x 12", &["x", " ", "1", "2"]),
        ("falcon", "a1234,b", &["a", "123", "4", ",", "b"]),
        ("deepseek-v3", "a.foo", &["a", ".foo"]),
        ("deepseek-v3", "1234 .foo", &["123", "4", " .", "foo"]),
        ("bloom", "Hi, you. ", &["Hi", ",", " you", ". "]),
        ("tekken", "HelloWORLD été", &["Hello", "WORLD", " été"]),
        ("gpt-4o", "HelloWorld's 1234", &["Hello", "World's", " ", "123", "4"]),
        ("superbpe", "x1234567y", &["x", "1", "234", "567", "y"]),
        ("tiny_aya", "1234567", &["1", "234", "567"]),
        ("exaone-moe", "a b  c", &["a b", " ", " c"]),
        ("jais-2", "a     b", &["a", "    ", " b"]),
        ("minicpm5", "1234", &["123", "4"]),
        ("laguna", "a\n\n b", &["a", "\n\n", " b"]),
        ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
        ("whitespace", "a  b", &["a", "  ", "b"]),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(pre, text, want)| (pre, pieces(pre, text), want))
        .filter(|(_, got, want)| got != *want)
        .map(|(pre, got, want)| format!("{pre}: {got:?} and not {want:?}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Text with everything the patterns look at.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zA-Z]{1,6}",
        "[0-9]{1,7}",
        "[ \t\r\n]{1,5}",
        "[!-/:-@\\[-`{-~]{1,4}",
        "'(s|T|re|LL|x)",
        "[à-ÿА-я一-龥あ-んก-๛\u{300}-\u{36f}]{1,4}",
        "[\u{a0}\u{2003}\u{3000}\u{85}\u{0}\u{378}\u{e000}😀½٣]{1,3}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// A complete byte-level vocabulary whose merges join many pairs.
fn complete(pre: &str) -> Tokenizer {
    let pairs = [
        ("Ġ", "a"),
        ("1", "2"),
        ("12", "3"),
        ("Ã", "©"),
        ("Ċ", "Ċ"),
        ("Ġ", "Ġ"),
        ("ĠĠ", "ĠĠ"),
        ("e", "r"),
        ("l", "l"),
        ("ĠĠĠĠ", "Ġ"),
    ];
    build(bpe(pre, &pairs, &[("<|x|>", CONTROL), ("<user>", USER)]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pieces_are_the_text_whatever_the_pre_tokenizer(text in text()) {
        for pre in NAMES {
            let pieces = pieces(pre, &text);
            prop_assert_eq!(pieces.concat(), &text[..], "{}", pre);
            prop_assert!(pieces.iter().all(|p| !p.is_empty()));
        }
    }

    #[test]
    fn a_complete_vocabulary_gives_every_text_back(text in text(), parse in any::<bool>()) {
        for pre in NAMES.iter().filter(|n| !matches!(**n, "gemma4" | "sarvam-moe" | "whitespace")) {
            let tokenizer = complete(pre);
            let ids = tokenizer.encode(&text, false, parse).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids, true).unwrap(), &text[..], "{}", pre);
            let bytes: Vec<u8> =
                ids.iter().flat_map(|id| tokenizer.token_bytes(*id, true).unwrap()).copied().collect();
            prop_assert_eq!(bytes, text.as_bytes());
        }
    }

    #[test]
    fn a_complete_spm_vocabulary_gives_every_text_back(text in text()) {
        // The escaped space itself comes back as a space, so it is left out.
        let text = text.replace('\u{2581}', "_");
        let entries = [
            ("▁", NORMAL, -1.0), ("a", NORMAL, -2.0), ("▁a", NORMAL, 0.0), ("er", NORMAL, -3.0),
            ("e", NORMAL, -1.0), ("r", NORMAL, -1.0), ("▁▁", NORMAL, -0.5), ("é", NORMAL, -4.0),
        ];
        let tokenizer = build(spm(&entries));
        let ids = tokenizer.encode(&text, true, false).unwrap();
        prop_assert_eq!(tokenizer.detokenize(&ids, false).unwrap(), text);
    }
}
