//! The logs of a line's processes: a request's id is in all of them, and an orderly end logs no warning.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use brigade_tests::process::{Running, Server, brigade, run};
use serde_json::json;

/// How long an orderly end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder of its own for each test, so that they may run at once.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("logs-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn start_worker(log: &Path) -> Running {
    let mut command = Command::new(brigade());
    command
        .args(["worker", "--listen", "127.0.0.1:0"])
        .env("RUST_LOG", "info,brigade_worker=debug");
    command.stderr(std::fs::File::create(log).unwrap());
    Running::spawn(command, brigade_worker::run::READY_PREFIX)
}

/// Lines of a log that hold all of `words`.
fn lines(log: &Path, words: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let holds = |line: &&str| words.iter().all(|word| line.contains(word));
    text.lines().filter(holds).map(str::to_owned).collect()
}

fn a_requests_id_is_in_every_processs_log() {
    let folder = folder("ids");
    let logs = ["a.log", "b.log"].map(|name| folder.join(name));
    let workers = logs.each_ref().map(|log| start_worker(log));
    let [a, b] = workers.each_ref().map(|worker| worker.ready.trim());
    let server_log = folder.join("server.log");
    let server = Server::start_logged(&["--worker", a, "--worker", b], &server_log);
    let body = json!({"prompt": "In the", "max_tokens": 3, "temperature": 0});
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let id = reply.header("x-request-id").unwrap();
    assert!(server.process.stop(PATIENCE).is_some());
    assert!(!lines(&server_log, &[id]).is_empty(), "the coordinator names {id}");
    let mut lanes = 0;
    for log in &logs {
        let opened = lines(log, &["lane opens"]).len();
        assert_eq!(lines(log, &[id, "sequence opens"]).len(), opened, "{log:?}");
        lanes += opened;
    }
    assert!(lanes >= 1);
    let output = run(&["run", "-p", "In", "-n", "2", "--worker", a, "--worker", b]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let opened = |log: &PathBuf| lines(log, &["run-", "sequence opens"]).len();
    assert!(logs.iter().map(opened).sum::<usize>() >= 1);
}

fn an_orderly_end_alarms_nobody() {
    let folder = folder("end");
    let calm = |log: &Path| {
        let text = std::fs::read_to_string(log).unwrap();
        let alarming = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        assert_eq!(text.lines().find(alarming), None, "{log:?}:\n{text}");
        text
    };
    let log = folder.join("local.log");
    let server = Server::start_logged(&["--workers", "2"], &log);
    let body = json!({"prompt": "In the", "max_tokens": 3, "temperature": 0});
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    assert_eq!(server.process.stop(PATIENCE), Some(0));
    // A plan may leave a worker out.
    let closed = |text: String| {
        let count = |what: &str| text.matches(what).count();
        assert_eq!(count("lane closed"), count("lane opens"), "{text}");
        count("lane closed")
    };
    assert!(closed(calm(&log)) >= 1);
    let logs = ["c.log", "d.log"].map(|name| folder.join(name));
    let workers = logs.each_ref().map(|log| start_worker(log));
    let [c, d] = workers.each_ref().map(|worker| worker.ready.trim());
    let output = run(&["run", "-p", "In", "-n", "2", "--worker", c, "--worker", d]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for worker in workers {
        assert_eq!(worker.stop(PATIENCE), Some(0));
    }
    assert!(logs.iter().map(|log| closed(calm(log))).sum::<usize>() >= 1);
}

fn what_comes_from_outside_is_quoted() {
    let folder = folder("quoted");
    let (log, data) = (folder.join("server.log"), folder.join("data"));
    let data = data.to_str().unwrap();
    let server = Server::start_logged(&["--workers", "1", "--data-dir", data], &log);
    let body = json!({"prompt": "In the", "max_tokens": 1, "temperature": 0, "model": "m\nlevel=ERROR a=b"});
    let id = "x level=ERROR key=root \"quoted\" {}: b";
    for path in
        ["/v1/completions", "/v1/completions?a=b%0Alevel=ERROR", "/none%0Alevel=ERROR key=root"]
    {
        let request = ureq::post(server.url(&path.replace(' ', "%20"))).header("x-request-id", id);
        // Some are refused; what counts is how that is told.
        let _ = request.send(body.to_string());
    }
    assert!(server.process.stop(PATIENCE).is_some());
    let text = std::fs::read_to_string(&log).unwrap();
    let quoted = format!("{id:?}");
    assert!(text.contains(&quoted), "{text}");
    assert!(!text.replace(&quoted, "").contains("level=ERROR key"), "{text}");
    let begins_well = |line: &str| line.starts_with(|c: char| c.is_ascii_digit());
    assert_eq!(text.lines().find(|line| !begins_well(line)), None, "each line is one of ours");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_requests_id_is_in_every_processs_log,
        an_orderly_end_alarms_nobody,
        what_comes_from_outside_is_quoted;
];
