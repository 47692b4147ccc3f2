//! The HTTP server in front of a mock engine: every answer has the JSON shape that its API defines.

mod before_loading;
mod fields;
mod fleet;
mod kinds;
mod leaves;
mod tools;
mod walk;
mod while_loading;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode};
use brigade_dialect::text_model::TextModel;
use brigade_engine::batch::SampledToken;
use brigade_line::admin::Admin;
use brigade_line::current::CurrentLimits;
use brigade_line::handle::{
    Engine, Failure, Finish, FinishReason, SeqEvent, StateCall, Status, Submission, SubmitError,
};
use brigade_line::health::{Loading, Roll};
use brigade_line::model::ModelMeta;
use brigade_sched::{QueueFull, Unfinished, Work};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;

/// How the mock engine handles every sequence.
#[derive(Clone)]
pub(crate) enum Play {
    /// Draws the text's letters, up to `max_tokens`.
    Text(&'static str),
    /// Draws the letters, then the end-of-sequence token.
    TextAndEos(&'static str),
    /// Draws end-of-sequence tokens.
    Eos,
    /// Draws one letter and fails.
    Break,
    /// Refuses every sequence: the queue is full.
    Full,
    /// Takes nothing, because there is no line.
    NoLine,
}

/// Text that no client may see.
pub(crate) const SECRET: &str = "worker 10.1.2.3:7070: it did not answer";

pub(crate) struct Server {
    router: Router,
    admin: Router,
    /// Sequences whose client went away.
    pub(crate) cancelled: mpsc::Receiver<u64>,
    /// Questions about states, as the engine receives them.
    pub(crate) states: mpsc::Receiver<StateCall>,
    draining: CancellationToken,
}

fn server(play: Play, status: Status) -> Server {
    server_of(play, status, TextModel::sample(), 32)
}

/// A server of another model than the sample, with room for `n_ctx` tokens.
pub(crate) fn server_of(play: Play, status: Status, text: TextModel, n_ctx: u32) -> Server {
    let draining = CancellationToken::new();
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    let door = Arc::new(Door::of_this_process(metrics, draining.clone()));
    let Played { app, cancelled, states } = played(play, status, text, n_ctx, door);
    let fleet = Fleet::of_one(app);
    let hosts = Hosts::of_this_process();
    let admin = admin_router(fleet.clone(), None, false, hosts.clone());
    let router = router(fleet, hosts, Origins::default());
    Server { admin, router, cancelled, states, draining }
}

/// A model whose sequences the test plays.
pub(crate) struct Played {
    pub(crate) app: App,
    cancelled: mpsc::Receiver<u64>,
    states: mpsc::Receiver<StateCall>,
}

/// A model with room for `n_ctx` tokens behind `door`.
pub(crate) fn played(
    play: Play,
    status: Status,
    text: TextModel,
    n_ctx: u32,
    door: Arc<Door>,
) -> Played {
    let (engine, ends) = Engine::channel();
    ends.status.send_replace(status);
    let text = Arc::new(text);
    let (gone, cancelled) = mpsc::channel(16);
    let model = text.clone();
    let (status, mut submissions) = (ends.status, ends.submissions);
    tokio::spawn(async move {
        while let Some(submission) = submissions.recv().await {
            tokio::spawn(perform(play.clone(), submission, model.clone(), gone.clone()));
        }
        drop(status);
    });
    let roll = Roll { spare: vec![SECRET.to_string()], memory_bytes: 3 << 30, ..Roll::default() };
    let meta = ModelMeta {
        architecture: "llama".to_string(),
        n_ctx,
        n_ctx_train: 64,
        n_vocab: text.n_vocab(),
        n_params: 1,
        size: 2,
        quantization: "Q4_K_M".to_string(),
    };
    let limits = Limits { n_ctx, n_vocab: text.n_vocab(), answer: 1024, encoder: None };
    let app = App {
        limits: CurrentLimits::new(limits, engine.clone()),
        engine,
        heads: Arc::default(),
        adapters: Arc::default(),
        text,
        meta: Arc::new(meta),
        created: 1,
        roll: tokio::sync::watch::channel(roll).1,
        max_seqs: 4,
        keeps: true,
        journal: None,
        admin: Admin::channel().0,
        in_use: Arc::default(),
        door,
    };
    Played { app, cancelled, states: ends.states }
}

async fn perform(
    play: Play,
    submission: Submission,
    model: Arc<TextModel>,
    gone: mpsc::Sender<u64>,
) {
    let Submission { id, request, events, verdict, counts, .. } = submission;
    counts.set_reused(1 + id.0 as u32);
    if matches!(play, Play::Full) {
        let error = SubmitError::QueueFull(QueueFull { waiting: 4, retry_after_s: 2 });
        verdict.send(Err(error)).unwrap();
        return;
    }
    if matches!(play, Play::NoLine) {
        let reason = SECRET.to_string();
        verdict.send(Err(SubmitError::Unavailable { reason })).unwrap();
        return;
    }
    verdict.send(Ok(())).unwrap();
    let Work::Generate { max_tokens, sampler, stop_tokens, .. } = request.work else {
        // Vectors are not played.
        events.send(SeqEvent::Failed(Failure::Stopping)).await.unwrap();
        return;
    };
    let text = match play {
        Play::Text(text) | Play::TextAndEos(text) => text,
        Play::Eos => "",
        Play::Break | Play::Full | Play::NoLine => "a",
    };
    let letters = ids_of(&model, text).into_iter();
    let eos = if matches!(play, Play::Eos) { 2 } else { 0 };
    let ids = letters.chain(std::iter::repeat_n(2, eos));
    for id_drawn in ids.take(max_tokens as usize) {
        let logprob = sampler.top_logprobs.map(|_| -0.5);
        let top = vec![(id_drawn, -0.5); sampler.top_logprobs.unwrap_or(0) as usize];
        let token = SampledToken { id: id_drawn, logprob, top, ..SampledToken::default() };
        if events.send(SeqEvent::Token(token)).await.is_err() {
            gone.send(id.0).await.unwrap();
            return;
        }
        tokio::task::yield_now().await;
    }
    let eos = SampledToken { id: 2, ..SampledToken::default() };
    let reason = match play {
        Play::Break => {
            let reason = SECRET.to_string();
            events
                .send(SeqEvent::Failed(Failure::Unfinished(Unfinished::LineLost {
                    reason,
                    generated: 1,
                })))
                .await
                .unwrap();
            return;
        }
        Play::TextAndEos(_) if stop_tokens.contains(&2) => FinishReason::Stop(eos),
        _ => FinishReason::Length,
    };
    let finish =
        Finish { reason, to_first: Duration::from_secs(1), after_first: Duration::from_secs(1) };
    if events.send(SeqEvent::Finished(finish)).await.is_err() {
        gone.send(id.0).await.unwrap();
    }
}

/// Control tokens by their names, letters, and bytes for all else.
fn ids_of(model: &TextModel, text: &str) -> Vec<u32> {
    let find = |text: &str| model.tokenizer().find(text);
    let (mut ids, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let is_control = |end: &usize| find(&rest[..*end]).filter(|_| *end > 1);
        let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).take(MAX_CONTROL);
        if let Some((id, end)) = ends.filter_map(|end| is_control(&end).map(|id| (id, end))).last()
        {
            ids.push(id);
            rest = &rest[end..];
            continue;
        }
        let (this, after) = rest.split_at(c.len_utf8());
        match find(this) {
            Some(id) => ids.push(id),
            None => ids.extend(this.bytes().map(|b| find(&format!("<0x{b:02X}>")).unwrap())),
        }
        rest = after;
    }
    ids
}

/// Longest name of a control token in these tests.
const MAX_CONTROL: usize = 24;

pub(crate) async fn send(
    server: &Server,
    method: &str,
    path: &str,
    body: impl Into<Body>,
) -> Response<Body> {
    let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    server.router.clone().oneshot(request).await.unwrap()
}

pub(crate) async fn post(server: &Server, path: &str, body: Value) -> (StatusCode, Value) {
    let response = send(server, "POST", path, body.to_string()).await;
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap())
}

/// The `data:` lines of a streamed answer.
pub(crate) async fn stream(server: &Server, path: &str, body: Value) -> Vec<String> {
    let response = send(server, "POST", path, body.to_string()).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_string).collect()
}

pub(crate) fn ready(play: Play) -> Server {
    server(play, Status::Ready(Arc::default()))
}

#[tokio::test]
async fn a_completion_has_text_reason_and_usage() {
    let server = ready(Play::TextAndEos("abc"));
    let (status, body) = post(&server, "/v1/completions", json!({ "prompt": "xy" })).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][0]["text"], "abc");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["completion_tokens"], 4);
    let n_prompt = body["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(body["usage"]["total_tokens"].as_u64().unwrap(), n_prompt + 4);
    assert_eq!(body["usage"]["prompt_tokens_details"], json!({ "cached_tokens": 1 }));
}

#[tokio::test]
async fn a_chat_answers_as_assistant_with_logprobs() {
    let server = ready(Play::TextAndEos("ab"));
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let request = json!({ "messages": messages, "logprobs": true, "top_logprobs": 1 });
    let (status, body) = post(&server, "/v1/chat/completions", request).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(
        body["choices"][0]["message"],
        json!({ "role": "assistant", "content": "ab", "refusal": null })
    );
    let second = &body["choices"][0]["logprobs"]["content"][1];
    assert_eq!((&second["token"], &second["bytes"]), (&json!("b"), &json!([98])));
    assert_eq!(second["top_logprobs"][0]["token"], "b");
    let request = json!({ "messages": messages, "stream": true });
    let lines = stream(&server, "/v1/chat/completions", request).await;
    let chunks: Vec<Value> =
        lines[..lines.len() - 1].iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "ab");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn max_tokens_and_stop_strings_end_a_choice() {
    let server = ready(Play::Text("abcdef"));
    let request = json!({ "prompt": "x", "max_tokens": 2 });
    let (_, body) = post(&server, "/v1/completions", request).await;
    assert_eq!(body["choices"][0]["text"], "ab");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let request = json!({ "prompt": "x", "stop": ["cd"] });
    let (_, body) = post(&server, "/v1/completions", request).await;
    assert_eq!(body["choices"][0]["text"], "ab");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn streamed_pieces_join_to_the_whole() {
    let server = ready(Play::TextAndEos("hello"));
    let request = json!({ "prompt": ["x", "y"], "n": 2, "stream": true,
                          "stream_options": { "include_usage": true } });
    let lines = stream(&server, "/v1/completions", request).await;
    assert_eq!(lines.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> =
        lines[..lines.len() - 1].iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    for index in 0..4 {
        let of_choice: Vec<&Value> = chunks
            .iter()
            .flat_map(|c| c["choices"].as_array().unwrap())
            .filter(|c| c["index"] == index)
            .collect();
        let text: String = of_choice.iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(text, "hello");
        assert_eq!(of_choice.last().unwrap()["finish_reason"], "stop");
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!(usage["completion_tokens"], 4 * 6);
    // 1 and 2 tokens of the first prompt, 3 and 4 of the second: what all choices were spared.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 1 + 3);
}

#[tokio::test]
async fn completion_logprobs_are_parallel_lists() {
    let server = ready(Play::Text("abcd"));
    let request = json!({ "prompt": "x", "logprobs": 2, "stop": "c" });
    let (_, body) = post(&server, "/v1/completions", request).await;
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1]));
    assert_eq!(logprobs["top_logprobs"][1]["b"], -0.5);
}

#[tokio::test]
async fn errors_have_openais_shape_and_the_right_status() {
    let server = ready(Play::Text("a"));
    for (path, body, status, word) in [
        ("/v1/completions", "{", 400, "not valid JSON"),
        ("/v1/completions", r#"{"prompt": "a", "temperature": "hot"}"#, 400, "temperature"),
        ("/v1/completions", r#"{"prompt": "a", "temperature": -1}"#, 400, "temperature"),
        ("/v1/completions", r#"{"prompt": [999999]}"#, 400, "999999"),
        ("/v1/completions", r#"{"prompt": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}"#, 400, "32"),
        ("/v1/completions", r#"{"prompt": "a", "n": 100}"#, 400, "n is 100"),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function"}]}"#,
            400,
            "tools",
        ),
        ("/v1/nothing", "{}", 404, "/v1/nothing"),
        ("/v1", "{}", 404, "/v1/chat/completions"),
        ("/v1/models", "{}", 405, "POST"),
    ] {
        let response = send(&server, "POST", path, body).await;
        assert_eq!(response.status().as_u16(), status, "{path} {body}");
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let error: Value = serde_json::from_slice(&bytes).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{path} {body}: {message}");
        assert!(error["error"]["type"].is_string());
    }
}

#[tokio::test]
async fn a_long_prompt_names_both_numbers() {
    let server = ready(Play::Text("a"));
    let (status, body) = post(&server, "/v1/completions", json!({ "prompt": vec![5; 40] })).await;
    assert_eq!(status, 400);
    assert_eq!(
        (&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]),
        (&json!(40), &json!(32))
    );
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let server = ready(Play::Full);
    let body = json!({ "prompt": "a" }).to_string();
    let response = send(&server, "POST", "/v1/completions", body).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "2");
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let server = ready(Play::Text("a"));
    let response = send(&server, "POST", "/v1/completions", vec![b' '; MAX_BODY_BYTES + 1]).await;
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn a_broken_line_ends_answers_with_an_error() {
    let server = ready(Play::Break);
    let (status, body) = post(&server, "/v1/completions", json!({ "prompt": "a" })).await;
    assert_eq!(status, 503);
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("broke after 1 generated tokens"), "{message}");
    assert!(!body.to_string().contains("10.1.2.3"), "{body}");
    let messages = json!([{ "role": "user", "content": "a" }]);
    for (path, request) in [
        ("/v1/completions", json!({ "prompt": "a", "stream": true })),
        ("/v1/chat/completions", json!({ "messages": messages, "stream": true })),
    ] {
        let lines = stream(&server, path, request).await;
        let [.., error, done] = lines.as_slice() else { panic!("{lines:?}") };
        let error: Value = serde_json::from_str(error).unwrap();
        assert!(error["error"]["message"].as_str().unwrap().contains("line of workers broke"));
        assert_eq!(done, "[DONE]", "every stream has an end");
        assert!(!lines.concat().contains("10.1.2.3"), "{lines:?}");
    }
}

#[tokio::test]
async fn nobody_learns_workers_addresses() {
    let (status, body) =
        post(&ready(Play::NoLine), "/v1/completions", json!({ "prompt": "a" })).await;
    assert_eq!(status, 503);
    assert!(body.to_string().contains("/health") && !body.to_string().contains("10.1.2.3"));
    let states = || {
        let (reason, what) = (SECRET.to_string(), SECRET.to_string());
        [
            Status::Down { reason: reason.clone(), next: None },
            Status::Failed { reason },
            Status::Loading(Loading::step(what)),
        ]
    };
    for (status, word) in states().into_iter().zip(["down", "failed", "loading"]) {
        let server = server(Play::Break, status);
        let body = get_health(server.router).await;
        assert_eq!(body, format!("{{\"status\":\"{word}\"}}"), "clients learn that, and no more");
        let body = get_health(server.admin).await;
        assert!(body.contains("10.1.2.3") && body.contains(word), "operators do: {body}");
        assert!(body.contains("\"spare\":1") && body.contains("\"memory_bytes\":3221225472"));
    }
    let response = send(&ready(Play::Break), "GET", "/metrics", Body::empty()).await;
    assert_eq!(response.status(), 404);
}

async fn get_health(router: Router) -> String {
    let request = Request::get("/health").body(Body::empty()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 503);
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn the_end_token_has_its_name_among_the_alternatives() {
    let server = ready(Play::Eos);
    let messages = json!([{ "role": "user", "content": "a" }]);
    let request = json!({ "messages": messages, "logprobs": true, "top_logprobs": 1, "max_tokens": 1,
                          "ignore_eos": true });
    let (_, body) = post(&server, "/v1/chat/completions", request).await;
    let drawn = &body["choices"][0]["logprobs"]["content"][0];
    let bytes = json!("</s>".as_bytes());
    assert_eq!((&drawn["token"], &drawn["bytes"]), (&json!("</s>"), &bytes));
    let top = &drawn["top_logprobs"][0];
    assert_eq!((&top["token"], &top["bytes"]), (&json!("</s>"), &bytes));
    assert_eq!(body["choices"][0]["message"]["content"], "", "its name is no text of the answer");
    let request = json!({ "prompt": "a", "logprobs": 1, "max_tokens": 2, "ignore_eos": true });
    let (_, body) = post(&server, "/v1/completions", request).await;
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["</s>", "</s>"]));
    assert_eq!(logprobs["top_logprobs"][0], json!({ "</s>": -0.5 }));
    assert_eq!(logprobs["text_offset"], json!([0, 0]));
}

#[tokio::test]
async fn the_default_number_of_tokens_is_named() {
    let server = ready(Play::Text("abcdefghijklmnopqrstuvwxyz"));
    let (_, body) = post(&server, "/v1/completions", json!({ "prompt": "x" })).await;
    assert_eq!(body["choices"][0]["text"], "abcdefghijklmnop", "OpenAI's 16");
    let messages = json!([{ "role": "user", "content": "" }]);
    let (_, body) = post(&server, "/v1/chat/completions", json!({ "messages": messages })).await;
    assert!(body["usage"]["completion_tokens"].as_u64().unwrap() > 16, "{body}");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_sequence() {
    let mut server = ready(Play::Text("abcdefghijklmnopqrstuvwxyz"));
    let request = json!({ "prompt": "a", "stream": true, "max_tokens": 30 });
    let response = send(&server, "POST", "/v1/completions", request.to_string()).await;
    drop(response);
    assert_eq!(server.cancelled.recv().await, Some(0));
}

#[tokio::test]
async fn health_follows_the_line() {
    let get = |status| async move {
        let server = server(Play::Text("a"), status);
        send(&server, "GET", "/health", Body::empty()).await.status().as_u16()
    };
    assert_eq!(get(Status::Ready(Arc::default())).await, 200);
    assert_eq!(get(Status::Down { reason: "x".to_string(), next: None }).await, 503);
    assert_eq!(get(Status::Loading(Loading::step("loading"))).await, 503);
}

#[tokio::test]
async fn a_draining_server_takes_nothing_new() {
    let server = ready(Play::Text("a"));
    server.draining.cancel();
    let (status, _) = post(&server, "/v1/completions", json!({ "prompt": "a" })).await;
    assert_eq!(status, 503);
    let response = send(&server, "GET", "/health", Body::empty()).await;
    assert_eq!(response.status(), 503);
}

#[tokio::test]
async fn models_tokens_and_request_ids() {
    let server = ready(Play::Text("a"));
    let response = send(&server, "GET", "/v1/models", Body::empty()).await;
    assert!(response.headers().contains_key("x-request-id"));
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(list["data"][0]["id"], "sample");
    let (_, tokens) = post(&server, "/tokenize", json!({ "content": "ab" })).await;
    let (_, bare) =
        post(&server, "/tokenize", json!({ "prompt": "ab", "add_special_tokens": false })).await;
    assert_eq!(bare, tokens, "as vLLM's clients say it");
    let (_, text) = post(&server, "/detokenize", json!({ "tokens": tokens["tokens"] })).await;
    assert_eq!(text["content"], "ab");
}
