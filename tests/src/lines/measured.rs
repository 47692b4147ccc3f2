//! A real line, as `bench --json` measured it: it gives the costs for a simulation, and the figures to
//! compare it with.

use brigade_line::measured::meter::UbatchSize;
use brigade_sched::sim::{LinkModel, SimRequest, StageModel, Workload};
use serde::{Deserialize, Serialize};

use super::{Costs, ModelCost, line};

/// A uniform variation of `±j` deviates by `j / 2` on average.
const JITTER_OF_DEVIATION: f64 = 2.0;

/// More than this is another program's doing.
const MOST_JITTER: f64 = 0.9;

/// Tests that can be simulated by themselves; `mixed` is both at once.
const TESTS: [&str; 2] = ["prefill", "decode"];

/// Virtual time between the simulated warm-up and the measurement.
const PAUSE_US: u64 = 1_000_000;

/// The fields of a row of `bench --json` that are used here.
#[derive(Clone, Debug, Deserialize)]
pub struct BenchRow {
    /// Name of the model.
    pub model: String,
    /// The number of stages.
    pub workers: usize,
    /// Requests that run at once.
    pub parallel: u32,
    /// Name of the test: `prefill` or `decode`.
    pub test: String,
    /// Prompt tokens, or generated ones, of all requests.
    pub tokens: u64,
    /// The measured speed.
    pub tokens_per_second: f64,
    /// The busy share of each stage.
    pub stage_busy: Vec<f64>,
    /// Bytes per token, over all hops.
    pub wire_bytes_per_token: f64,
    /// `--ubatch`, if it was given.
    pub ubatch: Option<u32>,
    /// Measured times of the stages for ubatches of each size.
    pub ubatches: Vec<UbatchSize>,
    /// Microseconds of a hop.
    pub hop_us: f64,
}

/// A measured row beside its simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Name of the test: `prefill` or `decode`.
    pub test: String,
    /// Requests that run at once.
    pub parallel: u32,
    /// Measured tokens per second.
    pub measured: f64,
    /// Simulated tokens per second.
    pub simulated: f64,
    /// Busy share of each stage.
    pub measured_busy: Vec<f64>,
    /// Busy share of each stage.
    pub simulated_busy: Vec<f64>,
}

impl Compared {
    /// The simulated speed over the measured one.
    pub fn ratio(&self) -> f64 {
        self.simulated / self.measured
    }
}

/// Rows from the text of a file that `bench --json` wrote.
///
/// # Errors
/// The text is of no such file, or of one of an older release.
pub fn read(text: &str) -> Result<Vec<BenchRow>, String> {
    let mut rows: Vec<BenchRow> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    rows.retain(|row| TESTS.contains(&row.test.as_str()));
    if rows.is_empty() { Err("no rows of prefill or decode".to_owned()) } else { Ok(rows) }
}

/// A point of measurement: rows, microseconds, how many ubatches.
type Point = (f64, f64, f64);

/// `fixed + per_row * rows` through points of `(rows, us, weight)`, by least squares of the relative
/// error, neither below 0. Points of one size alone are split evenly.
fn fit(points: &[Point]) -> (f64, f64) {
    let (mut a11, mut a12, mut a22, mut r1, mut r2) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(rows, us, weight) in points.iter().filter(|p| p.1 > 0.0) {
        let (one, x) = (1.0 / us, rows / us);
        a11 += weight * one * one;
        a12 += weight * one * x;
        a22 += weight * x * x;
        r1 += weight * one;
        r2 += weight * x;
    }
    if a11 == 0.0 {
        return (0.0, 0.0);
    }
    let det = a11 * a22 - a12 * a12;
    if det <= 1e-9 * a11 * a22 {
        return (r1 / a11 / 2.0, r2 / a22 / 2.0);
    }
    match ((r1 * a22 - r2 * a12) / det, (a11 * r2 - a12 * r1) / det) {
        (fixed, _) if fixed < 0.0 => (0.0, r2 / a22),
        (_, per_row) if per_row < 0.0 => (r1 / a11, 0.0),
        both => both,
    }
}

/// The times of stage `stage` in this row, for computing and sending.
fn points(row: &BenchRow, stage: usize) -> Vec<Point> {
    let of = |size: &UbatchSize| {
        let us = size.compute_us.get(stage)? + size.send_us.get(stage)?;
        Some((f64::from(size.rows), us, size.count as f64))
    };
    row.ubatches.iter().filter_map(of).collect()
}

/// Mean relative deviation of computations of equal size, over the row's ubatches.
fn jitter(row: &BenchRow) -> f64 {
    let n: usize = row.ubatches.iter().map(|size| size.count).sum();
    let sum: f64 = row.ubatches.iter().map(|s| s.deviation * s.count as f64).sum();
    (JITTER_OF_DEVIATION * sum / n.max(1) as f64).min(MOST_JITTER)
}

/// The stages of this row: lines through the measurements of all rows of the same test, each scaled so that the row's
/// own ubatches take their measured times.
fn stages(rows: &[BenchRow], row: &BenchRow) -> Vec<StageModel> {
    let alike = |other: &&BenchRow| other.test == row.test && other.workers == row.workers;
    let stage = |stage: usize| {
        let all: Vec<Point> =
            rows.iter().filter(alike).flat_map(|other| points(other, stage)).collect();
        let (fixed_us, per_row_us) = fit(&all);
        let own = points(row, stage);
        let took: f64 = own.iter().map(|(_, us, n)| us * n).sum();
        let fitted: f64 = own.iter().map(|(x, _, n)| (fixed_us + per_row_us * x) * n).sum();
        let scale = if fitted > 0.0 { took / fitted } else { 1.0 };
        StageModel {
            fixed_us: fixed_us * scale,
            per_row_us: per_row_us * scale,
            jitter: jitter(row),
        }
    };
    (0..row.workers).map(stage).collect()
}

/// Simulates what each row measured.
///
/// # Errors
/// A row has no measured ubatches, or the scheduler broke a promise.
pub fn compare(rows: &[BenchRow]) -> Result<Vec<Compared>, String> {
    rows.iter().map(|row| compare_row(rows, row)).collect()
}

fn compare_row(rows: &[BenchRow], row: &BenchRow) -> Result<Compared, String> {
    if row.ubatches.is_empty() {
        return Err(format!("{} of {}: no ubatches were measured", row.test, row.parallel));
    }
    let link = LinkModel { latency_us: row.hop_us, per_row_us: 0.0 };
    let mut sim = line(stages(rows, row), link);
    sim.sched.prefill_rows = row.ubatch;
    let each = (row.tokens / u64::from(row.parallel)) as u32;
    let (prompt, max_tokens) = if row.test == "prefill" { (each, 1) } else { (1, each) };
    sim.spec.n_blocks = row.parallel * (prompt + max_tokens).div_ceil(sim.spec.block_positions);
    let once = Workload::at_once(row.parallel as usize, prompt, max_tokens);
    // As the benchmark does: the scheduler has seen such work before it is measured.
    let begin = sim.run(&once)?.end + PAUSE_US;
    let again = once.requests.iter().map(|r| SimRequest { at: begin, ..r.clone() });
    let requests = once.requests.iter().cloned().chain(again).collect();
    let out = sim.run(&Workload { requests, stop_every: 0 })?;
    Ok(Compared {
        test: row.test.clone(),
        parallel: row.parallel,
        measured: row.tokens_per_second,
        simulated: row.tokens as f64 * 1e6 / (out.end - begin) as f64,
        measured_busy: row.stage_busy.clone(),
        simulated_busy: out.busy(begin, out.end),
    })
}

/// The whole model's cost in prefill and in decode, from what a line of any length measured.
///
/// # Errors
/// One of the two was not measured.
pub fn model_costs(rows: &[BenchRow]) -> Result<Costs, String> {
    let of = |test: &str| {
        let ours: Vec<&BenchRow> = rows.iter().filter(|row| row.test == test).collect();
        let n_stages = ours.iter().map(|row| row.workers).max().ok_or(format!("no {test} rows"))?;
        let whole = |row: &&BenchRow| {
            let all = (0..row.workers).map(|stage| points(row, stage));
            all.reduce(|mut sum, more| {
                sum.iter_mut().zip(more).for_each(|(sum, more)| sum.1 += more.1);
                sum
            })
            .unwrap_or_default()
        };
        let (fixed_us, row_us) = fit(&ours.iter().flat_map(whole).collect::<Vec<_>>());
        let bytes = ours.iter().map(|row| row.wire_bytes_per_token).fold(0.0, f64::max);
        let row_bytes = bytes / n_stages.saturating_sub(1).max(1) as f64;
        let jitter = ours.iter().map(|row| jitter(row)).fold(0.0, f64::max);
        Ok::<_, String>(ModelCost { fixed_us, row_us, row_bytes, jitter })
    };
    Ok(Costs { prefill: of("prefill")?, decode: of("decode")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_fitted_and_never_falls() {
        let exact: Vec<Point> = [1.0, 8.0, 64.0].map(|x| (x, 100.0 + 7.0 * x, 3.0)).to_vec();
        let (fixed, per_row) = fit(&exact);
        assert!((fixed - 100.0).abs() < 1e-6 && (per_row - 7.0).abs() < 1e-6, "{fixed} {per_row}");
        let (fixed, per_row) = fit(&[(4.0, 80.0, 1.0)]);
        assert!((fixed - 40.0).abs() < 1e-6 && (per_row - 10.0).abs() < 1e-6, "{fixed} {per_row}");
        assert_eq!(fit(&[(1.0, 50.0, 1.0), (64.0, 10.0, 1.0)]).1, 0.0);
        assert_eq!(fit(&[(1.0, 1.0, 1.0), (64.0, 6_400.0, 1.0)]).0, 0.0);
        assert_eq!(fit(&[]), (0.0, 0.0));
    }
}
