//! `brigade` as its user runs it: commands, and servers whose workers die, come back and go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod as_typed;
mod by_name;
mod kept;
mod lines;
mod losses;
mod several_models;

use std::process::ExitCode;

use as_typed::{
    bad_input, binary, chat, commands, control_vectors, documents, first_hour, first_words,
    golden_processes, logs, options_file, perplexity, real_files, state_files,
};
use by_name::{names, names_bad, names_kept, names_lines, names_moves};
use kept::{cached, hybrids, positions, prefixes, prefixes_apart, reuse, room, windows};
use lines::{cuts, lora_line, own_memory, weights, wire_types};
use losses::{changed_files, failures, kept_layers, replay, restarts};
use several_models::{
    crowds, dropped_records, fleet, fleet_plan, fleet_pool, loads, models_dir, nodes, pulled,
    shared_cache,
};

fn main() -> ExitCode {
    brigade_tests::process::use_binary(env!("CARGO_BIN_EXE_brigade"));
    brigade_tests::process::without_gpus();
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        replay,
        golden_processes,
        names_lines,
        reuse,
        lora_line,
        prefixes_apart,
        documents,
        room,
        shared_cache,
        fleet_pool,
        nodes,
        state_files,
        loads,
        bad_input,
        binary,
        cached,
        changed_files,
        chat,
        commands,
        control_vectors,
        cuts,
        failures,
        first_hour,
        first_words,
        crowds,
        dropped_records,
        fleet,
        fleet_plan,
        hybrids,
        kept_layers,
        logs,
        models_dir,
        names,
        names_bad,
        names_kept,
        names_moves,
        options_file,
        own_memory,
        perplexity,
        positions,
        prefixes,
        pulled,
        restarts,
        real_files,
        weights,
        windows,
        wire_types,
    ])
}
