//! Many requests for many models at once, and the end of a server of several models.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, get};
use serde_json::{Value, json};

use crate::several_models::fleet::{PATIENCE, Scratch};

/// How many tokens a stream had, and whether it ended whole; `seen` is called with each event.
fn stream_to_its_end(url: &str, body: &Value, seen: impl Fn()) -> (usize, bool) {
    let mut body = body.clone();
    (body["stream"], body["return_token_ids"]) = (json!(true), json!(true));
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
    let response = agent.post(url).send(body.to_string()).unwrap();
    let mut n = 0;
    for line in BufReader::new(response.into_body().into_reader()).lines().map_while(Result::ok) {
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return (n, true);
        }
        let event: Value = serde_json::from_str(data).unwrap();
        if event.get("error").is_some() {
            return (n, false);
        }
        n += event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
        seen();
    }
    (n, false)
}

fn a_server_that_ends_lets_the_answers_of_all_models_end_beside_each_other() {
    let scratch = Scratch::new("ends");
    let names = ["a", "b", "c", "d"];
    let models = names.map(|name| (name, None, "workers = 1\nctx = 2048\nload = \"demand\""));
    let config = scratch.config(&models);
    // Streams of so many tokens, and a server that leaves when all of them have begun.
    let left = |tokens: usize, within: &str| {
        let data = scratch.data();
        let args = ["--config", &config, "--data-dir", &data, "--drain-within", within];
        let server = Server::start(&args);
        let (url, begun) = (server.url("/v1/completions"), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let streams = names.map(|name| {
                let (url, begun) = (&url, &begun);
                let body = json!({ "model": name, "prompt": "In the beginning", "max_tokens": tokens, "seed": 1, "ignore_eos": true });
                scope.spawn(move || {
                    let first = AtomicBool::new(true);
                    stream_to_its_end(url, &body, || {
                        if first.swap(false, Ordering::Relaxed) {
                            begun.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
            });
            let end = Instant::now() + PATIENCE;
            while begun.load(Ordering::Relaxed) < names.len() {
                assert!(Instant::now() < end, "all streams begin");
                std::thread::sleep(Duration::from_millis(5));
            }
            let status = server.process.stop(PATIENCE);
            (streams.map(|stream| stream.join().unwrap()), status)
        })
    };
    let (streams, status) = left(600, "60s");
    assert_eq!((streams, status), ([(600, true); 4], Some(0)), "each ends whole");
    let (streams, status) = left(2000, "0s");
    assert!(
        streams.iter().all(|(n, whole)| !whole && *n < 2000),
        "cut, with a last event: {streams:?}"
    );
    assert_eq!(status, Some(0));
}

/// Cold models that are asked for at once, and requests for each.
const MODELS: usize = 20;
const REQUESTS: usize = 10;

fn a_crowd_of_requests_for_cold_models_is_answered() {
    let scratch = Scratch::new("crowd");
    let names: Vec<String> = (0..MODELS).map(|i| format!("m{i}")).collect();
    let own = "load = \"demand\"\nworkers = 1\nctx = 256\nmax-seqs = 2";
    let models: Vec<_> = names.iter().map(|name| (name.as_str(), None, own)).collect();
    let config = scratch.config(&models);
    let data = scratch.data();
    let server = Server::start(&["--config", &config, "--data-dir", &data, "--max-loaded", "3"]);
    let ask = |name: &str| {
        let body =
            json!({ "model": name, "prompt": "In the beginning", "max_tokens": 4, "seed": 1 });
        let end = Instant::now() + 3 * PATIENCE;
        loop {
            let reply = server.post("/v1/completions", &body);
            if reply.status == 200 {
                let answer: Value = serde_json::from_str(&reply.body).unwrap();
                return answer["choices"][0]["text"].clone();
            }
            // It says what it waits for, and when to ask again.
            assert_eq!(reply.status, 503, "{}", reply.body);
            assert!(reply.header("retry-after").is_some(), "{}", reply.body);
            assert!(reply.body.contains("loaded") || reply.body.contains("room"), "{}", reply.body);
            assert!(Instant::now() < end, "{name} is not answered: {}", reply.body);
        }
    };
    let texts: Vec<Value> = std::thread::scope(|scope| {
        let ask = &ask;
        let all = names.iter().flat_map(|name| std::iter::repeat_n(name, REQUESTS));
        let asking: Vec<_> = all.map(|name| scope.spawn(move || ask(name))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(texts.len(), MODELS * REQUESTS);
    assert!(texts.iter().all(|text| *text == texts[0] && *text != ""), "all are the demo");
    let metrics = get(&server.admin("/metrics")).unwrap().body;
    let sum = |name: &str| -> f64 {
        let of = |line: &str| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<f64>().ok();
        metrics.lines().filter_map(of).sum()
    };
    let (loads, unloads) = (sum("brigade_model_loads_total{"), sum("brigade_model_unloads_total{"));
    // Ten requests share a load. One that is late may need another.
    assert!(
        (20.0..60.0).contains(&loads) && loads - unloads <= 3.0,
        "{loads} loads, {unloads} unloads"
    );
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_crowd_of_requests_for_cold_models_is_answered, a_server_that_ends_lets_the_answers_of_all_models_end_beside_each_other;
];
