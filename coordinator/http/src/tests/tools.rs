//! Tools and reasoning over HTTP, in front of a mock engine that draws the text of a model.

use std::sync::Arc;

use brigade_dialect::text_model::TextModel;
use brigade_line::handle::{StateCall, Status};
use serde_json::{Value, json};

use crate::tests::{Play, Server, post, server_of, stream};

const CHAT: &str = "/v1/chat/completions";
const HERMES: &str = include_str!("../../../../tests/data/dialects/hermes.jinja");
const MINIMAX: &str = include_str!("../../../../tests/data/dialects/minimax.jinja");
const MISTRAL: &str = include_str!("../../../../tests/data/dialects/mistral_list.jinja");
const GPT_OSS: &str = include_str!("../../../../tests/data/dialects/gpt_oss.jinja");
const PLAIN: &str = include_str!("../../../../tests/data/dialects/plain.jinja");

/// A server whose model has this template and writes this.
fn server(template: &str, controls: &[&str], text: &'static str) -> Server {
    let model = TextModel::sample_with(template, controls);
    server_of(Play::TextAndEos(text), Status::Ready(Arc::default()), model, 4096)
}

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" } } });
    json!([
        { "type": "function", "function": { "name": "weather", "parameters": parameters } },
        { "type": "function", "function": { "name": "ping" } },
    ])
}

fn request(more: Value) -> Value {
    let mut request = json!({ "messages": [{ "role": "user", "content": "hi" }], "seed": 1 });
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    request
}

async fn message(server: &Server, more: Value) -> (Value, Value) {
    let (status, body) = post(server, CHAT, request(more)).await;
    assert_eq!(status, 200, "{body}");
    let choice = &body["choices"][0];
    (choice["message"].clone(), choice["finish_reason"].clone())
}

async fn deltas(server: &Server, more: Value) -> (Vec<Value>, Value) {
    let mut request = request(more);
    request["stream"] = json!(true);
    let lines = stream(server, CHAT, request).await;
    assert_eq!(lines.last().unwrap(), "[DONE]");
    let chunks = lines[..lines.len() - 1].iter().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let chunks: Vec<Value> = chunks.collect();
    let reason = chunks.last().unwrap()["choices"][0]["finish_reason"].clone();
    (chunks.into_iter().map(|c| c["choices"][0]["delta"].clone()).collect(), reason)
}

const TWO_CALLS: &str = "<think>\nhm\n</think>\n\nlet me see\n<tool_call>\n{\"name\": \"weather\", \
    \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \
    \"arguments\": {}}\n</tool_call>";

#[tokio::test]
async fn calls_come_whole() {
    let server = server(HERMES, &[], TWO_CALLS);
    let (message, reason) = message(&server, json!({ "tools": tools() })).await;
    assert_eq!(reason, "tool_calls");
    assert_eq!(message["content"], "let me see");
    assert_eq!(message["reasoning_content"], "hm");
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    for (call, (name, arguments)) in
        calls.iter().zip([("weather", json!({"city": "Oslo", "days": 2})), ("ping", json!({}))])
    {
        assert_eq!(call["type"], "function");
        assert_eq!(call["function"]["name"], name);
        let text = call["function"]["arguments"].as_str().expect("arguments are text");
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), arguments);
    }
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[tokio::test]
async fn calls_come_in_pieces_with_their_heads_first() {
    let server = server(HERMES, &[], TWO_CALLS);
    let (deltas, reason) = deltas(&server, json!({ "tools": tools() })).await;
    assert_eq!(reason, "tool_calls");
    let text = |key: &str| deltas.iter().filter_map(|d| d[key].as_str()).collect::<String>();
    assert_eq!(
        (text("content").as_str(), text("reasoning_content").as_str()),
        ("let me see", "hm")
    );
    let mut arguments = vec![String::new(); 2];
    let mut heads = Vec::new();
    for delta in deltas.iter().filter_map(|d| d["tool_calls"].as_array()) {
        let [call] = delta.as_slice() else { panic!("{delta:?}") };
        let index = call["index"].as_u64().expect("a number") as usize;
        if index == heads.len() {
            assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
            assert_eq!(call["type"], "function");
            heads.push(call["function"]["name"].as_str().unwrap().to_string());
        } else {
            let keys: Vec<&String> = call.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["index", "function"], "later parts have arguments alone");
            assert!(call["function"].get("name").is_none());
        }
        arguments[index].push_str(call["function"]["arguments"].as_str().unwrap());
    }
    assert_eq!(heads, ["weather", "ping"]);
    assert_eq!(arguments, ["{\"city\": \"Oslo\", \"days\": 2}", "{}"]);
}

#[tokio::test]
async fn what_is_kept_lingers_behind_a_call_and_nothing_else() {
    for (text, is_asked) in [(TWO_CALLS, true), ("let me see", false)] {
        let mut server = server(HERMES, &[], text);
        message(&server, json!({ "tools": tools() })).await;
        deltas(&server, json!({ "tools": tools() })).await;
        for id in 0..2 {
            let asked = server.states.try_recv();
            let is_it = matches!(asked, Ok(StateCall::Linger(request)) if request.0 == id);
            assert_eq!(is_it, is_asked, "{asked:?}");
        }
    }
}

#[tokio::test]
async fn what_was_computed_up_to_a_mark_is_told_apart() {
    let server = server(PLAIN, &[], "a");
    let usage = async |text: Value| {
        let body = json!({ "max_tokens": 3, "messages": [{ "role": "user", "content": [text,
                           { "type": "text", "text": " and go on" }] }] });
        let (status, answer) = post(&server, "/v1/messages", body).await;
        assert_eq!(status, 200, "{answer}");
        let of = |name: &str| answer["usage"][name].as_u64().unwrap();
        [of("input_tokens"), of("cache_creation_input_tokens"), of("cache_read_input_tokens")]
    };
    let mut text = json!({ "type": "text", "text": "a text that is rather long" });
    let [input, created, read] = usage(text.clone()).await;
    assert_eq!((created, read), (0, 1));
    text["cache_control"] = json!({ "type": "ephemeral" });
    let [rest, created, read] = usage(text).await;
    assert!(created > 10 && rest > 5, "{rest} {created}");
    // The played engine says of each that it reused one token more.
    assert_eq!((rest + created + read, read), (input + 1, 2));
}

#[tokio::test]
async fn equal_requests_get_equal_ids() {
    let id = async |seed: u64| {
        let server = server(HERMES, &[], TWO_CALLS);
        let (message, _) = message(&server, json!({ "tools": tools(), "seed": seed })).await;
        message["tool_calls"][0]["id"].clone()
    };
    assert_eq!(id(5).await, id(5).await);
    assert_ne!(id(5).await, id(6).await);
}

#[tokio::test]
async fn without_tools_the_text_stays_as_it_is_but_reasoning_is_set_apart() {
    let text = "<think>\nhm\n</think>\n\nuse <tool_call> so";
    for more in [json!({}), json!({ "tools": tools(), "tool_choice": "none" })] {
        let (message, reason) = message(&server(HERMES, &[], text), more).await;
        assert_eq!(message["content"], "use <tool_call> so");
        assert_eq!(message["reasoning_content"], "hm");
        assert!(message.get("tool_calls").is_none());
        assert_eq!(reason, "stop");
    }
}

#[tokio::test]
async fn one_call_is_enough_where_the_request_says_so() {
    let mut server = server(HERMES, &[], TWO_CALLS);
    let more = json!({ "tools": tools(), "parallel_tool_calls": false });
    let (message, reason) = message(&server, more.clone()).await;
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(reason, "tool_calls");
    assert_eq!(server.cancelled.recv().await, Some(0), "the rest is not drawn");
    let (deltas, reason) = deltas(&server, more).await;
    let indices = deltas.iter().filter_map(|d| d["tool_calls"][0]["index"].as_u64());
    assert_eq!(indices.max(), Some(0));
    assert_eq!(reason, "tool_calls");
}

#[tokio::test]
async fn a_named_tool_is_called_whatever_the_model_would_do() {
    // The prompt ends with the call's beginning, so what is drawn are its arguments.
    let text = "{\"city\": \"Rome\"}}\n</tool_call>";
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    for choice in [named, json!("required")] {
        let server = if choice.is_object() {
            server(HERMES, &[], text)
        } else {
            server(HERMES, &[], "weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>")
        };
        let more = json!({ "tools": tools(), "tool_choice": choice });
        let (whole, reason) = message(&server, more.clone()).await;
        assert_eq!(whole["tool_calls"][0]["function"]["name"], "weather", "{choice}");
        assert_eq!(whole["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Rome\"}");
        assert_eq!((&whole["content"], &reason), (&Value::Null, &json!("tool_calls")));
        let (deltas, _) = deltas(&server, more).await;
        assert_eq!(deltas[1]["tool_calls"][0]["function"]["name"], "weather");
    }
}

#[tokio::test]
async fn a_prompt_that_opens_the_reasoning_begins_in_it() {
    let server = server(MINIMAX, &[], "hm\n</think>\n\nyes");
    let (message, _) = message(&server, json!({})).await;
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("yes")));
    let (deltas, _) = deltas(&server, json!({})).await;
    let thought = deltas.iter().filter_map(|d| d["reasoning_content"].as_str()).collect::<String>();
    assert_eq!(thought, "hm");
}

#[tokio::test]
async fn control_tokens_are_markers_and_never_text() {
    let text = "[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}]";
    let server = server(MISTRAL, &["[TOOL_CALLS]", "[OTHER]"], text);
    let (called, _) = message(&server, json!({ "tools": tools() })).await;
    assert_eq!(called["tool_calls"][0]["function"]["name"], "ping");
    assert_eq!(called["tool_calls"][0]["id"].as_str().map(str::len), Some(9));
    let (plain, _) = message(&server, json!({})).await;
    assert_eq!(plain["content"], "[{\"name\": \"ping\", \"arguments\": {}}]");
}

#[tokio::test]
async fn channels_are_reasoning_content_and_calls() {
    let controls = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|end|>"];
    let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary \
                to=functions.ping <|constrain|>json<|message|>{}";
    let server = server(GPT_OSS, &controls, text);
    let (message, reason) = message(&server, json!({ "tools": tools() })).await;
    assert_eq!(message["reasoning_content"], "hm");
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"][0]["function"], json!({ "name": "ping", "arguments": "{}" }));
    assert_eq!(reason, "tool_calls");
}

/// A marker is a control token, or letters: these are text, wherever they mean nothing.
#[tokio::test]
async fn markers_in_letters_are_text_and_control_tokens_are_not() {
    let (code, hidden) = ("parts = s.split(\"</think>\")[-1]", "parts = s.split(\"\")[-1]");
    let empty = "An empty <tool_call></tool_call> is text.";
    for (controls, text, want) in [
        (&[][..], code, code),
        (&["<think>", "</think>"], code, hidden),
        (
            &[],
            "It begins with <think> and ends with </think> there.",
            "It begins with <think> and ends with </think> there.",
        ),
        (&[], empty, empty),
        (&["<tool_call>", "</tool_call>"], empty, "An empty  is text."),
        (&["<think>", "</think>"], "<think>hm</think>a", "a"),
    ] {
        let server = server(HERMES, controls, text);
        for more in [json!({}), json!({ "tools": tools() })] {
            let (message, _) = message(&server, more).await;
            // Where calls are not looked for, the tags of calls are control tokens that mean nothing.
            assert_eq!(message["content"], want, "{controls:?}: {text}");
        }
        let (deltas, _) = deltas(&server, json!({ "tools": tools() })).await;
        let content: String = deltas.iter().filter_map(|d| d["content"].as_str()).collect();
        assert_eq!(content, want, "{controls:?}: {text}");
    }
}

#[tokio::test]
async fn an_answer_cut_off_in_a_call_says_so() {
    let model = TextModel::sample_with(HERMES, &[]);
    let server = server_of(Play::Text(TWO_CALLS), Status::Ready(Arc::default()), model, 4096);
    let more = json!({ "tools": tools(), "max_tokens": TWO_CALLS.find("Oslo").unwrap() + 2 });
    let (message, reason) = message(&server, more).await;
    assert_eq!(reason, "length");
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Os");
}

#[tokio::test]
async fn values_of_tokens_come_with_their_pieces() {
    let server = server(HERMES, &[], "ab<");
    let more = json!({ "tools": tools(), "logprobs": true });
    let (status, body) = post(&server, CHAT, request(more.clone())).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["choices"][0]["message"]["content"], "ab<");
    assert_eq!(body["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 3);
    let mut more = request(more);
    more["stream"] = json!(true);
    let lines = stream(&server, CHAT, more).await;
    let count = |line: &String| {
        let chunk: Value = serde_json::from_str(line).unwrap_or_default();
        chunk["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(lines.iter().map(count).sum::<usize>(), 3);
}

#[tokio::test]
async fn what_cannot_be_is_refused_by_name() {
    let server = server(HERMES, &[], "a");
    for (more, word) in [
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tool_choice": "required" }), "no tools"),
        (json!({ "continue_final_message": true }), "the last message"),
        (json!({ "reasoning_effort": "" }), "reasoning_effort"),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "function": {} }] }] }),
            "messages[0].tool_calls[0].function.name",
        ),
    ] {
        let (status, body) = post(&server, CHAT, request(more)).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!(status, 400, "{message}");
        assert!(message.contains(word), "{message}");
    }
}

/// Prompts as text, as the model reads them.
mod prompts {
    use super::*;
    use brigade_dialect::text_model::{Chat, Force};

    fn prompt(template: &str, chat: Chat) -> Result<(String, String, String), String> {
        let model = TextModel::sample_with(template, &[]);
        let prompt = model.encode_chat(&chat).map_err(|e| e.to_string())?;
        let text = model.tokenizer().detokenize(&prompt.tokens, false).unwrap();
        Ok((text, prompt.begins, prompt.opening))
    }

    fn chat(messages: Value) -> Chat {
        Chat { messages: messages.as_array().unwrap().clone(), ..Chat::default() }
    }

    fn conversation(arguments: Value) -> Value {
        let call = json!({ "id": "call_1", "type": "function",
            "function": { "name": "ping", "arguments": arguments } });
        json!([
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "hm" },
            { "role": "tool", "tool_call_id": "call_1", "content": "pong" },
        ])
    }

    #[test]
    fn earlier_calls_are_written_as_the_template_wants_them() {
        let (text, ..) = prompt(HERMES, chat(conversation(json!("{\"a\": 1}")))).unwrap();
        let call = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        assert!(text.contains(call) && text.contains("<think>\nhm\n</think>"), "{text}");
        assert!(!text.contains("none"), "{text}");
        // Ids of other servers become what this template takes.
        let (text, ..) = prompt(MISTRAL, chat(conversation(json!({ "a": 1 })))).unwrap();
        assert!(text.contains("\"arguments\": {\"a\": 1}, \"id\": \""), "{text}");
        let (text, ..) = prompt(PLAIN, chat(conversation(json!("{}")))).unwrap();
        assert!(
            text.contains("<tool_call>\n{\"name\":\"ping\",\"arguments\":{}}\n</tool_call>"),
            "{text}"
        );
        assert!(text.contains("user\n<tool_response>\npong\n</tool_response>"), "{text}");
    }

    #[test]
    fn a_template_without_tools_gets_them_in_the_system_message() {
        let tools = tools().as_array().unwrap().clone();
        let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hi" }]);
        let (text, ..) = prompt(PLAIN, Chat { tools, ..chat(messages) }).unwrap();
        assert!(text.contains("Be brief.\n\n# Tools") && text.contains("\"weather\""), "{text}");
        assert!(text.contains("<tool_call>\n{\"name\":\"NAME\""), "{text}");
    }

    #[test]
    fn an_unfinished_answer_stays_open() {
        let messages = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "one, " }]);
        let continues =
            |template| prompt(template, Chat { continues: true, ..chat(messages.clone()) });
        let (text, begins, _) = continues(HERMES).unwrap();
        assert!(text.ends_with("assistant\none, "), "{text}");
        assert_eq!(begins, "one, ");
        let (text, begins, _) = continues(GPT_OSS).unwrap();
        assert!(text.ends_with("<|channel|>final<|message|>one, "), "{text}");
        assert_eq!(begins, "<|channel|>final<|message|>one, ");
        let error = continues("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}").unwrap_err();
        assert!(error.contains("continue_final_message"), "{error}");
    }

    #[test]
    fn forced_calls_are_begun_as_the_template_begins_them() {
        let user = || chat(json!([{ "role": "user", "content": "hi" }]));
        let named = || Force::Tool("ping".to_string());
        for (template, force, end) in [
            (HERMES, named(), "<tool_call>\n{\"name\": \"ping\", \"arguments\": "),
            (HERMES, Force::Any, "<tool_call>\n{\"name\": \""),
            (PLAIN, named(), "<tool_call>\n{\"name\":\"ping\",\"arguments\":"),
            (MINIMAX, named(), "<minimax:tool_call>\n<invoke name=\"ping\">\n"),
            (MISTRAL, named(), "[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": "),
            (GPT_OSS, named(), "to=functions.ping <|constrain|>json<|message|>"),
        ] {
            let (text, _, opening) = prompt(template, Chat { force, ..user() }).unwrap();
            assert!(text.ends_with(end), "{text}");
            assert!(opening.ends_with(end), "{opening}");
        }
        let (text, begins, _) = prompt(MINIMAX, Chat { force: named(), ..user() }).unwrap();
        assert!(text.contains("<think>\n\n</think>\n\n"), "the reasoning is closed first: {text}");
        assert!(begins.ends_with("</think>\n\n"), "{begins:?}");
    }
}

/// A stop text may stand in the middle of a call: what tells a client to run it is not said then.
#[tokio::test]
async fn a_stop_text_inside_of_a_call_is_a_stop() {
    const CALL: &str =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
    const CALL_AND_MORE: &str =
        "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\nEND of it";
    for (template, text, stop, finish) in [
        (HERMES, CALL, "slo", "stop"),
        (HERMES, CALL, "weat", "stop"),
        (HERMES, TWO_CALLS, "ping", "stop"),
        (HERMES, CALL, "nowhere", "tool_calls"),
        (HERMES, CALL_AND_MORE, "END", "tool_calls"),
        (
            MISTRAL,
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}]",
            "slo",
            "stop",
        ),
    ] {
        let server = server(template, &[], text);
        let more = json!({ "tools": tools(), "stop": [stop] });
        let (message, reason) = message(&server, more.clone()).await;
        assert_eq!(reason, finish, "{text} {stop}: {message}");
        let streamed = deltas(&server, more).await;
        assert_eq!(streamed.1, finish, "{text} {stop}: {:?}", streamed.0);
        let content = message["content"].as_str().unwrap_or_default();
        assert!(!content.contains("tool_call"), "what was begun is no text: {message}");
    }
}

/// Where arguments are a value, a call in which the answer was cut off has none that could be run.
#[tokio::test]
async fn a_call_that_was_cut_off_is_not_run_with_less() {
    let names = |calls: &Value| -> Vec<String> {
        let calls = calls.as_array().into_iter().flatten();
        calls.map(|call| call.to_string()).filter(|call| call.contains("name")).collect()
    };
    let user = json!([{ "role": "user", "content": "hi" }]);
    for (text, stop, n_whole) in
        [(TWO_CALLS, "ping", 1), (TWO_CALLS, "slo", 0), (TWO_CALLS, "nowhere", 2)]
    {
        let server = server(HERMES, &[], text);
        let mut body = json!({ "messages": user, "tools": tools(), "stream": false, "options": { "stop": [stop] } });
        let (status, answer) = post(&server, "/api/chat", body.clone()).await;
        assert_eq!(status, 200, "{answer}");
        let calls = names(&answer["message"]["tool_calls"]);
        assert_eq!(calls.len(), n_whole, "{stop}: {answer}");
        body["stream"] = json!(true);
        let response = crate::tests::send(&server, "POST", "/api/chat", body.to_string()).await;
        let lines = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let lines = String::from_utf8(lines.to_vec()).unwrap();
        assert_eq!(lines.matches("\"function\"").count(), n_whole, "{stop}: {lines}");
        let tools = json!([{ "name": "weather", "input_schema": {} }, { "name": "ping", "input_schema": {} }]);
        let body = json!({ "model": "sample", "max_tokens": 500, "messages": user, "tools": tools,
                           "stop_sequences": [stop] });
        let (status, answer) = post(&server, "/v1/messages", body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(names(&answer["content"]).len(), n_whole, "{stop}: {answer}");
    }
}
