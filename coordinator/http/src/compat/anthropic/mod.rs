//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's messages, for Claude Code and its like.

mod blocks;
pub(crate) mod request;
mod stream;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_dialect::text_model::{Prompt, TextModel};
use brigade_dialect::values::number::whole;
use brigade_line::generation::End;
use brigade_line::request::Limits;
use brigade_proto::task;
use serde_json::{Value, json};
use tracing::Instrument;

use crate::answer::blocks::{Block, arguments_value, blocks};
use crate::answer::chat_answer::{self, Begun};
use crate::answer::stamp::Stamp;
use crate::answer::types::FinishWord;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::sse;
use crate::fleet::Meant;
use crate::request::chat_request::ChatRequest;
use crate::request::fields::Fields;

/// The prefix of this API's addresses.
pub(crate) const ROOT: &str = "/v1/messages";

/// An error in Anthropic's form, whole or as a stream's last event.
pub(crate) fn error_body(error: &ApiError) -> Value {
    let kind = match error.status() {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    };
    let inner = error.body();
    let error = &inner["error"];
    // Clients look for these words to shorten a conversation.
    let message = match (whole::<u64>(&error["n_prompt_tokens"]), whole::<u64>(&error["n_ctx"])) {
        (Some(n), Some(max)) => {
            json!(format!("prompt is too long: {n} tokens > {max} maximum"))
        }
        _ => error["message"].clone(),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}

fn read(
    bytes: &[u8],
    limits: &Limits,
    text: &TextModel,
) -> Result<(ChatRequest, Prompt, ()), ApiError> {
    let (chat, names) = request::translate(bytes)?;
    let (request, prompt) = ChatRequest::translated(Fields::made(&chat), names, limits, text)?;
    Ok((request, prompt, ()))
}

/// Handles `POST /v1/messages`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let begun = chat_answer::begin(&app, request, read);
    let Begun { request, prompt, more: (), .. } = begun.await?;
    let stamp = Stamp::new(&app, "msg_");
    let n_prompt = prompt.tokens.len() as u32;
    let spent = Spent { n_prompt, marked: if app.keeps { prompt.marked } else { 0 } };
    let mut replies = request.submit(&app, &name, &prompt, None).await?;
    if request.common.stream {
        let (events, response) = sse::channel();
        let sending = async move {
            // An error is a client that went away, which cancels the sequence.
            let _ = stream::send(stamp, spent, replies, &events).await;
        };
        task::spawn(sending.in_current_span());
        return Ok(response);
    }
    let whole = chat_answer::collect(replies.remove(0)).await.map_err(ApiError::from)?;
    let mut message = message(&stamp, n_prompt);
    let content: Vec<Value> =
        blocks(whole.message, whole.finish_reason).into_iter().map(block).collect();
    message["content"] = json!(content);
    message["stop_reason"] = json!(stop_reason(whole.finish_reason, &whole.end));
    message["stop_sequence"] = json!(whole.end.stop);
    message["usage"] = spent.usage(&whole.end);
    Ok(Json(message).into_response())
}

/// How many tokens a request's prompt has.
pub(crate) async fn count_tokens(
    Meant(app): Meant,
    request: Request,
) -> Result<Response, ApiError> {
    let begun = chat_answer::begin(&app, request, read);
    let n = begun.await?.prompt.tokens.len();
    Ok(Json(json!({ "input_tokens": n })).into_response())
}

/// Translates a body, and no more.
#[cfg(test)]
pub(crate) fn check(body: &[u8]) -> Result<(), ApiError> {
    request::translate(body).map(drop)
}

/// A message without content.
fn message(stamp: &Stamp, n_prompt: u32) -> Value {
    json!({
        "id": stamp.id, "type": "message", "role": "assistant", "model": stamp.model, "content": [],
        "stop_reason": null, "stop_sequence": null,
        "usage": {
            "input_tokens": n_prompt, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    })
}

/// Tokens of a prompt.
#[derive(Clone, Copy, Debug)]
struct Spent {
    n_prompt: u32,
    /// Tokens up to the last mark, where anything is kept.
    marked: u32,
}

impl Spent {
    /// Anthropic's `input_tokens` exclude reused tokens and those computed up to the last mark.
    fn usage(self, end: &End) -> Value {
        let Self { n_prompt, marked } = self;
        let created = marked.saturating_sub(end.n_reused);
        json!({
            "input_tokens": n_prompt.saturating_sub(end.n_reused).saturating_sub(created),
            "cache_creation_input_tokens": created, "cache_read_input_tokens": end.n_reused,
            "output_tokens": end.n_generated,
        })
    }
}

fn block(block: Block) -> Value {
    match block {
        Block::Reasoning(text) => json!({ "type": "thinking", "thinking": text, "signature": "" }),
        Block::Text(text) => json!({ "type": "text", "text": text }),
        Block::Call { id, name, arguments } => json!({
            "type": "tool_use", "id": id, "name": name, "input": arguments_value(&arguments),
        }),
    }
}

fn stop_reason(finish: FinishWord, end: &End) -> &'static str {
    match finish {
        FinishWord::ToolCalls => "tool_use",
        FinishWord::Length => "max_tokens",
        FinishWord::Stop if end.stop.is_some() => "stop_sequence",
        FinishWord::Stop => "end_turn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_kinds_of_that_api() {
        for (error, kind) in [
            (ApiError::unauthorized("no key"), "authentication_error"),
            (ApiError::forbidden("admin_key", "not this key"), "permission_error"),
            (ApiError::not_found("no such model"), "not_found_error"),
            (ApiError::too_large(1), "request_too_large"),
            (ApiError::rate_limited("later", 1), "rate_limit_error"),
            (ApiError::unavailable("no line"), "overloaded_error"),
            (ApiError::bad_request("no JSON"), "invalid_request_error"),
            (ApiError::server("broken"), "api_error"),
        ] {
            assert_eq!(error_body(&error)["error"]["type"], kind, "{}", error.status());
        }
    }
}
