//! A response as a stream of numbered events: items are added, their parts grow, they are done.

use brigade_dialect::Event;
use brigade_line::handle::Failure;
use serde_json::{Value, json};

use super::{Echo, custom_input, finish, item, response, text_part};
use crate::answer::blocks::{Block, BlockWriter, follow};
use crate::answer::chat_answer::ChatAnswers;
use crate::answer::stamp::Stamp;
use crate::error::ApiError;
use crate::events::sse::{Gone, Sender};

struct Writer<'a> {
    out: &'a Sender,
    echo: &'a Echo,
    number: u64,
    /// Items that are done.
    output: Vec<Value>,
    /// The item in progress, and its block up to now.
    open: Option<(Value, Block)>,
}

/// Sends a whole answer.
pub async fn send(
    stamp: Stamp,
    n_prompt: u32,
    echo: Echo,
    replies: ChatAnswers,
    out: &Sender,
) -> Result<(), Gone> {
    let mut writer = Writer { out, echo: &echo, number: 0, output: Vec::new(), open: None };
    let mut response = response(&stamp, &echo);
    for name in ["response.created", "response.in_progress"] {
        writer.send(name, json!({ "response": response })).await?;
    }
    if replies.is_empty() {
        response["status"] = json!("completed");
        return writer.send("response.completed", json!({ "response": response })).await;
    }
    match follow(replies, &mut writer).await? {
        None => Ok(()),
        Some(Ok((end, finish_reason))) => {
            finish(&mut response, finish_reason, n_prompt, &end);
            response["output"] = Value::Array(std::mem::take(&mut writer.output));
            let complete = response["status"] == "completed";
            let name = if complete { "response.completed" } else { "response.incomplete" };
            writer.send(name, json!({ "response": response })).await
        }
        Some(Err(failure)) => writer.fail(response, failure).await,
    }
}

impl Writer<'_> {
    async fn send(&mut self, kind: &str, mut body: Value) -> Result<(), Gone> {
        body["type"] = json!(kind);
        body["sequence_number"] = json!(self.number);
        self.number += 1;
        self.out.named(kind, &body).await
    }

    async fn fail(&mut self, mut response: Value, failure: Failure) -> Result<(), Gone> {
        let error = ApiError::from(failure).body()["error"].clone();
        response["status"] = json!("failed");
        response["error"] = json!({ "code": "server_error", "message": error["message"] });
        response["output"] = Value::Array(std::mem::take(&mut self.output));
        self.send("response.failed", json!({ "response": response })).await
    }

    /// Ends the open item and adds another.
    async fn begin(&mut self, block: Block) -> Result<(), Gone> {
        self.close().await?;
        let mut added = item(block.clone(), "in_progress", self.echo);
        if !matches!(block, Block::Call { .. }) {
            added["content"] = json!([]);
        }
        let body = json!({ "output_index": self.output.len(), "item": added });
        self.open = Some((added, block));
        self.send("response.output_item.added", body).await
    }

    /// Adds text to the open item.
    async fn grow(&mut self, kind: &str, more: &str) -> Result<(), Gone> {
        let in_content = match &mut self.open {
            Some((_, Block::Reasoning(text) | Block::Text(text))) => {
                text.push_str(more);
                true
            }
            Some((_, Block::Call { name, arguments, .. })) => {
                arguments.push_str(more);
                // The input is a part of this text, which can be cut out when all of it is there (`close`).
                if self.echo.is_custom(name) {
                    return Ok(());
                }
                false
            }
            None => return Ok(()),
        };
        self.placed(kind, json!({ "delta": more }), in_content).await
    }

    /// An event about the open item, or about its content.
    async fn placed(&mut self, kind: &str, mut body: Value, in_content: bool) -> Result<(), Gone> {
        let Some((item, _)) = &self.open else { return Ok(()) };
        body["item_id"] = item["id"].clone();
        body["output_index"] = json!(self.output.len());
        if in_content {
            body["content_index"] = json!(0);
        }
        if kind.contains("output_text") {
            body["logprobs"] = json!([]);
        }
        self.send(kind, body).await
    }
}

impl BlockWriter for Writer<'_> {
    fn out(&self) -> &Sender {
        self.out
    }

    async fn event(&mut self, event: Event) -> Result<(), Gone> {
        match event {
            Event::Reasoning(text) => {
                if !matches!(self.open, Some((_, Block::Reasoning(_)))) {
                    self.begin(Block::Reasoning(String::new())).await?;
                }
                self.grow("response.reasoning_text.delta", &text).await?;
            }
            Event::Content(text) => {
                if !matches!(self.open, Some((_, Block::Text(_)))) {
                    self.begin(Block::Text(String::new())).await?;
                    let part = json!({ "part": text_part("") });
                    self.placed("response.content_part.added", part, true).await?;
                }
                self.grow("response.output_text.delta", &text).await?;
            }
            Event::Call { id, name, .. } => {
                self.begin(Block::Call { id, name, arguments: String::new() }).await?;
            }
            Event::Arguments { text, .. } => {
                self.grow("response.function_call_arguments.delta", &text).await?;
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), Gone> {
        let Some((added, block)) = self.open.clone() else { return Ok(()) };
        match &block {
            Block::Reasoning(text) => {
                self.placed("response.reasoning_text.done", json!({ "text": text }), true).await?;
            }
            Block::Text(text) => {
                self.placed("response.output_text.done", json!({ "text": text }), true).await?;
                let part = json!({ "part": text_part(text) });
                self.placed("response.content_part.done", part, true).await?;
            }
            Block::Call { name, arguments, .. } if self.echo.is_custom(name) => {
                let input = custom_input(arguments);
                let delta = json!({ "delta": input });
                self.placed("response.custom_tool_call_input.delta", delta, false).await?;
                let done = json!({ "input": input });
                self.placed("response.custom_tool_call_input.done", done, false).await?;
            }
            Block::Call { arguments, .. } => {
                let done = json!({ "arguments": arguments, "name": added["name"] });
                self.placed("response.function_call_arguments.done", done, false).await?;
            }
        }
        self.open = None;
        let mut done = item(block, "completed", self.echo);
        done["id"] = added["id"].clone();
        let body = json!({ "output_index": self.output.len(), "item": done });
        self.send("response.output_item.done", body).await?;
        self.output.push(done);
        Ok(())
    }
}
