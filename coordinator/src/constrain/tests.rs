//! Forms and calls as grammars: what they say is checked by answers that fit, and by the paths of complaints.

use serde_json::{Value, json};

use super::answer::{Wishes, of_chat};
use super::*;
use crate::dialect::{Tool, Tools};
use crate::text_model::{Chat, Force, TextModel};

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
