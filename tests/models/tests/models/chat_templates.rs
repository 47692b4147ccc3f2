//! Chat templates in the styles that real models use, against what Jinja2 renders.
//! `data/templates/expected.py` writes what is expected.

use std::path::PathBuf;

use brigade_text::{ChatTemplate, TemplateInput, TemplateTokens, TextError};
use serde_json::{Map, Value, json};

fn folder() -> PathBuf {
    brigade_model_tests::places::of_tests("data/templates")
}

fn tokens() -> TemplateTokens {
    TemplateTokens { bos: "<s>".into(), eos: "</s>".into(), ..TemplateTokens::default() }
}

fn compiled(name: &str) -> ChatTemplate {
    let source =
        std::fs::read_to_string(folder().join(format!("{name}.jinja"))).expect("a template");
    ChatTemplate::from_source(&source, tokens()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn list<'a>(case: &'a Value, key: &str) -> &'a [Value] {
    case[key].as_array().map_or(&[], Vec::as_slice)
}

fn render(case: &Value) -> Result<String, TextError> {
    let empty = Map::new();
    compiled(case["template"].as_str().expect("a name")).render(&TemplateInput {
        messages: list(case, "messages"),
        tools: list(case, "tools"),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap_or(false),
        kwargs: Some(case["kwargs"].as_object().unwrap_or(&empty)),
        now: case["now"].as_i64().unwrap_or(0),
    })
}

fn templates_render_as_jinja2_renders_them() {
    let text = std::fs::read_to_string(folder().join("cases.json")).expect("the cases");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let mut refused = 0;
    for (i, case) in cases.iter().enumerate() {
        match (render(case), case["expected"].as_str(), case["error"].as_str()) {
            (Ok(got), Some(want), None) => assert_eq!(got, want, "case {i}"),
            (Err(e), None, Some(want)) => {
                assert!(e.to_string().contains(want), "case {i}: {e} does not say {want}");
                refused += 1;
            }
            (got, ..) => panic!("case {i}: {got:?}, but {case}"),
        }
    }
    println!("{} cases, {refused} of them refused by their template", cases.len());
    assert!(cases.len() >= 30 && refused >= 4);
}

fn what_the_tokenizer_adds_is_taken_off_once() {
    let tokens = TemplateTokens { strip_bos: true, strip_eos: true, ..tokens() };
    let source = "{{ bos_token + bos_token + messages[0].content + eos_token }}";
    let template = ChatTemplate::from_source(source, tokens).expect("a template");
    let messages = [json!({"role": "user", "content": "x"})];
    let input = TemplateInput { messages: &messages, ..TemplateInput::default() };
    assert_eq!(template.render(&input).expect("rendered"), "<s>x");
}

fn chatml_is_there_for_those_who_ask() {
    let template = ChatTemplate::chatml(tokens());
    let messages = [json!({"role": "user", "content": "x"})];
    let input = TemplateInput {
        messages: &messages,
        add_generation_prompt: true,
        ..TemplateInput::default()
    };
    let want = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template.render(&input).expect("rendered"), want);
}

fn hostile_templates_end_with_an_error() {
    let cases = [
        (
            "{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
            "fuel",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        (
            "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
            "bytes of text and lists, the limit",
        ),
        ("{{ missing_function() }}", "missing_function"),
        ("{{ messages.nothing.more }}", "undefined"),
    ];
    for (source, says) in cases {
        let template = ChatTemplate::from_source(source, tokens()).expect("it compiles");
        let error = template.render(&TemplateInput::default()).expect_err(source).to_string();
        assert!(error.contains(says), "{source}: {error}");
    }
    let error = ChatTemplate::from_source("{% if %}", tokens()).expect_err("no condition");
    assert!(error.to_string().contains("chat template"), "{error}");
}

/// As many messages as a request may have, many short ones and some megabytes, in every style.
fn long_conversations_stay_within_the_limits() {
    for len in [30, 1000] {
        let messages: Vec<Value> = (0..8192)
            .map(|i| match i % 2 {
                0 => json!({"role": "user", "content": format!("{i}{}", "x".repeat(len))}),
                _ => json!({"role": "assistant", "content": format!("<think>a</think>{}", "z".repeat(len))}),
            })
            .collect();
        let names = std::fs::read_dir(folder()).expect("the folder");
        let names = names.map(|entry| entry.expect("an entry").path());
        let names: Vec<_> =
            names.filter(|path| path.extension().is_some_and(|e| e == "jinja")).collect();
        assert!(names.len() >= 8);
        for path in names {
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            let input = TemplateInput { messages: &messages, ..TemplateInput::default() };
            let prompt = compiled(name).render(&input).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(prompt.len() > 4096 * len, "{name}");
        }
    }
}

fn a_request_cannot_replace_what_the_server_sets() {
    let kwargs = json!({"messages": []});
    let input = TemplateInput { kwargs: kwargs.as_object(), ..TemplateInput::default() };
    let error = ChatTemplate::chatml(tokens()).render(&input).expect_err("reserved");
    assert!(error.to_string().contains("messages"), "{error}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        templates_render_as_jinja2_renders_them,
        what_the_tokenizer_adds_is_taken_off_once,
        chatml_is_there_for_those_who_ask,
        hostile_templates_end_with_an_error,
        long_conversations_stay_within_the_limits,
        a_request_cannot_replace_what_the_server_sets;
];
