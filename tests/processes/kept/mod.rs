//! What is kept of prompts and sequences, and what there is room for.

pub mod cached;
pub mod hybrids;
pub mod positions;
pub mod prefixes;
pub mod prefixes_apart;
pub mod records;
pub mod reuse;
pub mod room;
pub mod windows;
