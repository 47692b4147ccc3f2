//! The table of lost workers: each of three is killed and stopped while eight streams run, one of them in the midst of a
//! long prompt. It comes back, or a spare takes its layers; all streams end with the bytes of an undisturbed run.
//!
//! It takes half an hour, and with small models (`BRIGADE_LOSSES_SIZE=tiny`) four minutes:
//! `cargo test --release --test cluster -- --ignored losses::`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brigade_tests::process::{
    KINDS_OF_STATE, Running, Server, brigade, run, signal, synth, try_signal,
};
use brigade_tests::streams::prompt;
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

/// How long streams may take, prompts computed before them.
const PATIENCE: Duration = Duration::from_secs(600);

/// Tokens that each stream draws.
const TOKENS: usize = 60;

/// Positions of the prompt that is being computed when the worker is lost.
const LONG: u64 = 4096;

/// Events of each other stream before.
const UNDER_WAY: usize = 8;

/// How long a killed worker is away, and a stopped one: longer than it takes to notice that.
const AWAY: [(&str, Duration); 2] =
    [("KILL", Duration::from_millis(200)), ("STOP", Duration::from_secs(6))];

fn requests() -> Vec<Value> {
    let request = |i: u64, context: u64, more: Value| {
        let mut body = json!({
            "prompt": prompt(i, context), "max_tokens": TOKENS, "temperature": 0.9, "seed": i, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    vec![
        request(1, 40, json!({})),
        request(2, 60, json!({"logprobs": 3})),
        request(3, 50, json!({"n": 2})),
        request(4, 90, json!({"repeat_penalty": 1.2, "presence_penalty": 0.3})),
        request(5, 30, json!({"temperature": 0})),
        request(6, 80, json!({"min_p": 0.02, "top_k": 50})),
        request(7, 70, json!({})),
        request(8, LONG, json!({"logprobs": 1})),
    ]
}

/// The events of a stream.
struct Streamed {
    /// The part that must be the same: the choices of its events, by their numbers.
    choices: BTreeMap<u64, Vec<Value>>,
    /// The times of the events.
    at: Vec<Instant>,
    again: u64,
}

fn stream(url: &str, body: &Value, events: &AtomicUsize) -> Streamed {
    let agent: ureq::Agent =
        ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
    let post = agent.post(url).header("content-type", "application/json");
    let response = post.send(body.to_string()).unwrap();
    let mut seen = Streamed { choices: BTreeMap::new(), at: vec![Instant::now()], again: 0 };
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = line.unwrap();
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
            continue;
        };
        let event: Value = serde_json::from_str(data).unwrap();
        assert!(event.get("error").is_none(), "{event}");
        seen.again += event["usage"]["recomputed_tokens"].as_u64().unwrap_or(0);
        for choice in event["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap();
            seen.choices.entry(index).or_default().push(choice.clone());
        }
        seen.at.push(Instant::now());
        events.fetch_add(1, Ordering::SeqCst);
    }
    seen
}

/// A worker that keeps its address.
struct Worker {
    address: SocketAddr,
    process: Running,
}

impl Worker {
    fn start() -> Self {
        let address = free_address().parse().unwrap();
        Self { address, process: Self::process(address) }
    }

    fn process(address: SocketAddr) -> Running {
        let mut command = Command::new(brigade());
        command.args(["worker", "--listen", &address.to_string(), "--speed", "20,200"]);
        command.env("RUST_LOG", "off");
        Running::spawn(command, brigade_worker::run::READY_PREFIX)
    }
}

/// A line of three workers, and the answers of its streams without a loss.
struct Line {
    server: Server,
    folder: PathBuf,
    workers: Vec<Worker>,
    expected: Vec<BTreeMap<u64, Vec<Value>>>,
}

impl Line {
    /// A line that waits this many seconds for a lost worker.
    fn start(model: &str, replace_after: &str) -> Self {
        let workers: Vec<Worker> = (0..3).map(|_| Worker::start()).collect();
        let addresses: Vec<String> = workers.iter().map(|w| w.address.to_string()).collect();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let folder =
            folder.join(format!("losses-{}-{}", std::process::id(), workers[0].address.port()));
        let ctx = (LONG + 1024).to_string();
        let mut args = vec!["-m", model, "--max-seqs", "9", "--keep", "0", "--ctx", &ctx];
        args.extend(["--replace-after", replace_after, "--data-dir", folder.to_str().unwrap()]);
        addresses.iter().for_each(|address| args.extend(["--worker", address]));
        let server = Server::start(&args);
        let url = server.url("/v1/completions");
        let streams = requests();
        let expected = streams.iter().map(|body| stream(&url, body, &AtomicUsize::new(0)).choices);
        let expected = expected.collect();
        Self { server, folder, workers, expected }
    }

    fn cluster(&self, question: &[&str]) -> String {
        let more = ["--data-dir", self.folder.to_str().unwrap()];
        let args: Vec<&str> = ["cluster"].iter().chain(question).chain(&more).copied().collect();
        let output = run(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Number of the worker of a stage, and of those that there are.
    fn worker_of(&self, stage: usize) -> usize {
        let status: Value = serde_json::from_str(&self.cluster(&["status", "--json"])).unwrap();
        let name = status["status"]["stages"][stage]["worker"].as_str().unwrap().to_owned();
        self.workers.iter().position(|w| name.contains(&w.address.to_string())).unwrap()
    }

    fn begin(&self, bodies: &[Value], events: &Arc<AtomicUsize>) -> Vec<JoinHandle<Streamed>> {
        let begin = |body: &Value| {
            let (url, body, events) =
                (self.server.url("/v1/completions"), body.clone(), events.clone());
            std::thread::spawn(move || stream(&url, &body, &events))
        };
        bodies.iter().map(begin).collect()
    }

    /// Loses the worker of a stage while all streams run; `harm` does it. Prints a row.
    fn lose(&mut self, what: &str, stage: usize, harm: impl FnOnce(&mut Worker)) {
        let which = self.worker_of(stage);
        let (requests, events) = (requests(), Arc::<AtomicUsize>::default());
        let (others, long) = requests.split_at(requests.len() - 1);
        let mut clients = self.begin(others, &events);
        until("tokens come", || events.load(Ordering::SeqCst) >= others.len() * UNDER_WAY);
        let first_of_long = Arc::<AtomicUsize>::default();
        clients.extend(self.begin(long, &first_of_long));
        let before = events.load(Ordering::SeqCst);
        until("all go on", || events.load(Ordering::SeqCst) > before + others.len());
        let in_prefill = first_of_long.load(Ordering::SeqCst) == 0;
        let lost = Instant::now();
        harm(&mut self.workers[which]);
        let seen: Vec<Streamed> = clients.into_iter().map(|c| c.join().unwrap()).collect();
        for (i, (seen, expected)) in seen.iter().zip(&self.expected).enumerate() {
            assert_eq!(seen.choices, *expected, "{what}: stream {i}");
        }
        let pause = |seen: &Streamed| {
            let gaps = seen.at.windows(2).filter(|pair| pair[1] > lost);
            gaps.map(|pair| pair[1] - pair[0].max(lost)).max().unwrap_or_default()
        };
        let mut pauses: Vec<Duration> =
            seen[..others.len()].iter().map(pause).filter(|pause| !pause.is_zero()).collect();
        pauses.sort_unstable();
        let again: u64 = seen.iter().map(|seen| seen.again).sum();
        println!(
            "| {what} | {} | {in_prefill} | {} | {:.2} s | {:.2} s | {:.2} s | {again} | equal |",
            stage + 1,
            seen.len(),
            pauses[0].as_secs_f64(),
            pauses[pauses.len() - 1].as_secs_f64(),
            pause(&seen[others.len()]).as_secs_f64(),
        );
        assert!(again > 0, "{what}: nobody was on the line");
    }

    fn end(self) {
        assert_eq!(self.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
        let Self { server, folder, .. } = self;
        drop(server);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A worker comes back at its address: as a process of its own, or as the one that was stopped.
fn comes_back(worker: &mut Worker, name: &str, away: Duration) {
    let pid = worker.process.pid();
    signal(name, pid);
    std::thread::sleep(away);
    match name {
        "STOP" => drop(try_signal("CONT", pid)),
        _ => worker.process = Worker::process(worker.address),
    }
}

fn table_of(arch: &str, size: &str) {
    let model = synth(arch, size);
    let path = model.to_str().unwrap();
    println!(
        "| {arch} {size} | stage | in prefill | streams | shortest pause | longest | of the prompt | computed again | bytes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut line = Line::start(path, "60");
    for (name, away) in AWAY {
        for stage in 0..3 {
            line.lose(&format!("{name}, comes back"), stage, |w| comes_back(w, name, away));
            line.server.wait_healthy(PATIENCE);
        }
    }
    line.end();
    for (name, _) in AWAY {
        // A line of its own: newcomers are doubted on a machine whose workers broke many.
        let mut line = Line::start(path, "1");
        for stage in 0..3 {
            let spare = Worker::start();
            line.cluster(&["add", &spare.address.to_string()]);
            let address = spare.address.to_string();
            line.workers.push(spare);
            until("the spare is there", || line.cluster(&["status"]).contains(&address));
            let lost = line.worker_of(stage);
            line.lose(&format!("{name}, a spare"), stage, |w| signal(name, w.process.pid()));
            // It ends here, so that it is not there for the next one.
            drop(line.workers.remove(lost));
        }
        line.end();
    }
    std::fs::remove_file(model).unwrap();
}

fn every_worker_is_lost_and_comes_back_or_is_replaced() {
    let size = std::env::var("BRIGADE_LOSSES_SIZE").unwrap_or_else(|_| "0.6b".to_owned());
    for (arch, tiny) in KINDS_OF_STATE {
        // Shapes with experts are needed by some.
        let size = if size == "tiny" || tiny.contains("moe") { tiny } else { &size };
        table_of(arch, size);
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone:
        every_worker_is_lost_and_comes_back_or_is_replaced ignored("takes half an hour: prints the table of lost workers");
];
