//! The writing end of streams whose events have ids ([`Position`]): they go straight to the client, or are kept for it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::Response;
use axum::response::sse::Event;
use serde::Serialize;

use crate::events::position::{Of, Position};
use crate::events::resumable::Stream;
use crate::events::sse::{self, DONE, Gone, json_text};

/// The writing end of a stream whose events have ids.
#[derive(Debug)]
pub struct Writer(To);

#[derive(Debug)]
enum To {
    /// Straight to the client.
    Client { events: sse::Sender, position: Mutex<Position> },
    /// A stream that is kept for clients to read.
    Kept(Arc<Stream>),
}

/// A stream's writing end and the response that carries it. The client's leaving closes it.
pub fn channel(stream: &str, n_choices: usize) -> (Writer, Response) {
    let (events, response) = sse::channel();
    let position = Mutex::new(Position::start(stream, n_choices));
    (Writer(To::Client { events, position }), response)
}

impl Writer {
    /// The writing end of a stream that is kept.
    pub(crate) fn kept(stream: Arc<Stream>) -> Self {
        Self(To::Kept(stream))
    }

    /// Whether the stream can be read on later.
    pub fn is_kept(&self) -> bool {
        matches!(self.0, To::Kept(_))
    }

    /// Sends one object as an event with an id.
    pub async fn json(&self, of: Of, value: &impl Serialize) -> Result<(), Gone> {
        self.text(of, json_text(value)).await
    }

    /// Sends the end mark.
    pub async fn done(&self) -> Result<(), Gone> {
        self.text(Of::End, DONE.to_owned()).await
    }

    async fn text(&self, of: Of, text: String) -> Result<(), Gone> {
        match &self.0 {
            To::Client { events, position } => {
                let id = {
                    let mut position = position.lock().unwrap_or_else(PoisonError::into_inner);
                    position.pass(of);
                    position.id()
                };
                events.event(Event::default().id(id).data(text)).await
            }
            To::Kept(stream) => stream.push(of, text),
        }
    }

    /// Waits for `future`, but not longer than the stream is wanted.
    pub async fn unless_gone<T>(&self, wait: impl Future<Output = T>) -> Result<T, Gone> {
        match &self.0 {
            To::Client { events, .. } => events.unless_gone(wait).await,
            To::Kept(stream) => tokio::select! {
                value = wait => Ok(value),
                () = stream.abandoned() => Err(Gone),
            },
        }
    }
}
