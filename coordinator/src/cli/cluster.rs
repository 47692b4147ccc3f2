//! `brigade cluster`: questions and orders to a running coordinator of this machine.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use brigade_line::admin::{self, Answer, ClusterStatus, Question};
use clap::{Args, Subcommand};
use tokio::time::timeout;

use super::data_dir::DataDirArgs;
use super::{cached, machines, output};

/// How long a coordinator may take to say who is there, where nodes are listed without it too.
const ASKED_WITHIN: Duration = Duration::from_secs(3);

/// See and change a running cluster.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade cluster status
  brigade cluster drain lab          before its machine is shut down; an address does as well: 10.0.0.2:7070
  brigade cluster undrain lab        it may have layers again
  brigade cluster move 4..8 attic
  brigade cluster add 10.0.0.4:7070
  brigade cluster rebalance
  brigade cluster cache --drop ann   what is kept of the prompts of the key ann

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
    /// Show the line and all machines: where each stands, when it was last heard from, what it computes and how fast
    Status,
    /// Move a worker's layers to the others; streams go on after a pause
    Drain {
        /// Its name, its address, or the beginning of its key, as in status
        worker: String,
    },
    /// Let a worker that was drained have layers again
    Undrain {
        /// Its name, its address, or the beginning of its key
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
        /// HOST:PORT, unix:PATH, or its name, as in nodes
        worker: String,
    },
    /// Cut the layers anew over all workers that are there, if that is faster
    Rebalance,
    /// Show what is kept of prompts, the largest of each owner; never texts
    Cache {
        /// Drop what is kept of a key, by its name, or of all: in memory and what the line's workers have written
        #[arg(long, value_name = "OWNER|all")]
        drop: Option<String>,
    },
}

/// Runs the command.
pub async fn execute(args: ClusterArgs) -> Result<()> {
    let question = match args.what {
        What::Status => Question::Status,
        What::Drain { worker } => Question::Drain { worker },
        What::Undrain { worker } => Question::Undrain { worker },
        What::Move { layers, worker } => Question::Move { worker, layers },
        What::Add { worker } => Question::Add { worker },
        What::Rebalance => Question::Rebalance,
        What::Cache { drop: Some(owner) } => Question::DropCache { owner },
        What::Cache { drop: None } => Question::Cache,
    };
    let socket = socket(&DataDirArgs { data_dir: args.data_dir }, args.port)?;
    let answer = admin::ask_at(&socket, &question).await?;
    if args.json {
        return output::line(format_args!("{}", serde_json::to_string(&answer)?));
    }
    match answer {
        Answer::Done(text) => output::line(format_args!("{text}")),
        Answer::Status(status) => machines::show(&status),
        Answer::Cache(owners) => cached::show(&owners),
    }
}

fn layers(text: &str) -> Result<Range<usize>, String> {
    let ends = text.split_once("..").map(|(first, end)| (first.parse(), end.parse()));
    match ends {
        Some((Ok(first), Ok(end))) if first < end => Ok(first..end),
        _ => Err("layers are given as FIRST..END, as in 4..8".to_owned()),
    }
}

/// What the coordinators that have the data folder say of their machines; nothing where none runs.
pub async fn ask_all(data_dir: &DataDirArgs) -> Vec<ClusterStatus> {
    let Ok(sockets) = data_dir.path().and_then(|folder| sockets(&folder)) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for socket in sockets {
        let asked = timeout(ASKED_WITHIN, admin::ask_at(&socket, &Question::Status)).await;
        // One that has ended has left its socket.
        if let Ok(Ok(Answer::Status(status))) = asked {
            all.push(status);
        }
    }
    all
}

fn sockets(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.with_context(|| format!("no coordinator has {}", folder.display()))?;
    let sockets = entries.flatten().map(|entry| entry.path().join(admin::SOCKET));
    Ok(sockets.filter(|path| path.exists()).collect())
}

/// The socket of the one coordinator that has the data folder, or of that on `port`.
fn socket(data_dir: &DataDirArgs, port: Option<u16>) -> Result<PathBuf> {
    let folder = data_dir.path()?;
    if let Some(port) = port {
        return Ok(folder.join(format!("serve-{port}")).join(admin::SOCKET));
    }
    let sockets = sockets(&folder)?;
    match sockets.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "no coordinator runs with the data folder {}: name its own with --data-dir",
            folder.display()
        ),
        _ => bail!("several coordinators have {}: add --port", folder.display()),
    }
}
