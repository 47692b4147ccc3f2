//! What server-sent events are made of: ids that say how much of a stream has come, and the response that carries
//! them.
//!
//! What a stream has is known choice by choice: events of several choices may come in another order when they are drawn
//! again, those of one may not.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

/// Events that wait for a slow client.
const EVENT_QUEUE: usize = 16;

/// Comments are sent this often while there is nothing else to send (a long prompt is computed, or a lost
/// line is repaired), so that no proxy and no client gives up.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// What the stream ends with.
pub const DONE: &str = "[DONE]";

/// The client is not there any more.
#[derive(Debug)]
pub struct Gone;

/// What an event is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A choice, by number.
    Choice(usize),
    /// What comes after all choices.
    End,
}

/// How many events of each choice, and of the end, have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    stream: Arc<str>,
    counts: Vec<u64>,
}

impl Position {
    /// The beginning of a stream.
    pub fn start(stream: &str, n_choices: usize) -> Self {
        Self { stream: stream.into(), counts: vec![0; n_choices + 1] }
    }

    /// From an event's id, which is `STREAM/COUNT.COUNT...`; `None` where it is no such id.
    pub fn parse(id: &str) -> Option<Self> {
        let (stream, counts) = id.rsplit_once('/')?;
        let counts = counts.split('.').map(|count| count.parse().ok());
        Some(Self { stream: stream.into(), counts: counts.collect::<Option<_>>()? })
    }

    /// Which stream.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Whether it may be of a stream with so many choices.
    pub fn is_of(&self, n_choices: usize) -> bool {
        self.counts.len() == n_choices + 1
    }

    /// One more event has come.
    pub fn pass(&mut self, of: Of) {
        *self.count_mut(of) += 1;
    }

    /// Events that have come of it.
    pub fn count(&self, of: Of) -> u64 {
        let n = self.counts.len();
        self.counts[index(of, n)]
    }

    fn count_mut(&mut self, of: Of) -> &mut u64 {
        let n = self.counts.len();
        &mut self.counts[index(of, n)]
    }

    /// The id of the event that brings the stream up to here.
    pub fn id(&self) -> String {
        let counts: Vec<String> = self.counts.iter().map(u64::to_string).collect();
        format!("{}/{}", self.stream, counts.join("."))
    }
}

fn index(of: Of, n: usize) -> usize {
    match of {
        Of::Choice(choice) => choice.min(n - 1),
        Of::End => n - 1,
    }
}

/// Where events go, and the response that carries them.
pub fn response() -> (mpsc::Sender<Event>, Response) {
    let (sender, events) = mpsc::channel(EVENT_QUEUE);
    let events = ReceiverStream::new(events).map(Ok::<Event, Infallible>);
    let sse = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    (sender, sse.into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_were_written() {
        let mut position = Position::start("chatcmpl-x", 2);
        position.pass(Of::Choice(1));
        position.pass(Of::Choice(1));
        position.pass(Of::End);
        assert_eq!(position.id(), "chatcmpl-x/0.2.1");
        assert_eq!(Position::parse(&position.id()), Some(position.clone()));
        assert!(position.is_of(2) && !position.is_of(1));
        for bad in ["", "chatcmpl-x", "chatcmpl-x/", "x/1.-2", "x/1.a", "x/1..2"] {
            assert_eq!(Position::parse(bad), None, "{bad}");
        }
    }
}
