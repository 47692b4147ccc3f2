//! `brigade` as its user runs it: commands, and servers whose workers die, come back and go on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_input;
mod binary;
mod cached;
mod changed_files;
mod chat;
mod commands;
mod control_vectors;
mod cuts;
mod documents;
mod failures;
mod first_hour;
mod first_words;
mod fleet;
mod fleet_plan;
mod fleet_pool;
mod golden_processes;
mod hybrids;
mod kept_layers;
mod logs;
mod lora_line;
mod models_dir;
mod names;
mod names_bad;
mod names_kept;
mod names_lines;
mod names_moves;
mod nodes;
mod options_file;
mod perplexity;
mod positions;
mod prefixes;
mod prefixes_apart;
mod real_files;
mod records;
mod replay;
mod restarts;
mod reuse;
mod room;
mod state_files;
mod weights;
mod windows;
mod wire_types;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_tests::process::use_binary(env!("CARGO_BIN_EXE_brigade"));
    brigade_harness::main(brigade_harness::modules![
        bad_input,
        binary,
        cached,
        changed_files,
        chat,
        commands,
        control_vectors,
        cuts,
        documents,
        failures,
        first_hour,
        first_words,
        fleet,
        fleet_plan,
        fleet_pool,
        golden_processes,
        hybrids,
        kept_layers,
        logs,
        lora_line,
        models_dir,
        names,
        names_bad,
        names_kept,
        names_lines,
        names_moves,
        nodes,
        options_file,
        perplexity,
        positions,
        prefixes,
        prefixes_apart,
        replay,
        restarts,
        real_files,
        reuse,
        room,
        state_files,
        weights,
        windows,
        wire_types,
    ])
}
