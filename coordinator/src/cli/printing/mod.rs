//! Output of commands: tables, bars, and files of numbers.

pub(crate) mod cached;
pub(crate) mod machines;
pub(crate) mod npy;
pub mod output;
pub(crate) mod progress;
