//! A process's share of its machine: memory, threads, files, calls of strangers, its share of a node and its turns.

pub mod memory;
pub mod pace;
pub mod reading_threads;
#[cfg(target_os = "linux")]
pub mod sandbox;
pub mod share;
pub mod turns;
