//! A command's line of workers, from start to end, and the data that outlives it.

pub(crate) mod gpu_shares;
pub(crate) mod interrupt;
pub(crate) mod keeping;
pub(crate) mod session;
pub(crate) mod state_file;
