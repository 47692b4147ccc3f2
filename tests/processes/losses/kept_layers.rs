//! After a loss the remaining workers keep their layers: only missing ones are loaded, and answers are the same
//! bytes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, Server, signal, synth};
use serde_json::{Value, json};

/// How long a line may take to come back on a machine that runs other tests.
const PATIENCE: Duration = Duration::from_secs(60);

fn worker(more: &[&str]) -> Running {
    let args = ["worker", "--listen", "127.0.0.1:0", "--speed", "20,200"];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    Running::start(&args, brigade_worker::run::READY_PREFIX)
}

/// One "stage loaded" of the coordinator's log.
#[derive(Clone, Debug)]
struct Loaded {
    worker: String,
    read_bytes: u64,
    kept_layers: u64,
}

fn loads(log: &Path) -> Vec<Loaded> {
    let text = std::fs::read_to_string(log).unwrap();
    let field = |line: &str, name: &str| {
        let rest = line.split(&format!("{name}=")).nth(1).unwrap_or_default();
        let value = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => rest.split_whitespace().next(),
        };
        value.unwrap_or_default().to_owned()
    };
    let lines = text.lines().filter(|line| line.contains("stage loaded"));
    lines
        .map(|line| Loaded {
            worker: field(line, "worker"),
            read_bytes: field(line, "read_bytes").parse().unwrap(),
            kept_layers: field(line, "kept_layers").parse().unwrap(),
        })
        .collect()
}

fn answer(server: &Server) -> Value {
    let body = json!({"prompt": "In the", "max_tokens": 12, "temperature": 0, "logprobs": 2});
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str::<Value>(&reply.body).unwrap()["choices"].clone()
}

fn log_of(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(format!("kept-{name}-{}.log", std::process::id()))
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The middle one of three is lost for good: its layers go to the others, and nothing else is loaded.
fn middle_worker_is_lost(name: &str, more: &[&str], cache: Option<&Path>) {
    let model = synth("llama", "tiny");
    let cache_of = |i: usize| cache.map(|c| c.join(i.to_string()).to_str().unwrap().to_owned());
    let workers: Vec<Running> = (0..3)
        .map(|i| {
            let folder = cache_of(i);
            let cache = folder.iter().flat_map(|folder| ["--cache-dir", folder]);
            worker(&more.iter().copied().chain(cache).collect::<Vec<_>>())
        })
        .collect();
    let log = log_of(name);
    let addresses: Vec<&str> = workers.iter().map(|w| w.ready.trim()).collect();
    let mut args = vec!["-m", model.to_str().unwrap(), "--replace-after", "1"];
    addresses.iter().for_each(|address| args.extend(["--worker", address]));
    let server = Server::start_logged(&args, &log);
    let (before, first) = (answer(&server), loads(&log));
    assert_eq!(first.len(), 3, "{first:?}");
    assert!(first.iter().all(|load| load.kept_layers == 0 && load.read_bytes > 0), "{first:?}");
    // Before the signal: the line that answers now is not the new one.
    signal("KILL", workers[1].pid());
    until("two stages of a new line", || loads(&log).len() >= 5);
    server.wait_healthy(PATIENCE);
    assert_eq!(answer(&server), before);
    let second = loads(&log)[3..].to_vec();
    println!("{name}: first {first:?}, then {second:?}");
    assert!(second.iter().all(|load| load.kept_layers > 0), "{second:?}");
    let lost = first.iter().find(|load| load.worker.contains(addresses[1])).unwrap();
    let read: u64 = second.iter().map(|load| load.read_bytes).sum();
    assert_eq!(read, lost.read_bytes, "bytes that were in memory were loaded again");
    std::fs::remove_file(model).unwrap();
    std::fs::remove_file(log).unwrap();
}

fn survivors_load_only_what_they_lack() {
    middle_worker_is_lost("file", &[], None);
}

fn survivors_are_sent_only_what_they_lack() {
    let cache = std::env::temp_dir().join(format!("brigade-kept-{}", std::process::id()));
    middle_worker_is_lost("sent", &["--no-model-files"], Some(&cache));
    std::fs::remove_dir_all(cache).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: survivors_load_only_what_they_lack, survivors_are_sent_only_what_they_lack;
];
