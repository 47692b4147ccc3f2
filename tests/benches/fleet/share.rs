//! Two full lines on one node: what they give together beside one alone, and what an idle line costs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::Options;
use crate::fleet::{Fleet, Model, order, quantile};

/// Streams of each line.
const STREAMS: usize = 8;
const TOKENS: usize = 200;
/// More requests than there are in one phase.
const PHASE: usize = 100_000;

/// What lines gave in a while.
struct Given {
    tokens_per_second: f64,
    gap: Duration,
    /// Rows of a ubatch.
    rows: f64,
}

/// Full lines of these models for a while. Requests are numbered from `first`, so that no text was there before.
fn fill(fleet: &Fleet, models: &[&Model], first: usize, time: Duration) -> Given {
    let counts =
        || ["brigade_ubatch_rows_total", "brigade_ubatches_total"].map(|name| fleet.sum(name));
    let before = counts();
    let (stop, tokens) = (AtomicBool::new(false), AtomicUsize::new(0));
    let gaps: Mutex<Vec<Duration>> = Mutex::default();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (n, model) in (0..STREAMS).flat_map(|n| models.iter().map(move |model| (n, model))) {
            let (stop, tokens, gaps) = (&stop, &tokens, &gaps);
            scope.spawn(move || {
                let mut i = first + n;
                while !stop.load(Ordering::Relaxed) {
                    one(fleet, model, i, &|gap| {
                        tokens.fetch_add(1, Ordering::Relaxed);
                        gaps.lock().unwrap_or_else(PoisonError::into_inner).extend(gap);
                        !stop.load(Ordering::Relaxed)
                    });
                    i += STREAMS;
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    let seconds = begun.elapsed().as_secs_f64();
    let gaps = gaps.into_inner().unwrap_or_else(PoisonError::into_inner);
    let [rows, ubatches] = [0, 1].map(|i| counts()[i] - before[i]);
    let tokens_per_second = tokens.into_inner() as f64 / seconds;
    Given { tokens_per_second, gap: quantile(&gaps, 0.95), rows: rows / ubatches.max(1.0) }
}

/// One stream; `seen` is told the time since the event before, and says whether to go on.
fn one(fleet: &Fleet, model: &Model, i: usize, seen: &dyn Fn(Option<Duration>) -> bool) {
    use std::io::{BufRead, BufReader};
    let (path, mut body) = model.request(i, TOKENS);
    body["stream"] = json!(true);
    let agent: ureq::Agent = ureq::Agent::config_builder().build().into();
    let answer = agent.post(fleet.server().url(path)).send(body.to_string()).unwrap();
    let mut last = None;
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        if !line.unwrap().starts_with("data: {") {
            continue;
        }
        let now = Instant::now();
        if !seen(last.replace(now).map(|last| now - last)) {
            return;
        }
    }
}

/// Runs it: one alone, both, one alone with the other idle and then away.
pub fn run(options: &Options) -> Result<(), String> {
    let models = Model::twins(&options.size);
    let one_node = Options {
        nodes: 1,
        stages: 2,
        memory: options.memory.clone(),
        size: options.size.clone(),
        cgroup: None,
        ..*options
    };
    let fleet = Fleet::start(&one_node, &models, "load = \"demand\"\nctx = 512\nmax-seqs = 8");
    let time = Duration::from_secs(options.share);
    let away = |model: &Model| order(&fleet.cluster, &["cluster", "unload", model.name]);
    let here = |model: &Model| order(&fleet.cluster, &["cluster", "load", model.name]);
    println!(
        "| turn | one alone tokens/s | rows a ubatch | gap p95 ms | with the other idle | both | of one alone | rows a ubatch | gap p95 ms | times |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for turn in 1..=3 {
        if !here(&models[0]) {
            return Err("the first model is not loaded".to_owned());
        }
        away(&models[1]);
        let mut first = turn * 3 * PHASE;
        let mut fill = |models: &[&Model]| {
            first += PHASE;
            fill(&fleet, models, first, time)
        };
        let alone = fill(&[&models[0]]);
        if !here(&models[1]) {
            return Err("both models do not fit: give the node more --memory".to_owned());
        }
        let idle = fill(&[&models[0]]);
        let both = fill(&[&models[0], &models[1]]);
        println!(
            "| {turn} | {:.0} | {:.1} | {:.1} | {:.0} ({:.3}) | {:.0} | {:.3} | {:.1} | {:.1} | {:.2} |",
            alone.tokens_per_second,
            alone.rows,
            alone.gap.as_secs_f64() * 1e3,
            idle.tokens_per_second,
            idle.tokens_per_second / alone.tokens_per_second,
            both.tokens_per_second,
            both.tokens_per_second / alone.tokens_per_second,
            both.rows,
            both.gap.as_secs_f64() * 1e3,
            both.gap.as_secs_f64() / alone.gap.as_secs_f64()
        );
    }
    println!(
        "{} lines of the coordinator's log say that a worker is slow, is stuck, or that a line changes",
        fleet.changes()
    );
    Ok(())
}
