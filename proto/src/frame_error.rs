//! Reasons to refuse a peer's message before anything acts on it.

/// Why a frame was refused. Every variant names the field and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes are not a frame.
    #[error("frame does not decode: {0}")]
    Decode(String),
    /// A frame with nothing in it.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A number at or over its limit.
    #[error("{field} is {value}, the limit is {limit}")]
    OverLimit {
        /// Path of the field.
        field: &'static str,
        /// The received value.
        value: u64,
        /// The largest allowed value.
        limit: u64,
    },
    /// A number that must equal another.
    #[error("{field} is {value}, expected {expected}")]
    Mismatch {
        /// Path of the field.
        field: &'static str,
        /// The received value.
        value: u64,
        /// The required value.
        expected: u64,
    },
    /// A value without meaning.
    #[error("{field} is invalid: {why}")]
    Invalid {
        /// Path of the field.
        field: &'static str,
        /// The problem, in words.
        why: &'static str,
    },
}
