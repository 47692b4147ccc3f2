//! What a stage gives of a state that is to be saved.

use std::ops::Range;

use blake3::Hash;
use brigade_engine::state::StageCopy;

use crate::copies::Kind;

/// What a stage gave of a state, and what that belongs to.
#[derive(Debug)]
pub struct Copied {
    /// The bytes.
    pub copy: StageCopy,
    /// What they belong to.
    pub kind: Kind,
    /// First and end of the stage's layers.
    pub layers: Range<u32>,
    /// Fingerprints of their weights.
    pub prints: Vec<Hash>,
}
