//! A prefix whose states may hold invalid numbers.

/// Tokens whose states may hold numbers that are no good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoilt {
    /// Tokens of the prefix.
    pub tokens: Vec<u32>,
    /// The prefix's namespace.
    pub space: Vec<u8>,
}
