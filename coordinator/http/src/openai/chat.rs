//! `POST /v1/chat/completions`: reads a chat request, runs it, and answers whole or as a stream.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_dialect::Event;
use brigade_dialect::text_model::{Prompt, TextModel};
use brigade_line::generation::TokenPiece;
use brigade_line::handle::Failure;
use brigade_line::journal::Opened;
use brigade_line::request::Limits;
use brigade_proto::task;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::answer::chat_answer::{self, AnswerPart, Begun, ChatAnswers};
use crate::answer::choices::{self, Choices, Ended};
use crate::answer::handover::{self, Handover};
use crate::answer::logprobs;
use crate::answer::stamp::Stamp;
use crate::answer::types::{ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta};
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::position::Of;
use crate::events::resumable::Resumable;
use crate::events::sse::Gone;
use crate::events::writer::{self, Writer};
use crate::fleet::Meant;
use crate::openai::reconnect::{self, Posted};
use crate::request::bodies::Taken;
use crate::request::chat_request::{ChatRequest, Names};
use crate::request::fields::Fields;
use crate::request::messages::ROLE;

/// The endpoint's address, and its name in the journal.
pub(crate) const PATH: &str = "/v1/chat/completions";

/// Handles `POST /v1/chat/completions`.
pub(crate) async fn create(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let request = match reconnect::came_back(&app, &name, request).await? {
        Posted::Again(answer) => return Ok(answer),
        Posted::Anew(request) => request,
    };
    let begun = chat_answer::begin(&app, request, |bytes, limits, text| {
        let fields = Fields::parse(bytes);
        let (request, prompt) = ChatRequest::translated(fields, Names::new(), limits, text)?;
        Ok((request, prompt, ()))
    });
    let begun = begun.await?;
    let Begun { request, prompt, body, more: () } = begun;
    let stamp = Stamp::new(&app, "chatcmpl-");
    if let Some(body) = body {
        return resumable(app, &name, stamp, request, prompt, body).await;
    }
    let n_prompt = prompt.tokens.len();
    let replies = request.submit(&app, &name, &prompt, None).await?;
    if request.common.stream {
        let (events, response) = writer::channel(&stamp.id, replies.len());
        stream(app, request, stamp, n_prompt, replies, events);
        return Ok(response);
    }
    let mut answer = whole(&app, &request, stamp, n_prompt, replies).await?;
    answer.prompt_token_ids = request.common.return_token_ids.then_some(prompt.tokens);
    Ok(Json(answer).into_response())
}

/// Reads a body, and no more.
pub(crate) fn check(body: &[u8], limits: &Limits) -> Result<(), ApiError> {
    ChatRequest::read(body, limits, &TextModel::without_text()).map(|_| ())
}

/// Answers with a stream that is kept.
async fn resumable(
    app: App,
    name: &Name,
    stamp: Stamp,
    request: ChatRequest,
    prompt: Prompt,
    body: String,
) -> Result<Response, ApiError> {
    let prompts = vec![prompt.tokens.clone()];
    let opened = stamp.opened(name, PATH, &request.common);
    let opened = Opened { prompts, sequences: request.common.n, body, ..opened };
    let resumable = app.begin_stream(opened, name)?;
    let kept = resumable.stream.clone();
    let answer = kept.clone().follow(None)?;
    match begin(app.clone(), request, stamp, &prompt, name, &resumable).await {
        Ok(_) => {
            resumable.is_noted().await;
            Ok(answer)
        }
        Err(error) => {
            app.door.streams.remove(&kept);
            Err(error)
        }
    }
}

/// Goes on with a stream of the coordinator before this one, to its end.
///
/// # Errors
/// The request cannot run here.
pub(crate) async fn go_on(handover: Handover) -> Result<(), ApiError> {
    let Handover { app, name, stamp, opened, resumable } = handover;
    let limits = app.limits.now();
    let body = Taken::of_journal(opened.body.clone().into_bytes(), &name);
    let read = app.door.bodies.read(body, app.text.clone(), move |bytes, text| {
        let mut request = ChatRequest::read(bytes, &limits, text)?;
        handover::check_sequences(&opened, request.common.n)?;
        request.common.restore(&opened);
        let mut prompt = request.prompt(text)?;
        // A template may render the date, so the prompt is taken from the journal and not rendered again.
        prompt.tokens = opened.prompts.into_iter().next().unwrap_or_default();
        Ok((request, prompt))
    });
    let ((request, prompt), _) = read.await?;
    let writing = begin(app, request, stamp, &prompt, &name, &resumable).await?;
    // A panic of it was reported when it happened.
    let _ = writing.await;
    Ok(())
}

/// Begins to write a stream that is kept.
async fn begin(
    app: App,
    request: ChatRequest,
    stamp: Stamp,
    prompt: &Prompt,
    name: &Name,
    resumable: &Resumable,
) -> Result<JoinHandle<()>, ApiError> {
    let replies = request.submit(&app, name, prompt, Some(resumable)).await?;
    let events = Writer::kept(resumable.stream.clone());
    Ok(stream(app, request, stamp, prompt.tokens.len(), replies, events))
}

async fn whole(
    app: &App,
    request: &ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
    replies: ChatAnswers,
) -> Result<ChatCompletion, ApiError> {
    let (mut choices, mut n_generated, mut timings) = (Vec::new(), 0, None);
    let mut ended = Ended::default();
    for (index, reply) in replies.into_iter().enumerate() {
        let chat_answer::Whole { message, tokens, end, finish_reason } =
            chat_answer::collect(reply).await?;
        n_generated += end.n_generated;
        ended.note(0, &end);
        timings.get_or_insert_with(|| choices::timings(n_prompt, &end));
        choices.push(ChatChoice {
            index,
            message,
            logprobs: request.top_logprobs.map(|_| logprobs::chat(&app.text, &tokens)),
            finish_reason,
            token_ids: request.common.token_ids(&tokens),
        });
    }
    Ok(ChatCompletion {
        id: stamp.id,
        object: "chat.completion",
        created: stamp.created,
        model: stamp.model,
        system_fingerprint: stamp.fingerprint,
        choices,
        usage: ended.usage(n_prompt as u32, n_generated),
        timings: timings.unwrap_or_default(),
        prompt_token_ids: None,
    })
}

fn stream(
    app: App,
    request: ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
    replies: ChatAnswers,
    events: Writer,
) -> JoinHandle<()> {
    let chunks = Chunks { app, request, stamp, n_prompt };
    let sending = async move {
        // An error is a client that went away, which cancels the sequences.
        let _ = chunks.send(replies, &events).await;
    };
    task::spawn(sending.in_current_span())
}

/// Writes the chunks of one streamed answer.
struct Chunks {
    app: App,
    request: ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
}

impl Chunks {
    async fn send(&self, replies: ChatAnswers, out: &Writer) -> Result<(), Gone> {
        for index in 0..replies.len() {
            let content = Some(String::new());
            let delta = ChatDelta { role: Some(ROLE), content, ..ChatDelta::default() };
            out.json(Of::Choice(index), &self.chunk(index, delta)).await?;
        }
        let mut n_generated = 0;
        let mut ended = Ended::default();
        let mut parts = Choices::of(replies);
        while let Some((index, part)) = out.unless_gone(parts.next()).await? {
            match part {
                Ok(AnswerPart::End { events, end, finish_reason }) => {
                    self.events(index, events, &[], out).await?;
                    n_generated += end.n_generated;
                    ended.note(0, &end);
                    let mut chunk = self.chunk(index, ChatDelta::default());
                    chunk.choices[0].finish_reason = Some(finish_reason);
                    chunk.timings = Some(choices::timings(self.n_prompt, &end));
                    out.json(Of::Choice(index), &chunk).await?;
                }
                Ok(AnswerPart::Piece { events, tokens }) => {
                    self.events(index, events, &tokens, out).await?;
                }
                Err(failure) => return self.fail(failure, out).await,
            }
        }
        if self.request.common.include_usage {
            let mut chunk = self.chunk(0, ChatDelta::default());
            chunk.choices.clear();
            chunk.usage = Some(ended.usage(self.n_prompt as u32, n_generated));
            out.json(Of::End, &chunk).await?;
        }
        out.done().await
    }

    /// Sends the new parts of a choice; log-probabilities, if they are wanted, go with the first part.
    async fn events(
        &self,
        index: usize,
        events: Vec<Event>,
        tokens: &[TokenPiece],
        out: &Writer,
    ) -> Result<(), Gone> {
        let wanted = self.request.top_logprobs.filter(|_| !tokens.is_empty());
        let mut logprobs = wanted.map(|_| logprobs::chat(&self.app.text, tokens));
        let mut ids = self.request.common.token_ids(tokens).filter(|ids| !ids.is_empty());
        let mut deltas: Vec<ChatDelta> = events.into_iter().map(chat_answer::delta).collect();
        if (logprobs.is_some() || ids.is_some()) && deltas.is_empty() {
            deltas.push(ChatDelta { content: Some(String::new()), ..ChatDelta::default() });
        }
        for delta in deltas {
            let mut chunk = self.chunk(index, delta);
            chunk.choices[0].logprobs = logprobs.take();
            chunk.choices[0].token_ids = ids.take();
            out.json(Of::Choice(index), &chunk).await?;
        }
        Ok(())
    }

    async fn fail(&self, failure: Failure, out: &Writer) -> Result<(), Gone> {
        if out.is_kept() && failure == Failure::Stopping {
            // The next coordinator may go on with it.
            return Err(Gone);
        }
        tracing::warn!(id = self.stamp.id, %failure, "stream failed");
        out.json(Of::End, &ApiError::from(failure).body()).await?;
        out.done().await
    }

    fn chunk(&self, index: usize, delta: ChatDelta) -> ChatChunk {
        ChatChunk {
            id: self.stamp.id.clone(),
            object: "chat.completion.chunk",
            created: self.stamp.created,
            model: self.stamp.model.clone(),
            system_fingerprint: self.stamp.fingerprint.clone(),
            choices: vec![ChatChunkChoice {
                index,
                delta,
                logprobs: None,
                finish_reason: None,
                token_ids: None,
            }],
            usage: None,
            timings: None,
        }
    }
}
