//! What may hold numbers that are no good.

/// Tokens whose states may hold numbers that are no good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoilt {
    /// Those.
    pub tokens: Vec<u32>,
    /// Their namespace.
    pub space: Vec<u8>,
}
