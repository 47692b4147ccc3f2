//! The scheduler and the planner, without a line of real workers: simulated lines, scripts, plans and sizes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ahead_stages;
mod fault_sim;
mod lines;
mod plan;
mod plan_beside;
mod plan_depth;
mod plan_held;
mod plan_machines;
mod plan_mixed;
mod plan_needs;
mod plan_passes;
mod plan_random;
mod prefix_apart;
mod prefix_first;
mod prefix_stages;
mod prefix_together;
mod prefix_traces;
mod sched_ahead;
mod sched_fair;
mod sched_own_drafts;
mod sched_reuse;
mod sched_scripts;
mod sched_sim;
mod state_sizes;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_tests::process::use_binary(env!("CARGO_BIN_EXE_brigade"));
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        fault_sim,
        sched_ahead,
        prefix_traces,
        sched_sim,
        sched_own_drafts,
        ahead_stages,
        lines,
        plan,
        plan_beside,
        plan_depth,
        plan_held,
        plan_machines,
        plan_mixed,
        plan_needs,
        plan_passes,
        plan_random,
        prefix_apart,
        prefix_first,
        prefix_stages,
        prefix_together,
        sched_fair,
        sched_reuse,
        sched_scripts,
        state_sizes,
    ])
}
