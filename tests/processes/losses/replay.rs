//! Lost workers cost streams a pause and nothing else. Requests of every kind are on the line when a worker
//! dies or hangs, and finish with the bytes of an undisturbed run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, kinds_of_state, signal, synth, try_signal};
use serde_json::{Value, json};

/// How long a line may take to come back on a machine that runs other tests.
const PATIENCE: Duration = Duration::from_secs(60);
/// Times that a worker is lost until someone is on the line.
const TRIES: usize = 5;

/// Tokens that each request draws: enough to be under way when the worker is lost.
const TOKENS: usize = 220;

/// Requests of every kind, each a path and a body.
fn requests() -> Vec<(&'static str, Value)> {
    let chat = |i: usize, more: Value| {
        let mut body = json!({
            "messages": [{"role": "user", "content": format!("Tell me about day {i}")}],
            "max_tokens": TOKENS, "temperature": 0.9, "seed": i, "ignore_eos": true,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/chat/completions", body)
    };
    let long = "and it came to pass, ".repeat(90);
    vec![
        chat(1, json!({})),
        chat(2, json!({"logprobs": true, "top_logprobs": 3})),
        chat(3, json!({"n": 2})),
        chat(4, json!({"repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2})),
        chat(5, json!({"temperature": 0})),
        chat(
            6,
            json!({
                "ignore_eos": false, "response_format": {"type": "json_object", "schema": {
                    "type": "array", "minItems": 60, "items": {"enum": ["heaven", "earth", 1, {"n": null}]},
                }},
            }),
        ),
        chat(
            8,
            json!({"dry_multiplier": 0.8, "xtc_probability": 0.5, "dynatemp_range": 0.4,
                       "top_n_sigma": 2.0, "min_tokens": 9}),
        ),
        chat(9, json!({"mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2, "logprobs": true})),
        (
            "/v1/completions",
            json!({"prompt": long, "max_tokens": 40, "temperature": 0, "logprobs": 2}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "In the", "max_tokens": TOKENS, "seed": 7, "ignore_eos": true}),
        ),
        chat(
            11,
            json!({"guidance_scale": 1.7, "negative_prompt": "You are silent.", "logprobs": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "And he", "max_tokens": 60, "n": 2, "seed": 8, "guidance_scale": 2.0}),
        ),
    ]
}

/// The part of an answer that must be the same, byte for byte: all but names, times and counts of repeated computing.
fn answer(server: &Server, path: &str, body: &Value) -> (Value, u64) {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    (json["choices"].clone(), json["usage"]["recomputed_tokens"].as_u64().unwrap_or(0))
}

/// Loses worker `which` of three while all requests run, and compares what they get with what they got
/// before. Returns positions computed again.
fn lose_a_worker(server: &Arc<Server>, signal_name: &str, which: usize, expected: &[Value]) -> u64 {
    let drawn = || server.metric("brigade_generated_tokens_total");
    let (begin, done) = (drawn(), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = requests()
        .into_iter()
        .map(|(path, body)| {
            let (server, done) = (Arc::clone(server), Arc::clone(&done));
            std::thread::spawn(move || {
                let answer = answer(&server, path, &body);
                done.fetch_add(1, Ordering::SeqCst);
                answer
            })
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    // In the midst of it: some have tokens, none has all.
    while drawn() < begin + 40.0 {
        assert!(Instant::now() < deadline, "no tokens are drawn");
        std::thread::sleep(Duration::from_millis(2));
    }
    let workers = server.process.children();
    assert_eq!(workers.len(), 3, "local workers");
    let (lost, early) = (Instant::now(), done.load(Ordering::SeqCst));
    signal(signal_name, workers[which]);
    let answers: Vec<(Value, u64)> = clients.into_iter().map(|c| c.join().unwrap()).collect();
    println!(
        "{signal_name} of worker {which}: {} of {} requests under way, all answered after {:?}",
        answers.len() - early,
        answers.len(),
        lost.elapsed()
    );
    if signal_name == "STOP" {
        // Given up, and replaced or killed; if it still exists it may go on.
        try_signal("CONT", workers[which]);
    }
    for (i, ((choices, _), expected)) in answers.iter().zip(expected).enumerate() {
        assert_eq!(choices, expected, "request {i} after {signal_name} of worker {which}");
    }
    answers.iter().map(|(_, again)| again).sum()
}

fn every_worker_is_lost_once(args: &[&str], signals: &[&str]) {
    let base = ["--workers", "3", "--max-seqs", "8", "--keep", "0"];
    let args: Vec<&str> = base.iter().chain(args).copied().collect();
    let server = Arc::new(Server::start(&args));
    let expected: Vec<Value> =
        requests().iter().map(|(path, body)| answer(&server, path, body).0).collect();
    for signal_name in signals {
        for which in 0..3 {
            // On a busy machine all may have been answered before the signal: then another time.
            let mut again =
                (0..TRIES).map(|_| lose_a_worker(&server, signal_name, which, &expected));
            let lost_some = again.any(|again| again > 0);
            assert!(lost_some, "nobody was on the line when worker {which} was lost");
        }
    }
    let replays = server.metric("brigade_sequences_replayed_total");
    let tokens = server.metric("brigade_tokens_replayed_total");
    println!("{replays} sequences went on, {tokens} positions were computed again");
    assert!(replays > 0.0 && tokens > 0.0);
    assert_eq!(server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
}

fn streams_of_the_demo_model_go_on() {
    every_worker_is_lost_once(&[], &["KILL", "STOP"]);
}

fn streams_of_every_kind_of_state_go_on() {
    for (arch, size) in kinds_of_state(4) {
        let model = synth(arch, size);
        println!("{arch}:");
        every_worker_is_lost_once(&["-m", model.to_str().unwrap()], &["KILL"]);
        std::fs::remove_file(model).unwrap();
    }
}

fn nobody_waits_who_was_told_not_to() {
    let server = Arc::new(Server::start(&["--workers", "3", "--repair-within", "0"]));
    let client = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || server.post(requests()[0].0, &requests()[0].1))
    };
    while server.metric("brigade_generated_tokens_total") < 5.0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    signal("KILL", server.process.children()[1]);
    let reply = client.join().unwrap();
    assert_ne!(reply.status, 200, "{}", reply.body);
    assert!(reply.body.contains("send the request again"), "{}", reply.body);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        streams_of_the_demo_model_go_on,
        streams_of_every_kind_of_state_go_on,
        nobody_waits_who_was_told_not_to;
];
