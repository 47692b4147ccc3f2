//! Ids of events. A client that was cut off sends the id of its last event, and reads on behind it.
//!
//! A position counts events choice by choice. When a stream is computed again, the events of each choice have the
//! same order, but those of several choices may be interleaved in another way.

use std::sync::Arc;

/// The part of a stream to which an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A choice, by number.
    Choice(usize),
    /// The events behind all choices, such as token counts.
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

    /// The stream's id.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// Whether it may be of a stream with so many choices.
    pub fn is_of(&self, n_choices: usize) -> bool {
        self.counts.len() == n_choices + 1
    }

    /// Counts one more event.
    pub fn pass(&mut self, of: Of) {
        *self.count_mut(of) += 1;
    }

    /// Events that have come of it.
    pub fn count(&self, of: Of) -> u64 {
        self.counts[index(of, self.counts.len())]
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
