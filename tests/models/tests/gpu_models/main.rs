//! Models on a GPU in one process, with the engine alone. Machines without a Vulkan driver skip.

mod experts_beside;
mod gpu;
mod gpu_begun;
mod host_ops;
mod waits;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_harness::main(brigade_harness::modules![
        experts_beside,
        gpu,
        gpu_begun,
        host_ops,
        waits
    ])
}
