//! Server-sent events: one JSON object after the other, and `[DONE]` at the end.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::fields::json_text;

/// Events that wait for a slow client.
const EVENT_QUEUE: usize = 16;

/// Comments are sent this often while there is nothing else to send (a long prompt is computed, or a lost
/// line is repaired), so that no proxy and no client gives up.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The client is not there any more.
#[derive(Debug)]
pub struct Gone;

/// The writing end of a stream.
#[derive(Debug)]
pub struct Sender(mpsc::Sender<Event>);

/// A stream's writing end and the response that carries it. The client's leaving closes it.
pub fn channel() -> (Sender, Response) {
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    let events = ReceiverStream::new(events).map(Ok::<Event, Infallible>);
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    (Sender(sender), sse.into_response())
}

impl Sender {
    /// Sends one object.
    pub async fn json(&self, value: &impl Serialize) -> Result<(), Gone> {
        self.0.send(Event::default().data(json_text(value))).await.map_err(|_| Gone)
    }

    /// Sends the end mark.
    pub async fn done(&self) -> Result<(), Gone> {
        self.0.send(Event::default().data("[DONE]")).await.map_err(|_| Gone)
    }

    /// Waits for something, but not longer than the client does.
    pub async fn unless_gone<T>(&self, wait: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::select! {
            value = wait => Ok(value),
            () = self.0.closed() => Err(Gone),
        }
    }
}
