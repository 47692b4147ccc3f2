//! Why something failed, in a form that crosses the wire.
//!
//! A [`Failure`] has a kind, a stage and a reason in words. A refused call carries it as the detail of its
//! `tonic::Status`. A lane or a result stream carries it in its last frame. Callers decide by the kind, and need not
//! parse the words.

use prost::Message;
use tonic::{Code, Status};

use crate::limits::MAX_REASON_BYTES;
pub use crate::pipeline::{Failure, FailureKind};

/// How the transport begins what it says of a connection that ended in the middle of a call.
const BROKEN_CONNECTION: &str = "h2 protocol error";

impl Failure {
    /// A failure of stage `stage`; `reason` is cut to [`MAX_REASON_BYTES`].
    pub fn new(kind: FailureKind, stage: u32, reason: impl Into<String>) -> Self {
        Self { kind: kind.into(), stage, reason: cut_reason(reason.into()) }
    }

    /// A refusal of the control plane, which concerns no stage.
    pub fn refusal(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self::new(kind, 0, reason)
    }

    /// The status that carries this failure.
    pub fn to_status(&self) -> Status {
        let code = code_of(self.kind());
        Status::with_details(code, self.reason.clone(), self.encode_to_vec().into())
    }

    /// The failure that a status carries, or one that quotes it.
    ///
    /// A status without details comes from the transport, so it means that the peer is gone,
    /// unless its code says that the message itself was refused.
    pub fn from_status(status: &Status) -> Self {
        match Self::decode(status.details()) {
            Ok(failure) if failure.kind() != FailureKind::Unspecified => failure,
            _ => {
                let kind = match status.code() {
                    Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
                        FailureKind::BadMessage
                    }
                    Code::Unimplemented => FailureKind::Version,
                    _ => FailureKind::PeerLost,
                };
                Self::refusal(kind, in_words(kind, status))
            }
        }
    }
}

/// The words for a status of the transport. A broken connection is called that. HTTP/2's own words ("h2 protocol
/// error: http2 error") help only developers, so they are logged at debug.
fn in_words(kind: FailureKind, status: &Status) -> String {
    if kind == FailureKind::PeerLost && status.message().starts_with(BROKEN_CONNECTION) {
        tracing::debug!(?status, "a connection broke");
        return "the connection broke".to_string();
    }
    format!("{}: {}", status.code(), status.message())
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.to_status()
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failure {}

/// A reason of at most [`MAX_REASON_BYTES`].
pub fn cut_reason(mut reason: String) -> String {
    if reason.len() > MAX_REASON_BYTES {
        let mut end = MAX_REASON_BYTES;
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
    }
    reason
}

fn code_of(kind: FailureKind) -> Code {
    match kind {
        FailureKind::Unspecified => Code::Unknown,
        FailureKind::Version | FailureKind::WrongPhase => Code::FailedPrecondition,
        FailureKind::Busy | FailureKind::PeerLost | FailureKind::Draining => Code::Unavailable,
        FailureKind::StaleEpoch => Code::Aborted,
        FailureKind::NoMemory | FailureKind::Storage | FailureKind::CacheFull => {
            Code::ResourceExhausted
        }
        FailureKind::BadMessage => Code::InvalidArgument,
        FailureKind::Unsupported => Code::Unimplemented,
        FailureKind::Corrupt => Code::DataLoss,
        FailureKind::Compute | FailureKind::Io => Code::Internal,
        FailureKind::Forbidden => Code::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_a_status() {
        for n in 1..=15 {
            let kind = FailureKind::try_from(n).unwrap();
            let failure = Failure::new(kind, 3, "why");
            assert_eq!(Failure::from_status(&failure.to_status()), failure);
        }
    }

    #[test]
    fn a_bare_status_is_a_lost_peer() {
        let failure = Failure::from_status(&Status::unavailable("connection reset"));
        assert_eq!(failure.kind(), FailureKind::PeerLost);
        assert!(failure.reason.contains("connection reset"));
    }

    #[test]
    fn a_broken_connection_is_called_that() {
        let broken = Status::internal("h2 protocol error: error reading a body from connection");
        let failure = Failure::from_status(&broken);
        assert_eq!(failure.kind(), FailureKind::PeerLost);
        assert_eq!(failure.reason, "the connection broke");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let failure = Failure::refusal(FailureKind::Io, "ä".repeat(MAX_REASON_BYTES));
        assert!(failure.reason.len() <= MAX_REASON_BYTES);
    }
}
