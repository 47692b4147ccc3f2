//! Options that several commands share, and their parsers.

pub mod args;
pub(crate) mod data_dir;
pub(crate) mod demo;
pub(crate) mod hub;
pub(crate) mod input;
pub(crate) mod sampling;
pub(crate) mod security;
pub(crate) mod speculate;
pub(crate) mod units;
