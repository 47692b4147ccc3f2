//! `POST /v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::Value;
use serde_json::value::RawValue;
use tracing::Instrument;

use super::answer::{self, Choice, Ended, Running};
use super::body::text_error;
use super::error::ApiError;
use super::fields::{Fields, MAX_TEMPLATE_VALUES, kind, list, read};
use super::params::Common;
use super::types::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatMessage,
};
use super::{App, Stamp, logprobs, sse, trace};
use crate::generation::Part;
use crate::handle::Failure;
use crate::request::{DEFAULT_MAX_TOKENS, Limits};
use crate::text_model::Chat;

const ROLE: &str = "assistant";

/// Most messages of a chat, and most parts of one message.
pub const MAX_MESSAGES: usize = 1 << 13;

/// A chat request, read.
#[derive(Debug)]
struct ChatRequest {
    chat: Chat,
    common: Common,
    top_logprobs: Option<u32>,
}

/// The endpoint.
pub(super) async fn create(
    State(app): State<App>,
    Extension(name): Extension<trace::Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = app.bodies.take(request).await?;
    let limits = app.limits;
    let read = app.bodies.read(body, app.text.clone(), move |bytes, text| {
        let mut request = ChatRequest::read(bytes, &limits)?;
        let chat = std::mem::take(&mut request.chat);
        let prompt = text.encode_chat(&chat).map_err(text_error)?;
        Ok((request, prompt))
    });
    let ((request, prompt), _) = read.await?;
    let stamp = Stamp::new(&app, "chatcmpl-");
    let n_prompt = prompt.len();
    let generations =
        answer::submit(&app, &name, &[prompt], &request.common, request.top_logprobs).await?;
    if request.common.stream {
        return Ok(stream(app, request, stamp, n_prompt, generations));
    }
    Ok(whole(&app, &request, stamp, n_prompt, generations).await?.into_response())
}

impl ChatRequest {
    fn read(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let messages = list("messages", fields.require_raw("messages")?, MAX_MESSAGES)?;
        if messages.is_empty() {
            return Err(ApiError::field("messages", "messages must not be empty"));
        }
        let mut left = MAX_TEMPLATE_VALUES;
        let messages = messages
            .into_iter()
            .enumerate()
            .map(|(i, m)| message(&format!("messages[{i}]"), m, &mut left))
            .collect::<Result<Vec<Value>, _>>()?;
        let texts = messages.iter().filter_map(|m: &Value| m["content"].as_str());
        limits.check_text(texts.map(str::len).sum())?;
        let extra = match fields.raw("chat_template_kwargs") {
            None => serde_json::Map::new(),
            Some(value) => Fields::nested("chat_template_kwargs", value)?.into_rest(&mut left)?,
        };
        fields.refuse("continue_final_message", "every answer is a new message")?;
        let wants: bool = fields.take("logprobs")?.unwrap_or(false);
        let top: Option<u32> = fields.take("top_logprobs")?;
        let top_logprobs = match (wants, top) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, None | Some(0)) => None,
            (false, Some(_)) => {
                let message = "top_logprobs needs logprobs to be true";
                return Err(ApiError::field("top_logprobs", message));
            }
        };
        let common = Common::read(&mut fields, limits, DEFAULT_MAX_TOKENS)?;
        Ok(Self { chat: Chat { messages, extra }, common, top_logprobs })
    }
}

/// Checks one message and joins the parts of its content; what else it has, the template may use.
fn message(path: &str, value: &RawValue, left: &mut usize) -> Result<Value, ApiError> {
    let mut fields = Fields::nested(path, value)?;
    let role: String = fields.require("role")?;
    let content = match fields.raw("content") {
        None => Value::Null,
        Some(content) => {
            let path = fields.path("content");
            Value::String(match kind(content) {
                "a string" => read(&path, content)?,
                "an array" => join_parts(&path, content)?,
                kind => {
                    let message = format!("{path} must be a string or a list of parts, not {kind}");
                    return Err(ApiError::field(path, message));
                }
            })
        }
    };
    let mut message = serde_json::Map::new();
    message.insert("role".to_string(), Value::String(role));
    message.insert("content".to_string(), content);
    message.extend(fields.into_rest(left)?);
    Ok(Value::Object(message))
}

fn join_parts(path: &str, parts: &RawValue) -> Result<String, ApiError> {
    let mut text = String::new();
    for (i, part) in list(path, parts, MAX_MESSAGES)?.into_iter().enumerate() {
        let mut part = Fields::nested(&format!("{path}[{i}]"), part)?;
        let kind: String = part.require("type")?;
        if kind != "text" {
            let path = part.path("type");
            let message = format!("{path} is {kind:?}: this server takes text only");
            return Err(ApiError::unsupported(path, message));
        }
        text.push_str(&part.require::<String>("text")?);
    }
    Ok(text)
}

async fn whole(
    app: &App,
    request: &ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
    generations: Vec<Running>,
) -> Result<Json<ChatCompletion>, ApiError> {
    let (mut choices, mut n_generated, mut timings) = (Vec::new(), 0, None);
    let mut ended = Ended::default();
    for (index, generation) in generations.into_iter().enumerate() {
        let Choice { text, tokens, end } = answer::collect(generation).await?;
        n_generated += end.n_generated;
        ended.note(0, &end);
        timings.get_or_insert_with(|| answer::timings(n_prompt, &end));
        choices.push(ChatChoice {
            index,
            message: ChatMessage { role: ROLE, content: text, refusal: None },
            logprobs: request.top_logprobs.map(|_| logprobs::chat(&app.text, &tokens)),
            finish_reason: answer::finish_word(&end),
        });
    }
    Ok(Json(ChatCompletion {
        id: stamp.id,
        object: "chat.completion",
        created: stamp.created,
        model: stamp.model,
        system_fingerprint: stamp.fingerprint,
        choices,
        usage: ended.usage(n_prompt as u32, n_generated),
        timings: timings.unwrap_or_default(),
    }))
}

fn stream(
    app: App,
    request: ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
    generations: Vec<Running>,
) -> Response {
    let (events, response) = sse::channel();
    let chunks = Chunks { app, request, stamp, n_prompt };
    let sending = async move {
        // An error is a client that went away, which cancels the sequences.
        let _ = chunks.send(generations, &events).await;
    };
    tokio::spawn(sending.in_current_span());
    response
}

/// Writes the chunks of one streamed answer.
struct Chunks {
    app: App,
    request: ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
}

impl Chunks {
    async fn send(&self, generations: Vec<Running>, out: &sse::Sender) -> Result<(), sse::Gone> {
        for index in 0..generations.len() {
            let delta = ChatDelta { role: Some(ROLE), content: Some(String::new()) };
            out.json(&self.chunk(index, delta)).await?;
        }
        let (mut open, mut n_generated) = (generations.len(), 0);
        let mut ended = Ended::default();
        let mut parts = answer::merge(generations);
        while let Some((index, part)) = out.unless_gone(parts.recv()).await? {
            match part {
                Ok(Part::End(end)) => {
                    n_generated += end.n_generated;
                    ended.note(0, &end);
                    open -= 1;
                    let mut chunk = self.chunk(index, ChatDelta::default());
                    chunk.choices[0].finish_reason = Some(answer::finish_word(&end));
                    chunk.timings = Some(answer::timings(self.n_prompt, &end));
                    out.json(&chunk).await?;
                }
                Ok(Part::Piece(piece)) => {
                    let delta = ChatDelta { role: None, content: Some(piece.text) };
                    let mut chunk = self.chunk(index, delta);
                    chunk.choices[0].logprobs = self
                        .request
                        .top_logprobs
                        .map(|_| logprobs::chat(&self.app.text, &piece.tokens));
                    out.json(&chunk).await?;
                }
                Err(failure) => return self.fail(failure, out).await,
            }
            if open == 0 {
                break;
            }
        }
        if self.request.common.include_usage {
            let mut chunk = self.chunk(0, ChatDelta::default());
            chunk.choices.clear();
            chunk.usage = Some(ended.usage(self.n_prompt as u32, n_generated));
            out.json(&chunk).await?;
        }
        out.done().await
    }

    async fn fail(&self, failure: Failure, out: &sse::Sender) -> Result<(), sse::Gone> {
        tracing::warn!(id = self.stamp.id, %failure, "stream failed");
        out.json(&ApiError::from(failure).body()).await?;
        out.done().await
    }

    fn chunk(&self, index: usize, delta: ChatDelta) -> ChatChunk {
        ChatChunk {
            id: self.stamp.id.clone(),
            object: "chat.completion.chunk",
            created: self.stamp.created,
            model: self.stamp.model.clone(),
            system_fingerprint: self.stamp.fingerprint.clone(),
            choices: vec![ChatChunkChoice { index, delta, logprobs: None, finish_reason: None }],
            usage: None,
            timings: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { n_ctx: 64, n_vocab: 100 };

    fn error(json: &str) -> String {
        let error = ChatRequest::read(json.as_bytes(), &LIMITS).unwrap_err();
        error.body()["error"]["message"].as_str().unwrap().to_string()
    }

    #[test]
    fn parts_are_joined_and_other_fields_kept() {
        let json = r#"{"messages": [{"role": "user", "name": "x", "content":
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            "chat_template_kwargs": {"thinking": false}}"#;
        let request = ChatRequest::read(json.as_bytes(), &LIMITS).unwrap();
        assert_eq!(request.chat.messages[0]["content"], "ab");
        assert_eq!(request.chat.messages[0]["name"], "x");
        assert_eq!(request.chat.extra["thinking"], false);
    }

    #[test]
    fn what_would_grow_is_refused_before_it_does() {
        let many = vec![r#"{"role": "user"}"#; MAX_MESSAGES + 1].join(",");
        assert!(error(&format!(r#"{{"messages": [{many}]}}"#)).contains("more than 8192"));
        let parts = vec!["1"; MAX_MESSAGES + 1].join(",");
        let message = format!(r#"{{"messages": [{{"role": "user", "content": [{parts}]}}]}}"#);
        assert!(error(&message).contains("messages[0].content: more than 8192"));
        let text = "x".repeat(64 * 256 + 1);
        let message = format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#);
        assert!(error(&message).contains("16385 bytes: at most 16384"));
        let values = vec!["[]"; MAX_TEMPLATE_VALUES / 2].join(",");
        for place in [
            format!(r#"{{"messages": [{{"role": "user", "x": [{values}]}}]}}"#),
            format!(
                r#"{{"messages": [{{"role": "user"}}], "chat_template_kwargs": {{"x": [{values}]}}}}"#
            ),
        ] {
            assert!(error(&place).contains("may hand 65536 to the chat template"));
        }
    }

    #[test]
    fn complaints_name_the_place() {
        assert!(error(r#"{}"#).contains("messages is required"));
        assert!(error(r#"{"messages": []}"#).contains("empty"));
        assert!(error(r#"{"messages": [{"content": "x"}]}"#).contains("messages[0].role"));
        assert!(error(r#"{"messages": [{"role": "user", "content": 3}]}"#).contains("a number"));
        let image = r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
        assert!(error(image).contains("messages[0].content[0].type"));
        let alone = r#"{"messages": [{"role": "user"}], "top_logprobs": 2}"#;
        assert!(error(alone).contains("logprobs"));
    }
}
