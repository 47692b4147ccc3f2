//! The bytes of a stage on their way to a worker: known by their hashes, fetched, gathered from others, relayed, or pushed.

pub(crate) mod fetch;
pub(crate) mod gather;
pub(crate) mod hashes;
pub(crate) mod prepare;
pub(crate) mod push;
pub(crate) mod relay;
