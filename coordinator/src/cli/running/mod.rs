//! A line behind a command, from its first worker to its last, and what is kept of it.

pub(crate) mod gpu_shares;
pub(crate) mod interrupt;
pub(crate) mod keeping;
pub(crate) mod session;
pub(crate) mod state_file;
