//! The reasons for which a sequence ends early, with their words for operators and for clients.

use std::fmt;

use brigade_engine::constraint::ConstraintError;
use brigade_engine::sample::SampleError;
use brigade_sched::Unfinished;
use thiserror::Error;

use crate::keys::KeyEnd;

/// Why a sequence ended early. Its text is for operators; [`Failure::told`] is for clients.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Failure {
    /// The scheduler gave it up.
    Unfinished(Unfinished),
    /// The server is shutting down.
    Stopping,
    /// The key that asked is not in force any more.
    KeyEnded(KeyEnd),
    /// A fault of the coordinator.
    Internal {
        /// The error, for the log.
        reason: String,
    },
}

/// A way in which the client can help itself after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Ask again: there will be another line, or another server.
    Retry,
    /// Ask again after so many seconds: others ask too.
    Wait {
        /// A fair guess at when a place will be free.
        retry_after_s: u64,
    },
    /// Ask for less, or give it more time.
    MoreTime,
    /// Ask for something else: the request itself is at fault.
    AnotherRequest,
    /// Ask with another key.
    AnotherKey,
    /// Nothing: the server's log says more.
    None,
}

/// A failure in words for the client, without workers and other internals.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// One sentence for the client.
    pub sentence: String,
    /// The client's way to help itself.
    pub remedy: Remedy,
}

/// All words for a failure.
struct Words {
    told: Told,
    /// The sentence with internals; `None`: the client's sentence says all.
    in_full: Option<String>,
}

impl Words {
    /// Everybody may know all of it.
    fn open(remedy: Remedy, sentence: String) -> Self {
        Self { told: Told { sentence, remedy }, in_full: None }
    }

    /// The reason goes to the log only.
    fn with_reason(remedy: Remedy, sentence: String, in_full: String) -> Self {
        Self { told: Told { sentence, remedy }, in_full: Some(in_full) }
    }
}

impl Failure {
    /// The failure in words for the client.
    pub fn told(&self) -> Told {
        self.words().told
    }

    /// Every failure's words stand here, and nowhere else.
    fn words(&self) -> Words {
        match self {
            Self::Unfinished(Unfinished::LineLost { reason, generated }) => Words::with_reason(
                Remedy::Retry,
                format!(
                    "the line of workers broke after {generated} generated tokens: send the request again; the \
                     server's log says why"
                ),
                format!(
                    "the line of workers broke after {generated} generated tokens: {reason}; send the request again"
                ),
            ),
            Self::Unfinished(Unfinished::NoToken { reason, generated }) => {
                no_token(reason, *generated)
            }
            Self::Unfinished(Unfinished::TooLate { generated }) => Words::open(
                Remedy::MoreTime,
                format!(
                    "the request's timeout passed after {generated} generated tokens: ask for fewer, or give it more \
                     time"
                ),
            ),
            Self::Unfinished(Unfinished::Displaced { retry_after_s }) => Words::open(
                Remedy::Wait { retry_after_s: *retry_after_s },
                format!(
                    "the queue is full, and most of its requests are yours: send fewer at once; try again in \
                     {retry_after_s} s"
                ),
            ),
            Self::Stopping => {
                let sentence = "the server is shutting down; try again elsewhere or later";
                Words::open(Remedy::Retry, sentence.to_owned())
            }
            Self::KeyEnded(end) => Words::open(
                Remedy::AnotherKey,
                format!("the API key {end} while its request ran: ask for another one"),
            ),
            Self::Internal { reason } => Words::with_reason(
                Remedy::None,
                "an internal error; the server's log says more".to_owned(),
                format!("internal error: {reason}"),
            ),
        }
    }
}

/// The stage's reason says whether the request or the server is at fault.
fn no_token(reason: &str, generated: u32) -> Words {
    let (remedy, sentence) = if ConstraintError::is_told_by(reason) {
        // Most faults of a grammar are refused before anything is drawn; this is the rest.
        let sentence = format!(
            "the form that the answer has to fit (a schema, a grammar, a strict tool) gives no next token after \
             {generated} generated tokens, or takes more steps than are allowed: make it simpler"
        );
        (Remedy::AnotherRequest, sentence)
    } else if SampleError::is_nothing_left(reason) {
        let sentence = format!(
            "no token is left to choose from after {generated} generated tokens: the banned tokens (logit_bias) and the form that the answer has to fit exclude all; ban fewer, or allow more"
        );
        (Remedy::AnotherRequest, sentence)
    } else {
        let sentence = format!(
            "the model gave no usable numbers after {generated} generated tokens; the server's log says more"
        );
        (Remedy::None, sentence)
    };
    let in_full = format!("no token can be drawn after {generated} generated tokens: {reason}");
    Words::with_reason(remedy, sentence, in_full)
}

impl From<Unfinished> for Failure {
    fn from(unfinished: Unfinished) -> Self {
        Self::Unfinished(unfinished)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Words { told, in_full } = self.words();
        f.write_str(&in_full.unwrap_or(told.sentence))
    }
}
