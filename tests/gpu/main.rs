//! Workers on a GPU, as real processes. Machines without a Vulkan driver skip.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod compiled;
mod gpu_cap;
mod gpu_experts;
mod gpu_experts_seen;
mod gpu_lines;
mod gpu_states;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_tests::process::use_binary(env!("CARGO_BIN_EXE_brigade"));
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        gpu_experts_seen,
        gpu_lines,
        gpu_cap,
        gpu_experts,
        gpu_states,
    ])
}
