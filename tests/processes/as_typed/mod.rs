//! Commands as a user types them, and as documents describe them.

pub mod bad_input;
pub mod binary;
pub mod chat;
pub mod commands;
pub mod control_vectors;
pub mod documents;
pub mod first_hour;
pub mod first_words;
pub mod golden_processes;
pub mod logs;
pub mod options_file;
pub mod perplexity;
pub mod real_files;
pub mod state_files;
