//! Kept states of prompts and sequences, and the room for them.

pub mod cached;
pub mod hybrids;
pub mod positions;
pub mod prefixes;
pub mod prefixes_apart;
pub mod records;
pub mod reuse;
pub mod room;
pub mod windows;
