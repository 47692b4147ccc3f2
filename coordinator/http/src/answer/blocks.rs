//! An answer as the blocks that it is made of: reasoning, text, calls. For programs whose answers are lists of
//! blocks instead of one message.

use brigade_dialect::Event;
use brigade_line::generation::End;
use brigade_line::handle::Failure;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::answer::chat_answer::{AnswerPart, ChatAnswers};
use crate::answer::choices::Choices;
use crate::answer::types::{ChatMessage, FinishWord, ToolCall};
use crate::events::sse::{Gone, Sender};

/// An API's format for answers that are streamed as blocks.
pub trait BlockWriter {
    /// The client's event stream.
    fn out(&self) -> &Sender;

    /// Writes what is new.
    async fn event(&mut self, event: Event) -> Result<(), Gone>;

    /// Ends the block that is open, if one is.
    async fn close(&mut self) -> Result<(), Gone>;
}

/// Writes all blocks of an answer as they come, and says how it ended. No answer, no end.
pub async fn follow(
    replies: ChatAnswers,
    writer: &mut impl BlockWriter,
) -> Result<Option<Result<(End, FinishWord), Failure>>, Gone> {
    let mut parts = Choices::of(replies);
    while let Some((_, part)) = writer.out().unless_gone(parts.next()).await? {
        let (events, ended) = match part {
            Ok(AnswerPart::Piece { events, .. }) => (events, None),
            Ok(AnswerPart::End { events, end, finish_reason }) => {
                (events, Some((end, finish_reason)))
            }
            Err(failure) => return Ok(Some(Err(failure))),
        };
        for event in events.into_iter().filter(says_something) {
            writer.event(event).await?;
        }
        if let Some(ended) = ended {
            writer.close().await?;
            return Ok(Some(Ok(ended)));
        }
    }
    Ok(None)
}

/// Whether the event adds text to a block. An empty text adds none.
pub fn says_something(event: &Event) -> bool {
    match event {
        Event::Content(text) | Event::Reasoning(text) | Event::Arguments { text, .. } => {
            !text.is_empty()
        }
        Event::Call { .. } => true,
    }
}

/// A whole block of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// The model's reasoning, which comes before its answer.
    Reasoning(String),
    /// The answer's text.
    Text(String),
    /// A call of a tool.
    Call {
        /// The call's id, which its result will name.
        id: String,
        /// The tool's name.
        name: String,
        /// The tool's arguments, as JSON text.
        arguments: String,
    },
}

/// The blocks of a whole answer. A call that was cut off is left out: its truncated arguments would be run as if they
/// were whole.
pub fn blocks(message: ChatMessage, finish: FinishWord) -> Vec<Block> {
    let is_there = |call: &ToolCall| is_whole_call(&call.function.arguments, finish);
    let mut blocks = Vec::new();
    blocks.extend(message.reasoning_content.map(Block::Reasoning));
    blocks.extend(message.content.filter(|text| !text.is_empty()).map(Block::Text));
    blocks.extend(message.tool_calls.into_iter().filter(is_there).map(|call| Block::Call {
        id: call.id,
        name: call.function.name,
        arguments: call.function.arguments,
    }));
    blocks
}

/// Whether a call with these arguments is whole, in an answer that ended so.
pub fn is_whole_call(arguments: &str, finish: FinishWord) -> bool {
    finish == FinishWord::ToolCalls || serde_json::from_str::<IgnoredAny>(arguments).is_ok()
}

/// Arguments as a value. If the model wrote invalid JSON, they are an empty object.
pub fn arguments_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::Object(serde_json::Map::new()))
}
