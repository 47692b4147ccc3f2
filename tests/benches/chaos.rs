//! Streams under load while workers are killed, stopped, and their links cut or held up. Prints, for each model, faults,
//! streams, lost ones, those with other bytes, positions computed again, and how long streams paused; the last column is
//! of workers that were killed and restarted.
//!
//!     cargo bench -p brigade-tests --bench chaos -- --kills 300 --model llama,granitehybrid,kimi-linear:tiny-moe
//!
//! A model may be a file, such as one with a trained block of drafts: `--model ../coordinator/assets/demo-drafts.gguf`. How many of
//! its own drafts were right is printed behind its row.
//!
//! Ends with an error if a stream was lost or got other bytes. `--checkpoint buddy` has the line take copies of states.
//! `--seed` repeats a run's faults, though not their moments. `--log FILE` keeps the coordinator's log, and prints each
//! fault with its time and its pause, so that the log tells what a long pause was made of.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use brigade_tests::process::{Running, Server, get, signal, synth, try_signal};
use brigade_tests::proxy::Proxy;
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

const WORKERS: usize = 3;
const STREAMS: usize = 8;
/// Different requests; clients take them in turn.
const REQUESTS: usize = 16;
const TOKENS: usize = 200;

/// How long a fault may keep streams from their next token before the run is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a killed worker is away.
const RESTART_AFTER: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    Kill,
    Stop,
    Cut,
    Hold,
}

struct Options {
    kills: usize,
    models: Vec<String>,
    size: String,
    seed: u64,
    checkpoint: String,
    log: Option<PathBuf>,
}

/// A worker behind a proxy, which keeps its address over restarts.
struct Worker {
    address: SocketAddr,
    proxy: Proxy,
    process: Running,
}

impl Worker {
    fn start() -> Self {
        let address = free_address().parse().unwrap();
        Self { address, proxy: Proxy::to(address), process: process(address) }
    }
}

fn process(address: SocketAddr) -> Running {
    let mut command = std::process::Command::new(brigade_tests::process::brigade());
    command.args(["worker", "--listen", &address.to_string(), "--threads", "1"]);
    command.env("RUST_LOG", "off");
    Running::spawn(command, brigade_worker::run::READY_PREFIX)
}

/// Counts over all clients.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    streams: AtomicUsize,
    lost: AtomicUsize,
    different: AtomicUsize,
    recomputed: AtomicU64,
    /// Tokens of each client.
    tokens: [AtomicU64; STREAMS],
}

fn request(i: usize) -> Value {
    json!({
        "prompt": format!("On day {i} it came to pass that"), "max_tokens": TOKENS, "seed": i, "temperature": 0.9,
        "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        "logprobs": if i % 4 == 1 { json!(2) } else { Value::Null },
        "repeat_penalty": if i % 4 == 2 { 1.2 } else { 1.0 },
    })
}

/// The choices of a streamed answer, event by event, and positions computed again; `None` where it broke off.
fn stream(url: &str, body: &Value, tokens: &AtomicU64) -> Result<(Vec<Value>, u64), String> {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(2 * PATIENCE)).build().into();
    let post = agent.post(url).header("content-type", "application/json");
    let response = post.send(body.to_string()).map_err(|e| e.to_string())?;
    let (mut choices, mut recomputed) = (Vec::new(), 0);
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = line.map_err(|e| e.to_string())?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return Ok((choices, recomputed));
        }
        let event: Value = serde_json::from_str(data).map_err(|e| e.to_string())?;
        if let Some(error) = event.get("error") {
            return Err(error.to_string());
        }
        recomputed += event["usage"]["recomputed_tokens"].as_u64().unwrap_or(0);
        choices.push(event["choices"].clone());
        tokens.fetch_add(1, Ordering::SeqCst);
    }
    Err("it ended without [DONE]".to_owned())
}

fn client(url: &str, which: usize, expected: &[Vec<Value>], seen: &Seen) {
    for i in (which..).step_by(STREAMS) {
        if seen.stop.load(Ordering::SeqCst) {
            return;
        }
        match stream(url, &request(i % REQUESTS), &seen.tokens[which]) {
            Ok((choices, recomputed)) => {
                seen.recomputed.fetch_add(recomputed, Ordering::SeqCst);
                if choices != expected[i % REQUESTS] {
                    seen.different.fetch_add(1, Ordering::SeqCst);
                }
            }
            // No line takes new requests in these moments: that is no stream yet.
            Err(error) if error.contains("503") => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Err(error) => {
                println!("a stream was lost: {error}");
                seen.lost.fetch_add(1, Ordering::SeqCst);
            }
        }
        seen.streams.fetch_add(1, Ordering::SeqCst);
    }
}

/// Does harm, and undoes it when streams go on; the pause.
fn harm(fault: Fault, worker: &mut Worker, seen: &Seen) -> Duration {
    let counts = || seen.tokens.each_ref().map(|tokens| tokens.load(Ordering::SeqCst));
    let begun = Instant::now();
    match fault {
        Fault::Kill => {
            signal("KILL", worker.process.pid());
            std::thread::sleep(RESTART_AFTER);
            worker.process = process(worker.address);
        }
        Fault::Stop => signal("STOP", worker.process.pid()),
        Fault::Cut => worker.proxy.cut(),
        Fault::Hold => worker.proxy.hold(Duration::from_millis(1500)),
    }
    // Events that were under way at the fault have come by then.
    std::thread::sleep(Duration::from_millis(20));
    let before = counts();
    let mut going = [false; STREAMS];
    while !going.iter().all(|on| *on) {
        assert!(begun.elapsed() < PATIENCE, "{fault:?}: streams do not go on: {going:?}");
        let now = counts();
        going.iter_mut().enumerate().for_each(|(i, on)| *on = now[i] > before[i]);
        std::thread::sleep(Duration::from_millis(2));
    }
    let pause = begun.elapsed();
    if fault == Fault::Stop {
        try_signal("CONT", worker.process.pid());
    }
    pause
}

/// Numbers without a pattern (splitmix64).
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
    }
}

/// A row of the table; whether all went well.
fn run(model: &str, options: &Options) -> bool {
    let is_file = model.ends_with(".gguf");
    let size = if is_file { "" } else { options.size.as_str() };
    let (arch, size) = model.split_once(':').unwrap_or((model, size));
    let path = if is_file { PathBuf::from(model) } else { synth(arch, size) };
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| Worker::start()).collect();
    let addresses: Vec<String> = workers.iter().map(|w| w.proxy.address.to_string()).collect();
    let mut args = vec!["-m", path.to_str().unwrap(), "--replace-after", "1", "--max-seqs", "8"];
    args.extend(["--checkpoint", &options.checkpoint]);
    addresses.iter().for_each(|address| args.extend(["--worker", address]));
    let log = options.log.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("brigade-chaos-{}.log", std::process::id()))
    });
    let server = Server::start_logged(&args, &log);
    let url = server.url("/v1/completions");
    let nobody = AtomicU64::new(0);
    let expected: Arc<Vec<Vec<Value>>> =
        Arc::new((0..REQUESTS).map(|i| stream(&url, &request(i), &nobody).unwrap().0).collect());
    let seen = Arc::new(Seen::default());
    let clients: Vec<_> = (0..STREAMS)
        .map(|which| {
            let (url, expected, seen) = (url.clone(), expected.clone(), seen.clone());
            std::thread::spawn(move || client(&url, which, &expected, &seen))
        })
        .collect();
    let mut next = random(options.seed);
    let (mut pauses, mut kinds) = (Vec::new(), HashMap::<Fault, Vec<Duration>>::new());
    for _ in 0..options.kills {
        std::thread::sleep(Duration::from_millis(200 + next() % 600));
        let all = [Fault::Kill, Fault::Stop, Fault::Cut, Fault::Hold];
        let fault = all[next() as usize % all.len()];
        let which = next() as usize % WORKERS;
        let at = SystemTime::now();
        let pause = harm(fault, &mut workers[which], &seen);
        if options.log.is_some() {
            println!("{} {fault:?} of worker {which}: {:.2} s", clock(at), pause.as_secs_f64());
        }
        pauses.push(pause);
        kinds.entry(fault).or_default().push(pause);
    }
    seen.stop.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let count = |fault| kinds.get(&fault).map_or(0, Vec::len);
    let restarted = kinds.get(&Fault::Kill).map_or(0.0, |pauses| quantile(pauses, 0.99));
    let [streams, lost, different] =
        [&seen.streams, &seen.lost, &seen.different].map(|n| n.load(Ordering::SeqCst));
    println!(
        "| {arch} {size} | {} | {} | {} | {} | {streams} | {lost} | {different} | {} | {:.2} | {:.2} | {:.2} | {restarted:.2} |",
        count(Fault::Kill),
        count(Fault::Stop),
        count(Fault::Cut),
        count(Fault::Hold),
        seen.recomputed.load(Ordering::SeqCst),
        quantile(&pauses, 0.5),
        quantile(&pauses, 0.99),
        quantile(&pauses, 1.0)
    );
    println!("drafts of the model's own block that were right: {}", right_drafts(&server));
    drop(server);
    let well = lost == 0 && different == 0;
    let made = [(&log, well && options.log.is_none()), (&path, !is_file)];
    made.iter().filter(|(_, goes)| *goes).for_each(|(file, _)| std::fs::remove_file(file).unwrap());
    if log.exists() {
        println!("the coordinator's log: {}", log.display());
    }
    well
}

/// Drafts of the model's own block that were right, as the coordinator counts them.
fn right_drafts(server: &Server) -> f64 {
    let metrics = get(&server.admin("/metrics")).unwrap().body;
    let of_block = |line: &&str| {
        let has = |part: &str| line.contains(part);
        has("brigade_drafts_total{") && has("source=\"model\"") && has("outcome=\"right\"")
    };
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    metrics.lines().filter(of_block).filter_map(value).sum()
}

/// The time of day (UTC) as the log has it, to the millisecond.
fn clock(at: SystemTime) -> String {
    let day =
        at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() % 86_400_000;
    let (seconds, millis) = (day / 1000, day % 1000);
    format!("{:02}:{:02}:{:02}.{millis:03}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Seconds that a share of the pauses stay below.
fn quantile(pauses: &[Duration], share: f64) -> f64 {
    let mut pauses = pauses.to_vec();
    pauses.sort_unstable();
    pauses[((pauses.len() - 1) as f64 * share).round() as usize].as_secs_f64()
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        kills: 20,
        models: vec!["llama".to_owned()],
        size: "tiny".to_owned(),
        seed: 1,
        checkpoint: "off".to_owned(),
        log: None,
    };
    // `cargo bench` adds `--bench`.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value} is no number"));
        match name.as_str() {
            "--kills" => options.kills = number()?.max(1) as usize,
            "--seed" => options.seed = number()?,
            "--model" => options.models = value.split(',').map(str::to_owned).collect(),
            "--size" => options.size = value,
            "--checkpoint" => options.checkpoint = value,
            "--log" => options.log = Some(value.into()),
            _ => {
                let there = "--kills, --model, --size, --checkpoint, --log and --seed are there";
                return Err(format!("{name}: {there}"));
            }
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    brigade_tests::process::use_binary_beside();
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "| model | kill | stop | cut | hold | streams | lost | other bytes | computed again | pause p50 s | p99 | max | p99 of restarts |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let well: Vec<bool> = options.models.iter().map(|model| run(model, &options)).collect();
    if well.iter().all(|well| *well) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
