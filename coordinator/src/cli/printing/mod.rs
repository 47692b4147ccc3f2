//! Output of commands: tables, bars, logs, and files of numbers.

pub(crate) mod cached;
pub mod log_text;
pub(crate) mod machines;
pub(crate) mod npy;
pub mod output;
pub(crate) mod progress;
