//! Many chat streams at once over real worker processes: each reads as if it had run alone.

use std::sync::Arc;

use brigade_tests::process::Server;
use serde_json::{Value, json};

const STREAMS: usize = 16;

/// Requests of unequal prompts, lengths and settings; each with its own seed.
fn request(i: usize) -> Value {
    let prompt = "In the beginning God created the heaven and the earth. ".repeat(1 + i * i % 9);
    json!({
        "messages": [{"role": "user", "content": format!("{i}. {prompt}")}],
        "max_tokens": 8 + 7 * (i % 6),
        "temperature": if i.is_multiple_of(3) { 0.0 } else { 0.9 },
        "seed": 1000 + i,
        "frequency_penalty": if i % 4 == 1 { 0.5 } else { 0.0 },
        "ignore_eos": true,
    })
}

fn sixteen_streams_equal_their_lone_runs(workers: &str) {
    let server = Arc::new(Server::start(&["--workers", workers, "--max-seqs", "16"]));
    let alone: Vec<String> = (0..STREAMS).map(|i| server.chat(&request(i))).collect();
    let together: Vec<_> = (0..STREAMS)
        .map(|i| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.chat_stream(&request(i)))
        })
        .collect();
    let mut characters = 0;
    for (i, stream) in together.into_iter().enumerate() {
        let seen = stream.join().unwrap();
        assert_eq!(seen.error, None, "stream {i}");
        assert!(seen.done, "stream {i} has no end");
        assert_eq!(seen.finish_reason.as_deref(), Some("length"), "stream {i}");
        assert_eq!(seen.text, alone[i], "stream {i} among others");
        characters += seen.text.len();
    }
    let distinct: std::collections::BTreeSet<_> = alone.iter().collect();
    assert!(distinct.len() > STREAMS / 2, "the requests should not all say the same");
    println!("{workers} workers: {STREAMS} streams, {characters} characters, equal to lone runs");
}

fn over_two_workers() {
    sixteen_streams_equal_their_lone_runs("2");
}

fn over_four_workers() {
    sixteen_streams_equal_their_lone_runs("4");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: over_two_workers, over_four_workers;
];
