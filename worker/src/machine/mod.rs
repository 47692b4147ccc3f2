//! The machine's processors, and a process's share of it: memory, threads, files, calls of strangers; of a node, its
//! stage, its turns and what it has of the memory.

pub(crate) mod cgroup;
pub mod cpu_list;
pub mod fair_time;
pub mod ledger;
pub mod memory;
pub mod numa;
pub mod pace;
pub mod reading_threads;
#[cfg(target_os = "linux")]
pub mod sandbox;
pub mod share;
pub mod topology;
pub mod turns;
