//! Server-sent events: one JSON object after the other, and `[DONE]` at the end.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Events that wait for a slow client.
const EVENT_QUEUE: usize = 16;

/// Comments are sent this often while there is nothing else to send (a long prompt is computed, or a lost
/// line is repaired), so that no proxy and no client gives up.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The last event of OpenAI's streams.
pub const DONE: &str = "[DONE]";

/// The client is not there any more.
#[derive(Debug)]
pub struct Gone;

/// The writing end of a stream.
#[derive(Debug)]
pub struct Sender(mpsc::Sender<Event>);

/// A JSON text for an answer: lists of numbers as they are, without a tree of values.
pub fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have string keys only")
}

/// A stream's writing end and the response that carries it. The client's leaving closes it.
pub fn channel() -> (Sender, Response) {
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    let events = ReceiverStream::new(events).map(Ok::<Event, Infallible>);
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    (Sender(sender), sse.into_response())
}

impl Sender {
    /// Sends one object as an event.
    pub async fn json(&self, value: &impl Serialize) -> Result<(), Gone> {
        self.event(Event::default().data(json_text(value))).await
    }

    /// Sends one object under an event's name.
    pub async fn named(&self, name: &str, value: &impl Serialize) -> Result<(), Gone> {
        self.event(Event::default().event(name).data(json_text(value))).await
    }

    /// Sends an event as it is.
    pub async fn event(&self, event: Event) -> Result<(), Gone> {
        self.0.send(event).await.map_err(|_| Gone)
    }

    /// Ready when the client is not there any more.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Waits for something, but not longer than the client does.
    pub async fn unless_gone<T>(&self, wait: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::select! {
            value = wait => Ok(value),
            () = self.closed() => Err(Gone),
        }
    }
}
