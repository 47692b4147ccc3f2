//! Answers in Ollama's form, whole or as lines of JSON.

use axum::Json;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use brigade_dialect::Event;
use brigade_line::clock;
use brigade_line::generation::End;
use brigade_proto::task;
use serde_json::{Value, json};
use std::convert::Infallible;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use super::error_body;
use super::request::Load;
use crate::answer::blocks::{Block, arguments_value, blocks, is_whole_call, says_something};
use crate::answer::chat_answer::{self, AnswerPart, ChatAnswers};
use crate::answer::choices::Choices;
use crate::answer::stamp::Stamp;
use crate::answer::types::FinishWord;
use crate::error::ApiError;

/// Lines that wait for a slow client.
const LINE_QUEUE: usize = 16;

/// The endpoint whose answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `/api/chat`: the text is in a message.
    Chat,
    /// `/api/generate`: the text is a plain string.
    Generate,
}

/// Fields that all lines of an answer share.
struct Writer {
    stamp: Stamp,
    shape: Shape,
    n_prompt: usize,
}

/// The answer of the one choice.
pub async fn answer(
    stamp: Stamp,
    shape: Shape,
    n_prompt: usize,
    mut replies: ChatAnswers,
    stream: bool,
) -> Result<Response, ApiError> {
    let writer = Writer { stamp, shape, n_prompt };
    if stream {
        let (lines, receiver) = mpsc::channel(LINE_QUEUE);
        let sending = async move {
            // An error is a client that went away, which cancels the sequence.
            let _ = writer.stream(replies, &lines).await;
        };
        task::spawn(sending.in_current_span());
        let lines = ReceiverStream::new(receiver);
        let body =
            Body::from_stream(lines.map(|line: Value| Ok::<_, Infallible>(format!("{line}\n"))));
        let kind = [(CONTENT_TYPE, "application/x-ndjson")];
        return Ok((kind, body).into_response());
    }
    let whole = chat_answer::collect(replies.remove(0)).await?;
    let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks(whole.message, whole.finish_reason) {
        match block {
            Block::Reasoning(more) => thinking.push_str(&more),
            Block::Text(more) => text.push_str(&more),
            Block::Call { name, arguments, .. } => calls.push(call(&name, &arguments)),
        }
    }
    let mut line = writer.line(&text, &thinking, calls);
    writer.finish(&mut line, whole.finish_reason, &whole.end);
    Ok(Json(line).into_response())
}

/// The answer to a request without a prompt.
pub fn loaded(stamp: &Stamp, shape: Shape, load: &Load) -> Value {
    let writer = Writer { stamp: stamp.clone(), shape, n_prompt: 0 };
    let mut line = writer.line("", "", Vec::new());
    line["done"] = json!(true);
    line["done_reason"] = json!(load.reason);
    line
}

fn call(name: &str, arguments: &str) -> Value {
    json!({ "function": { "name": name, "arguments": arguments_value(arguments) } })
}

impl Writer {
    fn line(&self, text: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let mut line = json!({
            "model": self.stamp.model, "created_at": clock::date_time(clock::unix_now()), "done": false,
        });
        match self.shape {
            Shape::Chat => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !thinking.is_empty() {
                    message["thinking"] = json!(thinking);
                }
                if !calls.is_empty() {
                    message["tool_calls"] = Value::Array(calls);
                }
                line["message"] = message;
            }
            Shape::Generate => {
                line["response"] = json!(text);
                if !thinking.is_empty() {
                    line["thinking"] = json!(thinking);
                }
            }
        }
        line
    }

    fn finish(&self, line: &mut Value, finish: FinishWord, end: &End) {
        let (first, after) = (end.to_first.as_nanos() as u64, end.after_first.as_nanos() as u64);
        line["done"] = json!(true);
        line["done_reason"] = json!(if finish == FinishWord::Length { "length" } else { "stop" });
        line["total_duration"] = json!(first + after);
        line["load_duration"] = json!(0);
        line["prompt_eval_count"] = json!(self.n_prompt);
        line["prompt_eval_duration"] = json!(first);
        line["eval_count"] = json!(end.n_generated);
        line["eval_duration"] = json!(after);
    }

    async fn stream(
        &self,
        replies: ChatAnswers,
        lines: &mpsc::Sender<Value>,
    ) -> Result<(), mpsc::error::SendError<Value>> {
        let mut parts = Choices::of(replies);
        // A call comes whole: its arguments are an object here.
        let mut open: Option<(String, String)> = None;
        loop {
            let part = tokio::select! {
                part = parts.next() => part,
                () = lines.closed() => None,
            };
            let (events, ended) = match part {
                None => return Ok(()),
                Some((_, Ok(AnswerPart::Piece { events, .. }))) => (events, None),
                Some((_, Ok(AnswerPart::End { events, end, finish_reason }))) => {
                    (events, Some((end, finish_reason)))
                }
                Some((_, Err(failure))) => {
                    return lines.send(error_body(&ApiError::from(failure))).await;
                }
            };
            for line in self.lines(events, &mut open) {
                lines.send(line).await?;
            }
            if let Some((end, finish)) = ended {
                let last = open.take();
                if let Some((name, arguments)) = last.filter(|(_, a)| is_whole_call(a, finish)) {
                    lines.send(self.line("", "", vec![call(&name, &arguments)])).await?;
                }
                let mut line = self.line("", "", Vec::new());
                self.finish(&mut line, finish, &end);
                return lines.send(line).await;
            }
        }
    }

    fn lines(&self, events: Vec<Event>, open: &mut Option<(String, String)>) -> Vec<Value> {
        let mut lines = Vec::new();
        for event in events.into_iter().filter(says_something) {
            let ended = match &event {
                Event::Arguments { .. } => None,
                Event::Content(_) | Event::Reasoning(_) | Event::Call { .. } => open.take(),
            };
            lines.extend(ended.map(|(name, args)| self.line("", "", vec![call(&name, &args)])));
            match event {
                Event::Reasoning(text) => lines.push(self.line("", &text, Vec::new())),
                Event::Content(text) => lines.push(self.line(&text, "", Vec::new())),
                Event::Call { name, .. } => *open = Some((name, String::new())),
                Event::Arguments { text, .. } => {
                    if let Some((_, arguments)) = open {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        lines
    }
}
