//! The HTTP interface as its clients see it: its limits, its keys, and constraints of answers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod constrained;
mod crowds;
mod dialects;
mod embeddings;
mod encoders_http;
mod fairness;
mod floods_http;
mod guidance;
mod hosts;
mod http;
mod http_limits;
mod https;
mod keys;
mod own_drafts;
mod page;
mod rerank;
mod rooms;
mod speculation;
mod streams;
mod trace;

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade_tests::process::use_binary(env!("CARGO_BIN_EXE_brigade"));
    brigade_tests::process::without_gpus();
    // Modules with the longest tests come first.
    brigade_harness::main(brigade_harness::modules![
        constrained,
        own_drafts,
        keys,
        http_limits,
        https,
        speculation,
        encoders_http,
        crowds,
        dialects,
        embeddings,
        fairness,
        floods_http,
        guidance,
        hosts,
        http,
        page,
        rerank,
        rooms,
        streams,
        trace,
    ])
}
