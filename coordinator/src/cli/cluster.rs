//! `brigade cluster`: questions and orders to a running coordinator of this machine.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use brigade_line::admin::{self, Answer, ClusterStatus, ModelState, Question};
use brigade_plan::format_bytes;
use clap::{Args, Subcommand};
use tokio::time::timeout;

use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::printing::cached;
use crate::cli::printing::machines;
use crate::cli::printing::output;
use crate::cli::running::keeping::{MODELS, folder_of};

/// How long a coordinator may take to list its machines, for commands that also work without it.
const ASKED_WITHIN: Duration = Duration::from_secs(3);

/// See and change a running cluster.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade cluster status
  brigade cluster drain lab          before its machine is shut down; an address does as well: 10.0.0.2:7070
  brigade cluster undrain lab        let it have layers again
  brigade cluster move 4..8 attic
  brigade cluster add 10.0.0.4:7070
  brigade cluster rebalance
  brigade cluster status --model small   where several models are served
  brigade cluster models             which models are loaded; load, unload and pin change that
  brigade cluster cache --drop ann   drop the kept states of the key ann

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
    /// Which model's line, where the coordinator serves several
    #[arg(long, value_name = "NAME", global = true)]
    model: Option<String>,
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
    /// Of a server whose models are loaded on demand: list them
    Models,
    /// Load a model now
    Load {
        /// Its name, as in models
        name: String,
    },
    /// Unload an idle model
    Unload {
        /// Its name, as in models
        name: String,
    },
    /// Never unload a model for others once it is loaded, also after a restart of a server with a data folder
    Pin {
        /// Its name, as in models
        name: String,
        /// Let the model be unloaded again when it is idle
        #[arg(long)]
        off: bool,
    },
    /// Show the kept states of prompts, the largest of each API key; never texts
    Cache {
        /// Drop the kept states of an API key, by its name, or of all: from the line's memory, and from the records that
        /// all workers of the server have written
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
        What::Models => Question::Models,
        What::Load { name } => Question::Load { model: name },
        What::Unload { name } => Question::Unload { model: name },
        What::Pin { name, off } => Question::Pin { model: name, stays: !off },
    };
    let data_dir = DataDirArgs { data_dir: args.data_dir };
    let socket = if question.is_about_models() {
        servers_socket(&data_dir, args.port)?
    } else {
        socket(&data_dir, args.port, args.model.as_deref())?
    };
    let answer = admin::ask_at(&socket, &question).await?;
    if args.json {
        return output::line(format_args!("{}", serde_json::to_string(&answer)?));
    }
    match answer {
        Answer::Done(text) => output::line(format_args!("{text}")),
        Answer::Status(status) => machines::show(&status),
        Answer::Cache(owners) => cached::show(&owners),
        Answer::Models(models) => show_models(&models),
    }
}

fn show_models(models: &[ModelState]) -> Result<()> {
    let row = |model: &ModelState| {
        let idle = model.idle_seconds.map(|seconds| format!("{seconds} s"));
        vec![
            model.name.clone(),
            model.state.clone(),
            if model.pinned { "yes" } else { "no" }.to_owned(),
            Some(model.bytes).filter(|bytes| *bytes > 0).map_or("-".to_owned(), format_bytes),
            idle.unwrap_or_else(|| "-".to_owned()),
            match (&model.reason, model.ordered) {
                (Some(reason), _) => reason.clone(),
                (None, true) => "loaded by order".to_owned(),
                (None, false) => "-".to_owned(),
            },
        ]
    };
    let rows: Vec<_> = models.iter().map(row).collect();
    output::table(&["model", "state", "stays", "memory", "idle", "why"], &rows)
}

fn layers(text: &str) -> Result<Range<usize>, String> {
    let ends = text.split_once("..").map(|(first, end)| (first.parse(), end.parse()));
    match ends {
        Some((Ok(first), Ok(end))) if first < end => Ok(first..end),
        _ => Err("layers are given as FIRST..END, as in 4..8".to_owned()),
    }
}

/// The status of all coordinators that use the data folder; empty where none runs.
pub async fn ask_all(data_dir: &DataDirArgs) -> Vec<ClusterStatus> {
    let Ok(folder) = data_dir.path() else { return Vec::new() };
    // Some servers answer beside their lines, about machines that are on none.
    let mut sockets: BTreeSet<PathBuf> = beside_models(&folder).into_iter().collect();
    sockets.extend(self::sockets(&folder).unwrap_or_default());
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

/// The sockets of servers that have models' sockets beside them.
fn beside_models(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_models = entries.map(|entry| entry.path()).filter(|path| path.join(MODELS).is_dir());
    let sockets = of_models.map(|path| path.join(admin::SOCKET));
    sockets.filter(|path| is_open(path)).collect()
}

/// Whether a process listens on the socket: one that was killed has left its own.
fn is_open(socket: &Path) -> bool {
    let connected = std::os::unix::net::UnixStream::connect(socket);
    // What else goes wrong, the question itself will tell.
    let is_refused =
        connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    socket.exists() && !is_refused
}

/// The sockets of all lines whose coordinators have the data folder.
fn sockets(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.with_context(|| format!("no coordinator has {}", folder.display()))?;
    Ok(entries.flatten().flat_map(|entry| sockets_of(&entry.path())).collect())
}

/// The sockets in a coordinator's folder: one for each model, or that of its only line.
fn sockets_of(folder: &Path) -> Vec<PathBuf> {
    // One that has no models has no such folder.
    let models = std::fs::read_dir(folder.join(MODELS)).into_iter().flatten().flatten();
    let sockets = models.map(|model| model.path().join(admin::SOCKET));
    let of_models: Vec<PathBuf> = sockets.filter(|path| is_open(path)).collect();
    if of_models.is_empty() {
        Some(folder.join(admin::SOCKET)).into_iter().filter(|path| is_open(path)).collect()
    } else {
        of_models
    }
}

/// The socket of the one coordinator that has the data folder, or of that on `port`.
fn servers_socket(data_dir: &DataDirArgs, port: Option<u16>) -> Result<PathBuf> {
    let folder = data_dir.path()?;
    let own = |folder: PathBuf| Some(folder.join(admin::SOCKET)).filter(|path| is_open(path));
    let found: Vec<PathBuf> = match port {
        Some(port) => own(folder.join(format!("serve-{port}"))).into_iter().collect(),
        None => {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            entries.filter_map(|entry| own(entry.path())).collect()
        }
    };
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "no coordinator that loads models on demand runs with the data folder {}: its models have load = \"demand\"",
            folder.display()
        ),
        _ => bail!("several coordinators have {}: add --port", folder.display()),
    }
}

/// The socket of the one line whose coordinator has the data folder, of that on `port`, of that of `model`.
fn socket(data_dir: &DataDirArgs, port: Option<u16>, model: Option<&str>) -> Result<PathBuf> {
    let folder = data_dir.path()?;
    let mut sockets = match port {
        Some(port) => sockets_of(&folder.join(format!("serve-{port}"))),
        None => sockets(&folder)?,
    };
    let runs = !sockets.is_empty();
    if let Some(model) = model {
        let its = Path::new(MODELS).join(folder_of(model)).join(admin::SOCKET);
        sockets.retain(|socket| socket.ends_with(&its));
    }
    match sockets.as_slice() {
        [one] => Ok(one.clone()),
        [] if runs && let Some(model) = model => bail!(
            "{model} is not loaded, or no model has this name: brigade cluster models lists them, and brigade cluster load {model} loads it"
        ),
        [] => bail!(
            "no coordinator{} runs with the data folder {}: name its own with --data-dir",
            model.map_or(String::new(), |model| format!(" of several models, {model} among them,")),
            folder.display()
        ),
        several => {
            let models: Vec<String> =
                several.iter().filter_map(|socket| model_of(socket)).collect();
            if models.is_empty() || model.is_some() {
                bail!("several coordinators have {}: add --port", folder.display())
            } else {
                bail!(
                    "the coordinator serves several models: add --model, of {}",
                    models.join(", ")
                )
            }
        }
    }
}

/// The model whose line's socket this is, where there are several.
fn model_of(socket: &Path) -> Option<String> {
    let folder =
        socket.parent().filter(|folder| folder.parent().is_some_and(|p| p.ends_with(MODELS)))?;
    let name = folder.file_name()?.to_str()?;
    Some(percent_encoding::percent_decode_str(name).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_line_is_found_by_its_coordinators_port_and_its_model() {
        let data = std::env::temp_dir().join(format!("brigade-sockets-{}", std::process::id()));
        let named = ["serve-1", "serve-2/models/a%2Fb", "serve-2/models/c", "serve-3/models/c"];
        let listen = |name: &str| {
            std::fs::create_dir_all(data.join(name)).unwrap();
            UnixListener::bind(data.join(name).join(admin::SOCKET)).unwrap()
        };
        let _listening = named.map(listen);
        std::fs::write(data.join("keys.json"), "").unwrap();
        let data_dir = DataDirArgs { data_dir: Some(data.clone()) };
        let find = |port, model| match socket(&data_dir, port, model) {
            Ok(path) => {
                let folder = path.strip_prefix(&data).unwrap().parent().unwrap();
                folder.display().to_string()
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(find(Some(1), None), "serve-1");
        assert_eq!(find(None, Some("a/b")), "serve-2/models/a%2Fb");
        assert_eq!(find(Some(3), None), "serve-3/models/c");
        assert_eq!(find(Some(2), Some("c")), "serve-2/models/c");
        let which = find(Some(2), None);
        assert!(which.contains("add --model, of ") && which.contains("a/b"), "{which}");
        assert!(find(None, Some("c")).contains("add --port"));
        assert!(find(None, Some("none")).contains("none is not loaded, or no model has this name"));

        // What a killed coordinator has left is none.
        drop(listen("serve-4"));
        assert!(find(Some(4), None).contains("no coordinator runs with the data folder"));
        std::fs::remove_dir_all(&data).unwrap();
    }
}
