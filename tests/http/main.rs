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
    brigade_harness::main(brigade_harness::modules![
        constrained,
        crowds,
        dialects,
        embeddings,
        encoders_http,
        fairness,
        floods_http,
        guidance,
        hosts,
        http,
        http_limits,
        https,
        keys,
        own_drafts,
        page,
        rerank,
        speculation,
        rooms,
        streams,
        trace,
    ])
}
