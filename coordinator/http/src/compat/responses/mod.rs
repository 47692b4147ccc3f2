//! `POST /v1/responses`: OpenAI's newer API, for Codex and its like. Nothing is stored: a conversation comes
//! whole with every request.

mod items;
mod names;
pub(crate) mod request;
mod stream;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_line::generation::End;
use brigade_proto::task;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use crate::answer::blocks::{Block, blocks};
use crate::answer::chat_answer::{self, Begun};
use crate::answer::stamp::Stamp;
use crate::answer::types::FinishWord;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::sse;
use crate::fleet::Meant;
use crate::request::chat_request::ChatRequest;
use crate::request::fields::Fields;

/// Fields of the request that the answer repeats.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    fields: Map<String, Value>,
    /// Tools that are no plain functions.
    called: Called,
    /// Whether there is nothing to answer: some programs only test whether a server is there.
    is_empty: bool,
}

/// Names of tools in the chat, with their names in this interface.
type Called = Vec<(String, ToolName)>;

/// A tool by its name here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ToolName {
    name: String,
    /// The namespace that it is in.
    space: Option<String>,
    /// Whether the tool's input is a plain text.
    is_custom: bool,
}

/// Handles `POST /v1/responses`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let begun = chat_answer::begin(&app, request, |bytes, limits, text| {
        let (chat, names, echo) = request::translate(bytes)?;
        let (request, prompt) = ChatRequest::translated(Fields::made(&chat), names, limits, text)?;
        Ok((request, prompt, echo))
    });
    let begun = begun.await?;
    let Begun { request, prompt, more: echo, .. } = begun;
    let stamp = Stamp::new(&app, "resp_");
    let n_prompt = prompt.tokens.len() as u32;
    let mut replies =
        if echo.is_empty { Vec::new() } else { request.submit(&app, &name, &prompt, None).await? };
    if request.common.stream {
        let (events, response) = sse::channel();
        let sending = async move {
            // An error is a client that went away, which cancels the sequence.
            let _ = stream::send(stamp, n_prompt, echo, replies, &events).await;
        };
        task::spawn(sending.in_current_span());
        return Ok(response);
    }
    let mut response = response(&stamp, &echo);
    response["status"] = json!("completed");
    let Some(reply) = replies.pop() else {
        return Ok(Json(response).into_response());
    };
    let whole = chat_answer::collect(reply).await?;
    let items = blocks(whole.message, whole.finish_reason)
        .into_iter()
        .map(|block| item(block, "completed", &echo));
    response["output"] = Value::Array(items.collect());
    finish(&mut response, whole.finish_reason, n_prompt, &whole.end);
    Ok(Json(response).into_response())
}

/// Translates a body, and no more.
#[cfg(test)]
pub(crate) fn check(body: &[u8]) -> Result<(), ApiError> {
    request::translate(body).map(drop)
}

/// A response that has begun.
fn response(stamp: &Stamp, echo: &Echo) -> Value {
    let mut response = json!({
        "id": stamp.id, "object": "response", "created_at": stamp.created, "status": "in_progress",
        "model": stamp.model, "output": [], "error": null, "incomplete_details": null, "usage": null,
        "previous_response_id": null, "store": false, "parallel_tool_calls": true,
        "tool_choice": "auto", "tools": [], "instructions": null, "metadata": {}, "temperature": null,
        "top_p": null, "max_output_tokens": null, "truncation": "disabled",
        "text": { "format": { "type": "text" } }, "reasoning": { "effort": null, "summary": null },
    });
    for (name, value) in &echo.fields {
        response[name] = value.clone();
    }
    response
}

/// Fills in the end of a response: status and counts.
fn finish(response: &mut Value, finish: FinishWord, n_prompt: u32, end: &End) {
    if finish == FinishWord::Length {
        response["status"] = json!("incomplete");
        response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    } else {
        response["status"] = json!("completed");
    }
    response["usage"] = json!({
        "input_tokens": n_prompt, "input_tokens_details": { "cached_tokens": end.n_reused },
        "output_tokens": end.n_generated, "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": n_prompt.saturating_add(end.n_generated),
    });
}

impl Echo {
    /// The tool that a chat calls so, where it is no plain function.
    fn tool(&self, called: &str) -> Option<&ToolName> {
        self.called.iter().find(|(name, _)| name == called).map(|(_, tool)| tool)
    }

    fn is_custom(&self, called: &str) -> bool {
        self.tool(called).is_some_and(|tool| tool.is_custom)
    }
}

/// The input of a custom tool's call, of the arguments of the function that it is in a chat. Where these are no such object, since
/// the answer was cut off, they are it as they are.
fn custom_input(arguments: &str) -> String {
    let read = || Fields::parse(arguments.as_bytes()).ok()?.take::<String>("input").ok()?;
    read().unwrap_or_else(|| arguments.to_string())
}

/// A block as an item of the output.
fn item(block: Block, status: &str, echo: &Echo) -> Value {
    let id = |prefix: &str| format!("{prefix}{}", brigade_line::random::id());
    match block {
        Block::Reasoning(text) => json!({
            "type": "reasoning", "id": id("rs_"), "summary": [],
            "content": [{ "type": "reasoning_text", "text": text }], "status": status,
        }),
        Block::Text(text) => json!({
            "type": "message", "id": id("msg_"), "role": "assistant", "status": status,
            "content": [text_part(&text)],
        }),
        Block::Call { id: call, name, arguments } => {
            let tool = echo.tool(&name);
            let mut item = if echo.is_custom(&name) {
                json!({
                    "type": "custom_tool_call", "id": id("ctc_"), "call_id": call, "name": name,
                    "input": custom_input(&arguments), "status": status,
                })
            } else {
                json!({
                    "type": "function_call", "id": id("fc_"), "call_id": call, "name": name,
                    "arguments": arguments, "status": status,
                })
            };
            if let Some(tool) = tool {
                item["name"] = json!(tool.name);
                if let Some(space) = &tool.space {
                    item["namespace"] = json!(space);
                }
            }
            item
        }
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_custom_tools_have_their_input_as_it_is() {
        let tool = |name: &str, space: Option<&str>, is_custom| ToolName {
            name: name.into(),
            space: space.map(Into::into),
            is_custom,
        };
        let called = vec![
            ("apply_patch".into(), tool("apply_patch", None, true)),
            ("agents__spawn".into(), tool("spawn", Some("agents"), false)),
        ];
        let echo = Echo { called, ..Echo::default() };
        let call = |name: &str, arguments: &str| {
            let (id, name, arguments) = ("c1".into(), name.into(), arguments.into());
            item(Block::Call { id, name, arguments }, "completed", &echo)
        };
        let patch = call("apply_patch", r#"{"input":"*** Begin Patch\n\"a\""}"#);
        assert_eq!((&patch["type"], &patch["call_id"]), (&json!("custom_tool_call"), &json!("c1")));
        assert_eq!(patch["input"], "*** Begin Patch\n\"a\"");
        assert_eq!(call("apply_patch", r#"{"input":"*** Be"#)["input"], r#"{"input":"*** Be"#);
        assert_eq!(call("look", "{}")["type"], "function_call");
        let spawned = call("agents__spawn", "{}");
        assert_eq!((&spawned["name"], &spawned["namespace"]), (&json!("spawn"), &json!("agents")));
    }
}
