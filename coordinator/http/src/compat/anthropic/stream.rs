//! A message as a stream of events: `message_start`, blocks one after the other, `message_delta`,
//! `message_stop`.

use brigade_dialect::Event;
use brigade_line::handle::Failure;
use serde_json::{Value, json};

use super::{Spent, error_body, message, stop_reason};
use crate::answer::blocks::{BlockWriter, follow};
use crate::answer::chat_answer::ChatAnswers;
use crate::answer::stamp::Stamp;
use crate::error::ApiError;
use crate::events::sse::{Gone, Sender};

/// The kind of the open block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call,
}

struct Writer<'a> {
    out: &'a Sender,
    index: usize,
    open: Option<Open>,
}

/// Sends a whole answer.
pub async fn send(
    stamp: Stamp,
    spent: Spent,
    replies: ChatAnswers,
    out: &Sender,
) -> Result<(), Gone> {
    let mut writer = Writer { out, index: 0, open: None };
    writer.send("message_start", json!({ "message": message(&stamp, spent.n_prompt) })).await?;
    writer.send("ping", json!({})).await?;
    match follow(replies, &mut writer).await? {
        None => Ok(()),
        Some(Ok((end, finish_reason))) => {
            let delta = json!({
                "stop_reason": stop_reason(finish_reason, &end), "stop_sequence": end.stop,
            });
            let last = json!({ "delta": delta, "usage": spent.usage(&end) });
            writer.send("message_delta", last).await?;
            writer.send("message_stop", json!({})).await
        }
        Some(Err(failure)) => writer.fail(failure).await,
    }
}

impl Writer<'_> {
    async fn send(&self, kind: &str, mut body: Value) -> Result<(), Gone> {
        body["type"] = json!(kind);
        self.out.named(kind, &body).await
    }

    async fn fail(&self, failure: Failure) -> Result<(), Gone> {
        self.out.named("error", &error_body(&ApiError::from(failure))).await
    }

    /// Begins a block, unless one of this kind is open.
    async fn enter(&mut self, kind: Open, block: Value) -> Result<(), Gone> {
        if self.open == Some(kind) {
            return Ok(());
        }
        self.close().await?;
        self.open = Some(kind);
        let start = json!({ "index": self.index, "content_block": block });
        self.send("content_block_start", start).await
    }

    async fn delta(&self, delta: Value) -> Result<(), Gone> {
        self.send("content_block_delta", json!({ "index": self.index, "delta": delta })).await
    }
}

impl BlockWriter for Writer<'_> {
    fn out(&self) -> &Sender {
        self.out
    }

    async fn event(&mut self, event: Event) -> Result<(), Gone> {
        match event {
            Event::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.enter(Open::Thinking, block).await?;
                self.delta(json!({ "type": "thinking_delta", "thinking": text })).await?;
            }
            Event::Content(text) => {
                self.enter(Open::Text, json!({ "type": "text", "text": "" })).await?;
                self.delta(json!({ "type": "text_delta", "text": text })).await?;
            }
            Event::Call { id, name, .. } => {
                self.close().await?;
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.enter(Open::Call, block).await?;
            }
            Event::Arguments { text, .. } => {
                self.delta(json!({ "type": "input_json_delta", "partial_json": text })).await?;
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), Gone> {
        let Some(kind) = self.open.take() else { return Ok(()) };
        if kind == Open::Thinking {
            self.delta(json!({ "type": "signature_delta", "signature": "" })).await?;
        }
        self.send("content_block_stop", json!({ "index": self.index })).await?;
        self.index += 1;
        Ok(())
    }
}
