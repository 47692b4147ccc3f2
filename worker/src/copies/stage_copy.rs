//! A part of a stage's state, copied to be saved.

use std::ops::Range;

use blake3::Hash;
use brigade_engine::state::{BlockCopy, BlockSize, CopyOf};

use crate::records::Kind;

/// A part of a sequence's state on a stage that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The sequence's slot.
    pub slot: u32,
    /// Its length in tokens.
    pub len: u32,
    /// The part; `None`: only what it would be made of.
    pub of: Option<CopyOf>,
}

/// The properties that a stage's states depend on.
#[derive(Clone, Debug)]
pub struct About {
    /// The hash of all of them but the weights.
    pub kind: Kind,
    /// First and end of the stage's layers.
    pub layers: Range<u32>,
    /// Fingerprints of their weights.
    pub prints: Vec<Hash>,
}

/// A part of a stage's state, with the properties that it depends on.
#[derive(Debug)]
pub struct Copied {
    /// What it depends on.
    pub about: About,
    /// The bytes of each block's state, where only that was asked for.
    pub sizes: Vec<BlockSize>,
    /// The copied bytes.
    pub blocks: Vec<BlockCopy>,
}
