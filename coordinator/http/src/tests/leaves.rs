//! A different word in every text of every kind of item of all four interfaces: each word is in the prompt, in its
//! order, or the request is refused by that place.

use brigade_dialect::text_model::TextModel;
use brigade_line::request::Limits;
use serde_json::{Map, Value, json};

use crate::compat::anthropic;
use crate::compat::ollama;
use crate::compat::responses;
use crate::error::ApiError;
use crate::request::chat_request::{ChatRequest, Names};
use crate::request::fields::Fields;
use crate::request::fields::tests::UNKNOWN;

/// Writes all that it is given.
const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}\n{{ m.content or '' }}\n\
    {% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}\
    {% endfor %}";

/// Names of fields that hold no text for a model.
const LABELS: [(&str, &str); 12] = [
    ("role", "who speaks"),
    ("type", "what an item is"),
    ("id", "a name between programs"),
    ("call_id", "a name between programs"),
    ("tool_call_id", "a name between programs"),
    ("tool_use_id", "a name between programs"),
    ("status", "how an item went"),
    ("signature", "a proof for who signed"),
    ("encrypted_content", "nobody but who wrote it can read it"),
    ("data", "reasoning that nobody but who wrote it can read"),
    ("tool_name", "a label that templates may write"),
    ("cache_control", "says what to keep"),
];

/// The interface that a body is for.
#[derive(Clone, Copy, Debug)]
enum Api {
    Chat,
    Messages,
    Responses,
    Ollama,
    Generate,
}

/// The chat that an Ollama request asks for.
fn asked(asked: ollama::request::Asked) -> Map<String, Value> {
    match asked {
        ollama::request::Asked::Chat(chat, _) => chat,
        other => panic!("no chat: {other:?}"),
    }
}

/// The prompt of a body.
fn prompt(api: Api, body: &Value, model: &TextModel) -> Result<String, ApiError> {
    let bytes = body.to_string().into_bytes();
    let chat = match api {
        Api::Chat => Map::new(),
        Api::Messages => anthropic::request::translate(&bytes)?.0,
        Api::Responses => responses::request::translate(&bytes)?.0,
        Api::Ollama => asked(ollama::request::chat(&bytes)?),
        Api::Generate => asked(ollama::request::generate(&bytes)?),
    };
    let limits = Limits { n_ctx: 4096, n_vocab: model.n_vocab(), answer: 1024, encoder: None };
    let fields = match api {
        Api::Chat => Fields::parse(&bytes),
        Api::Messages | Api::Responses | Api::Ollama | Api::Generate => Fields::made(&chat),
    };
    let (_, prompt) = ChatRequest::translated(fields, Names::new(), &limits, model)?;
    Ok(model.tokenizer().decode(&prompt.tokens, true).unwrap())
}

/// Puts a word of its own into every text; gives them with their places.
fn put_words(value: &mut Value, path: &str, words: &mut Vec<(String, String)>) {
    match value {
        Value::String(text) => {
            let word = format!("leaf{}", words.len() + 100);
            // Arguments are JSON within a text.
            *text = if path.ends_with("arguments") {
                format!("{{\"key\":\"{word}\"}}")
            } else {
                word.clone()
            };
            words.push((path.to_string(), word));
        }
        Value::Array(list) => {
            for (i, item) in list.iter_mut().enumerate() {
                put_words(item, &format!("{path}[{i}]"), words);
            }
        }
        Value::Object(map) => {
            for (name, item) in map.iter_mut() {
                if !LABELS.iter().any(|(label, _)| label == name) {
                    put_words(item, &format!("{path}.{name}"), words);
                }
            }
        }
        _ => {}
    }
}

/// Sends a body; returns how many words it has, and the faults of the prompt.
fn check(
    api: Api,
    around: &dyn Fn(Value) -> Value,
    items: &str,
    mut list: Value,
) -> (usize, Vec<String>) {
    let mut words = Vec::new();
    put_words(&mut list, items, &mut words);
    let body = around(list);
    let model = TextModel::sample_with(PLAIN, &[]);
    let wrong = match prompt(api, &body, &model) {
        Ok(prompt) => {
            let mut from = 0;
            let mut wrong = Vec::new();
            for (path, word) in &words {
                match prompt[from..].find(word.as_str()) {
                    Some(at) => from += at + word.len(),
                    None => {
                        wrong.push(format!("{api:?}: {path} is not in its place of {prompt:?}"))
                    }
                }
            }
            wrong
        }
        Err(error) => {
            let body = error.body();
            let param = body["error"]["param"].as_str().unwrap_or_default();
            // The error names a text's place, its parent's, or that of the field that contradicts it.
            let up = param.rsplit_once('.').map_or(param, |(up, _)| up);
            let named = words.iter().any(|(path, _)| path.starts_with(up) && !up.is_empty())
                || (up != items && up.starts_with(items));
            let is_refusal = error.status() == 400 && named;
            if is_refusal { Vec::new() } else { vec![format!("{api:?}: {}", body["error"])] }
        }
    };
    (words.len(), wrong)
}

fn call(arguments: Value) -> Value {
    json!({ "id": "c1", "type": "function", "function": { "name": "", "arguments": arguments } })
}

/// Messages of chats: those that are taken, and those that cannot be.
fn of_chat() -> (Vec<Value>, Vec<Value>) {
    let result = json!({ "role": "tool", "tool_call_id": "c1", "content": "" });
    let taken = vec![
        json!([{ "role": "system", "content": "" }, { "role": "developer", "content": "" },
               { "role": "user", "content": "" }, { "role": "system", "content": "" },
               { "role": "user", "content": "" }]),
        json!([{ "role": "user", "content": [{ "type": "text", "text": "" }, { "type": "text", "text": "" }] }]),
        json!([{ "role": "user", "content": "" },
               { "role": "assistant", "reasoning_content": "", "content": "", "tool_calls": [call(json!(""))] },
               result, { "role": "user", "content": "" }]),
        json!([{ "role": "user", "content": "" },
               { "role": "assistant", "content": null, "tool_calls": [call(json!({ "a": "", "b": [""] }))] },
               { "role": "tool", "tool_call_id": "c1", "content": [{ "type": "text", "text": "" }] }]),
        json!([{ "role": "user", "content": "" }, { "role": "assistant", "reasoning": "", "content": "" },
               { "role": "user", "content": "" }, { "role": "assistant", "thinking": "", "content": "" },
               { "role": "user", "content": "" }]),
        json!([{ "role": "user", "content": "" }, { "role": "assistant", "content": null, "refusal": "" },
               { "role": "user", "content": "" }]),
        json!([{ "role": "user", "content": "" },
               { "role": "assistant", "content": [{ "type": "text", "text": "" }, { "type": "refusal", "refusal": "" }] },
               { "role": "user", "content": "" }]),
        json!([{ "role": "user", "content": "" },
               { "role": "assistant", "content": "", "function_call": { "name": "", "arguments": "" } },
               { "role": "function", "content": "" }, { "role": "user", "content": "" }]),
    ];
    let user = |part: Value| json!([{ "role": "user", "content": [part] }]);
    let refused = vec![
        user(json!({ "type": "image_url", "image_url": { "url": "" } })),
        user(json!({ "type": "input_audio", "input_audio": { "content": "", "format": "" } })),
        user(json!({ "type": "file", "file": { "file_data": "", "filename": "" } })),
        user(json!({ "type": "text", "text": ["", ""] })),
        json!([{ "role": "user", "content": { "text": "" } }]),
        json!([{ "role": "user", "content": "", "reasoning_content": "" }]),
        json!([{ "role": "user", "content": "" , "tool_calls": [call(json!(""))] }]),
        json!([{ "role": "user", "content": "", "function_call": { "name": "", "arguments": "" } }]),
        json!([{ "role": "assistant", "content": "", "reasoning_content": [""] }]),
        json!([{ "role": "assistant", "content": "", "audio": { "transcript": "" } }]),
        json!([{ "role": "assistant", "content": "", "function_call": { "arguments": "" } }]),
        json!([{ "role": "assistant", "content": "", "function_call": "" }]),
        json!([{ "role": "user", "text": "" }]),
        json!([{ "role": "user", "parts": [{ "text": "" }] }]),
        json!([{ "role": "assistant", "content": "", "reasoning": [""] }]),
        json!([{ "role": "assistant", "content": "", "thinking": { "text": "" } }]),
    ];
    (taken, refused)
}

fn of_messages() -> (Vec<Value>, Vec<Value>) {
    let user = |blocks: Value| json!([{ "role": "user", "content": blocks }]);
    let text = json!({ "type": "text", "text": "" });
    let answer = json!({ "role": "assistant", "content": [
        { "type": "thinking", "thinking": "", "signature": "s" }, text,
        { "type": "tool_use", "id": "c1", "name": "", "input": { "a": "", "b": [{ "c": "" }] } }] });
    let result =
        |content: Value| json!({ "type": "tool_result", "tool_use_id": "c1", "content": content });
    let taken = vec![
        json!([{ "role": "user", "content": "" }, { "role": "assistant", "content": "" }, { "role": "user", "content": "" }]),
        user(json!([text, text])),
        json!([{ "role": "user", "content": "" }, { "role": "system", "content": "" }, { "role": "user", "content": "" }]),
        json!([{ "role": "user", "content": "" }, answer,
               { "role": "user", "content": [text, result(json!("")), text, result(json!([text, text])), text] }]),
        json!([{ "role": "user", "content": "" },
               { "role": "assistant", "content": [
                   { "type": "tool_use", "id": "c1", "name": "", "input": {} }, text,
                   { "type": "thinking", "thinking": "" }, { "type": "redacted_thinking", "data": "x" }, text] },
               { "role": "user", "content": "" }]),
    ];
    let refused = vec![
        user(json!([{ "type": "text", "text": { "a": "" } }])),
        user(json!([{ "type": "image", "source": { "url": "" } }])),
        user(json!([{ "type": "document", "source": { "url": "" }, "title": "" }])),
        user(json!([{ "type": "search_result", "source": "", "title": "", "content": [text] }])),
        user(json!([result(json!([{ "type": "text", "text": [""] }]))])),
        user(json!([result(json!([{ "type": "image", "source": { "url": "" } }]))])),
        user(json!([result(json!({ "text": "" }))])),
        user(json!([""])),
        user(json!([{ "type": "thinking", "thinking": "" }])),
        json!([{ "role": "assistant", "content": [{ "type": "thinking", "thinking": [""] }] }]),
        json!([{ "role": "assistant", "content": [{ "type": "server_tool_use", "name": "", "input": { "q": "" } }] }]),
        json!([{ "role": "assistant", "content": [{ "type": "web_search_tool_result", "content": [{ "url": "" }] }] }]),
        json!([{ "role": "assistant", "content": [{ "type": "tool_use", "id": "c", "name": "", "input": "" }] }]),
        json!([{ "role": "nobody", "content": "" }]),
    ];
    (taken, refused)
}

fn of_responses() -> (Vec<Value>, Vec<Value>) {
    let user = json!({ "type": "message", "role": "user", "content": "" });
    let said = |kind: &str, field: &str| json!({ "type": "message", "role": "assistant", "content": [{ "type": kind, field: "" }] });
    let given =
        |kind: &str, output: Value| json!({ "type": kind, "call_id": "c1", "output": output });
    let taken = vec![
        json!([{ "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "" }] },
               { "role": "user", "content": [{ "type": "input_text", "text": "" }, { "type": "input_text", "text": "" }] }]),
        json!([user, said("output_text", "text"), said("refusal", "refusal"), user]),
        json!([user,
               { "type": "reasoning", "id": "r", "summary": [{ "type": "summary_text", "text": "" }],
                 "content": [{ "type": "reasoning_text", "text": "" }], "encrypted_content": "x" },
               said("output_text", "text"),
               { "type": "function_call", "call_id": "c1", "name": "", "arguments": "" },
               given("function_call_output", json!("")), user]),
        json!([user, { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "" }] }, user]),
        json!([user, { "type": "function_call", "call_id": "c1", "name": "", "arguments": "" },
               given("function_call_output", json!([{ "type": "input_text", "text": "" }]))]),
        json!([user, { "type": "custom_tool_call", "call_id": "c1", "name": "", "input": "" },
               given("custom_tool_call_output", json!(""))]),
        json!([user, { "type": "custom_tool_call", "call_id": "c1", "name": "", "input": "" },
               given("custom_tool_call_output", json!([{ "type": "input_text", "text": "" }]))]),
        json!([user, { "type": "local_shell_call", "call_id": "c1", "action": { "type": "exec", "command": ["", ""] } },
               given("local_shell_call_output", json!(""))]),
        json!([user, { "type": "shell_call", "call_id": "c1", "action": { "commands": ["", ""] } },
               given("shell_call_output", json!([{ "stdout": "", "stderr": "" }]))]),
        json!([user, { "type": "apply_patch_call", "call_id": "c1", "operation": { "path": "", "diff": "" } },
               given("apply_patch_call_output", json!(""))]),
        json!([user, { "type": "web_search_call", "id": "w", "action": { "type": "search", "query": "" } }, user]),
        json!([user, { "type": "file_search_call", "id": "f", "queries": [""], "results": [{ "text": "" }] }, user]),
        json!([user, { "type": "code_interpreter_call", "id": "i", "code": "", "outputs": [{ "type": "logs", "logs": "" }] }]),
        json!([user, { "type": "mcp_call", "id": "m", "server_label": "", "name": "", "arguments": "", "output": "" }, user]),
    ];
    let item = |item: Value| json!([user, item]);
    let refused = vec![
        item(json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "" }] })),
        item(json!({ "role": "user", "content": [{ "type": "input_file", "file_data": "" }] })),
        item(json!({ "role": "user", "content": [{ "type": "input_text", "text": [""] }] })),
        item(json!({ "role": "user", "content": { "text": "" } })),
        item(json!({ "content": "" })),
        item(json!("")),
        item(json!({ "type": "reasoning", "content": "" })),
        item(
            json!({ "type": "reasoning", "content": [{ "type": "reasoning_text", "text": { "a": "" } }] }),
        ),
        item(json!({ "type": "item_reference", "id": "x" })),
        item(json!({ "type": "mcp_list_tools", "server_label": "", "tools": [{ "name": "" }] })),
        item(json!({ "type": "mcp_approval_response", "reason": "" })),
        item(json!({ "type": "image_generation_call", "result": "" })),
        item(
            json!({ "type": "computer_call_output", "call_id": "c", "output": { "type": "computer_screenshot", "image_url": "" } }),
        ),
        item(json!({ "type": "function_call_output", "output": "" })),
        item(
            json!({ "type": "function_call_output", "call_id": "c", "output": [{ "type": "input_image", "image_url": "" }] }),
        ),
        item(json!({ "type": "function_call", "call_id": "c", "name": [""], "arguments": "" })),
        item(json!({ "type": "custom_tool_call", "call_id": "c", "name": "", "input": [""] })),
        item(json!({ "type": "something_new", "words": "" })),
    ];
    (taken, refused)
}

fn of_ollama() -> (Vec<Value>, Vec<Value>) {
    let taken = vec![
        json!([{ "role": "system", "content": "" }, { "role": "user", "content": "" },
               { "role": "assistant", "thinking": "", "content": "", "tool_calls": [
                   { "function": { "name": "", "arguments": { "a": "", "b": [""] } } }] },
               { "role": "tool", "tool_name": "x", "content": "" }, { "role": "user", "content": "" }]),
    ];
    let refused = vec![
        json!([{ "role": "user", "content": "", "images": [""] }]),
        json!([{ "role": "user", "content": { "a": "" } }]),
    ];
    (taken, refused)
}

#[test]
fn every_text_is_in_the_prompt_or_refused_by_its_place() {
    type Around = Box<dyn Fn(Value) -> Value>;
    let messages = || -> Around { Box::new(|list| json!({ "messages": list })) };
    let input = |name: &'static str| -> Around {
        Box::new(move |list| json!({ name: list, "model": "sample" }))
    };
    let (mut n, mut n_words, mut wrong) = (0, 0, Vec::new());
    let mut all: Vec<(Api, Around, &str, Value, bool)> = Vec::new();
    for (api, (taken, refused), name) in [
        (Api::Chat, of_chat(), "messages"),
        (Api::Messages, of_messages(), "messages"),
        (Api::Responses, of_responses(), "input"),
        (Api::Ollama, of_ollama(), "messages"),
    ] {
        let around = || if name == "input" { input("input") } else { messages() };
        all.extend(taken.into_iter().map(|list| (api, around(), name, list, true)));
        all.extend(refused.into_iter().map(|list| (api, around(), name, list, false)));
    }
    let turn = json!([{ "role": "user", "content": "x" }]);
    let system: Around = Box::new(move |system| json!({ "system": system, "messages": turn }));
    let blocks = json!([{ "type": "text", "text": "" }, { "type": "text", "text": "" }]);
    all.push((Api::Messages, system, "system", blocks, true));
    let turn = json!([{ "role": "user", "content": "x" }]);
    let system: Around = Box::new(move |system| json!({ "system": system, "messages": turn }));
    all.push((
        Api::Messages,
        system,
        "system",
        json!([{ "type": "text", "text": { "a": "" } }]),
        false,
    ));
    for (given, is_taken) in [
        (json!(""), true),
        (
            json!([{ "type": "message", "role": "developer", "content": "" }, { "role": "user", "content": [
            { "type": "input_text", "text": "" }] }]),
            true,
        ),
        (json!({ "text": "" }), false),
        (json!([""]), false),
    ] {
        let around: Around = Box::new(|list| json!({ "instructions": list, "input": "x" }));
        all.push((Api::Responses, around, "instructions", given, is_taken));
    }
    all.push((Api::Responses, input("input"), "input", json!(""), true));
    all.push((Api::Generate, input("prompt"), "prompt", json!(""), true));
    let around: Around = Box::new(|system| json!({ "system": system, "prompt": "x" }));
    all.push((Api::Generate, around, "system", json!(""), true));
    // Without a prompt the model is loaded, and the text would not be read.
    all.push((Api::Generate, input("system"), "system", json!(""), false));
    for (api, around, name, list, is_taken) in all {
        n += 1;
        let answer =
            prompt(api, &around(filled(list.clone())), &TextModel::sample_with(PLAIN, &[]));
        if answer.is_ok() != is_taken {
            let error = answer.err().map(|error| error.body().to_string());
            wrong.push(format!("{api:?}: {list} should be taken: {is_taken}; {error:?}"));
        }
        let (words, faults) = check(api, &*around, name, list);
        n_words += words;
        wrong.extend(faults);
    }
    println!("{n} bodies, {n_words} texts, {} faults", wrong.len());
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n >= 70 && n_words >= 150);
}

/// A request of Codex after it has patched a file and run a command, as its program sends it; long texts are cut.
#[test]
fn a_history_of_codex_is_in_the_prompt_as_it_was() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/codex_history.json");
    let mut body: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    body["model"] = json!("sample");
    UNKNOWN.take();
    let prompt = prompt(Api::Responses, &body, &TextModel::sample_with(PLAIN, &[])).unwrap();
    assert_eq!(UNKNOWN.take(), [""; 0], "fields that are not known");
    let mut texts: Vec<&str> = Vec::new();
    for item in body["input"].as_array().unwrap() {
        for list in ["summary", "content"] {
            let parts = item[list].as_array().into_iter().flatten();
            texts.extend(parts.map(|part| part["text"].as_str().unwrap()));
        }
        texts.extend(["name", "output"].into_iter().filter_map(|field| item[field].as_str()));
    }
    let mut from = 0;
    for text in &texts {
        let at = prompt[from..].find(text);
        from +=
            at.unwrap_or_else(|| panic!("{text:?} is not in its place of {prompt}")) + text.len();
    }
    let patch = body["input"].as_array().unwrap().iter().find_map(|item| item["input"].as_str());
    // Templates lay JSON out in their own way, but for the text itself.
    let patch = json!(patch.unwrap()).to_string();
    assert!(prompt.contains(&patch), "{prompt}");
    println!("codex | {} texts in their order, {} bytes of prompt", texts.len(), prompt.len());
}

/// A body's list with some words in it.
fn filled(mut list: Value) -> Value {
    put_words(&mut list, "", &mut Vec::new());
    list
}

#[test]
fn a_salt_comes_through_every_interface() {
    let bytes = |json: &str| json.replacen('{', r#"{"cache_salt": "s", "#, 1).into_bytes();
    let messages = bytes(r#"{"messages": [{"role": "user", "content": "a"}]}"#);
    let input = bytes(r#"{"input": "a"}"#);
    let limits = Limits { n_ctx: 64, n_vocab: 100, answer: 1024, encoder: None };
    for chat in [
        serde_json::from_slice(&messages).unwrap(),
        anthropic::request::translate(&messages).unwrap().0,
        responses::request::translate(&input).unwrap().0,
        asked(ollama::request::chat(&messages).unwrap()),
        asked(ollama::request::generate(&bytes(r#"{"prompt": "a"}"#)).unwrap()),
    ] {
        let (fields, names) = (Fields::made(&chat), Names::new());
        let (request, _) =
            ChatRequest::translated(fields, names, &limits, &TextModel::sample()).unwrap();
        assert_eq!(request.common.cache_salt.as_deref(), Some("s"));
    }
}
