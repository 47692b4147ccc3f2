//! Why a sequence ended before its time, in words for whoever runs the line.

use thiserror::Error;

use crate::keys::KeyEnd;

/// Why a sequence ended before its time.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum Failure {
    /// A worker died or hung, and no line came up again for the sequence.
    #[error(
        "the line of workers broke after {generated} generated tokens: {reason}; \
         send the request again"
    )]
    LineDown {
        /// What broke it.
        reason: String,
        /// Tokens drawn before.
        generated: u32,
    },
    /// The server is shutting down.
    #[error("the server is shutting down; try again elsewhere or later")]
    Stopping,
    /// The model computed no usable numbers for this sequence.
    #[error("no token can be drawn after {generated} generated tokens: {reason}")]
    NoToken {
        /// What is wrong with its output.
        reason: String,
        /// Tokens drawn before.
        generated: u32,
    },
    /// The request's own time limit passed.
    #[error(
        "the request's timeout passed after {generated} generated tokens: ask for fewer, or give it more time"
    )]
    TooLate {
        /// Tokens drawn before.
        generated: u32,
    },
    /// The key that asked is not in force any more.
    #[error("the API key {0} while its request ran: ask for another one")]
    KeyEnded(KeyEnd),
    /// It waited, the queue was full, and a request of somebody who asks for less took its place.
    #[error(
        "as many requests wait as may, and most of them are yours: send fewer at once; try again in \
         {retry_after_s} s"
    )]
    Displaced {
        /// A fair guess at when a place will be free.
        retry_after_s: u64,
    },
    /// A fault of the coordinator.
    #[error("internal error: {reason}")]
    Internal {
        /// What happened.
        reason: String,
    },
}

impl From<brigade_sched::RequestError> for Failure {
    fn from(error: brigade_sched::RequestError) -> Self {
        use brigade_sched::RequestError;
        match error {
            RequestError::LineLost { reason, generated } => Self::LineDown { reason, generated },
            RequestError::NoToken { reason, generated } => Self::NoToken { reason, generated },
            RequestError::TooLate { generated } => Self::TooLate { generated },
            RequestError::Displaced { retry_after_s } => Self::Displaced { retry_after_s },
        }
    }
}
