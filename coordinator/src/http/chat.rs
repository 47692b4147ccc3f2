//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use tracing::Instrument;

use super::answer::{self, Ended};
use super::body::text_error;
use super::error::ApiError;
use super::events::{Gone, Of};
use super::fields::Fields;
use super::messages::{self, reasoning, template_arguments};
use super::params::Common;
use super::reply::{self, Replies, Reply, ReplyPart};
use super::streams::{self, Resumable};
use super::tools::ToolRequest;
use super::types::{ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ROLE};
use super::{App, Stamp, logprobs, sse, trace};
use crate::dialect::Tools;
use crate::generation::TokenPiece;
use crate::handle::Failure;
use crate::journal::Opened;
use crate::request::{DEFAULT_MAX_TOKENS, Limits};
use crate::text_model::{Chat, Prompt, TextModel};

/// What the journal calls these requests.
pub(super) const KIND: &str = "chat";

/// A chat request, read.
#[derive(Debug)]
struct ChatRequest {
    chat: Chat,
    tools: Arc<Tools>,
    /// One call is enough.
    single: bool,
    common: Common,
    top_logprobs: Option<u32>,
}

/// The endpoint.
pub(super) async fn create(
    State(app): State<App>,
    Extension(name): Extension<trace::Name>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Some(answer) = streams::came_back(&app, request.headers())? {
        return Ok(answer);
    }
    let body = app.bodies.take(request).await?;
    let limits = app.limits;
    let read = app.bodies.read(body, app.text.clone(), move |bytes, text| {
        let (request, prompt) = ChatRequest::with_prompt(bytes, text, &limits)?;
        let kept = request.common.resumable.then(|| String::from_utf8_lossy(bytes).into_owned());
        Ok((request, prompt, kept))
    });
    let ((request, prompt, kept), _) = read.await?;
    let stamp = Stamp::new(&app, "chatcmpl-");
    if let Some(body) = kept {
        let opened = Opened {
            id: stamp.id.clone(),
            kind: KIND.to_owned(),
            label: name.id.to_string(),
            created: stamp.created,
            seed: request.common.seed,
            prompts: vec![prompt.tokens.clone()],
            sequences: request.common.n,
            body,
        };
        let resumable = app.streams.begin(opened)?;
        let stream = resumable.stream.clone();
        let answer = stream.clone().follow(None)?;
        if let Err(error) = begin(&app, request, stamp, prompt, &name, &resumable).await {
            app.streams.remove(&stream);
            return Err(error);
        }
        return Ok(answer);
    }
    let n_prompt = prompt.tokens.len();
    let replies = request.submit(&app, &name, &prompt, None).await?;
    if request.common.stream {
        let (events, response) = sse::channel(&stamp.id, replies.len());
        stream(app, request, stamp, n_prompt, replies, events);
        return Ok(response);
    }
    Ok(whole(&app, &request, stamp, n_prompt, replies).await?.into_response())
}

/// Goes on with a stream of the coordinator before this one.
///
/// # Errors
/// It cannot run here.
pub(super) async fn go_on(app: App, opened: Opened, resumable: Resumable) -> Result<(), ApiError> {
    let name = trace::Name { id: opened.label.as_str().into(), tally: Arc::default() };
    let stamp = Stamp::again(&app, &opened);
    let (text, limits) = (app.text.clone(), app.limits);
    let read = tokio::task::spawn_blocking(move || {
        let (mut request, mut prompt) =
            ChatRequest::with_prompt(opened.body.as_bytes(), &text, &limits)?;
        request.common.seed = opened.seed;
        // A template may say what day it is: the prompt stays what it was.
        prompt.tokens = opened.prompts.into_iter().next().unwrap_or_default();
        Ok::<_, ApiError>((request, prompt))
    });
    let read = read.await.map_err(|error| ApiError::server(error.to_string()))?;
    let (request, prompt) = read?;
    begin(&app, request, stamp, prompt, &name, &resumable).await
}

/// Begins to write a stream that is kept.
async fn begin(
    app: &App,
    request: ChatRequest,
    stamp: Stamp,
    prompt: Prompt,
    name: &trace::Name,
    resumable: &Resumable,
) -> Result<(), ApiError> {
    let replies = request.submit(app, name, &prompt, Some(resumable)).await?;
    let events = sse::Sender::kept(resumable.stream.clone());
    stream(app.clone(), request, stamp, prompt.tokens.len(), replies, events);
    Ok(())
}

impl ChatRequest {
    /// A request and its prompt.
    fn with_prompt(
        body: &[u8],
        text: &TextModel,
        limits: &Limits,
    ) -> Result<(Self, Prompt), ApiError> {
        let mut request = Self::read(body, limits)?;
        let chat = std::mem::take(&mut request.chat);
        let prompt = text.encode_chat(&chat).map_err(text_error)?;
        Ok((request, prompt))
    }

    fn read(body: &[u8], limits: &Limits) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let mut left = super::fields::MAX_TEMPLATE_VALUES;
        let (messages, n_message_bytes) = messages::read(&mut fields, &mut left)?;
        let tools = ToolRequest::read(&mut fields, &mut left)?;
        limits.check_text(n_message_bytes + tools.n_bytes)?;
        let mut extra = template_arguments(&mut fields, &mut left)?;
        reasoning(&mut fields, &mut extra)?;
        let continues = messages::continues(&mut fields, &messages, tools.force())?;
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
        let (force, single, known) = (tools.force().clone(), tools.single, tools.known);
        let chat = Chat { messages, tools: tools.for_template, force, continues, extra };
        Ok(Self { chat, tools: Arc::new(known), single, common, top_logprobs })
    }

    /// Submits the choices, each with what reads its text.
    async fn submit(
        &self,
        app: &App,
        name: &trace::Name,
        prompt: &Prompt,
        resumable: Option<&Resumable>,
    ) -> Result<Replies, ApiError> {
        let prompts = std::slice::from_ref(&prompt.tokens);
        let generations =
            answer::submit(app, name, prompts, &self.common, self.top_logprobs, resumable).await?;
        let markers = app.text.markers();
        let mut replies = Vec::new();
        for (mut generation, i) in generations.into_iter().zip(0..) {
            generation.show(markers.clone());
            let seed = self.common.seed.wrapping_add(i);
            let parser = app.text.parser(prompt, self.tools.clone(), self.single, seed);
            replies.push((generation, Reply::new(parser, &prompt.opening)));
        }
        Ok(replies)
    }
}

async fn whole(
    app: &App,
    request: &ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
    replies: Replies,
) -> Result<Json<ChatCompletion>, ApiError> {
    let (mut choices, mut n_generated, mut timings) = (Vec::new(), 0, None);
    let mut ended = Ended::default();
    for (index, (generation, reply)) in replies.into_iter().enumerate() {
        let reply::Whole { message, tokens, end, finish_reason } =
            reply::collect(generation, reply).await?;
        n_generated += end.n_generated;
        ended.note(0, &end);
        timings.get_or_insert_with(|| answer::timings(n_prompt, &end));
        choices.push(ChatChoice {
            index,
            message,
            logprobs: request.top_logprobs.map(|_| logprobs::chat(&app.text, &tokens)),
            finish_reason,
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
    replies: Replies,
    events: sse::Sender,
) {
    let chunks = Chunks { app, request, stamp, n_prompt };
    let sending = async move {
        // An error is a client that went away, which cancels the sequences.
        let _ = chunks.send(replies, &events).await;
    };
    tokio::spawn(sending.in_current_span());
}

/// Writes the chunks of one streamed answer.
struct Chunks {
    app: App,
    request: ChatRequest,
    stamp: Stamp,
    n_prompt: usize,
}

impl Chunks {
    async fn send(&self, replies: Replies, out: &sse::Sender) -> Result<(), Gone> {
        for index in 0..replies.len() {
            let content = Some(String::new());
            let delta = ChatDelta { role: Some(ROLE), content, ..ChatDelta::default() };
            out.json(Of::Choice(index), &self.chunk(index, delta)).await?;
        }
        let (mut open, mut n_generated) = (replies.len(), 0);
        let mut ended = Ended::default();
        let mut parts = reply::merge(replies);
        while let Some((index, part)) = out.unless_gone(parts.recv()).await? {
            match part {
                Ok(ReplyPart::End { deltas, end, finish_reason }) => {
                    self.deltas(index, deltas, &[], out).await?;
                    n_generated += end.n_generated;
                    ended.note(0, &end);
                    open -= 1;
                    let mut chunk = self.chunk(index, ChatDelta::default());
                    chunk.choices[0].finish_reason = Some(finish_reason);
                    chunk.timings = Some(answer::timings(self.n_prompt, &end));
                    out.json(Of::Choice(index), &chunk).await?;
                }
                Ok(ReplyPart::Piece { deltas, tokens }) => {
                    self.deltas(index, deltas, &tokens, out).await?;
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
            out.json(Of::End, &chunk).await?;
        }
        out.done().await
    }

    /// Sends what is new of a choice; the tokens' values, if they are wanted, with the first part of it.
    async fn deltas(
        &self,
        index: usize,
        mut deltas: Vec<ChatDelta>,
        tokens: &[TokenPiece],
        out: &sse::Sender,
    ) -> Result<(), Gone> {
        let wanted = self.request.top_logprobs.filter(|_| !tokens.is_empty());
        let mut logprobs = wanted.map(|_| logprobs::chat(&self.app.text, tokens));
        if logprobs.is_some() && deltas.is_empty() {
            deltas.push(ChatDelta { content: Some(String::new()), ..ChatDelta::default() });
        }
        for delta in deltas {
            let mut chunk = self.chunk(index, delta);
            chunk.choices[0].logprobs = logprobs.take();
            out.json(Of::Choice(index), &chunk).await?;
        }
        Ok(())
    }

    async fn fail(&self, failure: Failure, out: &sse::Sender) -> Result<(), Gone> {
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
            choices: vec![ChatChunkChoice { index, delta, logprobs: None, finish_reason: None }],
            usage: None,
            timings: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fields::MAX_TEMPLATE_VALUES;
    use super::super::messages::MAX_MESSAGES;
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
