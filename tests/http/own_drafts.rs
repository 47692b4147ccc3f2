//! A model's own blocks of drafts over real processes: answers do not depend on them, wherever the model is cut.

use std::collections::BTreeMap;
use std::path::Path;

use brigade_model_tests::golden::{Golden, Recipe};
use brigade_model_tests::places::of_tests;
use brigade_tests::process::{Server, get, signal};
use serde::Deserialize;
use serde_json::{Value, json};

/// Attention alone; latent attention; windows and two blocks; recurrent layers before a block of attention; streams, and a
/// block that keeps a window in a ring.
const MODELS: [&str; 5] = ["glm4moe", "deepseek2", "mimo2-2", "qwen35", "deepseek4"];

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

/// Each model on one worker and on two, once with its block and once without, which of them in turn. At night
/// (`BRIGADE_TEST_ALL_PAIRS`) all four.
fn answers_are_the_same_with_and_without_own_drafts() {
    let all = std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some();
    let prompt = Golden::repository().manifest.tokens;
    let body = json!({
        "prompt": prompt, "max_tokens": N, "ignore_eos": true, "return_token_ids": true, "logprobs": 2,
    });
    for (number, name) in MODELS.into_iter().enumerate() {
        let model = model(name);
        let mut wanted: Vec<Value> = Vec::new();
        for (line, workers) in ["1", "2"].into_iter().enumerate() {
            let args = ["-m", &model, "--workers", workers, "--max-seqs", "6"];
            let in_turn = |with: usize| all || (number + line + with).is_multiple_of(2);
            let own = ["auto", "off"].into_iter().enumerate().filter(|(with, _)| in_turn(*with));
            for (_, own) in own {
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

/// Drafts of the model's own block that were right so far.
fn right(server: &Server) -> f64 {
    let metrics = get(&server.admin("/metrics")).unwrap().body;
    let of_block = |line: &&str| {
        let has = |label: &str| line.contains(label);
        has("brigade_drafts_total{") && has("source=\"model\"") && has("outcome=\"right\"")
    };
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    metrics.lines().filter(of_block).filter_map(value).sum()
}

/// Blocks of random weights are hardly ever right; this one was trained (`tests/demo-model/drafts.py`).
fn a_trained_blocks_drafts_are_right_and_change_nothing() {
    let model = of_tests("../coordinator/assets/demo-drafts.gguf");
    let model = model.to_str().unwrap();
    // One of the answers is held to a grammar.
    let body = |seed: u64| {
        let rule =
            if seed == 3 { json!("([A-Za-z]{1,12}[ ,;:.]{1,2}){20,400}") } else { Value::Null };
        json!({
            "prompt": "And it came to pass", "guided_regex": rule, "ignore_eos": seed != 3,
            "max_tokens": if seed == 3 { 150 } else { 900 }, "temperature": 0.8, "seed": seed, "return_token_ids": true,
        })
    };
    let serve = |workers: &str, own: &str| {
        Server::start(&[
            "-m",
            model,
            "--workers",
            workers,
            "--replace-after",
            "0",
            "--speculate",
            "auto",
            "--own-drafts",
            own,
        ])
    };
    let ask = |server: &Server| [1, 2, 3].map(|seed| complete(server, &body(seed), &json!({})));
    let without = serve("1", "off");
    let wanted = ask(&without);
    assert_eq!(right(&without), 0.0);
    drop(without);
    for workers in ["1", "2"] {
        let server = serve(workers, "auto");
        assert_eq!(ask(&server), wanted, "{workers} workers");
        let drafted = right(&server);
        println!("{workers} workers: {drafted} drafts were right");
        assert!(drafted > 50.0, "{drafted}");
        // The worker that has the block is lost, and a block begins anew.
        let last = *server.process.children().last().unwrap();
        let killing = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            signal("KILL", last);
        });
        assert_eq!(ask(&server), wanted, "{workers} workers, one of which is lost");
        killing.join().unwrap();
        assert_eq!(ask(&server), wanted, "{workers} workers, on the next line");
    }
}

/// The model with a block that lacks a tensor: its file has another one in that place.
fn with_an_unsound_block(to: &Path) {
    let mut bytes = std::fs::read(of_tests("../coordinator/assets/demo-drafts.gguf")).unwrap();
    let name = b".nextn.enorm.weight";
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap();
    bytes[at + 7] = b'x';
    std::fs::write(to, bytes).unwrap();
}

fn a_model_whose_block_is_not_sound_runs_without_it() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unsound-block");
    std::fs::create_dir_all(&folder).unwrap();
    let (unsound, log) = (folder.join("unsound.gguf"), folder.join("log.txt"));
    with_an_unsound_block(&unsound);
    let sound = of_tests("../coordinator/assets/demo-drafts.gguf");
    let ask = |model: &Path| {
        let args = ["-m", model.to_str().unwrap(), "--workers", "2"];
        let server = Server::start_logged(&args, &log);
        let body = json!({
            "prompt": "In the beginning", "max_tokens": 60, "temperature": 0.8, "seed": 3, "return_token_ids": true,
        });
        let answer = complete(&server, &body, &json!({}));
        let n_right = right(&server);
        drop(server);
        (answer, n_right, std::fs::read_to_string(&log).unwrap())
    };
    let (answer, n_right, log) = ask(&unsound);
    assert_eq!((&answer, n_right), (&ask(&sound).0, 0.0));
    assert!(log.contains("are not sound") && log.contains("enorm"), "{log}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: answers_are_the_same_with_and_without_own_drafts,
        a_trained_blocks_drafts_are_right_and_change_nothing,
        a_model_whose_block_is_not_sound_runs_without_it;
];
