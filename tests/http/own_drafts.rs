//! A model's own blocks of drafts over real processes: answers do not depend on them, wherever the model is cut.

use std::collections::BTreeMap;

use brigade_model_tests::golden::{Golden, Recipe};
use brigade_model_tests::places::of_tests;
use brigade_tests::process::Server;
use serde::Deserialize;
use serde_json::{Value, json};

/// Attention alone; latent attention; windows and two blocks; recurrent layers before a block of attention.
const MODELS: [&str; 4] = ["glm4moe", "deepseek2", "mimo2-2", "qwen35"];

/// Tokens drawn: over a border of pages.
const N: usize = 70;

#[derive(Deserialize)]
struct Entry {
    synth: Recipe,
}

fn model(name: &str) -> String {
    let all = std::fs::read_to_string(of_tests("data/drafts/manifest.json")).unwrap();
    let all: BTreeMap<String, Entry> = serde_json::from_str(&all).unwrap();
    all[name].synth.make().to_str().unwrap().to_owned()
}

/// The choices of an answer.
fn complete(server: &Server, body: &Value, more: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply: Value = serde_json::from_str(&reply.body).unwrap();
    reply["choices"].clone()
}

fn answers_are_the_same_with_and_without_own_drafts() {
    let prompt = Golden::repository().manifest.tokens;
    let body = json!({
        "prompt": prompt, "max_tokens": N, "ignore_eos": true, "return_token_ids": true, "logprobs": 2,
    });
    for name in MODELS {
        let model = model(name);
        let mut wanted: Vec<Value> = Vec::new();
        for workers in ["1", "2"] {
            let args = ["-m", &model, "--workers", workers, "--max-seqs", "6"];
            for own in ["auto", "off"] {
                let on = ["--speculate", "auto", "--own-drafts", own];
                let server = Server::start(&[&args[..], &on].concat());
                let mut answers = Vec::new();
                // Each twice: the second begins with what the first has left.
                for sampling in [
                    json!({ "temperature": 0 }),
                    json!({ "temperature": 0.7, "seed": 4, "repeat_penalty": 1.1 }),
                    json!({ "temperature": 0.3, "seed": 9, "n": 2 }),
                    json!({ "temperature": 0.2, "seed": 3, "guided_regex": "([a-m]{1,3}[ n-z]){400}", "ignore_eos": false }),
                ] {
                    let answer = complete(&server, &body, &sampling);
                    let again = complete(&server, &body, &sampling);
                    assert_eq!(again, answer, "{name}, {workers} workers, {own}, {sampling}");
                    answers.push(answer);
                }
                if wanted.is_empty() {
                    wanted.clone_from(&answers);
                }
                assert_eq!(answers, wanted, "{name}, {workers} workers, {own}");
            }
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: answers_are_the_same_with_and_without_own_drafts;
];
