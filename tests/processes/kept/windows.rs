//! Servers whose layers with a window keep only the pages that later rows see.
//!
//! Measuring the saving at a context of 32768 takes minutes: `cargo test --release --test processes -- --ignored
//! windows`.

use brigade_model_tests::golden::tokens;
use brigade_tests::process::{Server, resident, synth};
use serde_json::{Value, json};

fn answer(server: &Server, body: &Value) -> Value {
    let reply = server.post("/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

fn a_server_that_keeps_windows_answers_as_one_that_keeps_all_and_knows_its_chats() {
    let model = synth("gpt-oss", "tiny-moe");
    let path = model.to_str().unwrap();
    let base = ["-m", path, "--workers", "2", "--ctx", "4096", "--ubatch", "256"];
    let [full, kept] = [&["--full-windows"][..], &[]].map(|more| {
        let args: Vec<&str> = base.iter().chain(more).copied().collect();
        Server::start(&args)
    });
    let mut prompt = tokens(1500, 3);
    for turn in 0..3 {
        let body = json!({
            "prompt": prompt, "max_tokens": 20, "temperature": 0.8, "seed": turn, "ignore_eos": true,
            "logprobs": 1, "return_token_ids": true,
        });
        let [expected, got] = [&full, &kept].map(|server| answer(server, &body));
        assert_eq!(got["choices"], expected["choices"], "turn {turn}");
        // A chat's next turn begins with all that was said.
        let known = got["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        assert_eq!(known > 1000, turn > 0, "turn {turn}: {known} known");
        let ids: Vec<u32> = serde_json::from_value(got["choices"][0]["token_ids"].clone()).unwrap();
        prompt.extend(ids);
        prompt.extend(tokens(30, 10 + turn));
    }
    std::fs::remove_file(model).unwrap();
}

/// Bytes that the workers of a server have in memory.
fn of_workers(server: &Server) -> u64 {
    server.process.children().into_iter().map(resident).sum()
}

/// Positions of the measured context.
const CONTEXT: usize = 32_768;

fn a_long_context_takes_little_memory() {
    let model = synth("gemma3", "base");
    let (ctx, path) = (CONTEXT.to_string(), model.to_str().unwrap());
    let base = ["-m", path, "--workers", "2", "--ctx", &ctx, "--max-seqs", "1", "--keep", "0"];
    let body = json!({
        "prompt": tokens(CONTEXT - 64, 5), "max_tokens": 32, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    });
    println!(
        "| layers with a window keep | workers when ready | after {CONTEXT} positions | grown | seconds |"
    );
    println!("|---|---|---|---|---|");
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let measured = [&["--full-windows"][..], &[]].map(|more| {
        let args: Vec<&str> = base.iter().chain(more).copied().collect();
        let server = Server::start(&args);
        answer(&server, &json!({ "prompt": tokens(600, 6), "max_tokens": 2 }));
        let ready = of_workers(&server);
        let begin = std::time::Instant::now();
        let ids = answer(&server, &body)["choices"][0]["token_ids"].clone();
        let (seconds, long) = (begin.elapsed().as_secs_f64(), of_workers(&server));
        let keep = if more.is_empty() { "what it sees" } else { "all" };
        let grown = long.saturating_sub(ready);
        let [ready, long, more] = [ready, long, grown].map(mib);
        println!("| {keep} | {ready} | {long} | {more} | {seconds:.1} |");
        (ids, grown)
    });
    std::fs::remove_file(model).unwrap();
    let [(expected, full), (got, kept)] = measured;
    assert_eq!(got, expected);
    // Five of six layers have a window.
    assert!(kept * 2 < full, "{kept} with windows, {full} without");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_server_that_keeps_windows_answers_as_one_that_keeps_all_and_knows_its_chats;
    alone:
        a_long_context_takes_little_memory
            ignored("takes minutes: prints what a context of 32768 takes with and without windows");
];
