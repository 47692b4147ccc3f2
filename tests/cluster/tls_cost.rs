//! The cost of TLS between processes: the same line with it and without, in turns, so that a busy machine is busy for
//! both. The wall time is that of a client on a quiet machine. The processors' time is valid on a busy machine too.
//! Measured at night:
//!
//!     cargo test --release --test cluster -- --ignored tls_cost::

use std::path::PathBuf;
use std::time::Instant;

use brigade_tests::process::{Running, post, synth};
use brigade_tests::secure::{Cluster, READY};
use brigade_tests::up_share::wait_up;
use serde_json::json;

/// Pairs of measurements, each of one kind after the other.
const PAIRS: usize = 9;
/// Prompts at once, and their tokens.
const PROMPTS: usize = 8;
const PROMPT_TOKENS: usize = 256;
/// Streams at once, and tokens that each generates.
const STREAMS: usize = 32;
const GENERATED: usize = 32;

/// Unit of `/proc/PID/stat`: USER_HZ, which is 100 on every Linux.
const TICKS_A_SECOND: f64 = 100.0;

/// A line of two workers that have no model file: with TLS or without.
struct Line {
    server: Running,
    workers: Vec<Running>,
    log: PathBuf,
    _cluster: Cluster,
}

impl Line {
    fn new(model: &str, is_tls: bool) -> Self {
        let cluster = Cluster::new();
        let log = cluster.dir.join("log");
        let common =
            ["--control", &cluster.control, "--expect", "2", "-m", model, "--max-seqs", "32"];
        let ctx = ["--ctx", "640", "--keep", "0", "--cuts", "4"];
        let data = cluster.data("desk");
        let mut args: Vec<&str> = vec!["serve", "--listen", "127.0.0.1:0"];
        args.extend(common.iter().chain(&ctx));
        if is_tls {
            args.extend(["--data-dir", &data]);
        }
        let server = Running::start_logged(&args, "brigade serve listening on ", &log);
        let token = is_tls.then(|| cluster.token(&["--uses", "2"]));
        let worker = |name: &str| {
            let cache = cluster.data(&format!("{name}-cache"));
            let more = ["--no-model-files", "--cache-dir", &cache];
            let args = match &token {
                Some(token) => cluster.worker_args(name, Some(token), &more),
                None => [
                    "worker",
                    "--listen",
                    "127.0.0.1:0",
                    "--threads",
                    "1",
                    "--join",
                    &cluster.control,
                ]
                .iter()
                .chain(&more)
                .map(|word| (*word).to_owned())
                .collect(),
            };
            Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), READY)
        };
        let workers = vec![worker("lab"), worker("attic")];
        wait_up(&server);
        Self { server, workers, log, _cluster: cluster }
    }

    /// Seconds of processors that its processes have had.
    fn processor_seconds(&self) -> f64 {
        let all = self.workers.iter().chain([&self.server]);
        all.map(|process| ticks(process.pid())).sum::<u64>() as f64 / TICKS_A_SECOND
    }

    /// Seconds until all of `n` requests are answered: by the clock, and of processors.
    fn seconds(&self, n: usize, prompt: usize, generate: usize) -> [f64; 2] {
        let (begin, before) = (Instant::now(), self.processor_seconds());
        std::thread::scope(|scope| {
            for i in 0..n {
                let url = format!("{}/v1/completions", self.server.ready);
                scope.spawn(move || {
                    // Prompts as ids, each another one: nothing is taken from a kept sequence.
                    let ids: Vec<usize> = (0..prompt).map(|at| 100 + (at * 7 + i * 13) % 400).collect();
                    let body = json!({"prompt": ids, "max_tokens": generate, "temperature": 0, "ignore_eos": true});
                    let reply = post(&url, &body.to_string()).unwrap();
                    assert_eq!(reply.status, 200, "{}", reply.body);
                });
            }
        });
        [begin.elapsed().as_secs_f64(), self.processor_seconds() - before]
    }

    /// Bytes a second at which weights were pushed, as the coordinator's log has it.
    fn push_speed(&self) -> f64 {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let at = |line: &str| {
            let time = line.split_whitespace().next().unwrap();
            let clock = time.split('T').nth(1).unwrap().trim_end_matches('Z');
            let parts: Vec<f64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
            parts[0] * 3600.0 + parts[1] * 60.0 + parts[2]
        };
        let plain = log.lines().map(strip_colours);
        let (mut begin, mut end, mut bytes) = (f64::MAX, 0.0_f64, 0.0);
        for line in plain {
            if line.contains("building a line") && begin == f64::MAX {
                begin = at(&line);
            }
            if let Some((_, rest)) = line.split_once("pushed_bytes=") {
                end = end.max(at(&line));
                bytes += rest.split_whitespace().next().unwrap().parse::<f64>().unwrap();
            }
        }
        bytes / (end - begin)
    }
}

/// Clock ticks of a process, user and system.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn strip_colours(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        text.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    text + rest
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn the_same_line_with_and_without() {
    let model = synth("llama", "0.1b");
    let path = model.to_str().unwrap();
    let mut push = [Vec::new(), Vec::new()];
    for is_tls in [false, true, true, false, false, true] {
        push[usize::from(is_tls)].push(Line::new(path, is_tls).push_speed());
    }
    let lines = [Line::new(path, false), Line::new(path, true)];
    // By operation, by wall clock or processor time, and by kind of connection.
    let mut seconds: [[[Vec<f64>; 2]; 2]; 2] = Default::default();
    for pair in 0..=PAIRS {
        for turn in 0..2 {
            // The order changes from pair to pair.
            let kind = (pair + turn) % 2;
            let taken = [
                lines[kind].seconds(PROMPTS, PROMPT_TOKENS, 1),
                lines[kind].seconds(STREAMS, 4, GENERATED),
            ];
            // The first pair warms up.
            for (what, measures) in taken.iter().enumerate().filter(|_| pair > 0) {
                measures.iter().enumerate().for_each(|(by, s)| seconds[what][by][kind].push(*s));
            }
        }
    }
    std::fs::remove_file(&model).unwrap();
    println!("| | without TLS | with TLS | with / without, median of pairs |\n|---|---|---|---|");
    let names = [format!("prefill of {PROMPTS} prompts"), format!("decode of {STREAMS} streams")];
    for (name, by) in names.iter().zip(&seconds) {
        for (unit, [plain, tls]) in ["s", "s of processors"].iter().zip(by) {
            let ratio = median(plain.iter().zip(tls).map(|(plain, tls)| tls / plain).collect());
            let (plain, tls) = (median(plain.clone()), median(tls.clone()));
            println!("| {name}, {unit} | {plain:.3} | {tls:.3} | {ratio:.3} |");
        }
    }
    let [plain, tls] = push.map(|speeds| median(speeds) / 1e6);
    println!("| push of weights, MB/s | {plain:.0} | {tls:.0} | {:.3} |", tls / plain);
}

/// Checks the measurement itself: colours of log lines are removed, and the median is a median.
fn what_the_measurement_reads() {
    assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    assert_eq!(strip_colours("\u{1b}[2ma\u{1b}[0m b"), "a b");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: what_the_measurement_reads;
    alone: the_same_line_with_and_without ignored("a measurement: it wants a quiet machine");
];
