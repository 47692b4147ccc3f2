//! Why a peer's message is refused before anything acts on it.

/// Why a frame was refused. Every variant names the field and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not a frame.
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
        /// What came.
        value: u64,
        /// What is allowed at most.
        limit: u64,
    },
    /// A number that must equal another.
    #[error("{field} is {value}, expected {expected}")]
    Mismatch {
        /// Path of the field.
        field: &'static str,
        /// What came.
        value: u64,
        /// What had to come.
        expected: u64,
    },
    /// A value without meaning.
    #[error("{field} is invalid: {why}")]
    Invalid {
        /// Path of the field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}
