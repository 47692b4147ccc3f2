//! Workers that die or hang under load, in prefill and in decode, on a server that waits for no other line
//! (`--repair-within 0`). Every client soon gets a clear error, and the server stays up. New requests run
//! once the worker is back. `replay.rs` has servers that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, Streamed, get, is_alive, signal, try_signal};
use serde_json::{Value, json};

/// Requests on the line when a worker is lost.
const CLIENTS: usize = 6;

/// The manual's promise (docs/cluster.md): a lost worker is noticed within this time, and clients that do not wait
/// for another line get an error.
const PROMISED: Duration = Duration::from_secs(5);

/// Twice what is promised, for slack. A hung worker is known by three heartbeats of a second each that it
/// does not answer. On a machine whose cores are busy with other tests, each of them comes late, and the
/// clients read late as well. The figure itself is printed.
const WITH_SLACK: Duration = Duration::from_secs(2 * PROMISED.as_secs());

/// For what nothing is promised about: a line that is loaded again beside other tests.
const GENEROUS: Duration = Duration::from_secs(60);

/// A long prompt and one token: the line is busy with prefill.
fn prefill_request(i: usize) -> Value {
    let prompt = format!("{i} and it came to pass, ").repeat(60);
    json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": 2, "temperature": 0})
}

/// A short prompt and many tokens: the line is busy with decode.
fn decode_request(i: usize) -> Value {
    let content = format!("Tell me about day {i}");
    json!({
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 400, "temperature": 0, "ignore_eos": true,
    })
}

/// Keeps clients busy, loses the middle one of three workers, and returns what the clients got.
fn lose_a_worker(signal_name: &'static str, request: fn(usize) -> Value) {
    let line = ["--workers", "3", "--max-seqs", "8", "--keep", "0", "--repair-within", "0"];
    // All three shall be on the line, however busy the machine was when they measured themselves.
    let server = Arc::new(Server::start(&[&line[..], &["--tensor-split", "1,1,1"]].concat()));
    let before = server.chat(&decode_or_short(0));
    let is_lost = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|i| {
            let (server, is_lost) = (Arc::clone(&server), Arc::clone(&is_lost));
            std::thread::spawn(move || until_error(&server, i, request, &is_lost))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(400));
    let workers = server.process.children();
    assert_eq!(workers.len(), 3, "local workers");
    let lost = Instant::now();
    signal(signal_name, workers[1]);
    is_lost.store(true, Ordering::SeqCst);
    let seen: Vec<(Streamed, Instant)> =
        clients.into_iter().filter_map(|c| c.join().unwrap()).collect();
    assert!(!seen.is_empty(), "nobody was on the line when it was lost");
    let slowest = seen.iter().map(|(_, at)| at.saturating_duration_since(lost)).max().unwrap();
    let error = seen[0].0.error.clone().unwrap();
    println!(
        "{signal_name}: {} of {CLIENTS} clients had an error after at most {slowest:?}: {error}",
        seen.len()
    );
    for (client, _) in &seen {
        let error = client.error.as_deref().unwrap();
        assert!(error.contains("worker") || error.contains("line"), "says what failed: {error}");
        assert!(client.done || !client.began, "a stream ended without [DONE]");
    }
    assert!(slowest < WITH_SLACK, "{slowest:?}, {PROMISED:?} are promised");
    assert!(is_alive(server.process.pid()), "the server stays up");
    if signal_name == "STOP" {
        // Given up, and replaced or killed; if it still exists it may go on.
        try_signal("CONT", workers[1]);
    }
    server.wait_healthy(GENEROUS);
    println!("{signal_name}: the line was up again after {:?}", lost.elapsed());
    assert_eq!(server.chat(&decode_or_short(0)), before, "the same request, the same text");
}

fn decode_or_short(i: usize) -> Value {
    let content = format!("Say {i}");
    json!({
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 12, "temperature": 0, "ignore_eos": true,
    })
}

/// Repeats a request until one fails; what that one saw, and when. `None` for a client that was between
/// two requests at the loss: its next one waits for the line to come back, and is answered.
fn until_error(
    server: &Server,
    i: usize,
    request: fn(usize) -> Value,
    is_lost: &AtomicBool,
) -> Option<(Streamed, Instant)> {
    let deadline = Instant::now() + GENEROUS;
    loop {
        let after_the_loss = is_lost.load(Ordering::SeqCst);
        let seen = server.chat_stream(&request(i));
        if seen.error.is_some() {
            return Some((seen, Instant::now()));
        }
        assert!(seen.done, "a stream ended without an error and without [DONE]");
        if after_the_loss {
            return None;
        }
        assert!(Instant::now() < deadline, "client {i} never noticed");
    }
}

fn a_killed_worker_in_prefill() {
    lose_a_worker("KILL", prefill_request);
}

fn a_killed_worker_in_decode() {
    lose_a_worker("KILL", decode_request);
}

fn a_hung_worker_in_prefill() {
    lose_a_worker("STOP", prefill_request);
}

fn a_hung_worker_in_decode() {
    lose_a_worker("STOP", decode_request);
}

fn nothing_is_left_behind() {
    let server = Server::start(&["--workers", "2"]);
    let workers = server.process.children();
    assert_eq!(workers.len(), 2);
    assert_eq!(get(&server.url("/v1/models")).unwrap().status, 200);
    let code = server.process.stop(Duration::from_secs(60));
    assert_eq!(code, Some(0), "an interrupt ends the server in good order");
    assert!(workers.iter().all(|&pid| !is_alive(pid)), "a worker outlived the server");

    let killed = Server::start(&["--workers", "2"]);
    let workers = killed.process.children();
    signal("KILL", killed.process.pid());
    let deadline = Instant::now() + Duration::from_secs(60);
    while workers.iter().any(|&pid| is_alive(pid)) {
        assert!(Instant::now() < deadline, "a worker outlived its killed server");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A rate over a counter that appears with its first event does not see that event.
fn counters_begin_at_zero() {
    // Cut by hand: a busy machine may measure speeds at which one worker gets all layers.
    let server = Server::start(&["--workers", "2", "--tensor-split", "1,1"]);
    let text = get(&server.admin("/metrics")).unwrap().body;
    for name in [
        "brigade_line_down_total",
        "brigade_prompt_tokens_total",
        "brigade_generated_tokens_total",
        "brigade_requests_total{outcome=\"error\"}",
        "brigade_http_responses_total{status=\"429\"}",
        "brigade_stage_busy_microseconds_total{stage=\"1\",worker=\"local worker 1\"}",
    ] {
        assert!(
            text.lines().any(|l| l == format!("{name} 0")),
            "{name} is not there at 0:\n{text}"
        );
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_killed_worker_in_prefill,
        a_killed_worker_in_decode,
        nothing_is_left_behind,
        counters_begin_at_zero;
    alone: a_hung_worker_in_prefill, a_hung_worker_in_decode;
];
