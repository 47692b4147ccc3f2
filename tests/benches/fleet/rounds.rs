//! Rounds of loads and unloads: what the processes hold after the first of them and after the last.

use std::fs;

use serde_json::Value;

use crate::Options;
use crate::fleet::{Fleet, Model, order, pss, tree};

/// What processes hold.
#[derive(Clone, Copy, Default)]
struct Held {
    pss: u64,
    descriptors: u64,
    sockets: u64,
    threads: u64,
}

/// What these processes hold together.
fn held(pids: &[u32]) -> Held {
    let mut held = Held { pss: pss(pids), ..Held::default() };
    for pid in pids {
        let entries =
            |of: &str| fs::read_dir(format!("/proc/{pid}/{of}")).into_iter().flatten().flatten();
        let links: Vec<_> = entries("fd").filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
        held.descriptors += links.len() as u64;
        held.sockets +=
            links.iter().filter(|link| link.to_string_lossy().starts_with("socket:")).count()
                as u64;
        held.threads += entries("task").count() as u64;
    }
    held
}

/// Files below a folder.
fn files(folder: &std::path::Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

/// The mean of some rounds, in the order of [`Held`], and of files.
fn mean(rounds: &[(Held, u64)]) -> String {
    let n = rounds.len().max(1) as f64;
    let of = |get: fn(&(Held, u64)) -> u64| rounds.iter().map(get).sum::<u64>() as f64 / n;
    format!(
        "{:.1} | {:.1} | {:.1} | {:.1} | {:.1}",
        of(|(held, _)| held.pss) / f64::from(1 << 20),
        of(|(held, _)| held.descriptors),
        of(|(held, _)| held.sockets),
        of(|(held, _)| held.threads),
        of(|(_, files)| *files)
    )
}

/// Loads and unloads two models in turn.
pub fn run(options: &Options) -> Result<(), String> {
    let models = Model::five(&options.size);
    let (two, rest) = models.split_at(2);
    rest.iter()
        .filter_map(|model| model.file.as_ref())
        .for_each(|file| drop(fs::remove_file(file)));
    let fleet = Fleet::start(options, two, "load = \"demand\"\nctx = 512");
    let mut seen: Vec<[(Held, u64); 2]> = Vec::new();
    for _ in 0..options.rounds {
        for model in two {
            let (path, body) = model.request(0, 8);
            let reply = fleet.server().post(path, &body);
            if reply.status != 200 {
                return Err(format!("{} does not answer: {}", model.name, reply.body));
            }
            let _: Value = serde_json::from_str(&reply.body).map_err(|error| error.to_string())?;
            if !order(&fleet.cluster, &["cluster", "unload", model.name]) {
                return Err(format!("{} is not unloaded", model.name));
            }
        }
        let desk = held(&tree(fleet.server().process.pid()));
        let nodes: Vec<u32> = fleet.nodes.iter().flat_map(|node| tree(node.pid())).collect();
        let files = files(&fleet.cluster.dir);
        seen.push([(desk, files), (held(&nodes), files)]);
    }
    println!("| of | rounds | Pss MiB | descriptors | sockets | threads | files |");
    println!("|---|---|---|---|---|---|---|");
    for (i, of) in ["the coordinator", "all nodes"].into_iter().enumerate() {
        let rounds: Vec<(Held, u64)> = seen.iter().map(|both| both[i]).collect();
        let ten = rounds.len().min(10);
        println!("| {of} | first {ten} | {} |", mean(&rounds[..ten]));
        println!("| {of} | last {ten} | {} |", mean(&rounds[rounds.len() - ten..]));
    }
    Ok(())
}
