//! Several models on one cluster: nodes that join, models that are loaded on demand, and processes that are killed.
//!
//! ```text
//! cargo bench -p brigade-tests --bench fleet -- --mix 500      requests for five models, with room for some of them
//! cargo bench -p brigade-tests --bench fleet -- --rounds 50    rounds of loads and unloads: what stays behind
//! cargo bench -p brigade-tests --bench fleet -- --kills 20     kill -9 of a stage, a node and the coordinator, in turn
//! cargo bench -p brigade-tests --bench fleet -- --share 60     two full lines on one node, for so many seconds
//! ```
//!
//! `--nodes 3`, `--stages 2` and `--memory 400M` are the nodes, each with so many stages and so much memory. `--clients 8` ask
//! at the same time, each with a key of its own; the first one asks for another model each time. `--seed` repeats the requests.
//! `--cgroup DIR` puts the first node into a control group that is there already, so that its limit can be the node's promise.
//!
//! It ends with an error if a stream was lost or an answer has other bytes than from a line of its own.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on fails")]

mod fleet;
mod kills;
mod mix;
mod rounds;
mod share;

use std::path::PathBuf;
use std::process::ExitCode;

use brigade_tests::bench;

/// What is measured, and on what.
struct Options {
    mix: usize,
    rounds: usize,
    kills: usize,
    share: u64,
    nodes: usize,
    stages: usize,
    memory: String,
    clients: usize,
    size: String,
    seed: u64,
    cgroup: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        mix: 0,
        rounds: 0,
        kills: 0,
        share: 0,
        nodes: 3,
        stages: 2,
        memory: "400M".to_owned(),
        clients: 8,
        size: "tiny".to_owned(),
        seed: 1,
        cgroup: None,
    };
    // `cargo bench` adds `--bench`.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value} is no number"));
        match name.as_str() {
            "--mix" => options.mix = number()? as usize,
            "--rounds" => options.rounds = number()? as usize,
            "--kills" => options.kills = number()? as usize,
            "--share" => options.share = number()?,
            "--nodes" => options.nodes = number()?.max(1) as usize,
            "--stages" => options.stages = number()?.max(1) as usize,
            "--clients" => options.clients = number()?.max(1) as usize,
            "--seed" => options.seed = number()?,
            "--memory" => options.memory = value,
            "--size" => options.size = value,
            "--cgroup" => options.cgroup = Some(value.into()),
            _ => {
                return Err(format!(
                    "{name}: the head of tests/benches/fleet/main.rs lists what is there"
                ));
            }
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<(), String> {
    if options.mix > 0 {
        mix::run(options)?;
    }
    if options.rounds > 0 {
        rounds::run(options)?;
    }
    if options.kills > 0 {
        kills::run(options)?;
    }
    if options.share > 0 {
        share::run(options)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    brigade_tests::process::use_binary_beside();
    bench::main("fleet", options, run)
}
