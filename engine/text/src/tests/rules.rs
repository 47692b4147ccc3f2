//! Rules of merging, of special tokens and of their roles, and the errors of bad vocabularies.

use super::*;
use crate::{Kind, TextError};

#[test]
fn spm_merges_the_best_score_first_and_the_leftmost_of_equals() {
    let entries = [
        ("▁", NORMAL, -9.0),
        ("a", NORMAL, -9.0),
        ("b", NORMAL, -9.0),
        ("ab", NORMAL, -2.0),
        ("ba", NORMAL, -1.0),
        ("aa", NORMAL, -3.0),
        ("▁a", NORMAL, -8.0),
    ];
    let t = build(spm(&entries));
    assert_eq!(texts(&t, "abab", false, false), ["▁a", "ba", "b"]);
    assert_eq!(texts(&t, "aaaa", false, false), ["▁", "aa", "aa"]);
    assert_eq!(texts(&t, "", false, false), Vec::<String>::new());
    assert_eq!(texts(&t, "", true, false), ["<s>"]);
    assert_eq!(texts(&t, "é", false, false), ["▁", "<0xC3>", "<0xA9>"]);
}

#[test]
fn spm_puts_a_space_after_every_special_token() {
    let t = build(spm(&[("▁", NORMAL, 0.0), ("a", NORMAL, 0.0), ("▁a", NORMAL, 1.0)]));
    assert_eq!(texts(&t, "a</s>a", true, true), ["<s>", "▁a", "</s>", "▁a"]);
    let mut plain = spm(&[("▁", NORMAL, 0.0), ("a", NORMAL, 0.0), ("▁a", NORMAL, 1.0)]);
    plain.flags =
        VocabFlags { add_space_prefix: Some(false), add_eos: Some(true), ..VocabFlags::default() };
    assert_eq!(texts(&build(plain), "a", true, true), ["<s>", "a", "</s>"]);
}

#[test]
fn bpe_merges_by_rank_and_drops_what_has_no_token() {
    let t = build(bpe("gpt-2", &[("b", "c"), ("a", "b"), ("ab", "c"), ("Ġ", "a")], &[]));
    assert_eq!(texts(&t, "abc ab a", false, false), ["a", "bc", "Ġ", "ab", "Ġa"]);
    let mut gap = bpe("gpt-2", &[("b", "c")], &[]);
    gap.tokens[usize::from(b'x')] = "something else".into();
    assert_eq!(texts(&build(gap), "axbc", false, false), ["a", "bc"]);
}

#[test]
fn whole_pieces_win_over_merges_where_the_pre_tokenizer_says_so() {
    let make = |pre: &str| bpe(pre, &[("a", "b"), ("c", "d")], &[("abcd", NORMAL)]);
    assert_eq!(texts(&build(make("qwen2")), "abcd", false, false), ["ab", "cd"]);
    assert_eq!(texts(&build(make("tekken")), "abcd", false, false), ["abcd"]);
}

#[test]
fn raw_bpe_escapes_spaces_and_takes_newlines_whole() {
    let mut d = data("gemma4", &[("<bos>", CONTROL, 0.0), ("a", NORMAL, 0.0), ("▁", NORMAL, 0.0)]);
    d.ids.bos = Some(0);
    for token in ["▁a", "\n", "\n\n\n", "<0xC3>", "<0xA9>"] {
        d.tokens.push(token.into());
        d.types.push(if token.starts_with("<0x") { BYTE } else { NORMAL });
    }
    d.scores.clear();
    d.merges = vec!["▁ a".into()];
    d.flags.add_bos = Some(false);
    let t = build(d);
    let want = ["<bos>", "a", "▁a", "\n\n\n", "a", "\n", "\n", "<0xC3>", "<0xA9>"];
    assert_eq!(texts(&t, "a a\n\n\na\n\né", true, false), want);
    let ids = t.encode("a a\n\n\né", false, false).unwrap();
    assert_eq!(t.decode(&ids, false).unwrap(), "a a\n\n\né");
}

#[test]
fn longer_special_tokens_are_taken_first_wherever_they_are() {
    let entries = [("<ab", USER), ("b<cd>", USER), ("<|c|>", CONTROL), ("<", USER)];
    let t = build(bpe("gpt-2", &[("x", "y")], &entries));
    assert_eq!(texts(&t, "<ab<cd>", false, false), ["<", "a", "b<cd>"]);
    assert_eq!(texts(&t, "x<|c|>y", false, true), ["x", "<|c|>", "y"]);
    assert_eq!(texts(&t, "x<|c|>y", false, false), ["x", "<", "|", "c", "|", ">", "y"]);
    assert_eq!(texts(&t, "<|c|><|c|>", false, true), ["<|c|>", "<|c|>"]);
}

#[test]
fn phi3_specials_eat_the_white_space_behind_them() {
    let mut d = spm(&[("<|user|>", CONTROL, 0.0), ("▁", NORMAL, 0.0), ("a", NORMAL, 0.0)]);
    d.name = "Phi-3 mini".into();
    d.flags.add_space_prefix = Some(false);
    let t = build(d);
    assert_eq!(texts(&t, "<|user|> \n a<s> a", false, true), ["<|user|>", "a", "<s>", "▁", "a"]);
}

#[test]
fn a_mask_may_eat_the_white_space_before_it() {
    let mut d = bpe("jina-v2-code", &[("x", "y")], &[("<mask>", CONTROL)]);
    d.architecture = "jina-bert-v2".into();
    assert_eq!(texts(&build(d), "a \n<mask> b", false, true), ["a", "<mask>", "Ġ", "b"]);
}

#[test]
fn the_end_of_generation_follows_from_roles_and_texts() {
    let end = |entries: &[(&str, i32)], eos: Option<&str>| {
        let mut d = bpe("gpt-2", &[("x", "y")], entries);
        d.ids.eos = eos.and_then(|e| d.tokens.iter().position(|t| t == e)).map(|i| i as u32);
        let t = build(d);
        let names: Vec<String> =
            t.eog().iter().map(|id| t.token_text(*id).unwrap().to_owned()).collect();
        assert!(t.eog().iter().all(|id| t.is_eog(*id)));
        names
    };
    let turn = [("<|im_end|>", NORMAL), ("<|endoftext|>", CONTROL), ("<|file_sep|>", NORMAL)];
    assert_eq!(end(&turn, Some("a")), ["a", "<|im_end|>", "<|endoftext|>", "<|file_sep|>"]);
    let oss =
        [("<|end|>", CONTROL), ("<|call|>", CONTROL), ("<|return|>", CONTROL), ("z1", CONTROL)];
    assert_eq!(end(&oss, Some("z1")), ["<|call|>", "<|return|>", "z1"]);
    let gemma = [("</s>", NORMAL), ("<|tool_response>", CONTROL), ("<eos>", CONTROL)];
    assert_eq!(end(&gemma, Some("<eos>")), ["<|tool_response>", "<eos>"]);
}

#[test]
fn texts_of_the_lists_become_control_tokens() {
    let t = build(bpe("gpt-2", &[("x", "y")], &[("<|im_end|>", USER), ("<|start|>", CONTROL)]));
    assert_eq!(t.encode("<|im_end|>", false, false).unwrap().len(), 10);
    assert_eq!(texts(&t, "<|im_end|>", false, true), ["<|im_end|>"]);
    assert_eq!(texts(&t, "<|start|>", false, false), ["<|start|>"]);
    let id = t.find("<|im_end|>").unwrap();
    assert_eq!(t.decode(&[id], false).unwrap(), "");
    assert_eq!(t.decode(&[id], true).unwrap(), "<|im_end|>");
}

#[test]
fn detokenising_drops_the_space_that_encoding_added() {
    let t = build(spm(&[("▁", NORMAL, 0.0), ("a", NORMAL, 0.0), ("▁a", NORMAL, 1.0)]));
    for text in ["a", " a", "  a", "a </s> a", "é a\n"] {
        let ids = t.encode(text, true, false).unwrap();
        assert_eq!(t.detokenize(&ids, false).unwrap(), text);
    }
    let ids = t.encode("a a", true, false).unwrap();
    assert_eq!(t.decode(&ids, false).unwrap(), " a a");
    assert_eq!(t.decode(&ids, true).unwrap(), "<s> a a");
}

#[test]
fn a_model_without_vocabulary_has_a_size_only() {
    for model in ["none", "no_vocab"] {
        let t =
            build(VocabData { model: model.into(), vocab_size: Some(77), ..VocabData::default() });
        assert_eq!((t.kind(), t.n_vocab()), (Kind::None, 77));
        assert!(matches!(t.encode("a", true, true), Err(TextError::NoVocab)));
        assert!(matches!(t.decode(&[1], true), Err(TextError::NoVocab)));
        assert!(matches!(t.check(77), Err(TextError::BadToken { id: 77, n_vocab: 77 })));
    }
}

#[test]
fn bad_vocabularies_are_refused_with_the_name_of_the_field() {
    let merges: &[(&str, &str)] = &[("a", "b")];
    let with = |change: &dyn Fn(&mut VocabData)| {
        let mut d = bpe("gpt-2", merges, &[]);
        change(&mut d);
        Tokenizer::new(d).expect_err("refused").to_string()
    };
    let says = |message: String, parts: &[&str]| {
        assert!(parts.iter().all(|p| message.contains(p)), "{message}");
    };
    for model in ["whitespace", "hybriddna"] {
        says(with(&|d| d.model = model.into()), &["tokenizer.ggml.model", model]);
    }
    says(with(&|d| d.pre = Some("nonsense".into())), &["tokenizer.ggml.pre", "nonsense"]);
    says(with(&|d| d.merges.clear()), &["tokenizer.ggml.merges"]);
    says(with(&|d| d.merges[0] = "ab".into()), &["merges[0]", "\"ab\""]);
    says(with(&|d| d.tokens.clear()), &["tokenizer.ggml.tokens"]);
    says(with(&|d| d.types.truncate(3)), &["token_type", "3"]);
    says(with(&|d| d.scores = vec![1.0]), &["scores", "1"]);
    says(with(&|d| d.scores = vec![f32::NAN; 300]), &["scores[0]"]);
    let no_bos = |d: &mut VocabData| {
        d.pre = Some("glm4".into());
        d.flags.add_bos = Some(true);
    };
    says(with(&no_bos), &["add_bos_token", "bos_token_id"]);
}

#[test]
fn ids_outside_the_vocabulary_are_ignored_or_refused() {
    let mut d = bpe("gpt-2", &[("a", "b")], &[]);
    d.ids.eot = Some(100_000);
    d.suppress = vec![3, 100_000];
    let t = build(d);
    assert_eq!(t.eot(), None);
    assert_eq!(t.suppressed(), [3]);
    let error = t.decode(&[257], false).unwrap_err().to_string();
    assert!(error.contains("257"), "{error}");
}

#[test]
fn a_missing_pre_tokenizer_is_the_default_one() {
    let mut d = bpe("default", &[("1", "2"), ("12", "3")], &[]);
    let named = build(d.clone());
    d.pre = None;
    let ids = |t: &Tokenizer| t.encode("1231 a,b", false, false).unwrap();
    assert_eq!(ids(&build(d)), ids(&named));
}

#[test]
fn a_text_beyond_the_limit_is_refused() {
    let t = build(bpe("gpt-2", &[("a", "b")], &[]));
    let text = "a".repeat(crate::MAX_TEXT_BYTES + 1);
    assert!(matches!(t.encode(&text, false, false), Err(TextError::TooLong { .. })));
}
