//! Bodies of every type: each value of a good request, wherever it stands, is replaced by a value of every JSON type.
//! The answer may be an error of the client's, but no panic, no 5xx, and no detail of the implementation.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use axum::body::to_bytes;
use brigade_dialect::text_model::TextModel;
use brigade_line::handle::Status;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::tests::{Play, Server, post, send, server_of};

const HERMES: &str = include_str!("../../../../tests/data/dialects/hermes.jinja");

/// Words of Rust and of its libraries, which mean nothing to a client.
const INSIDES: [&str; 20] = [
    "Some(",
    "None",
    "Ok(",
    "Err(",
    "panicked",
    "unwrap",
    "Option<",
    "Vec<",
    "RawValue",
    "untagged",
    "invalid type",
    "expected struct",
    "expected u",
    "expected i",
    "expected f",
    "usize",
    "serde",
    "minijinja",
    "operator",
    "undefined",
];

/// Requests that are good, one or more for each address that reads a body: `[ADDRESS, BODY]`.
const BODIES: &str = include_str!("../../../../tests/data/http_bodies.json");

pub fn bodies() -> Vec<(String, Value)> {
    serde_json::from_str(BODIES).unwrap()
}

/// A value of each kind, and some that are at the edge of one.
fn kinds() -> Vec<Value> {
    let mut all: Vec<Value> = [
        "null",
        "true",
        "false",
        "0",
        "3",
        "3.0",
        "3.5",
        "-1",
        "1e300",
        "-9223372036854775808",
        "18446744073709551616",
        "4294967296",
    ]
    .map(|text| serde_json::from_str(text).unwrap())
    .to_vec();
    all.extend([
        json!(""),
        json!("x"),
        json!("none"),
        json!("a\u{0}\"'{%"),
        json!([]),
        json!([1]),
        json!(["x"]),
    ]);
    all.extend([
        json!([[]]),
        json!([{}]),
        json!([null]),
        json!({}),
        json!({ "a": 1 }),
        json!({ "type": "x" }),
    ]);
    all
}

/// The addresses of all values inside of `value`.
pub fn addresses(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_string());
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let key = key.replace('~', "~0").replace('/', "~1");
                addresses(inner, &format!("{at}/{key}"), all);
            }
        }
        Value::Array(list) => {
            for (i, inner) in list.iter().enumerate() {
                addresses(inner, &format!("{at}/{i}"), all);
            }
        }
        _ => {}
    }
}

/// The fault in the answer to a body; `None`: it is right.
async fn fault(server: &Server, path: &str, body: &Value) -> Option<String> {
    let response = send(server, "POST", path, body.to_string()).await;
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if status == 500 {
        return Some(format!("500 {text}"));
    }
    if (200..300).contains(&status) {
        return None;
    }
    let answer: Value = match serde_json::from_str(&text) {
        Ok(answer) => answer,
        Err(_) => return Some(format!("{status}, and no JSON: {text}")),
    };
    let message = match &answer["error"] {
        Value::String(message) => message,
        error => error["message"].as_str().unwrap_or_default(),
    };
    if message.is_empty() {
        return Some(format!("{status} without a message: {text}"));
    }
    // A word that the client sent may come back.
    let sent = body.to_string();
    let word = INSIDES.into_iter().find(|word| message.contains(word) && !sent.contains(word));
    word.map(|word| format!("{status} says {word:?}: {message}"))
}

pub fn model() -> TextModel {
    TextModel::sample_with(HERMES, &["<tool_call>", "</tool_call>", "<think>", "</think>"])
}

/// The faults in the answers to a share of all changed bodies: to those at every `n_shares`-th address from the `share`-th
/// on. Also how many bodies there were.
async fn faults_of_share(share: usize, n_shares: usize) -> (Vec<String>, usize) {
    let server = server_of(Play::TextAndEos("a"), Status::Ready(Arc::default()), model(), 4096);
    let places = bodies().into_iter().flat_map(|(path, body)| {
        let mut all = Vec::new();
        addresses(&body, "", &mut all);
        all.into_iter().map(move |address| (path.clone(), body.clone(), address))
    });
    let (mut n, mut wrong) = (0, Vec::new());
    for (path, body, address) in places.skip(share).step_by(n_shares) {
        for kind in kinds() {
            let mut changed = body.clone();
            let place = changed.pointer_mut(&address).unwrap();
            *place = kind.clone();
            n += 1;
            if let Some(why) = fault(&server, &path, &changed).await {
                wrong.push(format!("{path} {address} = {kind}: {why}"));
            }
        }
    }
    (wrong, n)
}

/// On all cores: there are thousands of bodies.
#[test]
fn every_kind_at_every_address_is_answered() {
    let n_shares = thread::available_parallelism().map_or(1, NonZero::get);
    let found: Vec<(Vec<String>, usize)> = thread::scope(|scope| {
        let run = |share| {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(faults_of_share(share, n_shares))
        };
        let shares: Vec<_> = (0..n_shares).map(|share| scope.spawn(move || run(share))).collect();
        shares.into_iter().map(|share| share.join().unwrap()).collect()
    });
    let n: usize = found.iter().map(|(_, n)| n).sum();
    let wrong: Vec<String> = found.into_iter().flat_map(|(wrong, _)| wrong).collect();
    println!("kinds | {n} bodies | {} faults", wrong.len());
    assert!(
        wrong.is_empty(),
        "{} of {n}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
}

/// The bodies themselves are good: a test of bodies that are refused as a whole would find nothing.
#[tokio::test]
async fn the_bodies_are_good() {
    let server = server_of(Play::TextAndEos("a"), Status::Ready(Arc::default()), model(), 4096);
    for (path, body) in bodies() {
        let response = send(&server, "POST", &path, body.to_string()).await;
        let status = response.status().as_u16();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        // The played model makes no vectors, judges nothing, fills in nothing and has no adapters.
        let expected: &[u16] = match path.as_str() {
            "/v1/rerank" => &[501],
            "/infill" => &[400],
            "/v1/embeddings" | "/api/embed" | "/api/embeddings" => &[503],
            _ if body["lora"].as_array().is_some_and(|lora| !lora.is_empty()) => &[400],
            _ => &[200],
        };
        assert!(expected.contains(&status), "{path}: {status} {}", String::from_utf8_lossy(&bytes));
    }
}

/// Posts a body that has to be good.
async fn good(server: &Server, path: &str, body: Value) -> Value {
    let (status, answer) = post(server, path, body.clone()).await;
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

#[tokio::test]
async fn a_whole_number_may_be_written_with_a_point() {
    let server = server_of(Play::Text("abcdef"), Status::Ready(Arc::default()), model(), 4096);
    let user = json!([{ "role": "user", "content": "a" }]);
    for field in [
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "seed",
        "n",
        "top_k",
        "min_tokens",
        "repeat_last_n",
    ] {
        let mut body = json!({ "messages": user, "max_tokens": 3 });
        body[field] = json!(1.0);
        good(&server, "/v1/chat/completions", body.clone()).await;
        body[field] = json!(1.5);
        let (status, answer) = post(&server, "/v1/chat/completions", body).await;
        assert_eq!(status, 400, "{field}: {answer}");
        assert_eq!(answer["error"]["param"], *field, "{answer}");
    }
    let answer =
        good(&server, "/v1/completions", json!({ "prompt": [5.0, 6e0], "max_tokens": 2.0 })).await;
    assert_eq!(answer["choices"][0]["text"], "ab");
    let options = json!({ "num_predict": 2.0, "top_k": 40.0, "seed": 1.0 });
    let body = json!({ "stream": false, "messages": user, "options": options });
    assert_eq!(good(&server, "/api/chat", body).await["message"]["content"], "ab");
    let body = json!({ "model": "sample", "max_tokens": 2.0, "messages": user });
    assert_eq!(good(&server, "/v1/messages", body).await["content"][0]["text"], "ab");
    let body = json!({ "input": "a", "max_output_tokens": 2.0, "top_logprobs": 0.0 });
    assert_eq!(good(&server, "/v1/responses", body).await["usage"]["output_tokens"], 2);
    assert_eq!(
        good(&server, "/detokenize", json!({ "tokens": [5.0] })).await["content"]
            .as_str()
            .map(str::len),
        Some(1)
    );
}

#[tokio::test]
async fn a_bias_is_for_an_id_however_it_is_written_and_for_no_other_number() {
    let server = server_of(Play::Text("ab"), Status::Ready(Arc::default()), model(), 4096);
    for biases in [json!({ "5.0": 1 }), json!([[5.0, 1]]), json!({ "a": 1 }), json!([["5", 1]])] {
        good(&server, "/v1/completions", json!({ "prompt": "a", "logit_bias": biases })).await;
    }
    for biases in [
        json!({ "4294967296": 1 }),
        json!([[4294967296u64, 1]]),
        json!([[-1, 1]]),
        json!({ "-1": 1 }),
        json!({ "1.5": 1 }),
    ] {
        let (status, answer) =
            post(&server, "/v1/completions", json!({ "prompt": "a", "logit_bias": biases })).await;
        assert_eq!(
            (status.as_u16(), &answer["error"]["param"]),
            (400, &json!("logit_bias")),
            "{biases}: {answer}"
        );
    }
}

#[tokio::test]
async fn tokens_come_with_their_texts() {
    let server = server_of(Play::Eos, Status::Ready(Arc::default()), model(), 4096);
    let body = json!({ "content": "ab<think>ü", "with_pieces": true });
    let answer = good(&server, "/tokenize", body).await;
    let pieces: Vec<&Value> =
        answer["tokens"].as_array().unwrap().iter().map(|t| &t["piece"]).collect();
    assert!(answer["tokens"].as_array().unwrap().iter().all(|t| t["id"].is_u64()), "{answer}");
    assert!(pieces.contains(&&json!("<think>")) && pieces.contains(&&json!("b")), "{answer}");
    assert!(
        pieces.contains(&&json!([0xc3])) && pieces.contains(&&json!([0xbc])),
        "parts of a character: {answer}"
    );
    let plain = good(&server, "/tokenize", json!({ "content": "ab" })).await;
    assert!(plain["tokens"][0].is_u64(), "{plain}");
}

#[tokio::test]
async fn ollamas_raw_prompts_and_empty_chats() {
    let server = server_of(Play::Text("<think>ab"), Status::Ready(Arc::default()), model(), 4096);
    let body = json!({ "prompt": "a", "raw": true, "stream": false });
    let answer = good(&server, "/api/generate", body).await;
    assert_eq!((&answer["response"], &answer["done"]), (&json!("ab"), &json!(true)), "{answer}");
    for (path, body, reason) in [
        ("/api/chat", json!({ "model": "sample" }), "load"),
        ("/api/chat", json!({ "model": "sample", "messages": [], "keep_alive": 0 }), "unload"),
        ("/api/generate", json!({ "model": "sample", "keep_alive": "0s" }), "unload"),
    ] {
        let answer = good(&server, path, body).await;
        assert_eq!(
            (&answer["done_reason"], &answer["done"]),
            (&json!(reason), &json!(true)),
            "{answer}"
        );
        assert!(answer["message"].is_object() || answer["response"] == "", "{answer}");
    }
    let (status, _) = post(&server, "/api/chat", json!({ "model": "other" })).await;
    assert_eq!(status, 404);
    let shown = good(&server, "/api/show", json!({ "model": "sample" })).await;
    assert_eq!(shown["details"]["quantization_level"], "Q4_K_M");
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
}
