//! Nested objects in the requests of all interfaces. An unknown field is reported by its path, and a value of the
//! wrong type is refused by its path, wherever it stands.

use brigade_dialect::text_model::TextModel;
use brigade_line::request::Limits;
use serde_json::{Map, Value, json};

use crate::compat::anthropic;
use crate::compat::llama_cpp::tokens;
use crate::compat::llama_cpp::{completion, infill};
use crate::compat::ollama;
use crate::compat::responses;
use crate::error::ApiError;
use crate::openai::completions;
use crate::openai::embeddings;
use crate::openai::rerank;
use crate::request::chat_request::{ChatRequest, Names};
use crate::request::fields::Fields;
use crate::request::fields::tests::UNKNOWN;
use crate::request::ignored_fields;
use crate::tests::kinds::{addresses, bodies, model};

const LIMITS: Limits = Limits { n_ctx: 4096, n_vocab: 300, answer: 1024, encoder: None };

/// Reads a body as its address does.
fn read(path: &str, body: &Value, model: &TextModel) -> Option<Result<(), ApiError>> {
    let bytes = body.to_string().into_bytes();
    let chat = |chat: Result<(Map<String, Value>, Names), ApiError>| {
        let (chat, names) = chat?;
        ChatRequest::translated(Fields::made(&chat), names, &LIMITS, model).map(drop)
    };
    Some(match path {
        "/v1/chat/completions" | "/apply-template" => {
            let fields = Fields::parse(&bytes);
            ChatRequest::translated(fields, Names::new(), &LIMITS, model).map(drop)
        }
        "/v1/completions" => Fields::parse(&bytes)
            .and_then(|fields| completions::several(fields, &LIMITS, model))
            .map(drop),
        "/v1/messages" | "/v1/messages/count_tokens" => chat(anthropic::request::translate(&bytes)),
        "/v1/responses" => {
            chat(responses::request::translate(&bytes).map(|(chat, names, _)| (chat, names)))
        }
        "/api/chat" => ollama::read_asked(ollama::request::chat(&bytes), &LIMITS, model).map(drop),
        "/api/generate" => {
            ollama::read_asked(ollama::request::generate(&bytes), &LIMITS, model).map(drop)
        }
        "/completion" | "/completions" => completion::read(&bytes, &LIMITS, model).map(drop),
        "/infill" => infill::tests::read_any(&bytes, &LIMITS, model),
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => {
            embeddings::check(&bytes, &LIMITS, model)
        }
        "/v1/rerank" => rerank::check(&bytes, &LIMITS, model),
        "/tokenize" => tokens::check(&bytes, model),
        _ => return None,
    })
}

/// The place at a JSON pointer, as messages name it; and the same without the numbers.
fn place(pointer: &str) -> (String, String) {
    let (mut place, mut kind) = (String::new(), String::new());
    for part in pointer.split('/').skip(1) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            place.push_str(&format!("[{part}]"));
            kind.push_str("[]");
            continue;
        }
        for text in [&mut place, &mut kind] {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(&part.replace("~1", "/").replace("~0", "~"));
        }
    }
    (place, kind)
}

/// Objects that may have any field, and why. `*` stands for what is inside of one.
const FREE: &[(&str, &str)] = &[
    ("messages[]", "what a chat's message has, its template may write (chats and Ollama)"),
    ("metadata", "the client's own"),
    ("chat_template_kwargs*", "the template's"),
    ("logit_bias", "its names are tokens"),
    ("guided_json*", "a schema"),
    ("json_schema*", "a schema"),
    ("format*", "a schema (Ollama)"),
    ("response_format.json_schema.schema*", "a schema"),
    ("response_format.schema*", "a schema"),
    ("text.format.schema*", "a schema"),
    ("output_config.format.schema*", "a schema"),
    ("output_format.schema*", "a schema"),
    ("structured_outputs.json*", "a schema"),
    ("tools[].function.parameters*", "a schema"),
    ("tools[].parameters*", "a schema"),
    ("tools[].tools[].parameters*", "a schema"),
    ("messages[].content[].cache_control", "says what to keep, which is found without"),
    ("tools[].input_schema*", "a schema"),
    ("tools[].input_examples[]*", "a call's input"),
    ("messages[].tool_calls[].function.arguments*", "a call's input"),
    ("messages[].content[].input*", "a call's input"),
    ("messages[].content[].data", "reasoning that nobody here can read"),
    ("input[].action*", "a call's input"),
    ("input[].operation*", "a call's input"),
    ("input[].output[]*", "a value that a tool gave"),
    ("documents[]", "a document may have what its owner wants"),
    ("options", "vectors are made in one way (Ollama's embeddings)"),
];

fn is_in(list: &[(&str, &str)], kind: &str) -> bool {
    list.iter().any(|(pattern, _)| match pattern.strip_suffix('*') {
        Some(head) => {
            let rest = kind.strip_prefix(head);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        }
        None => *pattern == kind,
    })
}

/// Items of Responses that are taken as a whole, with any fields, and tools that this server does not run.
const WHOLE: [&str; 4] =
    ["local_shell_call", "apply_patch_call", "apply_patch_call_output", "web_search"];

/// Whether any field is as good as any other in an object of this address.
fn is_free(path: &str, kind: &str) -> bool {
    match kind {
        "messages[]" => !path.starts_with("/v1/messages"),
        "options" => path.starts_with("/api/embed"),
        "format" => path.starts_with("/api"),
        kind if kind.starts_with("input[].output[]") => path == "/v1/responses",
        kind => is_in(FREE, kind),
    }
}

#[test]
fn a_field_that_nobody_knows_is_told_by_its_place() {
    let (mut n, mut wrong) = (0, Vec::new());
    let model = model();
    for (path, body) in bodies() {
        let mut all = Vec::new();
        addresses(&body, "", &mut all);
        all.retain(|at| body.pointer(at).is_some_and(Value::is_object));
        for address in all {
            let mut changed = body.clone();
            let object = changed.pointer_mut(&address).unwrap().as_object_mut().unwrap();
            if object.get("type").is_some_and(|kind| WHOLE.iter().any(|whole| kind == whole)) {
                continue;
            }
            object.insert("never_heard_of".to_string(), json!("x"));
            let (place, kind) = place(&format!("{address}/never_heard_of"));
            let kind = kind.trim_end_matches("never_heard_of").trim_end_matches('.');
            UNKNOWN.take();
            let Some(read) = read(&path, &changed, &model) else { continue };
            let mut told = UNKNOWN.take();
            told.dedup();
            n += 1;
            let is_named = match &read {
                Ok(()) => told == [place.as_str()],
                Err(error) => error.body()["error"]["param"] == *place,
            };
            // A schema's part or a bias may be of another kind than this value.
            let is_wrong = read.as_ref().is_err_and(|error| {
                is_about(error.body()["error"]["param"].as_str().unwrap_or_default(), &place)
            });
            let is_free = is_free(&path, kind) && told.is_empty() && (read.is_ok() || is_wrong);
            if !(is_named || is_free) {
                wrong.push(format!("{path} {place}: {told:?} {:?}", read.err().map(|e| e.body())));
            }
        }
    }
    println!("nested | {n} objects | {} not walked", wrong.len());
    assert!(wrong.is_empty(), "{} of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n >= 150);
}

/// Whether a field is on a list of those that mean nothing.
fn is_unread(kind: &str) -> bool {
    let lists = [
        ignored_fields::COMMON,
        ignored_fields::GENERATING,
        ignored_fields::CHAT,
        ignored_fields::TOOL,
        ignored_fields::PART,
        ignored_fields::CALL,
        ignored_fields::COMPLETION,
        ignored_fields::STREAM_OPTIONS,
        ignored_fields::EMBEDDING,
        ignored_fields::RERANK,
        ignored_fields::MESSAGES,
        ignored_fields::BLOCK,
        ignored_fields::MESSAGES_TOOL,
        ignored_fields::THINKING,
        ignored_fields::OUTPUT_CONFIG,
        ignored_fields::RESPONSES,
        ignored_fields::RESPONSE_ITEM,
        ignored_fields::RESPONSE_TEXT,
        ignored_fields::RESPONSE_REASONING,
        ignored_fields::OLLAMA,
        ignored_fields::OLLAMA_OPTIONS,
    ];
    // Its nested values are not read either.
    let parts = || kind.split('.').map(|part| part.trim_end_matches("[]"));
    lists.into_iter().flatten().any(|(name, _)| parts().any(|part| part == *name))
}

/// Values that may be of several kinds, each with those beside its own.
const OTHERS: &[(&str, &[&str])] = &[
    ("stop", &["string"]),
    ("lora", &["string", "object"]),
    ("lora[]", &["string"]),
    ("messages[].content", &["string", "list"]),
    ("messages[].content[].content", &["string", "list"]),
    ("messages[].tool_calls[].function.arguments", &["object"]),
    ("messages[].function_call.arguments", &["object"]),
    ("prompt", &["string", "list"]),
    ("prompt[]", &["string", "list"]),
    ("logit_bias[][]", &["number", "string"]),
    ("system", &["string", "list"]),
    ("input", &["string", "list"]),
    ("input[]", &["string", "list"]),
    ("input[].content", &["string", "list"]),
    ("input[].arguments", &["object"]),
    ("input[].output", &["string", "list", "object"]),
    ("documents[]", &["string"]),
    ("embd_normalize", &["boolean"]),
    ("think", &["string"]),
];

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Whether a complaint about `param` is one about `place`: it, a part of it, or what it is a part of.
fn is_about(param: &str, place: &str) -> bool {
    let begins = |long: &str, short: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    !param.is_empty() && (begins(param, place) || begins(place, param))
}

#[test]
fn a_wrong_kind_is_refused_by_its_place_wherever_it_stands() {
    let (mut n, mut wrong) = (0, Vec::new());
    let model = model();
    for (path, body) in bodies() {
        let mut all = Vec::new();
        addresses(&body, "", &mut all);
        for address in all.iter().filter(|at| !at.is_empty()) {
            let (place, kind) = place(address);
            if is_free(&path, &kind) || is_unread(&kind) {
                continue;
            }
            for value in [json!(true), json!(3), json!("x"), json!([1]), json!({ "a": 1 })] {
                let mut changed = body.clone();
                let there = changed.pointer_mut(address).unwrap();
                let others =
                    OTHERS.iter().find(|(known, _)| *known == kind).map_or(&[][..], |(_, all)| all);
                if kind_of(there) == kind_of(&value) || others.contains(&kind_of(&value)) {
                    continue;
                }
                *there = value.clone();
                let Some(read) = read(&path, &changed, &model) else { continue };
                n += 1;
                match read {
                    Ok(()) => wrong.push(format!("{path} {place} = {value} is taken")),
                    Err(error) => {
                        let body = error.body();
                        let param = body["error"]["param"].as_str().unwrap_or_default();
                        if error.status() != 400 || !is_about(param, &place) {
                            wrong.push(format!("{path} {place} = {value}: {}", body["error"]));
                        }
                    }
                }
            }
        }
    }
    println!("nested kinds | {n} values | {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {n}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n >= 1000);
}
