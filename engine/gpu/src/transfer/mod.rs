//! Memory that host and device both see or hand to each other: buffers, fetched results, and values that the host computes
//! in the middle of a device's work.

pub(super) mod buffer;
pub(super) mod filling;
pub(super) mod inbox;
pub(super) mod milestone;
