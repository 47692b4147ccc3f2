//! Errors of running layers, sorted by what the caller can do. The error of loading them is
//! [`ModelError`](crate::spec::ModelError).

use crate::batch::SlotId;
use crate::kernels::DeviceError;

/// A ubatch that a stage refuses; the stage is as it was before.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BatchError {
    /// The slot does not exist on this stage.
    #[error("slot {} is out of range: the stage has {n_slots}", .slot.0)]
    NoSuchSlot {
        /// Slot that was named.
        slot: SlotId,
        /// Slots of the stage.
        n_slots: usize,
    },
    /// An op or part names a slot that holds no sequence.
    #[error("slot {} holds no sequence", .0.0)]
    NotOpen(SlotId),
    /// An op would start a sequence in a slot that still holds one.
    #[error("slot {} already holds a sequence", .0.0)]
    AlreadyOpen(SlotId),
    /// A block id beyond the stage's pages.
    #[error("block {block} is out of range: the stage has {n_blocks}")]
    NoSuchBlock {
        /// Block that was named.
        block: u32,
        /// Pages of the stage.
        n_blocks: u32,
    },
    /// A part starts elsewhere than its sequence ends.
    #[error("slot {}: the part starts at position {found}, the sequence is {expected} long", .slot.0)]
    WrongPosition {
        /// Slot of the sequence.
        slot: SlotId,
        /// Length of the sequence.
        expected: u32,
        /// First position of the part.
        found: u32,
    },
    /// A copy or a cut at a position whose state is gone.
    #[error(
        "slot {}: it has a state at its end only: it is {len} long and cannot be taken at {found}",
        .slot.0
    )]
    WholeOnly {
        /// Slot of the sequence.
        slot: SlotId,
        /// Length of the sequence.
        len: u32,
        /// The position asked for.
        found: u32,
    },
    /// A recurrent state is read where there is another.
    #[error(
        "slot {}: the place of slot {} has not its state after {len} positions",
        .slot.0, .plane.0
    )]
    OtherState {
        /// The slot whose place was named.
        plane: SlotId,
        /// Slot of the sequence.
        slot: SlotId,
        /// Positions whose state was asked for.
        len: u32,
    },
    /// A part runs past the pages of its sequence.
    #[error("slot {}: position {end} is beyond its {n_blocks} blocks", .slot.0)]
    BeyondBlocks {
        /// Slot of the sequence.
        slot: SlotId,
        /// One past the last position asked for.
        end: u32,
        /// Pages of the sequence.
        n_blocks: usize,
    },
    /// Two parts of one slot, or a part without tokens, or too many rows.
    #[error("malformed ubatch: {0}")]
    Malformed(String),
    /// A token id that the embedding does not have.
    #[error("token {token} is not below the vocabulary's {n_vocab}")]
    NoSuchToken {
        /// Token id that was given.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A position that the model's table of positions does not have.
    #[error("slot {}: the model has rows for {n_positions} positions, the part goes beyond", .slot.0)]
    NoSuchPosition {
        /// Slot of the sequence.
        slot: SlotId,
        /// Length of the table.
        n_positions: u32,
    },
    /// The input rows do not fit the ubatch or the cut.
    #[error("boundary: {0}")]
    Boundary(String),
    /// A sequence wants a token but was opened without a sampler.
    #[error("slot {} wants a sample but was opened without a sampler", .0.0)]
    NoSampler(SlotId),
    /// The device failed in the middle, and with it the states of all sequences: the stage has to be loaded again.
    #[error("the device failed: {0}")]
    Device(String),
}

impl From<DeviceError> for BatchError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error.to_string())
    }
}

impl BatchError {
    /// The sequence at fault, where there is one.
    pub fn slot(&self) -> Option<SlotId> {
        match self {
            Self::NotOpen(slot) | Self::AlreadyOpen(slot) | Self::NoSampler(slot) => Some(*slot),
            Self::NoSuchSlot { slot, .. }
            | Self::WrongPosition { slot, .. }
            | Self::WholeOnly { slot, .. }
            | Self::OtherState { slot, .. }
            | Self::NoSuchPosition { slot, .. }
            | Self::BeyondBlocks { slot, .. } => Some(*slot),
            Self::NoSuchBlock { .. }
            | Self::Malformed(_)
            | Self::NoSuchToken { .. }
            | Self::Boundary(_)
            | Self::Device(_) => None,
        }
    }
}

/// Bytes that are no snapshot of this stage.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SnapshotError {
    /// Not made by this version or not a snapshot at all.
    #[error("not a sequence snapshot of version {expected}: {found}")]
    Version {
        /// The version written here.
        expected: u32,
        /// Beginning of the bytes that were given.
        found: String,
    },
    /// A snapshot of another model, layer range or cache type.
    #[error("snapshot of something else: {0}")]
    Foreign(String),
    /// The bytes are truncated or damaged.
    #[error("damaged snapshot: {0}")]
    Damaged(String),
    /// The sequence named cannot be read or written so.
    #[error(transparent)]
    Sequence(#[from] BatchError),
}
