//! `brigade plan --fleet`: the machines that each model of a configuration file would get. It starts and loads
//! nothing.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use brigade_cluster::{Demand, Standing, free, planned};
use brigade_line::model::Model;
use brigade_plan::{WorkerFacts, format_bytes};
use serde::Serialize;

use super::lines::others;
use super::{Load, ServeArgs, session_options};
use crate::cli::Command;
use crate::cli::config;
use crate::cli::options::input;
use crate::cli::printing::output;
use crate::cli::running::session::demand;

/// The plan of one model.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    /// When it is loaded: `start` or `demand`.
    load: &'static str,
    /// Empty where it has no room.
    workers: Vec<String>,
    /// Positions of its longest sequence.
    ctx: Option<u32>,
    /// Bytes that its stages take.
    bytes: Option<u64>,
    /// Models that go for it, where not all have room at once.
    in_turns_with: Vec<String>,
    /// The resource that is lacking, in words.
    never: Option<String>,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Shown {
    models: Vec<Row>,
    /// Workers that are free when all models have theirs, with the memory that each may have.
    free: Vec<(String, u64)>,
}

/// Prints who of `workers` each model of the file would be lent.
///
/// # Errors
/// The file is wrong, or a model cannot be read.
pub fn show(file: &Path, workers: &[WorkerFacts], as_json: bool) -> Result<()> {
    let mut args = read(file)?;
    for (model, line, _) in args.all_models() {
        model.describe(&line.data_dir)?;
    }
    let (mut names, mut demands) = (Vec::new(), Vec::new());
    for args in args.models() {
        let (name, demand) = opened(args)?;
        if !args.line.worker.is_empty() || args.line.workers.is_some() {
            output::remark(format_args!("{name} has workers of its own: it is not planned here"));
            continue;
        }
        names.push(name);
        demands.push((demand, args.load == Load::Start));
    }
    let least: Vec<u64> = demands.iter().map(|(demand, _)| demand.least_bytes()).collect();
    for (at, (demand, _)) in demands.iter_mut().enumerate() {
        demand.options.others = others(&least, at);
    }
    ensure!(!demands.is_empty(), "{} has no model that is lent workers", file.display());
    let shown = shown(&names, &demands, workers);
    if as_json {
        return output::json(&shown);
    }
    print(&shown)
}

/// The options of the server that has this file.
fn read(file: &Path) -> Result<ServeArgs> {
    let start: [OsString; 4] = ["brigade".into(), "serve".into(), "--config".into(), file.into()];
    // The plan is about loans, so any control address will do.
    let words = [&start[..], &["--control".into(), "127.0.0.1:0".into()]].concat();
    let cli = config::parse(&words).map_err(|refused| match refused {
        config::Refused::File(problems) => {
            config::complain(&problems);
            anyhow::anyhow!("{} is wrong", file.display())
        }
        config::Refused::Arguments(error, _) => anyhow::anyhow!("{}: {error}", file.display()),
    })?;
    match cli.command {
        Command::Serve(args) => Ok(*args),
        _ => bail!("{} is not a file of options for brigade serve", file.display()),
    }
}

fn opened(args: &ServeArgs) -> Result<(String, Demand)> {
    let path = args.model.path()?;
    let open = |path: &Path| args.line.open(path, Model::open_header_only_with);
    let model = input::open_model(&path, open)?;
    model.check_ctx(args.ctx)?;
    let name = args.served_model_name.first().cloned();
    let name = name.unwrap_or_else(|| model.name().to_owned());
    let options = session_options(args, None)?;
    let demand = demand(Arc::new(model), &options, args.expect);
    Ok((name.clone(), demand.with_context(|| name)?))
}

fn shown(names: &[String], demands: &[(Demand, bool)], workers: &[WorkerFacts]) -> Shown {
    let standings = planned(demands, workers);
    let row = |(at, standing): (usize, &Standing)| {
        let load = if demands[at].1 { "start" } else { "demand" };
        let mut row = Row {
            model: names[at].clone(),
            load,
            workers: Vec::new(),
            ctx: None,
            bytes: None,
            in_turns_with: Vec::new(),
            never: None,
        };
        let line = match standing {
            Standing::Never(why) => {
                row.never = Some(why.clone());
                return row;
            }
            Standing::Beside(line) => line,
            Standing::InTurns(line, gone) => {
                row.in_turns_with = gone.iter().map(|other| names[*other].clone()).collect();
                line
            }
        };
        row.workers = line.workers.iter().map(|id| workers[*id].name.clone()).collect();
        row.ctx = Some(line.plan.ctx());
        row.bytes = Some(line.plan.stages.iter().map(|stage| stage.memory.total()).sum());
        row
    };
    let models = standings.iter().enumerate().map(row).collect();
    let beside = standings.iter().filter_map(|standing| match standing {
        Standing::Beside(line) => Some(line),
        Standing::InTurns(..) | Standing::Never(_) => None,
    });
    let free = free(workers, &beside.collect::<Vec<_>>()).into_iter();
    let free = free.map(|(id, memory)| (workers[id].name.clone(), memory)).collect();
    Shown { models, free }
}

fn print(shown: &Shown) -> Result<()> {
    let cells = |row: &Row| {
        let standing = match (&row.never, &row.in_turns_with[..]) {
            (Some(why), _) => format!("never: {why}"),
            (None, []) if row.load == "start" => "always".to_owned(),
            (None, []) => "beside the others".to_owned(),
            (None, others) => format!("in turns with {}", others.join(", ")),
        };
        let of = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            row.model.clone(),
            row.load.to_owned(),
            of(Some(row.workers.join(", ")).filter(|workers| !workers.is_empty())),
            of(row.ctx.map(|ctx| ctx.to_string())),
            of(row.bytes.map(format_bytes)),
            standing,
        ]
    };
    let rows: Vec<Vec<String>> = shown.models.iter().map(cells).collect();
    output::table(&["model", "load", "workers", "ctx", "memory", "with the others"], &rows)?;
    let free = |(name, memory): &(String, u64)| format!("{name} ({})", format_bytes(*memory));
    let free: Vec<String> = shown.free.iter().map(free).collect();
    match &free[..] {
        [] => output::line(format_args!("free while these are loaded: nothing")),
        free => output::line(format_args!("free while these are loaded: {}", free.join(", "))),
    }
}
