//! A part of a stage's state, copied to be saved.

use std::ops::Range;

use blake3::Hash;
use brigade_engine::state::StageCopy;

use crate::records::Kind;

/// A part of a stage's state, with the properties that it depends on.
#[derive(Debug)]
pub struct Copied {
    /// The copied bytes.
    pub copy: StageCopy,
    /// The hash of the properties that they depend on.
    pub kind: Kind,
    /// First and end of the stage's layers.
    pub layers: Range<u32>,
    /// Fingerprints of their weights.
    pub prints: Vec<Hash>,
}
