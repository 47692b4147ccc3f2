//! Unigram tokenizers: the best path, runs of unknown characters, and the precompiled normaliser.

use std::collections::BTreeMap;

use super::*;
use crate::TextError;

fn t5(charsmap: Vec<u8>, merge_spaces: bool) -> VocabData {
    let entries = [
        ("<pad>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<unk>", UNKNOWN, 0.0),
        ("▁", NORMAL, -2.0),
        ("a", NORMAL, -3.0),
        ("b", NORMAL, -3.0),
        ("ab", NORMAL, -5.0),
        ("▁ab", NORMAL, -5.5),
        ("ba", NORMAL, -1.0),
        ("<x>", USER, -9.0),
    ];
    let mut d = data("t5", &entries);
    d.charsmap = charsmap;
    d.flags.add_space_prefix = Some(true);
    d.flags.remove_extra_whitespaces = Some(merge_spaces);
    d
}

#[test]
fn the_path_with_the_best_sum_is_taken() {
    let t = build(t5(Vec::new(), true));
    // ▁ab + a = -8.5, ▁ + a + ba = -6.
    assert_eq!(texts(&t, "aba", true, false), ["▁", "a", "ba", "</s>"]);
    assert_eq!(texts(&t, "ab", false, false), ["▁ab"]);
    assert_eq!(texts(&t, "  ab   ab ", false, false), ["▁ab", "▁ab"]);
    assert_eq!(texts(&t, "", true, false), ["</s>"]);
}

#[test]
fn a_run_of_unknown_characters_is_one_token() {
    let t = build(t5(Vec::new(), true));
    assert_eq!(texts(&t, "ab日本語ab", false, false), ["▁ab", "<unk>", "ab"]);
    assert_eq!(texts(&t, "é", false, false), ["▁", "<unk>"]);
    assert_eq!(texts(&t, "é é", false, false), ["▁", "<unk>", "▁", "<unk>"]);
}

#[test]
fn spaces_stay_where_the_file_does_not_merge_them() {
    let t = build(t5(Vec::new(), false));
    assert_eq!(texts(&t, "ab  a", false, false), ["▁ab", "▁", "▁", "a"]);
}

/// A node of the trie that becomes a charsmap.
#[derive(Default)]
struct Node {
    children: BTreeMap<u8, Node>,
    replacement: Option<u32>,
}

const FREE: u32 = 1 << 31;

/// Finds room for the children of the node at `index`, and fills them in.
fn place(array: &mut Vec<u32>, index: usize, node: &Node) {
    let slots = |base: usize| {
        let leaf = node.replacement.map(|_| base);
        node.children.keys().map(move |c| base ^ usize::from(*c)).chain(leaf)
    };
    let free = |array: &[u32], base: usize| {
        slots(base).all(|s| s != 0 && array.get(s).is_none_or(|e| *e == FREE))
    };
    let base = (1..).find(|b| free(array, *b)).unwrap();
    array.resize(array.len().max((base | 0xff) + 1), FREE);
    let leaf = u32::from(node.replacement.is_some()) << 8;
    let label = if array[index] == FREE { 0 } else { array[index] & 0xff };
    let relative = if index == 0 { base } else { base ^ index } as u32;
    array[index] = label | leaf | relative << 10;
    if let Some(offset) = node.replacement {
        array[base] = offset | FREE;
    }
    for c in node.children.keys() {
        array[base ^ usize::from(*c)] = u32::from(*c);
    }
    for (c, child) in &node.children {
        place(array, base ^ usize::from(*c), child);
    }
}

fn charsmap(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut root = Node::default();
    let mut replacements = Vec::new();
    for (from, to) in pairs {
        let node = from.bytes().fold(&mut root, |n, b| n.children.entry(b).or_default());
        node.replacement = Some(replacements.len() as u32);
        replacements.extend_from_slice(to.as_bytes());
        replacements.push(0);
    }
    let mut array = vec![FREE; 256];
    place(&mut array, 0, &root);
    let mut blob = ((array.len() * 4) as u32).to_le_bytes().to_vec();
    blob.extend(array.iter().flat_map(|e| e.to_le_bytes()));
    blob.extend(replacements);
    blob
}

#[test]
fn the_longest_prefix_of_the_normaliser_is_replaced() {
    let map = charsmap(&[("Ａ", "a"), ("ß", "ba"), ("ßß", "b"), ("\t", " "), ("\u{200b}", "")]);
    let t = build(t5(map, true));
    assert_eq!(texts(&t, "Ａb", false, false), ["▁ab"]);
    assert_eq!(texts(&t, "ß", false, false), ["▁", "ba"]);
    assert_eq!(texts(&t, "ßßß", false, false), ["▁", "b", "ba"]);
    assert_eq!(texts(&t, "ab\tab\u{200b}", false, false), ["▁ab", "▁ab"]);
}

#[test]
fn user_defined_tokens_pass_the_normaliser() {
    let t = build(t5(charsmap(&[("<", "a"), ("x", "b")]), true));
    assert_eq!(texts(&t, "<x>x", false, false), ["<x>", "▁", "b"]);
}

#[test]
fn a_damaged_normaliser_is_an_error_and_no_panic() {
    let good = charsmap(&[("Ａ", "a"), ("ß", "ba")]);
    for len in 1..good.len() {
        let Ok(t) = Tokenizer::new(t5(good[..len].to_vec(), true)) else { continue };
        let _ = t.encode("Ａßab", false, false);
    }
    let refused = Tokenizer::new(t5(vec![9, 0, 0, 0, 1], true));
    assert!(matches!(refused, Err(TextError::BadVocab(m)) if m.contains("precompiled_charsmap")));
    for i in 0..good.len() {
        let mut bad = good.clone();
        bad[i] ^= 0xff;
        if let Ok(t) = Tokenizer::new(t5(bad, true)) {
            let _ = t.encode("Ａßab", false, false);
        }
    }
}
