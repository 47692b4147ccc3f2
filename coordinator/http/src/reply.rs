//! Reads the choices of a chat answer while they are drawn: text goes in, reasoning, content and calls come
//! out.

use brigade_dialect::{Event, Parser};
use brigade_line::generation::{End, EndReason, Part, TokenPiece};
use brigade_line::handle::{Failure, Lingering};
use brigade_proto::task;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::answer::{PIECE_QUEUE, Running};
use super::types::{
    ChatDelta, ChatMessage, FinishWord, FunctionCall, FunctionDelta, ROLE, ToolCall, ToolCallDelta,
};

/// Each choice's text, and what reads it.
pub type Replies = Vec<(Running, Reply)>;

const FUNCTION: &str = "function";

/// Reads one choice.
#[derive(Debug)]
pub struct Reply {
    parser: Parser,
    /// What the prompt has of the answer's first call.
    opening: String,
}

/// What is new of a choice.
#[derive(Debug)]
pub enum ReplyPart {
    /// More of it.
    Piece {
        /// What it is.
        deltas: Vec<ChatDelta>,
        /// Tokens whose text is known with it.
        tokens: Vec<TokenPiece>,
    },
    /// The last part.
    End {
        /// What had been held back.
        deltas: Vec<ChatDelta>,
        /// How the text ended.
        end: End,
        /// And the answer.
        finish_reason: FinishWord,
    },
}

/// A finished choice.
#[derive(Debug)]
pub struct Whole {
    /// The answer.
    pub message: ChatMessage,
    /// Its tokens.
    pub tokens: Vec<TokenPiece>,
    /// How its text ended.
    pub end: End,
    /// And the answer.
    pub finish_reason: FinishWord,
}

impl Reply {
    /// Nothing read yet. `opening`: the beginning of the answer that the prompt has already.
    pub fn new(parser: Parser, opening: &str) -> Self {
        Self { parser, opening: opening.to_string() }
    }

    /// What the answer begins with before anything is drawn.
    fn begin(&mut self) -> Vec<Event> {
        let opening = std::mem::take(&mut self.opening);
        self.parser.begin_answer(&opening)
    }

    /// Behind a call of a tool its client comes back with the result.
    fn finish(&mut self, end: &End, lingering: &Lingering) -> (Vec<Event>, FinishWord) {
        // A stop text may stand in the middle of a call, as the limit of tokens may.
        let in_call = end.stop.is_some() && self.parser.is_in_call();
        let cut_off = end.reason == EndReason::Length || in_call;
        let events = self.parser.finish(cut_off && !self.parser.is_done());
        let finish_reason = match end.reason {
            EndReason::Length => FinishWord::Length,
            EndReason::Stop if in_call => FinishWord::Stop,
            EndReason::Stop if self.parser.n_calls() > 0 => FinishWord::ToolCalls,
            EndReason::Stop => FinishWord::Stop,
        };
        if finish_reason == FinishWord::ToolCalls {
            lingering.ask();
        }
        (events, finish_reason)
    }
}

/// Waits for the end of a choice.
pub async fn collect(mut generation: Running, mut reply: Reply) -> Result<Whole, Failure> {
    let lingering = generation.lingering();
    let (mut whole, mut tokens) = (Vec::new(), Vec::new());
    whole.extend(reply.begin());
    let end = loop {
        match generation.next().await? {
            Part::Piece(piece) => {
                tokens.extend(piece.tokens);
                whole.extend(reply.parser.push_with(&piece.text, &piece.controls));
                if reply.parser.is_done() {
                    break generation.stop();
                }
            }
            Part::End(end) => break end,
        }
    };
    let (events, finish_reason) = reply.finish(&end, &lingering);
    whole.extend(events);
    Ok(Whole { message: message(whole), tokens, end, finish_reason })
}

/// Parts of all choices as they come, each with its choice's number. Ends after the last choice
/// or the first failure. Dropping the receiver cancels what still runs.
pub fn merge(replies: Replies) -> mpsc::Receiver<(usize, Result<ReplyPart, Failure>)> {
    let (parts, receiver) = mpsc::channel(PIECE_QUEUE);
    for (index, (generation, reply)) in replies.into_iter().enumerate() {
        let sending = forward(index, generation, reply, parts.clone());
        task::spawn(sending.in_current_span());
    }
    receiver
}

async fn forward(
    index: usize,
    mut generation: Running,
    mut reply: Reply,
    parts: mpsc::Sender<(usize, Result<ReplyPart, Failure>)>,
) {
    let lingering = generation.lingering();
    let mut events = reply.begin();
    let end = loop {
        // A client that goes away while nothing is drawn must be noticed too.
        let part = tokio::select! {
            part = generation.next() => part,
            () = parts.closed() => return,
        };
        let tokens = match part {
            Ok(Part::Piece(piece)) => {
                events.extend(reply.parser.push_with(&piece.text, &piece.controls));
                piece.tokens
            }
            Ok(Part::End(end)) => break end,
            Err(failure) => {
                // An error is a client that went away.
                let _ = parts.send((index, Err(failure))).await;
                return;
            }
        };
        let deltas = std::mem::take(&mut events).into_iter().map(delta).collect();
        if parts.send((index, Ok(ReplyPart::Piece { deltas, tokens }))).await.is_err() {
            return;
        }
        if reply.parser.is_done() {
            break generation.stop();
        }
    };
    let (last, finish_reason) = reply.finish(&end, &lingering);
    events.extend(last);
    let deltas = events.into_iter().map(delta).collect();
    let _ = parts.send((index, Ok(ReplyPart::End { deltas, end, finish_reason }))).await;
}

/// An event as a stream has it.
fn delta(event: Event) -> ChatDelta {
    let call = |call| ChatDelta { tool_calls: Some([call]), ..ChatDelta::default() };
    match event {
        Event::Content(text) => ChatDelta { content: Some(text), ..ChatDelta::default() },
        Event::Reasoning(text) => {
            ChatDelta { reasoning_content: Some(text), ..ChatDelta::default() }
        }
        Event::Call { index, id, name } => call(ToolCallDelta {
            index,
            id: Some(id),
            kind: Some(FUNCTION),
            function: FunctionDelta { name: Some(name), arguments: String::new() },
        }),
        Event::Arguments { index, text } => call(ToolCallDelta {
            index,
            id: None,
            kind: None,
            function: FunctionDelta { name: None, arguments: text },
        }),
    }
}

/// All events of an answer as a message.
fn message(events: Vec<Event>) -> ChatMessage {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut tool_calls: Vec<ToolCall> = Vec::new();
    for event in events {
        match event {
            Event::Content(text) => content.push_str(&text),
            Event::Reasoning(text) => reasoning.push_str(&text),
            Event::Call { id, name, .. } => {
                let function = FunctionCall { name, arguments: String::new() };
                tool_calls.push(ToolCall { id, kind: FUNCTION, function });
            }
            Event::Arguments { index, text } => {
                if let Some(call) = tool_calls.get_mut(index) {
                    call.function.arguments.push_str(&text);
                }
            }
        }
    }
    ChatMessage {
        role: ROLE,
        content: Some(content).filter(|text| !text.is_empty() || tool_calls.is_empty()),
        reasoning_content: Some(reasoning).filter(|text| !text.is_empty()),
        refusal: None,
        tool_calls,
    }
}
