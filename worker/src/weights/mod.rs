//! The bytes of tensors on this machine: in the cache, in files, and what they hash to.

pub mod cache;
pub mod hashes;
pub mod reader;
pub mod reading_buffer;
