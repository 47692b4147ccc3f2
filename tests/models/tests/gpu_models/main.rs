//! Models on a GPU in one process, with the engine alone. Machines without a Vulkan driver skip.

mod experts_beside;
mod gpu;
mod gpu_begun;
mod host_ops;
mod waits;

use std::process::ExitCode;

fn main() -> ExitCode {
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        gpu,
        experts_beside,
        gpu_begun,
        host_ops,
        waits,
    ])
}
