//! `bench --threads 1,2,4`: a run for each number of threads, and how speed grows with them.

use anyhow::{Result, bail};
use brigade_worker::machine::topology::Topology;
use serde::Serialize;

use super::{BenchArgs, Row, measured, percent};
use crate::cli::options::units::ThreadCounts;
use crate::cli::printing::output;

/// What is printed with `--json`.
#[derive(Serialize)]
struct Report<'a> {
    /// This program's version.
    version: &'static str,
    /// The processors of this machine.
    machine: &'a Topology,
    curve: Vec<Point>,
    /// All rows, as one run prints them.
    rows: &'a [Row],
}

/// One test with one number of threads.
#[derive(Debug, PartialEq, Serialize)]
struct Point {
    threads: u32,
    parallel: u32,
    test: &'static str,
    tokens_per_second: f64,
    /// The speed over that with the first number of threads.
    ratio: f64,
    /// Of what these threads read from memory, and of what they compute.
    share_of_memory: Option<f64>,
    share_of_peak: Option<f64>,
    /// What these threads read from memory, 10^9 bytes a second.
    memory_gb_per_second: Option<f64>,
}

/// Measures with each of these numbers of threads.
pub(super) async fn execute(args: &BenchArgs, counts: &ThreadCounts) -> Result<()> {
    if args.mixed || !args.speculate.is_empty() || args.trace.is_some() {
        bail!("--threads {counts}: --mixed, --speculate and --trace take one number of threads");
    }
    let machine = Topology::of_this_machine();
    let mut rows = Vec::new();
    for threads in counts.each() {
        let mut one = args.clone();
        one.line.threads = Some(ThreadCounts::one(threads));
        if !args.json {
            output::remark(format_args!("measuring with --threads {threads}, of {counts}"));
        }
        rows.extend(measured(&one).await?);
    }
    let curve = points(&rows);
    if args.json {
        let version = env!("CARGO_PKG_VERSION");
        return output::json(&Report { version, machine: &machine, curve, rows: &rows });
    }
    machine.describe().iter().try_for_each(|line| output::line(format_args!("{line}")))?;
    output::line(format_args!(""))?;
    print(&rows, &curve)
}

/// The rows as points of a curve for each test.
fn points(rows: &[Row]) -> Vec<Point> {
    let point = |row: &Row| {
        let is_like = |other: &&Row| other.test == row.test && other.parallel == row.parallel;
        let first = rows.iter().find(is_like).map_or(f64::NAN, |first| first.tokens_per_second);
        Point {
            threads: row.threads,
            parallel: row.parallel,
            test: row.test,
            tokens_per_second: row.tokens_per_second,
            ratio: row.tokens_per_second / first,
            share_of_memory: row.share_of_memory,
            share_of_peak: row.share_of_peak,
            memory_gb_per_second: row.limits.map(|limits| limits.memory_gb_per_second),
        }
    };
    rows.iter().map(point).collect()
}

fn print(rows: &[Row], curve: &[Point]) -> Result<()> {
    if let Some(row) = rows.first() {
        output::line(format_args!("{} {}, workers: {}", row.model, row.quant, row.workers))?;
    }
    let head =
        ["threads", "parallel", "test", "t/s", "ratio", "of memory", "of peak", "memory GB/s"];
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let cells = |point: &Point| {
        vec![
            point.threads.to_string(),
            point.parallel.to_string(),
            point.test.to_owned(),
            format!("{:.1}", point.tokens_per_second),
            format!("{:.2}", point.ratio),
            share(point.share_of_memory),
            share(point.share_of_peak),
            point.memory_gb_per_second.map_or("-".to_owned(), |speed| format!("{speed:.1}")),
        ]
    };
    output::table(&head, &curve.iter().map(cells).collect::<Vec<_>>())
}
