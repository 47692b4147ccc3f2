//! Benchmarks one stream that runs ahead of its draws, on emulated lines. Some lines have workers that are far away.
//! Others have stages that take as long as those of a larger model on machines of their own.
//!
//! ```text
//! cargo bench -p brigade-tests --bench ahead -- --model M --hop-ms 10 --speculate 0.6,0.9
//! cargo bench -p brigade-tests --bench ahead -- --stages 4 --costs one.json --speculate 0.9
//! ```
//!
//! `--hop-ms` is the latency of each hop: to the first worker, from each to the next, and from the last one back.
//! With `--costs` stages sleep. The file is what `brigade bench --json` printed of a whole model on one worker; each
//! stage takes an equal share of its time for so many rows. The real computing of a stage (the demo model, or
//! `--model`) is a part of that time. Without `--costs` stages compute, on one thread each, pinned to a core where
//! there are enough.
//!
//! Prints the rows of `brigade bench --speculate` on that line, and the same with one window at a time (`--sync`).
//! `--hold` measures nothing: it prints the options that make other commands use these workers, and waits for the end
//! of its input.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_engine::batch::{Boundary, PageId, SlotId, UBatch};
use brigade_engine::error::SnapshotError;
use brigade_engine::state::{BlockCopy, BlockSize, CopyOf, CopyRoom, StageCopy, Written};
use brigade_gguf::Gguf;
use brigade_line::measured::meter::UbatchSize;
use brigade_proto::control::StageSpec;
use brigade_proto::failure::Failure;
use brigade_tests::bench;
use brigade_tests::process::{brigade, use_binary_beside};
use brigade_tests::proxy::Proxy;
use brigade_worker::backend::{
    Abilities, BuildOrder, BuiltFacts, CopyFacts, FindPart, FindSource, Finished, KeptWeights,
    StageBackend, StageError, StageNeeds, StageRunner, StageShape,
};
use brigade_worker::config::{Config, RawConfig};
use brigade_worker::run::Bound;
use brigade_worker::stage::cpu_backend;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

struct Options {
    model: PathBuf,
    stages: usize,
    hop: Duration,
    costs: Option<PathBuf>,
    hold: bool,
    /// Handed on to `brigade bench`.
    more: Vec<String>,
}

fn main() -> ExitCode {
    bench::main("ahead", options, run)
}

fn options() -> Result<Options, String> {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../coordinator/assets/demo.gguf");
    let (model, hop, costs, hold) = (demo.into(), Duration::ZERO, None, false);
    let mut options = Options { model, stages: 2, hop, costs, hold, more: Vec::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--hold" => options.hold = true,
            "--model" => options.model = value()?.into(),
            "--costs" => options.costs = Some(value()?.into()),
            "--stages" => {
                options.stages = value()?.parse().map_err(|_| "--stages needs a number")?;
            }
            "--hop-ms" => {
                let ms: f64 = value()?.parse().map_err(|_| "--hop-ms needs a number")?;
                options.hop = Duration::try_from_secs_f64(ms / 1e3).map_err(|e| e.to_string())?;
            }
            "--speculate" | "--gen" | "--repeat" => options.more.extend([arg.clone(), value()?]),
            "--sync" | "--json" => options.more.push(arg),
            other => return Err(format!("{other} is not known: see the head of this program")),
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    use_binary_beside();
    let times = options.costs.as_ref().map(|file| Times::of(file, options.stages)).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let stop = CancellationToken::new();
    let addresses = (0..options.stages).map(|i| {
        let bound = runtime.block_on(worker(i, options.stages, times.clone()))?;
        let address = bound.address().to_string().parse().map_err(|_| "no address of an IP")?;
        runtime.spawn(bound.serve(stop.clone().cancelled_owned()));
        Ok(Proxy::far_from(address, options.hop).address.to_string())
    });
    let addresses = addresses.collect::<Result<Vec<String>, String>>()?;
    if options.hold {
        let named = addresses.iter().map(|address| format!("--worker {address}"));
        println!("{}", named.collect::<Vec<_>>().join(" "));
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).map_err(|e| e.to_string())?;
        stop.cancel();
        return Ok(());
    }
    let mut command = Command::new(brigade());
    command.arg("bench").arg("--model").arg(&options.model).args(&options.more);
    for address in &addresses {
        command.args(["--worker", address]);
    }
    let status = command.status().map_err(|error| error.to_string())?;
    stop.cancel();
    if status.success() { Ok(()) } else { Err(format!("brigade bench: {status}")) }
}

/// A worker of one thread in this process; with `times` its stages sleep.
async fn worker(i: usize, n: usize, times: Option<Times>) -> Result<Bound, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let raw = RawConfig {
        listen: "127.0.0.1:0".into(),
        threads: Some(1),
        cpus: (times.is_none() && n <= cores).then(|| i.to_string()),
        memory: Some("8G".into()),
        cache_dir: Some(std::env::temp_dir().join(format!("brigade-ahead-{i}"))),
        ..RawConfig::default()
    };
    let config = Config::validate(raw, &|_| None).map_err(|error| error.to_string())?;
    let engine = cpu_backend(&config).map_err(|error| error.to_string())?;
    let backend: Arc<dyn StageBackend> = match times {
        Some(times) => Arc::new(Asleep { engine, times }),
        None => engine,
    };
    Bound::new(config, backend).await.map_err(|error| error.to_string())
}

/// How long a stage takes for so many rows.
#[derive(Clone, Debug)]
struct Times(Arc<[(u32, Duration)]>);

impl Times {
    /// An equal share each of what a whole model took on one worker.
    fn of(file: &PathBuf, n_stages: usize) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Row {
            test: String,
            ubatches: Vec<UbatchSize>,
        }
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
        let rows: Vec<Row> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let decode = rows.iter().filter(|row| row.test == "decode");
        // Of each size the row that has most of them.
        let mut best: std::collections::BTreeMap<u32, &UbatchSize> = Default::default();
        for size in decode.flat_map(|row| &row.ubatches) {
            let held = best.entry(size.rows).or_insert(size);
            if held.count < size.count {
                *held = size;
            }
        }
        let of = |(rows, size): (u32, &UbatchSize)| {
            let us: f64 = size.compute_us.iter().sum();
            (rows, Duration::from_micros((us / n_stages as f64) as u64))
        };
        let times: Arc<[_]> = best.into_iter().map(of).collect();
        if times.is_empty() {
            return Err(format!("{} has no decode test", file.display()));
        }
        let told: Vec<String> = times.iter().map(|(n, t)| format!("{n}: {t:.1?}")).collect();
        println!("a stage takes, by rows: {}", told.join(", "));
        Ok(Self(times))
    }

    /// Between two sizes in proportion; beyond the largest as many times as long.
    fn of_rows(&self, rows: u32) -> Duration {
        let after = self.0.partition_point(|(n, _)| *n < rows);
        let (n, time) = self.0[after.min(self.0.len() - 1)];
        match (after.checked_sub(1).map(|before| self.0[before]), n) {
            (_, n) if n == rows => time,
            (None, _) => time,
            (Some((before, least)), n) if n > rows => {
                let share = f64::from(rows - before) / f64::from(n - before);
                least + time.saturating_sub(least).mul_f64(share)
            }
            (Some(_), n) => time.mul_f64(f64::from(rows) / f64::from(n)),
        }
    }
}

/// The engine, whose stages take longer than they need.
struct Asleep {
    engine: Arc<dyn StageBackend>,
    times: Times,
}

impl StageBackend for Asleep {
    fn abilities(&self) -> &Abilities {
        self.engine.abilities()
    }

    fn needs(&self, model: &Gguf, spec: &StageSpec) -> Result<StageNeeds, Failure> {
        self.engine.needs(model, spec)
    }

    fn build(
        &self,
        order: BuildOrder,
        kept: &mut KeptWeights,
    ) -> Result<(Box<dyn StageRunner>, BuiltFacts), Failure> {
        let (stage, facts) = self.engine.build(order, kept)?;
        let (times, begun, free) = (self.times.clone(), VecDeque::new(), Instant::now());
        Ok((Box::new(AsleepStage { stage, times, begun, free }), facts))
    }

    fn load_ahead(&self, order: BuildOrder, has: Range<usize>) -> Result<KeptWeights, Failure> {
        self.engine.load_ahead(order, has)
    }
}

struct AsleepStage {
    stage: Box<dyn StageRunner>,
    times: Times,
    /// When each ubatch in work was begun, and how long it takes.
    begun: VecDeque<(Instant, Duration)>,
    /// When the last one was done.
    free: Instant,
}

impl StageRunner for AsleepStage {
    fn shape(&self) -> StageShape {
        self.stage.shape()
    }

    // One after the other: a stage that computes does no more.
    fn may_begin(&self, _: &UBatch) -> bool {
        self.begun.is_empty()
    }

    fn begin(&mut self, ubatch: &UBatch, input: Option<Boundary>) -> Result<(), StageError> {
        let time = match ubatch.n_rows() {
            0 => Duration::ZERO,
            rows => self.times.of_rows(rows as u32),
        };
        self.begun.push_back((Instant::now(), time));
        self.stage.begin(ubatch, input)
    }

    fn is_done_within(&mut self, within: Duration) -> bool {
        self.stage.is_done_within(within)
    }

    fn finish(&mut self) -> Result<Finished, StageError> {
        let output = self.stage.finish();
        if let Some((begun, time)) = self.begun.pop_front() {
            let until = begun.max(self.free) + time;
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            self.free = Instant::now();
        }
        output
    }

    fn snapshot(&self, slot: u32) -> Result<Vec<u8>, SnapshotError> {
        self.stage.snapshot(slot)
    }

    fn restore(&mut self, slot: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.stage.restore(slot, bytes)
    }

    fn reset(&mut self) -> Result<(), StageError> {
        self.begun.clear();
        self.stage.reset()
    }

    fn into_kept(self: Box<Self>) -> KeptWeights {
        self.stage.into_kept()
    }

    fn copy_facts(&self) -> Option<CopyFacts> {
        self.stage.copy_facts()
    }

    fn places(&self, slot: u32) -> Option<(Vec<PageId>, u32)> {
        self.stage.places(slot)
    }

    fn copy_new(
        &self,
        slot: u32,
        len: u32,
        plane: Option<SlotId>,
        first_page: u32,
        to: CopyRoom<'_>,
    ) -> Result<StageCopy, SnapshotError> {
        self.stage.copy_new(slot, len, plane, first_page, to)
    }

    fn block_sizes(&self, len: u32) -> Vec<BlockSize> {
        self.stage.block_sizes(len)
    }

    fn copy_part(&self, slot: u32, len: u32, of: &CopyOf) -> Result<Vec<BlockCopy>, SnapshotError> {
        self.stage.copy_part(slot, len, of)
    }

    fn put_part(
        &mut self,
        slot: u32,
        len: u32,
        part: FindPart<'_, '_>,
    ) -> Result<Vec<(u32, u32, Written)>, SnapshotError> {
        self.stage.put_part(slot, len, part)
    }

    fn put_back(
        &mut self,
        slot: u32,
        len: u32,
        tokens: &[u32],
        source: FindSource<'_, '_>,
    ) -> Result<(), SnapshotError> {
        self.stage.put_back(slot, len, tokens, source)
    }
}
