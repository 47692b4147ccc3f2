//! Server-sent events: JSON objects one after the other, `[DONE]` at the end. Every event has an id
//! ([`Position`]).

use std::sync::{Arc, Mutex, PoisonError};

use axum::response::Response;
use axum::response::sse::Event;
use serde::Serialize;
use tokio::sync::mpsc;

use super::events::{DONE, Gone, Of, Position, response};
use super::fields::json_text;
use super::streams::Stream;

/// The writing end of a stream.
#[derive(Debug)]
pub struct Sender(To);

#[derive(Debug)]
enum To {
    /// Straight to the client.
    Client { events: mpsc::Sender<Event>, position: Mutex<Position> },
    /// To a stream that is kept for clients to read.
    Kept(Arc<Stream>),
}

/// A stream's writing end and the response that carries it. The client's leaving closes it.
pub fn channel(stream: &str, n_choices: usize) -> (Sender, Response) {
    let (events, response) = response();
    let position = Mutex::new(Position::start(stream, n_choices));
    (Sender(To::Client { events, position }), response)
}

impl Sender {
    /// The writing end of a stream that is kept.
    pub(super) fn kept(stream: Arc<Stream>) -> Self {
        Self(To::Kept(stream))
    }

    /// Whether the stream can be read on later.
    pub fn is_kept(&self) -> bool {
        matches!(self.0, To::Kept(_))
    }

    /// Sends one object.
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
                events.send(Event::default().id(id).data(text)).await.map_err(|_| Gone)
            }
            To::Kept(stream) => stream.push(of, text),
        }
    }

    /// Waits for something, but not longer than the client does.
    pub async fn unless_gone<T>(&self, wait: impl Future<Output = T>) -> Result<T, Gone> {
        let gone = async {
            match &self.0 {
                To::Client { events, .. } => events.closed().await,
                To::Kept(stream) => stream.abandoned().await,
            }
        };
        tokio::select! {
            value = wait => Ok(value),
            () = gone => Err(Gone),
        }
    }
}
