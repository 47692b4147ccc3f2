//! Answers that begin while their model is being loaded. A stream gets comments until then, and afterwards the same
//! bytes as if its model had been there. An error during that time is the stream's last event, in the form of its
//! API.
//!
//! Ollama's streams are lines of JSON, each of which is a part of the answer to its clients. No line would be harmless, so
//! they wait, as with Ollama.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brigade_line::handle::Status;
use brigade_line::health::Loading;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tracing::Instrument;

use crate::app::{App, Door};
use crate::clients::name::Name;
use crate::compat::anthropic;
use crate::error::ApiError;
use crate::events::sse::DONE;
use crate::fleet::{Choice, Chosen, Head, Meant, Wish};
use crate::openai::chat;
use crate::openai::completions;
use crate::server::before_loading::Trial;

/// How long a request waits for its model, before it is told how far that is.
pub const MODEL_WITHIN: Duration = Duration::from_secs(60);

/// The same limit for a stream, whose client sees the progress. The largest models over slow links take this long.
pub const STREAM_MODEL_WITHIN: Duration = Duration::from_secs(3600);

/// A model that is there within this time, or is refused, gets an answer with a status of its own.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The time between two comments about the progress of loading.
const COMMENT_EVERY: Duration = Duration::from_secs(1);

/// The media type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// How an API's stream says that it failed.
type LastEvents = fn(&ApiError) -> String;

/// How streams at this address report an error; `None`: its answers are not streams of events.
pub(crate) fn last_events_of(path: &str) -> Option<LastEvents> {
    match path {
        chat::PATH | completions::PATH => Some(openai),
        "/completion" | "/completions" | "/infill" => Some(|error| data(&error.body())),
        "/v1/messages" => Some(|error| named("error", &anthropic::error_body(error))),
        "/v1/responses" => Some(responses),
        _ => None,
    }
}

fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

fn named(name: &str, value: &Value) -> String {
    format!("event: {name}\n{}", data(value))
}

fn openai(error: &ApiError) -> String {
    format!("{}data: {DONE}\n\n", data(&error.body()))
}

/// The event for errors of the stream, since no response exists yet that could fail.
fn responses(error: &ApiError) -> String {
    let of = &error.body()["error"];
    let event = json!({
        "type": "error",
        "code": of["code"],
        "message": of["message"],
        "param": of["param"],
        "sequence_number": 0,
    });
    named("error", &event)
}

/// Something that is waited for.
type Waits<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request that can be answered.
pub(crate) enum Ready {
    /// The model is loaded.
    Now(Box<Request>),
    /// The client gets comments while the model is loaded.
    Early(Box<Early>),
}

/// An answer that begins before its model is there.
pub(crate) struct Early {
    request: Request,
    model: Chosen,
    needed: Waits<Result<App, ApiError>>,
    last_events: LastEvents,
}

impl Choice {
    /// Waits for the model, where its client cannot be told about the progress. `next` would answer.
    ///
    /// # Errors
    /// The request would be refused anyway ([`Trial`]), or the model cannot be used: see
    /// [`NotLoaded`](crate::fleet::NotLoaded).
    pub(crate) async fn ready(
        self,
        name: &Name,
        door: &Arc<Door>,
        next: &Next,
    ) -> Result<Ready, ApiError> {
        let Self { mut request, model, head: Head { is_stream, keep, only_unloads, .. } } = self;
        let last_events = last_events_of(request.uri().path()).filter(|_| is_stream);
        let key = name.usage.key_number();
        if let (Some(keep), Some(member)) = (keep.filter(|_| only_unloads), model.here()) {
            member.keep(key, keep);
            is_for(&mut request, name, member.now());
            return Ok(Ready::Now(Box::new(request)));
        }
        if let Some(trial) = Trial::of(&request, &model, door) {
            trial.check(next.clone()).await?;
        }
        let within = if last_events.is_some() { STREAM_MODEL_WITHIN } else { MODEL_WITHIN };
        let wish = Wish { key, within };
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let (of, force) = (model.clone(), name.usage.force());
        let mut needed: Waits<_> =
            Box::pin(async move { of.for_request(&method, &path, wish, force).await });
        let app = match last_events {
            None => needed.await?,
            Some(last_events) => match timeout(AT_ONCE, &mut needed).await {
                Ok(app) => app?,
                Err(_) => {
                    let early = Early { request, model, needed, last_events };
                    return Ok(Ready::Early(Box::new(early)));
                }
            },
        };
        // Only streams of events are answered early, and their requests have no `keep_alive`.
        if let (Some(keep), Some(member)) = (keep, model.here()) {
            member.keep(key, keep);
        }
        is_for(&mut request, name, app);
        Ok(Ready::Now(Box::new(request)))
    }
}

/// The request's model is there.
fn is_for(request: &mut Request, name: &Name, app: App) {
    name.usage.is_for(app.text.name());
    name.usage.uses(app.in_use.clone());
    request.extensions_mut().insert(Meant(app));
}

impl Ready {
    /// The answer, which `next` makes.
    pub async fn answer(self, name: &Name, next: Next) -> Response {
        match self {
            Self::Now(request) => next.run(*request).await,
            Self::Early(early) => early.answer(name.clone(), next),
        }
    }
}

impl Early {
    fn answer(self, name: Name, next: Next) -> Response {
        let Self { mut request, model, needed, last_events } = self;
        let answer = async move {
            match needed.await {
                Ok(app) => {
                    is_for(&mut request, &name, app);
                    events(next.run(request).await, last_events)
                }
                Err(error) => Body::from(last_events(&error)),
            }
        };
        let answer: Waits<Body> = Box::pin(answer.in_current_span());
        let mut every = interval(COMMENT_EVERY);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let body = Body::new(Telling { model, every, answer: Some(answer), rest: Body::empty() });
        ([(CONTENT_TYPE, EVENT_STREAM), (CACHE_CONTROL, "no-cache")], body).into_response()
    }
}

/// The handler's answer as the rest of a stream that has begun.
fn events(response: Response, last_events: LastEvents) -> Body {
    if let Some(error) = response.extensions().get::<ApiError>() {
        return Body::from(last_events(error));
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if response.status().is_success() && kind.is_some_and(|kind| kind.starts_with(EVENT_STREAM)) {
        return response.into_body();
    }
    tracing::error!(
        status = response.status().as_u16(),
        kind,
        "the answer to a streaming request is not a stream of events"
    );
    let error = ApiError::server("an internal error; the server's log says more");
    Body::from(last_events(&error))
}

/// Comments, and then the rest. A client's leaving drops it, and so ends the waiting.
struct Telling {
    model: Chosen,
    every: Interval,
    answer: Option<Waits<Body>>,
    rest: Body,
}

impl Telling {
    /// A comment about the progress of loading. Clients skip comments.
    fn comment(&self) -> String {
        let of = |word: &str, loading: &Loading| match loading.share() {
            Some(share) => format!("{word} {:.0} %", 100.0 * share),
            None => word.to_owned(),
        };
        let how_far = match (self.model.here(), &self.model) {
            (None, Chosen::Away(away)) => of("fetching", &away.how_far()),
            (here, _) => match here.and_then(|member| member.loading()) {
                None => "waiting for the model".to_owned(),
                Some(Status::Loading(loading)) => of("loading", &loading),
                Some(_) => "starting".to_owned(),
            },
        };
        format!(": {how_far}\n\n")
    }
}

impl hyper::body::Body for Telling {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(answer) = &mut self.answer {
            match answer.as_mut().poll(cx) {
                Poll::Ready(rest) => (self.answer, self.rest) = (None, rest),
                Poll::Pending => {
                    ready!(self.every.poll_tick(cx));
                    return Poll::Ready(Some(Ok(Frame::data(self.comment().into()))));
                }
            }
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_fails_in_the_form_of_its_api() {
        let error = ApiError::field("prompt", "prompt: no");
        let of = |path: &str| last_events_of(path).map(|last_events| last_events(&error));
        let chat = of(chat::PATH).unwrap();
        assert!(chat.starts_with("data: {\"error\":") && chat.ends_with("data: [DONE]\n\n"));
        assert_eq!(of(completions::PATH), Some(chat));
        let messages = of("/v1/messages").unwrap();
        assert!(messages.starts_with("event: error\ndata: {"), "{messages}");
        let responses = of("/v1/responses").unwrap();
        let event: Value =
            serde_json::from_str(responses.strip_prefix("event: error\ndata: ").unwrap()).unwrap();
        assert_eq!((&event["type"], &event["param"]), (&json!("error"), &json!("prompt")));
        for path in ["/api/chat", "/v1/embeddings", "/v1/messages/count_tokens"] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
