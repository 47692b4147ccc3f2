//! `brigade cluster`: questions and orders to a running coordinator of this machine.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use brigade_line::admin::{self, Answer, ClusterStatus, Question};
use clap::{Args, Subcommand};

use super::data_dir::DataDirArgs;
use super::output;

/// See and change a running cluster.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade cluster status
  brigade cluster drain 10.0.0.2:7070     before its machine is shut down
  brigade cluster move 4..8 10.0.0.3:7070
  brigade cluster add 10.0.0.4:7070
  brigade cluster rebalance

The coordinator is found by its data folder: the command runs on its machine, as its user.")]
pub struct ClusterArgs {
    #[command(subcommand)]
    what: What,
    /// Folder of the coordinator's data [default: $XDG_DATA_HOME/brigade, or ~/.local/share/brigade]
    #[arg(long, value_name = "DIR", env = "BRIGADE_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// Port of the coordinator, where more than one has the data folder
    #[arg(long, global = true)]
    port: Option<u16>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show which worker has which layers
    Status,
    /// Move a worker's layers to the others; streams go on after a pause
    Drain {
        /// Its name or address, as in status
        worker: String,
    },
    /// Move layers to a worker: those beside its own, or any to one that has none
    Move {
        /// FIRST..END, as in status: 4..8 are four layers
        #[arg(value_parser = layers)]
        layers: Range<usize>,
        /// The worker's name or address, as in status
        worker: String,
    },
    /// Dial a worker that listens
    Add {
        /// HOST:PORT or unix:PATH
        worker: String,
    },
    /// Cut the layers anew over all workers that are there, if that is faster
    Rebalance,
}

/// Runs the command.
pub async fn execute(args: ClusterArgs) -> Result<()> {
    let question = match args.what {
        What::Status => Question::Status,
        What::Drain { worker } => Question::Drain { worker },
        What::Move { layers, worker } => Question::Move { worker, layers },
        What::Add { worker } => Question::Add { worker },
        What::Rebalance => Question::Rebalance,
    };
    let socket = socket(&DataDirArgs { data_dir: args.data_dir }, args.port)?;
    let answer = admin::ask_at(&socket, &question).await?;
    if args.json {
        return output::line(format_args!("{}", serde_json::to_string(&answer)?));
    }
    match answer {
        Answer::Done(text) => output::line(format_args!("{text}")),
        Answer::Status(status) => {
            lines(&status).into_iter().try_for_each(|line| output::line(format_args!("{line}")))
        }
    }
}

fn layers(text: &str) -> Result<Range<usize>, String> {
    let ends = text.split_once("..").map(|(first, end)| (first.parse(), end.parse()));
    match ends {
        Some((Ok(first), Ok(end))) if first < end => Ok(first..end),
        _ => Err("layers are given as FIRST..END, as in 4..8".to_owned()),
    }
}

fn lines(status: &ClusterStatus) -> Vec<String> {
    let mut lines = Vec::new();
    match status.up {
        true => lines.push(format!("line {} is up", status.epoch)),
        false => lines.push("there is no line".to_owned()),
    }
    for (i, stage) in status.stages.iter().enumerate() {
        lines.push(format!("  stage {i}: {}, layers {:?}", stage.worker, stage.layers));
    }
    let others =
        [("spare", &status.spare), ("drained", &status.drained), ("missing", &status.missing)];
    for (what, names) in others {
        lines.extend(names.iter().map(|name| format!("  {what}: {name}")));
    }
    lines
}

/// The socket of the one coordinator that has the data folder, or of that on `port`.
fn socket(data_dir: &DataDirArgs, port: Option<u16>) -> Result<PathBuf> {
    let folder = data_dir.path()?;
    if let Some(port) = port {
        return Ok(folder.join(format!("serve-{port}")).join(admin::SOCKET));
    }
    let entries = std::fs::read_dir(&folder);
    let entries = entries.with_context(|| format!("no coordinator has {}", folder.display()))?;
    let sockets = entries.flatten().map(|entry| entry.path().join(admin::SOCKET));
    let sockets: Vec<PathBuf> = sockets.filter(|path| path.exists()).collect();
    match sockets.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "no coordinator runs with the data folder {}: name its own with --data-dir",
            folder.display()
        ),
        _ => bail!("several coordinators have {}: add --port", folder.display()),
    }
}
