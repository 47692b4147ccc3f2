//! Simulated lines that are longer than any at hand: a model of given cost is cut into equal stages, under
//! the real scheduler and simulated links. [`table`] runs all cases, [`plot`] draws them, and [`measured`]
//! compares a real line with its simulation.

pub mod measured;
pub mod plot;
pub mod svg;

use brigade_sched::SchedConfig;
use brigade_sched::sim::{LinkModel, Outcome, Sim, StageModel, Workload};
use serde::Serialize;

/// Stages of the lines in the table.
pub const STAGES: [usize; 4] = [4, 8, 16, 64];

/// Links of the table: name, bytes a second.
pub const LINKS: [(&str, f64); 3] = [("1 GbE", 0.125e9), ("10 GbE", 1.25e9), ("100 GbE", 12.5e9)];

/// One-way latencies of the table, in milliseconds.
pub const LATENCIES_MS: [f64; 4] = [0.1, 1.0, 10.0, 50.0];

/// Prompt of the single-prompt test, of the many-prompts test, and before decoding.
const LONG_PROMPT: u32 = 8192;
const PROMPT: u32 = 1024;
const SHORT_PROMPT: u32 = 16;

/// Tokens that each stream draws.
const GENERATED: u32 = 64;

/// Sequences that may be at a stage at once.
const SLOTS: u32 = 1024;

/// The cost of a whole model on one machine of the line. Its stages take even shares of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ModelCost {
    /// Microseconds of a ubatch of any size: reading the weights once.
    pub fixed_us: f64,
    /// Microseconds more for each row.
    pub row_us: f64,
    /// Bytes of a row at a cut.
    pub row_bytes: f64,
    /// Relative variation of each computation, `0.0..1.0`.
    pub jitter: f64,
}

impl Default for ModelCost {
    /// 70 G weights in 40 GB, hidden rows of 8192 f32, on machines that read 200 GB/s and multiply
    /// 10 TOP/s.
    fn default() -> Self {
        Self { fixed_us: 200_000.0, row_us: 14_000.0, row_bytes: 32_768.0, jitter: 0.05 }
    }
}

/// The load of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// So many prompts at once.
    Prefill(usize),
    /// So many streams at once.
    Decode(usize),
}

/// All tests of the table.
pub const TESTS: [Test; 6] = [
    Test::Prefill(1),
    Test::Prefill(64),
    Test::Decode(8),
    Test::Decode(32),
    Test::Decode(128),
    Test::Decode(512),
];

/// A model's cost in either kind of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// The cost of prompt rows.
    pub prefill: ModelCost,
    /// The cost of single rows.
    pub decode: ModelCost,
}

impl Costs {
    /// A line of text about the costs.
    pub fn describe(&self) -> String {
        let one = |cost: &ModelCost| {
            let ms = |us: f64| {
                let digits = format!("{:.4}", us * 1e-3);
                digits.trim_end_matches('0').trim_end_matches('.').to_owned()
            };
            let (fixed, row) = (ms(cost.fixed_us), ms(cost.row_us));
            format!("{fixed} ms a ubatch and {row} ms more a row, ±{:.0} %", cost.jitter * 100.0)
        };
        let kib = self.prefill.row_bytes / 1024.0;
        let times = if self.prefill == self.decode {
            one(&self.decode)
        } else {
            format!("{} in prefill, {} in decode", one(&self.prefill), one(&self.decode))
        };
        format!("The whole model takes {times}; a row has {kib:.1} KiB.")
    }

    fn of(&self, test: Test) -> &ModelCost {
        match test {
            Test::Prefill(_) => &self.prefill,
            Test::Decode(_) => &self.decode,
        }
    }
}

impl Test {
    /// The test's name, for people.
    pub fn name(self) -> String {
        match self {
            Self::Prefill(1) => format!("prefill, one prompt of {LONG_PROMPT}"),
            Self::Prefill(n) => format!("prefill, {n} prompts of {PROMPT}"),
            Self::Decode(n) => format!("decode, {n} streams"),
        }
    }

    fn workload(self) -> Workload {
        match self {
            Self::Prefill(1) => Workload::at_once(1, LONG_PROMPT, 1),
            Self::Prefill(n) => Workload::at_once(n, PROMPT, 1),
            Self::Decode(n) => Workload::at_once(n, SHORT_PROMPT, GENERATED),
        }
    }
}

/// One line and one test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The number of equal stages.
    pub stages: usize,
    /// Name of the link.
    pub link: &'static str,
    /// Bandwidth of a link, in bytes per second.
    pub bytes_per_second: f64,
    /// Latency in one direction, in milliseconds.
    pub latency_ms: f64,
    /// The load of the line.
    pub test: Test,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The number of equal stages.
    pub stages: usize,
    /// Name of the links.
    pub link: &'static str,
    /// Latency in one direction, in milliseconds.
    pub latency_ms: f64,
    /// Name of the test.
    pub test: String,
    /// Prompt tokens of the whole run, or generated ones of the steady part.
    pub tokens_per_second: f64,
    /// Least and mean share of the steady part that a stage computed.
    pub busy_min: f64,
    /// The mean of the stages' busy shares; see `busy_min`.
    pub busy_mean: f64,
    /// Median time between two tokens of a stream, milliseconds; decode only.
    pub gap_p50_ms: Option<f64>,
    /// See `gap_p50_ms`: one gap in a hundred is longer.
    pub gap_p99_ms: Option<f64>,
    /// Rows of a ubatch, on average.
    pub rows_per_ubatch: f64,
    /// Most ubatches under way at a time.
    pub in_flight: usize,
}

impl Case {
    /// Simulates the case.
    ///
    /// # Errors
    /// The scheduler broke a promise.
    pub fn run(&self, costs: &Costs) -> Result<Row, String> {
        let cost = costs.of(self.test);
        let share = 1.0 / self.stages as f64;
        let stage = StageModel {
            fixed_us: cost.fixed_us * share,
            per_row_us: cost.row_us * share,
            jitter: cost.jitter,
        };
        let latency_us = self.latency_ms * 1e3;
        let hop =
            LinkModel { latency_us, per_row_us: cost.row_bytes / self.bytes_per_second * 1e6 };
        // Token ids on the way in, and on the way back, take no bandwidth to speak of.
        let ids = LinkModel { latency_us, per_row_us: 0.0 };
        let mut sim = line(vec![stage; self.stages], hop);
        (sim.links[0], sim.links[self.stages]) = (ids, ids);
        let out = sim.run(&self.test.workload())?;
        Ok(self.row(&out))
    }

    fn row(&self, out: &Outcome) -> Row {
        let (window, tokens_per_second) = match self.test {
            Test::Prefill(_) => {
                let prompts: u64 = out.clients.iter().map(|c| u64::from(c.n_prompt)).sum();
                (out.steady(), prompts as f64 * 1e6 / out.end as f64)
            }
            Test::Decode(_) => {
                let (from, to) = out.steady_decode();
                let rate = out.tokens_within(from, to) as f64 * 1e6 / (to - from) as f64;
                ((from, to), rate)
            }
        };
        let busy = out.busy(window.0, window.1);
        let gap = |share| out.gap_ms(share, window.0, window.1);
        Row {
            stages: self.stages,
            link: self.link,
            latency_ms: self.latency_ms,
            test: self.test.name(),
            tokens_per_second,
            busy_min: busy.iter().copied().fold(1.0, f64::min),
            busy_mean: busy.iter().sum::<f64>() / busy.len() as f64,
            gap_p50_ms: gap(0.5),
            gap_p99_ms: gap(0.99),
            rows_per_ubatch: out.n_rows as f64 / out.n_ubatches as f64,
            in_flight: out.most_in_flight,
        }
    }
}

/// A line of these stages with room for every test, joined by equal links.
pub fn line(stages: Vec<StageModel>, link: LinkModel) -> Sim {
    let mut sim = Sim::equal(stages.len(), stages[0]);
    sim.links = vec![link; stages.len() + 1];
    sim.stages = stages;
    sim.spec.n_slots = SLOTS;
    sim.spec.n_blocks = SLOTS * (PROMPT + GENERATED).div_ceil(sim.spec.block_positions);
    sim.audit = false;
    sim.sched = SchedConfig { max_waiting: usize::MAX, ..SchedConfig::default() };
    sim
}

/// Every case of the table, in its order.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for test in TESTS {
        for (link, bytes_per_second) in LINKS {
            for latency_ms in LATENCIES_MS {
                for stages in STAGES {
                    cases.push(Case { stages, link, bytes_per_second, latency_ms, test });
                }
            }
        }
    }
    cases
}

/// Simulates all cases, on all cores.
///
/// # Errors
/// The scheduler broke a promise in one of them.
pub fn table(costs: &Costs, cases: &[Case]) -> Result<Vec<Row>, String> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let worker = || {
        let mut rows = Vec::new();
        loop {
            let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(case) = cases.get(i) else { return Ok(rows) };
            rows.push((i, case.run(costs).map_err(|what| format!("{case:?}: {what}"))?));
        }
    };
    let mut rows = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(worker)).collect();
        let done = threads.into_iter().map(|t| t.join().expect("a simulation does not panic"));
        done.collect::<Result<Vec<_>, String>>()
    })?
    .concat();
    rows.sort_by_key(|(i, _)| *i);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// The rows as Markdown, one table a test.
pub fn markdown(rows: &[Row], costs: &Costs) -> String {
    let mut text = format!("# Simulated lines of equal stages\n\n{}\n", costs.describe());
    for rows in rows.chunk_by(|a, b| a.test == b.test) {
        text += &format!("\n## {}\n\n", rows[0].test);
        text += "| link | latency ms | stages | tokens/s | busy min | busy mean | gap p50 ms | gap p99 ms \
                 | rows a ubatch | in flight |\n|---|---|---|---|---|---|---|---|---|---|\n";
        for r in rows {
            let gap = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.1}"));
            text += &format!(
                "| {} | {} | {} | {:.1} | {:.3} | {:.3} | {} | {} | {:.1} | {} |\n",
                r.link,
                r.latency_ms,
                r.stages,
                r.tokens_per_second,
                r.busy_min,
                r.busy_mean,
                gap(r.gap_p50_ms),
                gap(r.gap_p99_ms),
                r.rows_per_ubatch,
                r.in_flight,
            );
        }
    }
    text
}
