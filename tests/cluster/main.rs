//! The line when workers join, leave, are lost, lie and attack, over real processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attacks;
mod attacks_on_nodes;
mod changes;
mod checkpoints;
mod cluster_tls;
mod floods;
mod hostile;
mod joins;
mod leases;
mod loads;
mod losses;
mod lying_workers;
mod mixed;
mod operators;
mod three_machines;
mod tls_cost;
mod up_share;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_tests::process::use_binary(env!("CARGO_BIN_EXE_brigade"));
    brigade_tests::process::without_gpus();
    brigade_tests::process::without_drafts();
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        changes,
        checkpoints,
        attacks,
        attacks_on_nodes,
        cluster_tls,
        floods,
        hostile,
        joins,
        leases,
        loads,
        losses,
        lying_workers,
        mixed,
        operators,
        three_machines,
        tls_cost,
        up_share,
    ])
}
