//! A chat from its body to its choices. The text of a choice is parsed while it is drawn, into reasoning, content and
//! calls.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use axum::extract::Request;
use brigade_dialect::text_model::{Prompt, TextModel};
use brigade_dialect::{Event, Parser};
use brigade_line::generation::{End, EndReason, Part, Piece, TokenPiece};
use brigade_line::handle::{Failure, Lingering};
use brigade_line::request::Limits;

use crate::answer::choices::{self, Chosen, Running};
use crate::answer::types::{
    ChatDelta, ChatMessage, FinishWord, FunctionCall, FunctionDelta, ToolCall, ToolCallDelta,
};
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::resumable::Resumable;
use crate::request::chat_request::ChatRequest;
use crate::request::messages::ROLE;

/// All choices of a chat.
pub type ChatAnswers = Vec<ChatAnswer>;

const FUNCTION: &str = "function";

/// One choice, which is read while it is drawn.
#[derive(Debug)]
pub struct ChatAnswer {
    /// `None`: it was stopped.
    running: Option<Running>,
    lingering: Lingering,
    parser: Parser,
    /// The beginning of the answer's first call, where the prompt already has it; `None`: the parser has read it.
    opening: Option<String>,
    /// The end to report next, if it was stopped.
    stopped: Option<End>,
}

/// The next part of a choice.
#[derive(Debug)]
pub enum AnswerPart {
    /// More text of the choice.
    Piece {
        /// Reasoning, content and calls parsed from the new text.
        events: Vec<Event>,
        /// Tokens whose text is known with it.
        tokens: Vec<TokenPiece>,
    },
    /// The last part.
    End {
        /// Events that the parser had held back until the end.
        events: Vec<Event>,
        /// How the text ended.
        end: End,
        /// How the parsed answer ended, for the client.
        finish_reason: FinishWord,
    },
}

/// A finished choice, parsed.
#[derive(Debug)]
pub struct Whole {
    /// The assistant's message: content, reasoning and calls.
    pub message: ChatMessage,
    /// All tokens of the answer, with their text.
    pub tokens: Vec<TokenPiece>,
    /// How its text ended.
    pub end: End,
    /// How the parsed answer ended, for the client.
    pub finish_reason: FinishWord,
}

/// A chat that is ready to be submitted, and what else its endpoint has read.
#[derive(Debug)]
pub struct Begun<T> {
    /// The validated request.
    pub request: ChatRequest,
    /// The rendered and tokenised prompt.
    pub prompt: Prompt,
    /// The request's body, where another coordinator may have to read it again.
    pub body: Option<String>,
    /// Endpoint-specific data that the answer needs.
    pub more: T,
}

/// Reads a request's body; `read` makes a chat of it.
pub async fn begin<T: Send + 'static>(
    app: &App,
    request: Request,
    read: impl FnOnce(&[u8], &Limits, &TextModel) -> Result<(ChatRequest, Prompt, T), ApiError>
    + Send
    + 'static,
) -> Result<Begun<T>, ApiError> {
    let body = app.door.bodies.take(request).await?;
    let limits = app.limits.now();
    let read = app.door.bodies.read(body, app.text.clone(), move |bytes, text| {
        let (request, prompt, more) = read(bytes, &limits, text)?;
        let body = request.common.resumable.then(|| String::from_utf8_lossy(bytes).into_owned());
        Ok(Begun { request, prompt, body, more })
    });
    Ok(read.await?.0)
}

impl ChatRequest {
    /// Submits the choices, each with what reads its text; those of a `resumable` request go on where they were.
    pub async fn submit(
        &self,
        app: &App,
        name: &Name,
        prompt: &Prompt,
        resumable: Option<&Resumable>,
    ) -> Result<ChatAnswers, ApiError> {
        let prompts = std::slice::from_ref(&prompt.tokens);
        let submitted =
            choices::submit(app, name, prompts, &self.common, self.top_logprobs, resumable).await;
        let generations = submitted.map_err(|error| error.renamed(&self.names))?;
        let markers = app.text.markers();
        let mut replies = Vec::new();
        for (mut generation, i) in generations.into_iter().zip(0..) {
            generation.show(markers.clone());
            let seed = self.common.seed.wrapping_add(i);
            let parser = app.text.parser(prompt, self.tools.clone(), self.single, seed);
            replies.push(ChatAnswer::new(generation, parser, &prompt.opening));
        }
        Ok(replies)
    }
}

impl ChatAnswer {
    /// A choice of which nothing is read yet. `opening`: the beginning of the answer that the prompt has already.
    pub fn new(running: Running, parser: Parser, opening: &str) -> Self {
        let (lingering, opening) = (running.lingering(), Some(opening.to_string()));
        Self { running: Some(running), lingering, parser, opening, stopped: None }
    }

    /// Events of the prompt's opening, before anything is drawn. Empty after the first call.
    fn begin(&mut self) -> Vec<Event> {
        match self.opening.take() {
            Some(opening) => self.parser.begin_answer(&opening),
            None => Vec::new(),
        }
    }

    /// Reads a piece of its text. Where that is all that the answer says, its sequence ends here.
    fn piece(&mut self, piece: Piece) -> AnswerPart {
        let mut events = self.begin();
        events.extend(self.parser.push_with(&piece.text, &piece.controls));
        if self.parser.is_done() {
            self.stopped = self.running.take().map(Running::stop);
        }
        AnswerPart::Piece { events, tokens: piece.tokens }
    }

    /// The events and the reason at the end of a choice. After a tool call its client will come back with the result.
    fn finish(&mut self, end: &End) -> (Vec<Event>, FinishWord) {
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
            self.lingering.ask();
        }
        (events, finish_reason)
    }
}

impl Chosen for ChatAnswer {
    type Part = AnswerPart;

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<AnswerPart, Failure>> {
        let end = match self.stopped.take() {
            Some(end) => end,
            None => {
                let Some(running) = &mut self.running else {
                    let reason = "a choice was asked for more than it has".to_string();
                    return Poll::Ready(Err(Failure::Internal { reason }));
                };
                match ready!(running.poll_next(cx))? {
                    Part::End(end) => end,
                    Part::Piece(piece) => return Poll::Ready(Ok(self.piece(piece))),
                }
            }
        };
        let mut events = self.begin();
        let (last, finish_reason) = self.finish(&end);
        events.extend(last);
        Poll::Ready(Ok(AnswerPart::End { events, end, finish_reason }))
    }

    fn is_last(part: &AnswerPart) -> bool {
        matches!(part, AnswerPart::End { .. })
    }
}

/// Waits for the end of a choice.
pub async fn collect(mut reply: ChatAnswer) -> Result<Whole, Failure> {
    let (mut whole, mut all_tokens) = (Vec::new(), Vec::new());
    loop {
        match poll_fn(|cx| reply.poll_part(cx)).await? {
            AnswerPart::Piece { events, tokens } => {
                whole.extend(events);
                all_tokens.extend(tokens);
            }
            AnswerPart::End { events, end, finish_reason } => {
                whole.extend(events);
                let message = message(whole);
                return Ok(Whole { message, tokens: all_tokens, end, finish_reason });
            }
        }
    }
}

/// An event as a stream of chunks has it.
pub fn delta(event: Event) -> ChatDelta {
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
