//! Model files that are cut off or overwritten while their line runs or loads. That line ends with an error that
//! names the file and the change, and the coordinator lives. No process maps a model file, so none dies of it.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_tests::process::{Reply, Running, Server, get, is_alive, signal, synth};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The words about the file in the reason of a line that has ended.
const CUT_OFF: &str = "has changed since it was opened: it was cut off";
/// The words in the log when stages are placed.
const BUILDING: &str = "building a line";

fn cut_to_half(model: &Path) {
    let file = File::options().write(true).open(model).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
}

/// Writes other values over the second half, which has weights only.
fn overwrite(model: &Path) {
    let mut file = File::options().write(true).open(model).unwrap();
    let half = file.metadata().unwrap().len() / 2;
    file.seek(std::io::SeekFrom::Start(half)).unwrap();
    file.write_all(&vec![7; half as usize]).unwrap();
}

fn request(max_tokens: usize) -> Value {
    let messages = [json!({"role": "user", "content": "Say something"})];
    json!({"messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

/// Waits until the line has ended for good; why.
fn ended(admin: &str) -> String {
    let begin = Instant::now();
    loop {
        let health: Value = serde_json::from_str(&get(admin).unwrap().body).unwrap();
        if health["status"] == "failed" {
            return health["reason"].as_str().unwrap().to_owned();
        }
        assert!(begin.elapsed() < PATIENCE, "the line has not ended: {health}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The reason names the file and what became of it, and the coordinator answers.
fn assert_ended(server: &Running, model: &Path, how: &str) {
    let reason = ended(&format!("{}/health", server.admin()));
    println!("{reason}");
    assert!(reason.contains(model.to_str().unwrap()) && reason.contains(how), "{reason}");
    assert!(is_alive(server.pid()), "the coordinator lives");
    let models: Reply = get(&format!("{}/v1/models", server.ready)).unwrap();
    assert_eq!(models.status, 200, "{}", models.body);
    let asked = brigade_tests::process::post(
        &format!("{}/v1/chat/completions", server.ready),
        &request(1).to_string(),
    );
    let asked = asked.unwrap();
    assert_eq!(asked.status, 503, "{}", asked.body);
}

/// Whether a process has mapped this file.
fn maps(pid: u32, file: &Path) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(maps.contains("brigade"), "this process has itself mapped");
    maps.contains(file.to_str().unwrap())
}

fn a_file_that_is_cut_while_its_line_runs_ends_that_line_when_it_is_needed() {
    let model = synth("llama", "tiny");
    let server = Server::start(&["-m", model.to_str().unwrap(), "--workers", "2", "--ctx", "2048"]);
    let before = server.chat(&request(12));
    let everybody = [vec![server.process.pid()], server.process.children()].concat();
    assert_eq!(everybody.len(), 3);
    let mapped: Vec<u32> = everybody.iter().copied().filter(|pid| maps(*pid, &model)).collect();
    assert!(mapped.is_empty(), "{mapped:?} have mapped it");
    cut_to_half(&model);
    assert_eq!(server.chat(&request(12)), before, "weights are in memory: the line runs on");
    let streaming = std::thread::scope(|scope| {
        let stream = scope.spawn(|| server.chat_stream(&request(1900)));
        // The stream has begun, as far as can be seen from outside, when tokens are counted.
        let begin = Instant::now();
        while server.metric("brigade_requests_running{phase=\"decode\"}") < 1.0
            && !stream.is_finished()
        {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        signal("KILL", everybody[1]);
        stream.join().unwrap()
    });
    // One that had ended before its worker was lost is whole.
    let error = streaming.error.unwrap_or_default();
    println!("the stream that ran: {error:?}");
    assert!(
        streaming.finish_reason.is_some() || error.contains("line") || error.contains("run"),
        "{error}"
    );
    assert_ended(&server.process, &model, CUT_OFF);
    std::fs::remove_file(model).unwrap();
}

/// A model that reads rows of a table from its file while it runs.
fn ends_while_rows_are_read(change: fn(&Path), how: &str) {
    let model = synth("qwen4exp", "tiny-moe");
    let server = Server::start(&["-m", model.to_str().unwrap(), "--workers", "2"]);
    server.chat(&request(4));
    change(&model);
    // No worker is lost: the process that reads the next row sees the change.
    let refused = server.post("/v1/chat/completions", &request(8));
    assert_ne!(refused.status, 200, "{}", refused.body);
    assert_ended(&server.process, &model, how);
    std::fs::remove_file(model).unwrap();
}

fn a_file_that_is_cut_while_rows_are_read_from_it_ends_its_line_by_name() {
    ends_while_rows_are_read(cut_to_half, CUT_OFF);
}

fn a_file_that_is_overwritten_while_rows_are_read_from_it_ends_its_line_by_name() {
    ends_while_rows_are_read(overwrite, "has changed since it was opened: it was written to");
}

/// Cuts the file when a line is being built: one of its workers is held until then.
fn cut_while_loading(name: &str, of_workers: &[&str]) {
    let model = synth("llama", "tiny");
    let log = std::env::temp_dir().join(format!("brigade-cut-{name}-{}.log", std::process::id()));
    let cache: PathBuf = log.with_extension("cache");
    let control = free_address();
    let m = model.to_str().unwrap();
    let server = ["serve", "-m", m, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let joined = ["--control", &control, "--expect", "2", "--insecure-network"];
    let args = [&server[..], &joined, &["--tensor-split", "1,1"]].concat();
    let server = Running::start_logged(&args, "brigade serve listening on ", &log);
    let join = || {
        let args = ["worker", "--listen", "127.0.0.1:0", "--join", &control, "--threads", "1"];
        let kept = ["--cache-dir", cache.to_str().unwrap()];
        Running::start(&[&args[..], &kept, of_workers].concat(), "brigade worker ready on ")
    };
    let said = |text: &str| {
        let begin = Instant::now();
        while !std::fs::read_to_string(&log).unwrap().contains(text) {
            assert!(
                begin.elapsed() < PATIENCE,
                "{text}: {}",
                std::fs::read_to_string(&log).unwrap()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let held = join();
    said("worker connected");
    signal("STOP", held.pid());
    let other = join();
    said(BUILDING);
    cut_to_half(&model);
    signal("CONT", held.pid());
    assert_ended(&server, &model, CUT_OFF);
    assert!(is_alive(held.pid()) && is_alive(other.pid()), "workers wait for their next line");
    drop((server, held, other));
    std::fs::remove_file(model).unwrap();
    std::fs::remove_file(log).unwrap();
    let _ = std::fs::remove_dir_all(cache);
}

fn a_file_that_is_cut_while_it_is_sent_ends_its_line_by_name() {
    cut_while_loading("sent", &["--no-model-files"]);
}

fn a_file_that_is_cut_while_workers_read_it_ends_its_line_by_name() {
    cut_while_loading("read", &[]);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_file_that_is_cut_while_its_line_runs_ends_that_line_when_it_is_needed,
        a_file_that_is_cut_while_rows_are_read_from_it_ends_its_line_by_name,
        a_file_that_is_overwritten_while_rows_are_read_from_it_ends_its_line_by_name,
        a_file_that_is_cut_while_it_is_sent_ends_its_line_by_name,
        a_file_that_is_cut_while_workers_read_it_ends_its_line_by_name;
];
