//! Workers with experts on the host beside a GPU, as processes that run for a while: what they report of themselves, what they
//! learn and keep for their next start, and streams over a GPU that is lost. Machines without a Vulkan driver skip.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_engine::device::gpus;
use brigade_tests::process::{Running, Server, get, run, signal, synth};
use serde_json::{Value, json};

use crate::compiled;

/// The words before the address in a worker's log.
const READY: &str = "brigade worker ready on ";

/// Time that a process gets to end, or to report what it did.
const SOON: Duration = Duration::from_secs(60);

/// Most bytes that a record may have.
const MAX_RECORD_BYTES: u64 = 4 << 20;

/// Batches of commands after which the GPU is lost: the test at start takes fewer.
const LOST_AFTER: &str = "600";

/// Tokens of an answer that is long enough to lose a worker meanwhile, and rows of experts after which it is under way.
const LONG: u32 = 300;
const SOME_ROWS: u64 = 200;

fn no_gpu() -> bool {
    let reason = gpus().err();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

/// A model with 8 experts in each of 4 layers, which is removed at the end.
struct Mixture(PathBuf);

impl Mixture {
    fn new() -> Self {
        Self(synth("qwen3moe", "tiny-moe"))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A server over these workers.
    fn serve(&self, workers: &[&Running], more: &[&str]) -> Server {
        let mut args = vec!["-m", self.path(), "--speculate", "off", "--keep", "0"];
        for worker in workers {
            args.extend(["--worker", worker.ready.trim()]);
        }
        args.extend(more);
        Server::start(&args)
    }
}

impl Drop for Mixture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn request() -> Value {
    json!({
        "messages": [{"role": "user", "content": "Tell me of the first day."}],
        "max_tokens": 40, "temperature": 0, "ignore_eos": true,
    })
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A worker with a log, a cache folder and these options.
fn worker(cache: &Path, log: &Path, more: &[&str]) -> Running {
    let cache = ["--cache-dir", cache.to_str().unwrap()];
    let fixed = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--memory", "1G"];
    Running::start_logged(&[&fixed[..], &cache, more].concat(), READY, log)
}

/// What the coordinator knows of its workers.
fn nodes(server: &Server) -> Vec<Value> {
    let answer = get(&server.admin("/admin/cluster")).unwrap().body;
    let answer = serde_json::from_str::<Value>(&answer).unwrap();
    answer["status"]["nodes"].as_array().unwrap().clone()
}

/// Rows of a stage's experts by any place.
fn expert_rows(node: &Value) -> u64 {
    let rows = &node["bytes"]["expert_rows"];
    [0, 1].map(|i| rows[i].as_u64().unwrap_or(0)).iter().sum()
}

fn wait_until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "it is not so after {SOON:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the coordinator knows of a stage's bytes, once it is as wanted.
fn bytes_when(server: &Server, stage: u64, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + SOON;
    loop {
        let nodes = nodes(server);
        let bytes = nodes.iter().find(|node| node["stage"] == stage).map(|node| &node["bytes"]);
        match bytes.filter(|bytes| wanted(bytes)) {
            Some(bytes) => return bytes.clone(),
            None => assert!(Instant::now() < deadline, "{nodes:?}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Values of a metric by the value of a label.
fn metric(server: &Server, name: &str, label: &str) -> Vec<(String, f64)> {
    let text = get(&server.admin("/metrics")).unwrap().body;
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let mut values: Vec<_> = lines
        .map(|line| {
            let of = line.split(&format!("{label}=\"")).nth(1).unwrap().split('"').next().unwrap();
            (of.to_owned(), line.rsplit(' ').next().unwrap().parse().unwrap())
        })
        .collect();
    values.sort_by(|(a, _): &(String, f64), (b, _)| a.cmp(b));
    values
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What a worker reports of its experts is seen in the status and in metrics.
fn check_status(server: &Server) {
    let bytes = bytes_when(server, 0, |bytes| number(&bytes["copied_expert_rows"]) > 0);
    println!("status: {bytes}");
    let [device, host] = [0, 1].map(|i| number(&bytes["expert_rows"][i]));
    let copied = number(&bytes["copied_expert_rows"]);
    assert!(number(&bytes["host_experts"]) > 0 && host > 0);
    assert_eq!(device, copied, "all experts lie with the host: the GPU has copies alone");
    for what in ["expert_bytes_sent", "expert_wait_us", "host_expert_us"] {
        assert!(number(&bytes[what]) > 0, "{what}");
    }
    let deadline = Instant::now() + SOON;
    let hits = copied as f64 / (copied + host) as f64;
    loop {
        let shares = metric(server, "brigade_stage_expert_row_share", "place");
        let of: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
        let is_new = of.len() == 3 && (of[0] - hits).abs() < 1e-3;
        assert!(is_new || Instant::now() < deadline, "{shares:?} for {hits}");
        if is_new {
            println!("shares of rows: {shares:?}");
            assert_eq!(
                shares.iter().map(|(place, _)| place).collect::<Vec<_>>(),
                ["copy", "device", "host"]
            );
            assert!((of.iter().sum::<f64>() - 1.0).abs() < 1e-3 && of[1] == 0.0, "{shares:?}");
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let seconds = metric(server, "brigade_stage_expert_seconds", "what");
    println!("seconds: {seconds:?}");
    assert!(seconds.len() == 2 && seconds.iter().all(|(_, seconds)| *seconds > 0.0), "{seconds:?}");
    assert!(server_metric(server, "brigade_stage_expert_sent_bytes") > 0.0);
}

/// The first value of a metric.
fn server_metric(server: &Server, name: &str) -> f64 {
    metric(server, name, "stage").first().map_or(0.0, |(_, value)| *value)
}

/// The only record in a cache.
fn record(cache: &Path) -> PathBuf {
    let entries = fs::read_dir(cache.join("experts")).unwrap();
    let mut records: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "uses"))
        .collect();
    assert_eq!(records.len(), 1, "{records:?}");
    records.remove(0)
}

fn what_a_worker_learns_is_seen_and_outlives_it() {
    if no_gpu() {
        return;
    }
    let model = Mixture::new();
    let (cache, log) = (file("gpu-expert-cache"), file("gpu-expert-cache.log"));
    let _ = fs::remove_dir_all(&cache);
    compiled::share(&cache);
    let start =
        || worker(&cache, &log, &["--device", "vulkan:0", "--cpu-moe", "--expert-cache", "64M"]);
    let says = || fs::read_to_string(&log).unwrap();
    let first = start();
    let server = model.serve(&[&first], &[]);
    let want = server.chat(&request());
    check_status(&server);
    drop(server);
    assert!(
        says().contains("no record of which experts of this model are used most"),
        "{}",
        says()
    );
    assert_eq!(first.stop(SOON), Some(0));
    let path = record(&cache);
    let about = fs::metadata(&path).unwrap();
    assert_eq!(about.permissions().mode() & 0o777, 0o600);
    assert!(about.len() < MAX_RECORD_BYTES, "{} bytes", about.len());

    let second = start();
    let server = model.serve(&[&second], &[]);
    assert_eq!(server.chat(&request()), want);
    assert!(says().contains("experts that were used most before are on the GPU"), "{}", says());
    drop(server);
    assert_eq!(second.stop(SOON), Some(0));

    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let third = start();
    let server = model.serve(&[&third], &[]);
    assert_eq!(server.chat(&request()), want);
    assert!(says().contains("cannot be used: they are learned anew"), "{}", says());
    assert!(!says().contains("are on the GPU"), "{}", says());
    drop(server);
    assert_eq!(third.stop(SOON), Some(0));
    fs::remove_dir_all(&cache).unwrap();
}

fn bench_prints_where_rows_were_computed() {
    if no_gpu() {
        return;
    }
    let model = Mixture::new();
    let fixed =
        ["bench", "-m", model.path(), "--workers", "1", "--threads", "1", "--device", "vulkan:0"];
    let more =
        ["--cpu-moe", "--expert-cache", "auto", "--prompt", "16", "--gen", "24", "--repeat", "1"];
    let output = run(&[&fixed[..], &more, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    for row in rows.as_array().unwrap() {
        let experts = &row["experts"][0];
        println!("{}: {experts}", row["test"]);
        let [device, copied, host] =
            ["device_rows", "copied_rows", "host_rows"].map(|name| number(&experts[name]));
        assert!(host + copied > 0 && device == copied, "{experts}");
        assert!(number(&experts["host_computed_us"]) > 0 || host == 0, "{experts}");
        assert!(number(&experts["host_waited_us"]) > 0, "{experts}");
    }
    let decode = rows.as_array().unwrap().iter().find(|row| row["test"] == "decode").unwrap();
    assert!(number(&decode["experts"][0]["copied_rows"]) > 0, "{decode}");
}

/// A GPU that is lost while its experts are with the host: the line is cut anew, and streams go on with the same bytes. When its
/// worker is gone for good, they go on with the CPU alone.
fn a_gpu_lost_beside_its_experts_costs_no_stream() {
    if no_gpu() {
        return;
    }
    let model = Mixture::new();
    let (cache, log) = (file("gpu-expert-lost"), file("gpu-expert-lost.log"));
    compiled::share(&cache);
    let cpu = worker(&cache, &file("gpu-expert-lost-cpu.log"), &["--kernels", "unfused"]);
    let alone = model.serve(&[&cpu], &[]);
    let want = alone.chat(&request());
    let mut long = request();
    long["max_tokens"] = LONG.into();
    let want_long = alone.chat(&long);
    drop(alone);
    let lost = ["--device", "vulkan:0", "--cpu-moe", "--expert-cache", "64M"];
    let gpu = worker(&cache, &log, &[&lost[..], &["--gpu-lost-after", LOST_AFTER]].concat());
    let server = model.serve(&[&gpu, &cpu], &["--tensor-split", "1,1"]);
    let n_lost = || fs::read_to_string(&log).unwrap().matches("the GPU was lost").count();
    for _ in 0..20 {
        let seen = server.chat_stream(&request());
        assert_eq!((seen.text, seen.error), (want.clone(), None));
        if n_lost() > 0 {
            break;
        }
    }
    assert!(n_lost() > 0, "the GPU was to be lost after {LOST_AFTER} batches");
    let seen = server.chat_stream(&request());
    assert_eq!((seen.text, seen.error), (want, None), "on the GPU that was opened again");
    let bytes = bytes_when(&server, 0, |bytes| number(&bytes["host_experts"]) > 0);
    println!("after the loss: {bytes}");
    drop(server);
    let server = model.serve(&[&gpu, &cpu], &["--replace-after", "0"]);
    let rows = || nodes(&server).iter().map(expert_rows).sum::<u64>();
    let before = rows();
    std::thread::scope(|scope| {
        let streamed = scope.spawn(|| server.chat_stream(&long));
        wait_until(|| rows() > before + SOME_ROWS);
        signal("KILL", gpu.pid());
        let seen = streamed.join().unwrap();
        assert_eq!((seen.text, seen.error), (want_long, None), "with the CPU alone");
    });
    let serving: Vec<Value> =
        nodes(&server).into_iter().filter(|node| node["state"] == "serves").collect();
    println!("without the GPU: {serving:?}");
    assert!(serving.len() == 1 && serving[0]["bytes"]["host_experts"] == 0, "{serving:?}");
    drop(server);
    let _ = fs::remove_dir_all(&cache);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        what_a_worker_learns_is_seen_and_outlives_it,
        bench_prints_where_rows_were_computed,
        a_gpu_lost_beside_its_experts_costs_no_stream;
];
