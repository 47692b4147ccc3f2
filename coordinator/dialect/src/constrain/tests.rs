//! Forms and calls as grammars, checked by answers that match and by the paths in errors.

use std::sync::Arc;

use brigade_engine::batch::{Constraint, SlotId};
use brigade_engine::constraint::{Drawn, Mask, Masks, Vocabulary, check_grammar};
use serde_json::{Value, json};

use super::answer::{Wishes, of_chat};
use super::*;
use crate::text_model::{Chat, Force, TextModel};
use crate::{Tool, Tools};

fn refused(schema: Value) -> String {
    let form = Form { path: "s".to_string(), kind: FormKind::Schema(schema, Strictness::Strict) };
    form.grammar().unwrap_err().path
}

#[test]
fn what_a_schema_uses_and_is_not_supported_is_named_by_its_path() {
    for (schema, path) in [
        (json!({ "not": {} }), "s.not"),
        (json!({ "properties": { "a": { "if": {} } } }), "s.properties.a.if"),
        (
            json!({ "$defs": { "d": { "items": { "uniqueItems": true } } }, "$ref": "#/$defs/d" }),
            "s.$defs.d.items.uniqueItems",
        ),
        (json!({ "anyOf": [{}, { "type": "string", "format": "regex" }] }), "s.anyOf[1].format"),
        (json!({ "$ref": "https://example.com/x" }), "s.$ref"),
        (json!({ "items": { "type": "string", "pattern": "(?=a)" } }), "s.items"),
        (json!({ "properties": { "p": { "type": "strange" } } }), "s.properties.p"),
    ] {
        assert_eq!(refused(schema.clone()), path, "{schema}");
    }
}

#[test]
fn annotations_and_words_that_nobody_knows_pass() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "title": "T", "x-anything": [1],
        "type": "object",
        "properties": {
            "a": { "type": "integer", "format": "int32", "description": "d", "default": 3 },
            "uniqueItems": { "type": "array", "uniqueItems": false, "items": { "type": "string" } },
        },
    });
    let form = Form { path: "s".into(), kind: FormKind::Schema(schema, Strictness::Strict) };
    let text = form.grammar().unwrap().text();
    assert!(text.contains("\"uniqueItems\":{"), "a property of that name stays: {text}");
    assert!(!text.contains("int32"));
    let lenient = json!({ "type": "object", "not": {}, "oneOf": [{}, {}] });
    let form = Form { path: "s".into(), kind: FormKind::Schema(lenient, Strictness::Lenient) };
    form.grammar().unwrap();
}

#[test]
fn gbnf_says_the_same_in_lark() {
    let gbnf = "# a comment\nroot ::= item-A (\",\" \" \"? item-A)*\nitem-A ::= [a-c^\\]]{1,3} |\n  \"x\\\"\\x41\"\n";
    let lark = gbnf::to_lark(gbnf).unwrap();
    let want = "start: r_item_d_ua (\",\" \" \"? r_item_d_ua)*\n\
                r_item_d_ua: /[a-c\\^\\]]/{1,3} | (\"x\" \"\\\"\" \"A\")";
    assert_eq!(lark, want);
    assert_eq!(check_grammar(&lark), Ok(()));
    for (text, why) in [
        ("a ::= \"b\"", "no rule root"),
        ("root ::= (\"a\"", "line 1: ) is missing"),
        ("root ::= \"a\n", "line 1: a string has no end"),
        ("root = \"a\"", "::= is missing"),
        ("root ::= [a", "a class has no end"),
    ] {
        let error = gbnf::to_lark(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// A template that writes calls as Hermes does, and reasoning.
const HERMES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
    {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {% if tools %}{{ tools | tojson }}{% endif %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn hermes() -> TextModel {
    let controls =
        ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];
    TextModel::sample_with(HERMES, &controls)
}

fn tools(strict: bool) -> Tools {
    let parameters = json!({
        "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"],
        "additionalProperties": false,
    });
    let tool = |name: &str, parameters| Tool { name: name.to_string(), parameters, strict };
    Tools::new(vec![tool("ab", parameters), tool("cd", Value::Null)])
}

fn wishes<'a>(form: Option<&'a Form>, force: &'a Force, tools: &'a Tools) -> Wishes<'a> {
    Wishes { form, force, single: false, tools }
}

fn prompt(text: &TextModel, force: Force) -> crate::text_model::Prompt {
    let messages = vec![json!({ "role": "user", "content": "x" })];
    text.encode_chat(&Chat { messages, force, ..Chat::default() }).unwrap()
}

#[test]
fn a_free_answer_with_lenient_tools_is_free() {
    let text = hermes();
    let (force, tools) = (Force::Free, tools(false));
    let free = of_chat(&text, &prompt(&text, Force::Free), wishes(None, &force, &tools)).unwrap();
    assert_eq!(free, None);
}

#[test]
fn strict_tools_are_held_behind_their_marker() {
    let text = hermes();
    let (force, tools) = (Force::Free, tools(true));
    let prompt = prompt(&text, Force::Free);
    let held = of_chat(&text, &prompt, wishes(None, &force, &tools)).unwrap().unwrap();
    assert_eq!((held.first, held.markers.len()), (None, 1));
    assert_eq!(held.markers[0].text, "<tool_call>");
    let grammar = &held.grammars[0];
    assert!(grammar.then_free);
    for part in [r#"\"{\\\"name\\\": \\\"ab\\\", \\\"arguments\\\": \""#, "@part_0", "@part_1"] {
        assert!(grammar.text.contains(part), "{part}: {}", grammar.text);
    }
    assert_eq!(check_grammar(&grammar.text), Ok(()));
}

#[test]
fn a_forced_call_is_held_from_the_first_token() {
    let text = hermes();
    let tools = tools(false);
    for force in [Force::Tool("ab".to_string()), Force::Any] {
        let prompt = prompt(&text, force.clone());
        let held = of_chat(&text, &prompt, wishes(None, &force, &tools)).unwrap().unwrap();
        let first = &held.grammars[held.first.unwrap() as usize];
        assert!(first.then_free);
        let names_it = first.text.contains("ab\\\\\\\"");
        assert_eq!(names_it, force == Force::Any, "{}", first.text);
        assert_eq!(check_grammar(&first.text), Ok(()));
    }
}

#[test]
fn a_form_holds_from_the_start_or_behind_the_reasoning() {
    let text = hermes();
    let (force, form) = (Force::Free, Form::any_object("f"));
    let none = Tools::default();
    let mut prompt = prompt(&text, Force::Free);
    let held = of_chat(&text, &prompt, wishes(Some(&form), &force, &none)).unwrap().unwrap();
    let think = text.tokenizer().find("<think>").unwrap();
    assert_eq!((held.first, held.unless.as_slice()), (Some(1), [think].as_slice()));
    assert_eq!(held.markers[0].text, "</think>");
    // A prompt that has begun the reasoning.
    prompt.begins = "<think>".to_string();
    let held = of_chat(&text, &prompt, wishes(Some(&form), &force, &none)).unwrap().unwrap();
    assert_eq!((held.first, held.unless.len()), (None, 0));
    // With tools the answer may be a call as well.
    prompt.begins.clear();
    let with_tools = tools(true);
    let held = of_chat(&text, &prompt, wishes(Some(&form), &force, &with_tools)).unwrap().unwrap();
    let call = text.tokenizer().find("<tool_call>").unwrap();
    assert!(held.unless.contains(&call) && held.unless.contains(&think));
    assert_eq!(held.markers.len(), 2);
}

#[test]
fn a_strict_tool_is_refused_by_the_path_of_its_keyword() {
    let text = hermes();
    let parameters = json!({ "type": "object", "properties": { "a": { "not": {} } } });
    let tool = |strict| Tool { name: "f".to_string(), parameters: parameters.clone(), strict };
    let force = Force::Tool("f".to_string());
    let prompt = prompt(&text, force.clone());
    let of = |strict| {
        let tools = Tools::new(vec![tool(strict)]);
        of_chat(&text, &prompt, wishes(None, &force, &tools))
    };
    assert_eq!(of(true).unwrap_err().path, "tools[0].function.parameters.properties.a.not");
    assert!(of(false).unwrap().is_some());
}

/// Names of control tokens of [`model`].
const CONTROLS: [&str; 8] = [
    "<|im_start|>",
    "<|im_end|>",
    "[TOOL_CALLS]",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
];

/// The bytes' first token in the sample vocabulary.
const FIRST_BYTE: u32 = 3;

/// Tokens of a text: names of control tokens, and bytes.
fn tokens(text: &TextModel, answer: &str) -> Vec<u32> {
    let (mut rest, mut ids) = (answer.as_bytes(), Vec::new());
    while let Some(byte) = rest.first() {
        let name = CONTROLS.iter().find(|name| rest.starts_with(name.as_bytes()));
        let control = name.and_then(|name| Some((text.tokenizer().find(name)?, name.len())));
        let (id, n) = control.unwrap_or((FIRST_BYTE + u32::from(*byte), 1));
        ids.push(id);
        rest = &rest[n..];
    }
    ids
}

/// Whether an answer may be written to its end.
fn passes(text: &TextModel, held: &Arc<Constraint>, answer: &str) -> bool {
    all_may_follow(text, held, &tokens(text, answer))
}

/// Whether an answer may be written, and end there.
pub(super) fn is_whole(text: &TextModel, held: &Arc<Constraint>, answer: &str) -> bool {
    let mut ids = tokens(text, answer);
    ids.push(text.eog()[0]);
    all_may_follow(text, held, &ids)
}

/// Whether each of some tokens may follow those before it.
fn all_may_follow(text: &TextModel, held: &Arc<Constraint>, ids: &[u32]) -> bool {
    let tokenizer = text.tokenizer();
    let is_control = |id| tokenizer.is_special(id) || tokenizer.is_eog(id);
    let vocabulary = Vocabulary::new(tokenizer.texts().unwrap(), is_control, tokenizer.eog());
    let mut masks = Masks::new(Box::new(move || vocabulary));
    (0..ids.len()).all(|n| {
        let may = |mask: Option<&Mask>| mask.is_none_or(|mask| mask.allows(ids[n]));
        masks.draw(SlotId(0), held, &ids[..n], may, |_| None).unwrap() == Drawn::Now(true)
    })
}

/// The place of a test, for which nothing waits.
struct Nowhere;

impl super::trials::Place for Nowhere {
    fn leave(&mut self) {}
    fn come_back(&mut self) {}
}

#[test]
fn the_part_to_blame_is_found_in_few_trials() {
    use super::schema::grammar;
    const N: usize = 1000;
    for culprit in [0, 1, N / 2, N - 1] {
        let property = |at: usize| {
            if at == culprit {
                json!({ "type": "array", "items": { "type": "string", "pattern": "a(?=b)" } })
            } else {
                json!({ "type": "string", "pattern": "^.*17.*$" })
            }
        };
        let properties = (0..N).map(|at| (format!("p{at:04}"), property(at)));
        let properties: serde_json::Map<String, Value> = properties.collect();
        let required: Vec<&String> = properties.keys().collect();
        let schema = json!({ "type": "object", "required": required, "properties": properties });
        let trials = Arc::new(super::trials::Trials::default());
        let read = || grammar("schema", &schema, Strictness::Strict);
        let (refused, took) =
            trials.within(1, super::trials::Asker::default(), Box::new(Nowhere), read);
        let refused = refused.unwrap_err();
        assert_eq!(refused.path, format!("schema.properties.p{culprit:04}.items"));
        println!("{refused}: {} trials, {took:?}", trials.n_tried());
        assert!(trials.n_tried() <= 20, "{} trials of {N} parts", trials.n_tried());
    }
}

/// The constraint of a free answer with one strict tool.
fn strict_tool(template: &str, parameters: Value) -> (TextModel, Result<Arc<Constraint>, Refused>) {
    let text = TextModel::sample_with(template, &CONTROLS);
    let tools = Tools::new(vec![Tool { name: "f".to_string(), parameters, strict: true }]);
    let prompt = prompt(&text, Force::Free);
    let held = of_chat(&text, &prompt, wishes(None, &Force::Free, &tools));
    (text, held.map(|held| Arc::new(held.expect("it is held"))))
}

fn number_and_text() -> Value {
    json!({
        "type": "object", "required": ["n"], "additionalProperties": false,
        "properties": { "n": { "type": "integer" }, "s": { "type": "string", "pattern": "^[a-c]+$" } },
    })
}

#[test]
fn every_call_of_a_list_is_held() {
    let lists = [
        (
            include_str!("../../../../tests/data/dialects/mistral_list.jinja"),
            "[TOOL_CALLS][",
            r#"{"name": "f", "arguments": {"n": 1}}"#,
            r#"{"name": "f", "arguments": {"n": 1}, "id": "abcdefghi"}"#,
            [r#"{"name": "f", "arguments": {"n": "1"}}"#, r#"{"name": "g", "arguments": {}}"#],
        ),
        (
            include_str!("../../../../tests/data/dialects/lfm.jinja"),
            "<|tool_call_start|>[",
            "f(n=1)",
            r#"f(n=12, s="ab")"#,
            ["f(n=x)", r#"f(n=1, s="d")"#],
        ),
    ];
    for (template, open, one, two, wrong) in lists {
        let (text, held) = strict_tool(template, number_and_text());
        let held = held.unwrap();
        for list in [one.to_string(), format!("{one}, {two}"), format!("{two},\n{one}, {one}")] {
            assert!(passes(&text, &held, &format!("Well. {open}{list}] And more.")), "{list}");
        }
        for wrong in wrong {
            assert!(!passes(&text, &held, &format!("{open}{wrong}]")), "{wrong}");
            assert!(!passes(&text, &held, &format!("{open}{one}, {wrong}]")), "second: {wrong}");
        }
    }
}

#[test]
fn tags_with_attributes_say_the_type_of_what_they_hold() {
    let dsml = |value: &str| {
        format!(
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" {value}\
             </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
        )
    };
    let (text, held) =
        strict_tool(include_str!("../../../../tests/data/dialects/dsml.jinja"), number_and_text());
    let held = held.unwrap();
    let with_text =
        "string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter name=\"s\" string=\"true\">";
    for value in ["string=\"false\">12".to_string(), format!("{with_text}abc")] {
        assert!(passes(&text, &held, &dsml(&value)), "{value}");
    }
    for value in
        ["string=\"true\">1".to_string(), "string=\"false\">x".into(), format!("{with_text}d")]
    {
        assert!(!passes(&text, &held, &dsml(&value)), "{value}");
    }
    let kimi = |index: u32, kind: &str, value: &str| {
        format!(
            "<|open|>call tool=\"f\" index=\"{index}\"<|sep|><|open|>argument key=\"n\" type=\"{kind}\"<|sep|>{value}\
             <|close|>argument<|sep|><|close|>call<|sep|>"
        )
    };
    let either =
        json!({ "type": "object", "properties": { "n": { "type": ["integer", "string"] } } });
    let (text, held) =
        strict_tool(include_str!("../../../../tests/data/dialects/kimi3.jinja"), either);
    let held = held.unwrap();
    let begin = "<|open|>tools<|sep|>";
    let two = kimi(1, "number", "7") + &kimi(2, "string", "seven");
    assert!(passes(&text, &held, &format!("{begin}{two}")));
    for wrong in [kimi(1, "number", "x"), kimi(1, "null", "null")] {
        assert!(!passes(&text, &held, &format!("{begin}{wrong}")), "{wrong}");
    }
}

#[test]
fn unions_are_held_in_tags_and_as_python() {
    let schema = json!({
        "type": "object", "additionalProperties": false,
        "properties": { "n": { "type": "integer" }, "s": { "type": "string" } },
        "anyOf": [{ "required": ["n"] }, { "required": ["s"] }],
    });
    let (text, held) =
        strict_tool(include_str!("../../../../tests/data/dialects/lfm.jinja"), schema.clone());
    let held = held.unwrap();
    for (arguments, may) in [("n=1", true), ("s=\"x\"", true), ("n=1, s=\"x\"", true), ("", false)]
    {
        let answer = format!("<|tool_call_start|>[f({arguments})]");
        assert_eq!(passes(&text, &held, &answer), may, "{arguments}");
    }
    let qwen = include_str!("../../../../tests/data/dialects/qwen_coder.jinja");
    let (text, held) = strict_tool(qwen, schema);
    let held = held.unwrap();
    for (parameters, may) in [
        ("<parameter=n>\n1\n</parameter>\n", true),
        ("<parameter=s>\nfree text\n</parameter>\n", true),
        ("<parameter=n>\none\n</parameter>\n", false),
        ("", false),
    ] {
        let answer = format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>");
        assert_eq!(passes(&text, &held, &answer), may, "{parameters}");
    }
    let dated = json!({ "properties": { "d": { "type": "string", "format": "date" } } });
    let refused = strict_tool(qwen, dated).1.unwrap_err();
    assert_eq!(refused.path, "tools[0].function.parameters.properties.d.format");
}
