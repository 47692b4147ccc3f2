//! PLaMo's tokenizer: the cheapest path, ties, and characters that become bytes.

use super::*;
use crate::TextError;

fn plamo2(entries: &[Entry<'_>]) -> VocabData {
    let bytes: Vec<String> = (0..=255u8).map(|b| format!("<0x{b:02X}>")).collect();
    let mut all = vec![
        ("<|plamo:unk|>", UNKNOWN, 0.0),
        ("<|plamo:bos|>", CONTROL, 0.0),
        ("<|plamo:eos|>", CONTROL, 0.0),
        ("<|plamo:pad|>", CONTROL, 0.0),
    ];
    all.extend(bytes.iter().map(|b| (b.as_str(), BYTE, 0.0)));
    all.extend_from_slice(entries);
    data("plamo2", &all)
}

#[test]
fn the_cheapest_path_is_taken() {
    let t = build(plamo2(&[
        ("a", NORMAL, -1.0),
        ("b", NORMAL, -1.0),
        ("ab", NORMAL, -1.5),
        ("ba", NORMAL, -1.2),
        ("bab", NORMAL, -9.0),
    ]));
    assert_eq!(texts(&t, "aba", true, false), ["a", "ba"]);
    assert_eq!(texts(&t, "bab", false, false), ["ba", "b"]);
    assert_eq!(texts(&t, "abab", false, false), ["ab", "ab"]);
    assert_eq!(texts(&t, "", true, false), [""; 0]);
}

#[test]
fn of_equal_paths_the_longer_token_comes_first() {
    let t = build(plamo2(&[
        ("a", NORMAL, -1.0),
        ("aa", NORMAL, -2.0),
        ("aaa", NORMAL, -3.0),
        // A score beyond the limit is no token of any path.
        ("aaaa", NORMAL, -2000.0),
    ]));
    assert_eq!(texts(&t, "aaaa", false, false), ["aaa", "a"]);
}

#[test]
fn characters_that_no_token_has_become_bytes() {
    let t = build(plamo2(&[("a", NORMAL, -1.0), ("é", NORMAL, -999.0), ("▁", NORMAL, -1.0)]));
    let shown = ["a", "<0xE6>", "<0x97>", "<0xA5>", "é"];
    assert_eq!(texts(&t, "\u{feff}a日é", false, false), shown);
    for text in ["a日é\u{1f600}\n", "▁ ▁"] {
        let ids = t.encode(text, false, false).unwrap();
        assert_eq!(t.decode(&ids, false).unwrap(), text);
    }
}

#[test]
fn roles_have_usual_ids_and_bytes_must_be_there() {
    let t = build(plamo2(&[]));
    assert_eq!((t.bos(), t.eos(), t.eog()), (Some(1), Some(2), &[2][..]));
    assert!(!t.add_bos());
    let mut few = plamo2(&[]);
    few.types[4] = NORMAL;
    let message = match Tokenizer::new(few) {
        Err(TextError::BadVocab(message)) => message,
        other => panic!("{other:?}"),
    };
    assert!(message.contains("<0x00>") && message.contains("convert"), "{message}");
}
