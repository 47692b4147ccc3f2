//! Devices that are no GPUs, which a stage computes on like on any other: one that computes nothing, and one whose
//! memory only its own copies can read. They show the requirements on a device, and that no code in the engine knows
//! which one it has.

mod far;
mod null;

pub use far::{Far, FarCounts, OPS, WEIGHTS};
pub use null::Null;
