//! The state that a stage keeps of its sequences: KV pages for attention, fixed slots for recurrent layers, and the
//! records of which sequence owns which of them.
//!
//! Blocks declare what they need as a [`StateSpec`](crate::spec::StateSpec). The planner and the scheduler see only its
//! sizes.

mod block;
mod copies;
mod entries;
mod kv;
mod marks;
mod parts;
mod places;
mod sequences;
mod slots;
mod snapshot;
#[cfg(test)]
mod tests;

pub use block::BlockState;
pub use copies::{
    BlockCopy, BlockPart, BlockSize, BlockSource, CopyOf, CopyRoom, StageCopy, Written,
};
pub use entries::EntryPages;
pub use kv::{AttendHow, AttendVariant, ChosenPools, KvCache, KvRows, UbatchRows, attend_parts};
pub use parts::{merge_snapshots, select_layers};
pub use sequences::{Applied, PartRows, Sequence, Sequences, StateAction, StateCopy};
pub use slots::{SlotStates, scan_parts};
pub use snapshot::{LayerPrint, SNAPSHOT_VERSION, SnapshotReader, SnapshotWriter};
