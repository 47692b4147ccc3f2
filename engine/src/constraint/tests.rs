//! Answers drawn at random under grammars, followed from the beginning and from any place in between.

use std::sync::Arc;

use brigade_text::{SpecialIds, Tokenizer, VocabData};

use super::*;
use crate::batch::{Constraint, Grammar, Marker, SamplerSetup, SeqOp, SlotId};
use crate::sample::uniform;

const EOS: u32 = 2;
const THINK: u32 = 3;

/// Control tokens, all bytes, and some words over several bytes.
fn tokenizer() -> Tokenizer {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    let mut tokens: Vec<String> =
        ["<unk>", "<s>", "</s>", "<think>", "</think>"].map(str::to_string).to_vec();
    let mut types = vec![2, CONTROL, CONTROL, CONTROL, CONTROL];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(BYTE);
    }
    for word in ["{\"", "\":", "name", "\"}", "true", "[[", "12", ", \"", "a]", "\n\n", "call:"] {
        tokens.push(word.to_string());
        types.push(NORMAL);
    }
    let scores = vec![0.0; tokens.len()];
    let ids = SpecialIds { unk: Some(0), bos: Some(1), eos: Some(EOS), ..SpecialIds::default() };
    let model = "llama".to_string();
    let data = VocabData { model, tokens, types, scores, ids, ..VocabData::default() };
    Tokenizer::new(data).unwrap()
}

fn vocabulary_of(tokenizer: &Tokenizer) -> Result<Vocabulary, ConstraintError> {
    let is_control = |id| tokenizer.is_special(id) || tokenizer.is_eog(id);
    Vocabulary::new(tokenizer.texts().unwrap(), is_control, tokenizer.eog())
}

fn vocabulary() -> Vocabulary {
    vocabulary_of(&tokenizer()).unwrap()
}

fn whole(grammar: &str) -> Arc<Constraint> {
    let grammars = vec![Grammar { text: grammar.to_string(), then_free: false }];
    Arc::new(Constraint { grammars, first: Some(0), ..Constraint::default() })
}

/// The next token of an answer, drawn from those that `mask` allows; ends are preferred when they may come.
fn draw(mask: Option<&Mask>, n_vocab: u32, seed: u64, at: usize) -> u32 {
    let allowed: Vec<u32> = (0..n_vocab).filter(|id| mask.is_none_or(|m| m.allows(*id))).collect();
    if mask.is_some() && allowed.contains(&EOS) && uniform(seed, at as u32) < 0.5 {
        return EOS;
    }
    allowed[(uniform(seed ^ 77, at as u32) * allowed.len() as f64) as usize]
}

#[test]
fn a_grammar_is_tried_before_it_is_used() {
    for (grammar, words) in [
        ("start: start", "fits no text"),
        ("start: \"a\" start", "cannot be used"),
        ("start: /[a&&b]/", ""),
    ] {
        let error = check_grammar(grammar).unwrap_err();
        assert!(ConstraintError::is_told_by(&error.to_string()), "{grammar}: {error}");
        assert!(error.to_string().contains(words), "{grammar}: {error}");
    }
    for grammar in ["start: \"a\"", "start: /(.|\\n)*/", "start: \"\"", "start: \"a\"*"] {
        assert_eq!(check_grammar(grammar), Ok(()), "{grammar}");
    }
}

/// Draws an answer to its end, or up to `most` tokens.
fn answer(vocabulary: &Vocabulary, rule: &Arc<Constraint>, seed: u64, most: usize) -> Vec<u32> {
    let mut running = Running::new(rule.clone());
    let mut answer = Vec::new();
    while answer.len() < most {
        let mask = running.mask_after(vocabulary, &answer).unwrap();
        let token = draw(mask, tokenizer().n_vocab() as u32, seed, answer.len());
        if token == EOS {
            break;
        }
        answer.push(token);
    }
    answer
}

fn text(answer: &[u32]) -> String {
    tokenizer().decode(answer, true).unwrap()
}

const SCHEMA: &str = r#"start: %json {"type": "object", "properties": {"name": {"enum": ["a", "bb"]},
    "n": {"type": "integer", "minimum": 0, "maximum": 30}}, "required": ["name", "n"],
    "additionalProperties": false}"#;

#[test]
fn drawn_answers_fit_the_schema() {
    let vocabulary = vocabulary();
    let rule = whole(SCHEMA);
    for seed in 0..50 {
        let text = text(&answer(&vocabulary, &rule, seed, 400));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(value["name"] == "a" || value["name"] == "bb", "{text}");
        assert!(value["n"].as_u64().unwrap() <= 30, "{text}");
        assert_eq!(value.as_object().unwrap().len(), 2);
    }
}

#[test]
fn a_mask_follows_from_the_tokens_alone() {
    let vocabulary = vocabulary();
    let rule = whole(SCHEMA);
    let all = answer(&vocabulary, &rule, 5, 400);
    let n_vocab = tokenizer().n_vocab() as u32;
    let bits = |running: &mut Running, answer: &[u32]| -> Vec<bool> {
        let mask = running.mask_after(&vocabulary, answer).unwrap().unwrap();
        (0..n_vocab).map(|id| mask.allows(id)).collect()
    };
    let mut steady = Running::new(rule.clone());
    for n in 0..=all.len() {
        let so_far = &all[..n];
        let mut late = Running::new(rule.clone());
        assert_eq!(bits(&mut steady, so_far), bits(&mut late, so_far), "after {n}");
    }
    // Another history than the one that was followed is followed from its beginning.
    let other = answer(&vocabulary, &rule, 6, 400);
    assert_ne!(other, all);
    let fresh = bits(&mut Running::new(rule.clone()), &other[..3]);
    assert_eq!(bits(&mut steady, &other[..3]), fresh);
}

#[test]
fn control_tokens_are_no_text() {
    let vocabulary = vocabulary();
    let mut running = Running::new(whole("start: /[<\\/a-z>]+/"));
    let mask = running.mask_after(&vocabulary, &[]).unwrap().unwrap();
    assert!(mask.allows(tokenizer().find("name").unwrap()));
    assert!(!mask.allows(THINK) && !mask.allows(1) && !mask.allows(EOS));
    let mask = running.mask_after(&vocabulary, &[tokenizer().find("name").unwrap()]).unwrap();
    assert!(mask.unwrap().allows(EOS), "the word may end");
}

#[test]
fn an_answer_may_think_before_it_is_held() {
    let vocabulary = vocabulary();
    let close = tokenizer().find("</think>").unwrap();
    let rule = Arc::new(Constraint {
        first: Some(0),
        unless: vec![THINK],
        markers: vec![Marker { text: "</think>".to_string(), grammar: 1 }],
        grammars: ["start: \"true\"", "start: /[ \\n]{1,4}/? \"true\""]
            .map(|text| Grammar { text: text.to_string(), then_free: false })
            .to_vec(),
        ..Constraint::default()
    });
    let mut running = Running::new(rule.clone());
    let at_once = running.mask_after(&vocabulary, &[]).unwrap().unwrap();
    let yes = tokenizer().find("true").unwrap();
    assert!(at_once.allows(THINK) && at_once.allows(yes) && !at_once.allows(close));
    let name = tokenizer().find("name").unwrap();
    assert!(
        running.mask_after(&vocabulary, &[THINK, name]).unwrap().is_none(),
        "thoughts are free"
    );
    let held = running.mask_after(&vocabulary, &[THINK, name, close]).unwrap().unwrap();
    assert!(held.allows(yes) && !held.allows(name) && !held.allows(THINK));
    let over = running.mask_after(&vocabulary, &[THINK, name, close, yes]).unwrap().unwrap();
    assert!(over.allows(EOS) && !over.allows(yes));
}

#[test]
fn calls_are_held_wherever_a_marker_begins_one() {
    let vocabulary = vocabulary();
    let rule = Arc::new(Constraint {
        markers: vec![Marker { text: "call:".to_string(), grammar: 0 }],
        grammars: vec![Grammar { text: "start: \"12\" | \"true\"".to_string(), then_free: true }],
        ..Constraint::default()
    });
    let id = |text: &str| tokenizer().find(text).unwrap();
    let mut running = Running::new(rule);
    let mut so_far = vec![id("name")];
    for _ in 0..2 {
        assert!(running.mask_after(&vocabulary, &so_far).unwrap().is_none());
        so_far.push(id("call:"));
        let mask = running.mask_after(&vocabulary, &so_far).unwrap().unwrap();
        assert!(mask.allows(id("true")) && mask.allows(id("12")) && !mask.allows(id("name")));
        so_far.push(id("12"));
    }
    assert!(running.mask_after(&vocabulary, &so_far).unwrap().is_none(), "free again");
}

/// An answer that is held from its beginning, one that thinks before, and one with calls in free text.
fn rules() -> [Arc<Constraint>; 3] {
    let grammar = |text: &str, then_free| Grammar { text: text.to_string(), then_free };
    let marker = |text: &str| vec![Marker { text: text.to_string(), grammar: 0 }];
    let thinks = Constraint {
        first: Some(0),
        unless: vec![THINK],
        markers: marker("</think>"),
        grammars: vec![grammar(SCHEMA, false)],
        ..Constraint::default()
    };
    let calls = Constraint {
        markers: marker("a"),
        grammars: vec![grammar("start: /[a-f]{3}(12|true)/", true)],
        ..Constraint::default()
    };
    [whole(SCHEMA), Arc::new(thinks), Arc::new(calls)]
}

#[test]
fn drafts_that_are_taken_back_leave_nothing_behind() {
    let vocabulary = vocabulary();
    let n_vocab = tokenizer().n_vocab() as u32;
    let bits = |mask: Option<&Mask>| -> Vec<bool> {
        (0..n_vocab).map(|id| mask.is_none_or(|mask| mask.allows(id))).collect()
    };
    let fresh = |rule: &Arc<Constraint>, answer: &[u32]| {
        bits(Running::new(rule.clone()).mask_after(&vocabulary, answer).unwrap())
    };
    for rule in rules() {
        let mut drafted = 0;
        for seed in 0..4 {
            let all = answer(&vocabulary, &rule, seed, 60);
            let mut running = Running::new(rule.clone());
            for n in 0..all.len() {
                let right = (uniform(seed ^ 3, n as u32) * 5.0) as usize;
                let mut with_drafts = all[..n].to_vec();
                for i in 0..6 {
                    running.prepare(&vocabulary);
                    let mask = running.made().unwrap().unwrap();
                    // What was drafted before and was right is there already.
                    let known = running.seen().get(n + i).copied();
                    let other = draw(mask.as_deref(), n_vocab, seed ^ 99, n + i);
                    let token = all.get(n + i).copied().filter(|_| i < right).unwrap_or(other);
                    if known.is_some_and(|known| known == token) {
                        with_drafts.push(token);
                        continue;
                    }
                    if known.is_some() || !running.draft(&vocabulary, token) {
                        break;
                    }
                    with_drafts.push(token);
                    running.prepare(&vocabulary);
                    let made = running.made().unwrap().unwrap();
                    assert_eq!(
                        bits(made.as_deref()),
                        fresh(&rule, &with_drafts),
                        "{with_drafts:?}"
                    );
                    drafted += 1;
                }
                running.note(&vocabulary, n, all[n]);
                assert!(running.seen().starts_with(&all[..=n]));
            }
            assert_eq!(
                bits(running.mask_after(&vocabulary, &all).unwrap()),
                fresh(&rule, &all),
                "behind all"
            );
        }
        assert!(drafted > 60, "{drafted}");
    }
}

#[test]
fn masks_along_right_drafts_are_there_and_wrong_ones_cost_nothing() {
    let rule = Arc::new(Constraint { later: true, answer_at: 2, ..(*whole(SCHEMA)).clone() });
    let all = answer(&vocabulary(), &rule, 5, 300);
    let n_vocab = tokenizer().n_vocab() as u32;
    let mut masks = Masks::new(Box::new(|| vocabulary_of(&tokenizer())));
    let (slot, prompt) = (SlotId(0), [7, 8]);
    let of = |n: usize| [&prompt[..], &all[..n]].concat();
    let at_rest = |masks: &Masks| masks.wait_for_any(&[slot], std::time::Duration::from_secs(60));
    let draw_at = |masks: &mut Masks, n: usize| {
        let pick = |mask: Option<&Mask>| draw(mask, n_vocab, 5, n);
        masks.draw(slot, &rule, &of(n), pick, |token| Some(*token)).unwrap()
    };
    while draw_at(&mut masks, 0) == Drawn::NotYet {
        at_rest(&masks);
    }
    at_rest(&masks);
    for n in (1..all.len()).step_by(5) {
        let end = (n + 4).min(all.len() - 1);
        // The last of them is not what is drawn.
        let drafts = [&all[n..end], &[all[end] ^ 1]].concat();
        masks.draft(slot, &rule, (prompt.len() + n) as u32, &drafts);
        at_rest(&masks);
        for (n, token) in (n..).zip(&all[n..end]) {
            assert_eq!(draw_at(&mut masks, n), Drawn::Now(*token), "its mask was made along");
        }
        while draw_at(&mut masks, end) == Drawn::NotYet {
            at_rest(&masks);
        }
        at_rest(&masks);
    }
    assert_eq!(masks.n_compiled(), 1);
}

#[test]
fn what_must_follow_is_told_with_the_token_before() {
    let rule = Arc::new(Constraint {
        later: true,
        ..(*whole(r#"start: "call:" ("name" "12" "true" | "a]") "true" "#)).clone()
    });
    let tokenizer = tokenizer();
    let id = |word: &str| {
        let texts = tokenizer.texts().unwrap();
        texts.iter().rposition(|text| text == word.as_bytes()).unwrap() as u32
    };
    let mut masks = Masks::new(Box::new(|| vocabulary_of(&self::tokenizer())));
    let slot = SlotId(0);
    let mut history = Vec::new();
    let mut say = |token: u32| {
        let pick = |mask: Option<&Mask>| (mask.unwrap().allows(token), token);
        loop {
            let drawn = masks.draw(slot, &rule, &history, pick, |(_, token)| Some(*token)).unwrap();
            let forced = masks.forced(slot, &rule, &history, token);
            masks.wait_for_any(&[slot], std::time::Duration::from_secs(60));
            if drawn != Drawn::NotYet {
                assert_eq!(drawn, Drawn::Now((true, token)), "it may follow");
                history.push(token);
                return forced;
            }
        }
    };
    assert!(say(id("call:")).is_empty(), "there is a choice");
    // As much as is made by then of what is behind a token that was not expected.
    assert!([id("12"), id("true"), id("true")].starts_with(&say(id("name"))));
    assert_eq!(say(id("12")), [id("true"), id("true")]);
    // It comes in other tokens.
    assert!([id("r"), id("u"), id("e")].starts_with(&say(id("t"))));
    assert_eq!(
        say(id("r")),
        [id("u"), id("e")],
        "what can only come so; the rest may come in parts"
    );
    assert_eq!(say(id("u")), [id("e")]);
}

#[test]
fn what_does_not_fit_is_an_error() {
    assert!(matches!(check_grammar("start: %json {"), Err(ConstraintError::Grammar(_))));
    assert!(matches!(check_grammar("start: foo"), Err(ConstraintError::Grammar(_))));
    assert_eq!(check_grammar(SCHEMA), Ok(()));
    let vocabulary = vocabulary();
    let mut running = Running::new(whole("start: \"true\""));
    let error = running.mask_after(&vocabulary, &[THINK]).unwrap_err();
    assert!(matches!(error, ConstraintError::Stuck(_)), "{error}");
    assert_eq!(running.mask_after(&vocabulary, &[THINK]).unwrap_err(), error, "and stays one");
}

#[test]
fn many_slots_draw_as_one_alone() {
    let rule = whole(SCHEMA);
    let shared = vocabulary();
    let n_vocab = tokenizer().n_vocab() as u32;
    let mut masks = Masks::new(Box::new(|| vocabulary_of(&tokenizer())));
    let prompt = [7, 8, 9];
    let of_slot = |_| Arc::new(Constraint { answer_at: 3, ..(*rule).clone() });
    let rules: Vec<Arc<Constraint>> = (0..8).map(of_slot).collect();
    let opens: Vec<SeqOp> = (0..8u32)
        .map(|slot| {
            let constraint = Some(rules[slot as usize].clone());
            let sampler = Some(Arc::new(SamplerSetup { constraint, ..SamplerSetup::default() }));
            SeqOp::Open { slot: SlotId(slot), blocks: Vec::new(), sampler, request: "r".into() }
        })
        .collect();
    masks.follow(&opens);
    let mut histories = vec![prompt.to_vec(); 8];
    let mut open: Vec<usize> = (0..8).collect();
    while !open.is_empty() {
        open.retain(|&slot| {
            let history = &mut histories[slot];
            let at = history.len() - prompt.len();
            let pick = |mask: Option<&Mask>| draw(mask, n_vocab, slot as u64, at);
            let rule = &rules[slot];
            let drawn = masks.draw(SlotId(slot as u32), rule, history, pick, |t| Some(*t));
            let Drawn::Now(token) = drawn.unwrap() else { panic!("these draws wait") };
            history.push(token);
            token != EOS && history.len() < 300
        });
    }
    for (slot, history) in histories.iter().enumerate() {
        let alone = answer(&shared, &rule, slot as u64, 297);
        let drawn = history[3..].strip_suffix(&[EOS]).unwrap_or(&history[3..]);
        assert_eq!(drawn, alone, "slot {slot}");
    }
}

#[test]
fn a_grammar_is_compiled_once_for_all_choices_of_its_owner() {
    let mut masks = Masks::new(Box::new(|| vocabulary_of(&tokenizer())));
    let rule = |owner| Arc::new(Constraint { later: true, owner, ..(*whole(SCHEMA)).clone() });
    let mut compiled = Vec::new();
    for (owner, n_choices) in [(1, 13), (1, 13), (2, 3)] {
        let rules: Vec<_> = (0..n_choices).map(|_| rule(owner)).collect();
        for (slot, rule) in (0..).map(SlotId).zip(&rules) {
            let mut draw = || masks.draw(slot, rule, &[], |_| (), |()| None).unwrap();
            while draw() == Drawn::NotYet {
                std::thread::yield_now();
            }
        }
        compiled.push(masks.n_compiled());
    }
    assert_eq!(compiled, [1, 1, 2]);
}

#[test]
fn masks_that_come_late_are_those_that_are_waited_for() {
    let rule = Arc::new(Constraint { later: true, ..(*whole(SCHEMA)).clone() });
    let n_vocab = tokenizer().n_vocab() as u32;
    let mut masks = Masks::new(Box::new(|| vocabulary_of(&tokenizer())));
    let mut history: Vec<u32> = Vec::new();
    let (mut put_off, mut spent) = (0, 0);
    while history.len() < 300 && history.last() != Some(&EOS) {
        let at = history.len();
        let pick = |mask: Option<&Mask>| draw(mask, n_vocab, 5, at);
        match masks.draw(SlotId(0), &rule, &history, pick, |token| Some(*token)).unwrap() {
            Drawn::Now(token) => history.push(token),
            Drawn::NotYet => {
                put_off += 1;
                masks.wait_for_any(&[SlotId(0)], std::time::Duration::from_secs(1));
            }
        }
        spent += masks.take_spent_us(SlotId(0));
    }
    assert_eq!(history.strip_suffix(&[EOS]).unwrap(), answer(&vocabulary(), &rule, 5, 300));
    println!("{put_off} draws of {} were put off; {spent} us", history.len());
    assert!(put_off > 0 && spent > 0, "nothing was made before it was asked for");
}
