//! Stages on devices that are no GPUs.

mod golden;
mod null;
mod ops;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_harness::main(brigade_harness::modules![golden, null, ops])
}
