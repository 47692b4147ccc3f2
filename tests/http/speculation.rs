//! Drafts of next tokens over HTTP: answers do not depend on them, and the server reports their counts.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use brigade_draft::Source;
use brigade_model_tests::golden::Golden;
use brigade_sched::DRAFT_DEPTHS;
use brigade_tests::process::{Server, get};
use serde_json::{Value, json};

/// Attention; windows; recurrent layers beside attention, and alone.
const MODELS: [&str; 4] = ["llama", "gemma3", "qwen35", "rwkv7"];

/// Tokens to draw.
const N: usize = 96;

/// Requests within which drafts must come. They depend on measured times, so on a busy machine it may take some.
const MOST_TRIES: usize = 40;

fn path(model: &str) -> PathBuf {
    Golden::repository().named(model)
}

/// A completion's answer: choices and usage.
fn complete(server: &Server, body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

/// Drafted tokens so far that were right.
fn right(server: &Server) -> f64 {
    let metrics = get(&server.admin("/metrics")).unwrap().body;
    let lines = metrics.lines();
    let lines = lines.filter(|line| line.starts_with("brigade_drafts_total{outcome=\"right\""));
    let counts: Vec<f64> =
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    // An answer that is known is no source of a server's.
    assert_eq!(counts.len(), (Source::ALL.len() - 1) * DRAFT_DEPTHS.len(), "{metrics}");
    counts.iter().sum()
}

fn answers_are_the_same_with_and_without_drafts() {
    for model in MODELS {
        let model = path(model);
        let server =
            Server::start(&["-m", model.to_str().unwrap(), "--workers", "2", "--max-seqs", "6"]);
        // A repeating text is drafted.
        let prompt: Vec<u32> = (0..60).map(|i| 3 + (i % 12) * 7).collect();
        let body = json!({
            "prompt": prompt, "max_tokens": N, "ignore_eos": true, "return_token_ids": true, "logprobs": 2,
        });
        for sampling in [
            json!({ "temperature": 0 }),
            json!({ "temperature": 0.7, "seed": 4, "repeat_penalty": 1.1, "dry_multiplier": 0.5 }),
            json!({ "temperature": 0.3, "seed": 9, "n": 2 }),
            json!({
                "temperature": 0.2, "seed": 3, "guided_regex": "([a-m]{1,3}[ n-z]){400}", "ignore_eos": false,
            }),
        ] {
            let mut off = sampling.clone();
            off["speculate"] = json!(false);
            let without = complete(&server, &body, &off);
            let with = complete(&server, &body, &sampling);
            assert_eq!(with["choices"], without["choices"], "{model:?}, {sampling}");
        }
    }
}

fn what_a_client_expects_is_drafted_and_counted() {
    let server = Server::start(&["--workers", "2"]);
    let body =
        json!({ "prompt": "In the beginning", "max_tokens": N, "temperature": 0, "logprobs": 0 });
    let without = complete(&server, &body, &json!({ "speculate": false }));
    let text = without["choices"][0]["text"].as_str().unwrap();
    assert_eq!(without["usage"]["completion_tokens_details"], Value::Null);
    let parts = json!([{ "type": "text", "text": text }]);
    let expected = [json!(text), parts];
    let mut counts = Vec::new();
    for content in expected.iter().cycle().take(MOST_TRIES) {
        let prediction = json!({ "prediction": { "type": "content", "content": content } });
        let with = complete(&server, &body, &prediction);
        assert_eq!(with["choices"], without["choices"]);
        let details = &with["usage"]["completion_tokens_details"];
        counts.push(details.clone());
        if details["accepted_prediction_tokens"].as_u64() > Some(0) && counts.len() > 1 {
            break;
        }
    }
    let last = counts.last().unwrap();
    assert!(last["accepted_prediction_tokens"].as_u64() > Some(0), "{counts:?}");
    // The metrics follow the scheduler.
    while right(&server) == 0.0 {
        sleep(Duration::from_millis(20));
    }
    // More tokens than parts, and the page hears of the drafts.
    let drawn = |name| server.metric(name);
    assert!(drawn("brigade_generated_tokens_total") > drawn("brigade_drawn_parts_total"));
    assert!(drawn("brigade_stages_in_vain_microseconds_total") >= 0.0);
    let line: Value = serde_json::from_str(&get(&server.url("/line")).unwrap().body).unwrap();
    let drafts = line["drafts"].as_array().unwrap();
    assert_eq!(drafts.len(), DRAFT_DEPTHS.len(), "{line}");
    assert!(drafts.iter().any(|depth| depth["right"].as_f64() > Some(0.0)), "{line}");
    // A wrong prediction is no worse than none.
    let other =
        json!({ "prediction": { "type": "content", "content": "Once upon a time there was" } });
    assert_eq!(complete(&server, &body, &other)["choices"], without["choices"]);
    for (bad, says) in [
        (json!("text"), "prediction"),
        (json!({ "content": "text" }), "prediction.type"),
        (json!({ "type": "content", "content": 7 }), "prediction.content"),
        (
            json!({ "type": "content", "content": [{ "type": "image", "text": "x" }] }),
            "prediction.content",
        ),
        (
            json!({ "type": "content", "content": "x".repeat(9 << 20) }),
            "the prediction has 9437184 bytes",
        ),
    ] {
        let mut body = body.clone();
        body["prediction"] = bad;
        let reply = server.post("/v1/completions", &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains(says), "{}", reply.body);
    }
}

fn slots_say_who_runs_and_whether_it_is_drafted() {
    let server = Server::start(&["--workers", "2", "--max-seqs", "3"]);
    let slots =
        || -> Value { serde_json::from_str(&get(&server.url("/slots")).unwrap().body).unwrap() };
    let body = json!({
        "prompt": vec![9; 40], "max_tokens": 900, "temperature": 1.5, "seed": 1, "ignore_eos": true,
    });
    for wish in [json!({}), json!({ "speculate": false })] {
        let is_drafted = wish == json!({});
        let seen = (0..MOST_TRIES).find_map(|_| {
            std::thread::scope(|scope| {
                let answer = scope.spawn(|| complete(&server, &body, &wish));
                let mut seen = None;
                while !answer.is_finished() {
                    let now = slots();
                    if now[0]["n_decoded"].as_u64() > Some(0) {
                        seen = Some(now);
                    }
                }
                seen
            })
        });
        let seen = seen.expect("a stream of 900 tokens is seen once in so many");
        assert_eq!(seen.as_array().unwrap().len(), 3, "{seen}");
        assert_eq!(seen[0]["is_processing"], json!(true), "{seen}");
        assert_eq!(seen[0]["n_prompt_tokens"], json!(40), "{seen}");
        assert_eq!(seen[0]["speculative"], json!(is_drafted), "{seen}");
        assert_eq!(seen[1]["is_processing"], json!(false), "{seen}");
        if !is_drafted {
            assert_eq!(seen[0]["drafts"], json!({ "right": 0, "wrong": 0, "windows": 0 }));
        }
    }
}

fn a_server_and_a_request_may_do_without_drafts() {
    let model = path("llama");
    for (option, wish) in [("off", json!({})), ("auto", json!({ "speculate": false }))] {
        let server = Server::start(&[
            "-m",
            model.to_str().unwrap(),
            "--workers",
            "2",
            "--speculate",
            option,
        ]);
        let body =
            json!({ "prompt": vec![5; 40], "max_tokens": N, "temperature": 0, "ignore_eos": true });
        complete(&server, &body, &wish);
        // Long enough for the metrics to have said otherwise.
        sleep(Duration::from_millis(300));
        assert_eq!(right(&server), 0.0, "{option}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        answers_are_the_same_with_and_without_drafts,
        what_a_client_expects_is_drafted_and_counted,
        slots_say_who_runs_and_whether_it_is_drafted,
        a_server_and_a_request_may_do_without_drafts;
];
