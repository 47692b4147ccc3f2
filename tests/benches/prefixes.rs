//! Measures how much of agents' prompts is reused, over HTTP. It compares that with a cache without end, and with the
//! best possible cache of the same size.
//!
//! ```text
//! cargo bench -p brigade-tests --bench prefixes                         llama and hybrids, memory alone
//! cargo bench -p brigade-tests --bench prefixes -- --disk 1G            and with records on the disk, a restart, another cut
//! cargo bench -p brigade-tests --bench prefixes -- --peer llama-server  and another program with the same memory
//! cargo bench -p brigade-tests --bench prefixes -- --rules              rules compared on a simulated line
//! ```
//!
//! The trace is drawn from `--seeds`, see `brigade_tests::agents::trace`. Rules are tuned on seeds 1 to 3, and
//! figures come from others. `--memory 4,2` are the parts of the trace's distinct tokens that a line holds as pages,
//! running sequences included. There are as many pages as all sequences that may run need, so `--max-seqs` and
//! `--ctx` set that. For models that need kept states, one state is kept for each 512 of these tokens
//! (`--per-state`). `--models` are architectures and sizes of `brigade synth`; their text is random, and reuse does
//! not depend on it.
//!
//! Prompts are tokens, so they have no marks where instructions end: the value of a chat's borders is only measured
//! with `--rules`. Owners are told apart by `cache_salt`.
//!
//! With `--disk` all processes are killed in the middle of the trace and started again, and at three quarters again
//! with the layers cut otherwise. `--peer` is a program like llama-server, or the URL of one that runs. It gets the
//! same bytes for kept states, in two ways: with one slot and the rest as its cache in RAM, and with as many slots
//! and cells as fit. Its checkpoints of recurrent states are not counted in that.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use brigade_spec::Prefixes;
use brigade_tests::agents::bounds::Bounds;
use brigade_tests::agents::place::{Budget, Ours, Peer, Seen, bytes_kept};
use brigade_tests::agents::replay::{Dialect, Replayed, replay, share_ms};
use brigade_tests::agents::rules::{RULES, Room, Simulated, simulate};
use brigade_tests::agents::trace::Trace;
use brigade_tests::bench;
use brigade_tests::process::{synth, use_binary_beside};

/// Tokens of a page.
const PAGE: u64 = 64;

/// How the layers of the smallest models are cut, at first and in the end.
const CUTS: [&str; 2] = ["2", "1,3"];

struct Options {
    seeds: Vec<u64>,
    models: Vec<String>,
    memory: Vec<u64>,
    requests: usize,
    context: u32,
    per_state: u64,
    disk: Option<String>,
    peer: Option<String>,
    rules: bool,
    trace: Option<PathBuf>,
}

fn main() -> ExitCode {
    bench::main("prefixes", options, run)
}

fn options() -> Result<Options, String> {
    let models = ["llama:tiny", "gemma3:tiny-tied", "granitehybrid:tiny", "qwen3next:tiny-moe"];
    let mut options = Options {
        seeds: vec![101, 102],
        models: models.map(str::to_owned).into(),
        memory: vec![4, 2],
        requests: 300,
        context: 8_192,
        per_state: 512,
        disk: None,
        peer: None,
        rules: false,
        trace: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--rules" => options.rules = true,
            "--seeds" => options.seeds = numbers(&arg, &value()?)?,
            "--memory" => options.memory = numbers(&arg, &value()?)?,
            "--models" => options.models = value()?.split(',').map(str::to_owned).collect(),
            "--requests" => options.requests = number(&arg, &value()?)?,
            "--context" => options.context = number(&arg, &value()?)?,
            "--per-state" => options.per_state = number(&arg, &value()?)?,
            "--disk" => options.disk = Some(value()?),
            "--peer" => options.peer = Some(value()?),
            "--trace" => options.trace = Some(value()?.into()),
            other => return Err(format!("{other} is not known: see the head of this program")),
        }
    }
    Ok(options)
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name}: {text} is no number that can be"))
}

fn numbers(name: &str, text: &str) -> Result<Vec<u64>, String> {
    text.split(',').map(|text| number(name, text)).collect()
}

fn run(options: &Options) -> Result<(), String> {
    if options.rules {
        return rules(options);
    }
    use_binary_beside();
    println!(
        "| model | seed | memory, states | program | prompt tokens | hit rate | ceiling | of the ceiling | best with that \
         memory | rows read | first token p50, p95 ms | worker's own memory MB, planned | disk MB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for model in &options.models {
        let (arch, size) = model.split_once(':').ok_or(format!("{model} is no ARCH:SIZE"))?;
        let file = Removed(synth(arch, size));
        for seed in &options.seeds {
            let trace = Trace::draw(*seed, options.requests, options.context);
            if let Some(path) = &options.trace {
                let text = serde_json::to_string(&trace).map_err(|error| error.to_string())?;
                std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            for one_in in &options.memory {
                let replays = Replays { options, model, file: &file.0, trace: &trace };
                replays.all(*one_in)?;
            }
        }
    }
    Ok(())
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // No other test uses it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The same trace on one model.
struct Replays<'a> {
    options: &'a Options,
    model: &'a str,
    file: &'a Path,
    trace: &'a Trace,
}

impl Replays<'_> {
    fn all(&self, one_in: u64) -> Result<(), String> {
        let distinct = roomy(self.trace)?.distinct();
        let positions = distinct / one_in / PAGE * PAGE;
        let budget = Budget { positions, places: positions / self.options.per_state };
        self.ours(one_in, budget, None)?;
        if let Some(disk) = &self.options.disk {
            self.ours(one_in, budget, Some(disk))?;
        }
        if self.options.peer.is_some() {
            self.peers(one_in, budget)?;
        }
        Ok(())
    }

    fn ours(&self, one_in: u64, budget: Budget, disk: Option<&str>) -> Result<(), String> {
        let mut ours = Ours::new(self.file, budget, self.trace.context, disk)?;
        ours.start(CUTS[0])?;
        let n = self.trace.asks.len();
        let replayed = replay(self.trace, Dialect::Brigade, |at| {
            ours.look();
            match disk {
                Some(_) if at == n / 2 => ours.start(CUTS[0])?,
                Some(_) if at == n * 3 / 4 => ours.start(CUTS[1])?,
                _ => {}
            }
            ours.url()
        })?;
        ours.end();
        let name = if disk.is_some() { "brigade, disk, restart, other cut" } else { "brigade" };
        self.row(name, one_in, budget, &replayed, ours.seen);
        Ok(())
    }

    fn peers(&self, one_in: u64, budget: Budget) -> Result<(), String> {
        let Some(named) = &self.options.peer else { return Ok(()) };
        let context = u64::from(self.trace.context);
        let (bytes, a_position) = bytes_kept(self.file, budget)?;
        let cache = bytes.saturating_sub(context * a_position) >> 20;
        let slots = budget.positions / context;
        let ways = [
            ("1 slot, cache in RAM", [1, context, cache]),
            ("slots alone", [slots, budget.positions, 0]),
        ];
        for (name, [slots, cells, cache]) in ways {
            let numbers = [("-np", slots), ("-c", cells), ("--cache-ram", cache)];
            let args = numbers.iter().flat_map(|(name, n)| [(*name).into(), n.to_string()]);
            let args: Vec<String> = args.chain(["--kv-unified".into()]).collect();
            let mut peer = Peer::start(named, self.file, &args)?;
            let url = peer.url();
            let replayed = replay(self.trace, Dialect::Llama, |_| {
                peer.look();
                Ok(url.clone())
            })?;
            let seen = Seen { worker: (peer.peak, 0), ..Seen::default() };
            self.row(&format!("peer, {name}"), one_in, budget, &replayed, seen);
        }
        Ok(())
    }

    fn row(&self, name: &str, one_in: u64, budget: Budget, replayed: &Replayed, seen: Seen) {
        let bounds = Bounds::new(&replayed.said);
        let sum = |all: Vec<u64>| all.iter().sum::<u64>() as f64;
        let (prompts, ceiling) = (bounds.prompts() as f64, sum(bounds.without_end()));
        let cached: u64 = replayed.cached.iter().map(|n| u64::from(*n)).sum();
        let drawn: u64 = self.trace.asks.iter().map(|ask| u64::from(ask.answer) - 1).sum();
        // Rows that the line has computed, if the server reports them.
        let read = match seen.rows {
            0 => bounds.prompts() - cached,
            rows => rows - drawn,
        };
        let mb = |bytes: u64| bytes as f64 / 1e6;
        println!(
            "| {} | {} | 1/{one_in}: {}, {} | {name} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {read} | {:.1}, {:.1} | {:.0}, {:.0} | {:.1} |",
            self.model,
            self.trace.seed,
            budget.positions,
            budget.places,
            bounds.prompts(),
            cached as f64 / prompts,
            ceiling / prompts,
            cached as f64 / ceiling,
            sum(bounds.clairvoyant(budget.positions)) / ceiling,
            share_ms(&replayed.first, 0.5),
            share_ms(&replayed.first, 0.95),
            mb(seen.worker.0),
            mb(seen.worker.1),
            mb(seen.disk),
        );
    }
}

/// The bounds of a trace, from a simulated line where nothing is short.
fn roomy(trace: &Trace) -> Result<Bounds, String> {
    let room = Room { pages: None, places: None };
    Ok(Bounds::new(&simulate(trace, Prefixes::All, room, RULES[0].1)?.said))
}

/// The rules at several sizes, and what was lost for which reason: what is spared with pages without end, with places without
/// end, and with both.
fn rules(options: &Options) -> Result<(), String> {
    println!(
        "| states | seed | memory: pages, places | rules | of the ceiling | best with that memory | pages without end | places \
         without end | both |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for seed in &options.seeds {
        let trace = Trace::draw(*seed, options.requests, options.context);
        let bounds = roomy(&trace)?;
        let ceiling = bounds.without_end().iter().sum::<u64>() as f64;
        let share = |simulated: &Simulated| {
            simulated.reused.iter().map(|n| u64::from(*n)).sum::<u64>() as f64 / ceiling
        };
        for (name, prefixes) in [("any position", Prefixes::All), ("ends", Prefixes::Whole)] {
            for one_in in &options.memory {
                let pages = (bounds.distinct() / one_in / PAGE) as u32;
                let places = (u64::from(pages) * PAGE / options.per_state) as u32;
                let best = bounds.clairvoyant(u64::from(pages) * PAGE).iter().sum::<u64>() as f64;
                for (rule, rules) in RULES {
                    let of = |pages, places| {
                        simulate(&trace, prefixes, Room { pages, places }, rules).map(|s| share(&s))
                    };
                    let (pages, places) = (Some(pages), Some(places));
                    println!(
                        "| {name} | {seed} | 1/{one_in}: {}, {} | {rule} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} |",
                        pages.unwrap_or(0),
                        places.unwrap_or(0),
                        of(pages, places)?,
                        best / ceiling,
                        of(None, places)?,
                        of(pages, None)?,
                        of(None, None)?,
                    );
                }
            }
        }
    }
    Ok(())
}
