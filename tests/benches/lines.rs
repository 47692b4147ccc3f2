//! Simulates lines of 4 to 64 stages under the real scheduler: throughput, the stages' busy share, and the time
//! between two tokens, over links of 1 to 100 Gb Ethernet.
//!
//! ```text
//! cargo bench -p brigade-tests --bench lines                      tables as Markdown
//! cargo bench -p brigade-tests --bench lines -- --json            the same rows as JSON
//! cargo bench -p brigade-tests --bench lines -- --svg lines.svg   and a picture
//! ```
//!
//! The options give the cost of the whole model on one machine of the line, and each stage takes an even share:
//!
//! - `--fixed-ms F` for a ubatch, whatever its rows;
//! - `--row-ms R` for each row;
//! - `--row-bytes B` for each row at a cut;
//! - `--jitter J` for how much times vary (0 to 1).
//!
//! Or it is given by measurement: `--costs FILE.json`, which `brigade bench --json` wrote with a prefill and
//! a decode test.
//!
//! A measured line can be compared with its simulation. After a run of two workers, this prints tokens a
//! second and busy shares of both, row by row. It fails if a throughput is more than 10 % off (`--within 0.2`
//! for another share).
//!
//! ```text
//! brigade bench -m M --workers 2 --worker-cpus 0/1 --threads 1 --prompt 512 --parallel 1,8,32 --json > b.json
//! cargo bench -p brigade-tests --bench lines -- --compare b.json
//! ```
//!
//! `tests/benches/lines.md` and `lines.svg` are the output of the first and the third command.

use std::process::ExitCode;

use brigade_tests::bench;
use brigade_tests::lines::measured::{self, Compared};
use brigade_tests::lines::plot::plot;
use brigade_tests::lines::{Costs, ModelCost, cases, markdown, table};

/// Simulated throughput may be off by this share.
const WITHIN: f64 = 0.10;

#[derive(Default)]
struct Options {
    json: bool,
    svg: Option<String>,
    costs: Option<String>,
    compare: Option<String>,
    within: Option<f64>,
    model: ModelCost,
}

fn main() -> ExitCode {
    bench::main("lines", options, run)
}

fn options() -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| match text.parse::<f64>() {
            Ok(x) if x.is_finite() && x >= 0.0 => Ok(x),
            _ => Err(format!("{text} is no number above 0")),
        };
        match arg.as_str() {
            // Cargo's own.
            "--bench" => {}
            "--json" => options.json = true,
            "--svg" => options.svg = Some(value()?),
            "--costs" => options.costs = Some(value()?),
            "--compare" => options.compare = Some(value()?),
            "--within" => options.within = Some(number(value()?)?),
            "--fixed-ms" => options.model.fixed_us = number(value()?)? * 1e3,
            "--row-ms" => options.model.row_us = number(value()?)? * 1e3,
            "--row-bytes" => options.model.row_bytes = number(value()?)?,
            "--jitter" => options.model.jitter = number(value()?)?.min(1.0),
            other => return Err(format!("{other} is not known: see the head of this program")),
        }
    }
    Ok(options)
}

fn read(path: &str) -> Result<Vec<measured::BenchRow>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    measured::read(&text).map_err(|e| format!("{path}: {e}"))
}

fn run(options: &Options) -> Result<(), String> {
    if let Some(path) = &options.compare {
        let compared = measured::compare(&read(path)?)?;
        return print_compared(&compared, options.json, options.within.unwrap_or(WITHIN));
    }
    let costs = match &options.costs {
        Some(path) => measured::model_costs(&read(path)?)?,
        None => Costs { prefill: options.model, decode: options.model },
    };
    let rows = table(&costs, &cases())?;
    if options.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|e| e.to_string())?;
        println!("{text}");
    } else {
        println!("{}", markdown(&rows, &costs));
    }
    if let Some(path) = &options.svg {
        std::fs::write(path, plot(&rows, &costs)).map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}

fn print_compared(compared: &[Compared], json: bool, within: f64) -> Result<(), String> {
    if json {
        let text = serde_json::to_string_pretty(compared).map_err(|e| e.to_string())?;
        println!("{text}");
    } else {
        let percent = |shares: &[f64]| {
            let each: Vec<_> = shares.iter().map(|b| format!("{:.0} %", b * 100.0)).collect();
            each.join(", ")
        };
        println!(
            "| test | parallel | measured t/s | simulated t/s | ratio | busy | simulated busy |"
        );
        println!("|---|---|---|---|---|---|---|");
        for c in compared {
            println!(
                "| {} | {} | {:.1} | {:.1} | {:.3} | {} | {} |",
                c.test,
                c.parallel,
                c.measured,
                c.simulated,
                c.ratio(),
                percent(&c.measured_busy),
                percent(&c.simulated_busy)
            );
        }
    }
    let off = compared.iter().filter(|c| (c.ratio() - 1.0).abs() > within).count();
    match off {
        0 => Ok(()),
        n => Err(format!("{n} of {} are more than {:.0} % off", compared.len(), within * 100.0)),
    }
}
