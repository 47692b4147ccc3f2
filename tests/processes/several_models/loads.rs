//! A load that never comes up is given up: its room is free, and its model is not loaded for ever again.

use std::net::TcpListener;
use std::time::Instant;

use brigade_tests::process::{Server, run};
use serde_json::{Value, json};

use crate::several_models::fleet::{PATIENCE, Scratch, ask};

fn a_load_that_stands_still_gives_its_room_back() {
    let scratch = Scratch::new("still");
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = format!("worker = [\"{}\"]\nload = \"demand\"", silent.local_addr().unwrap());
    let models =
        [("stuck", None, worker.as_str()), ("other", None, "load = \"demand\"\nworkers = 1")];
    let (config, data) = (scratch.config(&models), scratch.folder.join("data"));
    let data = data.to_str().unwrap();
    let own =
        ["--config", &config, "--data-dir", data, "--max-loaded", "1", "--load-patience", "2s"];
    let server = Server::start(&own);
    let body = |model: &str| json!({ "model": model, "prompt": "In the beginning", "max_tokens": 4, "stream": false });
    std::thread::scope(|scope| {
        // It waits for longer than the other needs.
        let waits = scope.spawn(|| {
            let mut body = body("stuck");
            body["stream"] = json!(true);
            server.post("/v1/completions", &body).body
        });
        let end = Instant::now() + PATIENCE;
        let listed = || {
            let output = run(&["cluster", "models", "--data-dir", data]);
            String::from_utf8(output.stdout).unwrap()
        };
        while !listed().lines().any(|line| line.starts_with("stuck") && line.contains("loading")) {
            assert!(Instant::now() < end, "{}", listed());
        }
        let answer = ask(&server, "/v1/completions", &body("other"));
        assert_ne!(answer["choices"][0]["text"], json!(""));
        let said = waits.join().unwrap();
        assert!(said.contains("the model stuck cannot be loaded"), "{said}");
        // The third time is the last one.
        let mut is_quarantined = false;
        while !is_quarantined {
            assert!(Instant::now() < end, "{}", listed());
            let reply = server.post("/v1/completions", &body("stuck"));
            assert_eq!(reply.status, 503, "{}", reply.body);
            let row = listed().lines().find(|line| line.starts_with("stuck")).unwrap().to_owned();
            is_quarantined = row.contains("quarantined") && row.contains("stood still for 2 s");
        }
    });
    let _: Value = ask(&server, "/v1/completions", &body("other"));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_load_that_stands_still_gives_its_room_back;
];
