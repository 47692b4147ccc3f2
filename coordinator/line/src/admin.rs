//! Questions and orders of an operator to a running cluster, and how they get there.
//!
//! They come over a Unix socket in the data folder ([`listen`]), which the folder's permissions protect, or from code
//! that holds an [`Admin`]. On the socket each connection brings one line of JSON, a [`Question`], and gets one back,
//! an [`Answer`] or `{"error": ...}`.

use brigade_plan::ByClass;
use brigade_proto::task;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::cached::CachedOwner;

/// Name of the socket in the data folder.
pub const SOCKET: &str = "admin.sock";

/// Limit of a question's JSON.
const MAX_QUESTION_BYTES: u64 = 4096;

/// How long a client may take to put its question.
const ASKED_WITHIN: Duration = Duration::from_secs(5);

/// Orders that wait for the supervisor.
const QUEUE: usize = 8;

/// A question or an order of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The workers, and the layers of each.
    Status,
    /// Move all layers of a worker to others, and use it no more until it connects again.
    Drain {
        /// The worker's name or address.
        worker: String,
    },
    /// Move layers to a worker, whose own they touch, or which has none. The next line after it is planned again.
    Move {
        /// The worker's name or address.
        worker: String,
        /// The layers, with the end excluded.
        layers: Range<usize>,
    },
    /// Dial a worker, so that the next line can use it.
    Add {
        /// The worker's `HOST:PORT`.
        worker: String,
    },
    /// Cut the layers anew over all that are there, if that makes a faster line.
    Rebalance,
    /// The kept prompt states, by owner.
    Cache,
    /// Drop the kept prompts of an owner, in memory and on the workers.
    DropCache {
        /// The key's name, or `all`.
        owner: String,
    },
    /// Let a worker that was drained have layers again.
    Undrain {
        /// The worker's name or address.
        worker: String,
    },
    /// List a server's models on demand, and those that are loaded.
    Models,
    /// Load a model now.
    Load {
        /// The model's name, or one of its aliases.
        model: String,
    },
    /// Unload an idle model.
    Unload {
        /// The model's name, or one of its aliases.
        model: String,
    },
    /// A model that is loaded stays, or may go again.
    Pin {
        /// The model's name, or one of its aliases.
        model: String,
        /// `true`: it stays loaded; `false`: it may be unloaded when it is idle.
        stays: bool,
    },
}

impl Question {
    /// Whether it is about the models of a server, and not about one line.
    pub fn is_about_models(&self) -> bool {
        matches!(self, Self::Models | Self::Load { .. } | Self::Unload { .. } | Self::Pin { .. })
    }
}

/// The answer to a [`Question`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Answers [`Question::Status`].
    Status(ClusterStatus),
    /// Answers [`Question::Cache`]: the owner with the most bytes comes first.
    Cache(Vec<CachedOwner>),
    /// Answers [`Question::Models`].
    Models(Vec<ModelState>),
    /// The order was carried out; the text says what was done.
    Done(String),
}

/// A model of a server that loads them on demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelState {
    /// The model's name.
    pub name: String,
    /// `loaded`, `loading`, `unloaded`, or `quarantined` if it is not loaded again; `always` if it was loaded with the server.
    pub state: String,
    /// Whether an operator's order keeps it loaded.
    pub pinned: bool,
    /// Whether it is loaded with the server, by an operator's order.
    #[serde(default)]
    pub ordered: bool,
    /// Why it is not loaded again, why its last load failed, or how far its load is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Memory of the server's machine that its line has, or would have.
    pub bytes: u64,
    /// Time for which the model has been idle; `None` where it is in use or not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
}

/// A cluster as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Number of the line.
    pub epoch: u64,
    /// Whether it is up.
    pub up: bool,
    /// Stages of the line, in order.
    pub stages: Vec<StageStatus>,
    /// Connected workers without layers.
    pub spare: Vec<String>,
    /// Workers that were drained and are still connected.
    pub drained: Vec<String>,
    /// Workers that are wanted and not connected, with reasons.
    pub missing: Vec<String>,
    /// A change of the line for which the next one loads, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changing: Option<String>,
    /// All machines, with their states.
    #[serde(default)]
    pub nodes: Vec<NodeStatus>,
    /// Why there is no line yet, as the log says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// A command that an operator may want to type next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// State of a machine in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// The node has layers of the line.
    Serves,
    /// The node has layers, which are being moved to others.
    Draining,
    /// The node is connected and has no layers.
    Spare,
    /// The node was drained, and is connected.
    Drained,
    /// The node is connected, and there is no line.
    Waiting,
    /// The node is wanted, and was never there.
    #[default]
    Missing,
    /// The node was there and is gone.
    Lost,
    /// The node cannot or will not serve.
    Refused,
}

/// A machine's worker. Unknown values are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// The name by which commands know the worker.
    pub name: String,
    /// Address at which the machine is dialled.
    pub address: String,
    /// The id of its key, in hexadecimal; none over plain connections.
    pub key: Option<String>,
    /// The worker's state.
    pub state: NodeState,
    /// The number of the worker's stage, if it has one.
    pub stage: Option<usize>,
    /// Layers of that stage.
    pub layers: Option<Range<usize>>,
    /// When it was last heard from.
    pub heard_ms_ago: Option<u64>,
    /// When it was lost.
    pub lost_seconds_ago: Option<u64>,
    /// Share of the last second that its stage computed.
    pub busy_share: Option<f64>,
    /// Bytes of its process.
    pub memory_used: Option<u64>,
    /// Bytes that it may use. Of a stage of a node: an equal part of the node's.
    pub memory_limit: Option<u64>,
    /// The memory of its node, if it is one of several stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_memory: Option<NodeMemory>,
    /// The folder of its cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskUse>,
    /// Bytes of its stage, by memory.
    #[serde(default)]
    pub bytes: Option<StageBytes>,
    /// Memory read, 10^9 bytes a second.
    pub gb_per_second: Option<f64>,
    /// Products with weights of few bits, 10^9 operations a second.
    pub gop_per_second: Option<f64>,
    /// The same by the type of weights, one type for its class; absent: one figure counts for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<ByClass<f64>>,
    /// How many times slower it was seen to be.
    pub slowdown: Option<f64>,
    /// The device that it computes with.
    pub device: Option<String>,
    /// Why it is not there.
    pub why: Option<String>,
}

/// The memory that stages of a node share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMemory {
    /// Bytes that all stages may take.
    pub limit: u64,
    /// Bytes that they have, with their processes.
    pub granted: u64,
}

/// The folder of a worker's cache, as all workers that share it have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// Bytes of weights that loaded and loading stages need: they stay.
    pub pinned: u64,
    /// Bytes that the cache may hold.
    pub limit: u64,
    /// Bytes of checkpoints.
    #[serde(default)]
    pub checkpoints: u64,
    /// Bytes that checkpoints may take; 0: the worker keeps none on the disk.
    #[serde(default)]
    pub checkpoints_limit: u64,
}

/// Bytes of a stage by device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageBytes {
    /// Weights that lie with the device that computes all but routed experts, or in one memory with them.
    pub weights: u64,
    /// Sequences' states, with that device.
    pub states: u64,
    /// Routed experts in the host's memory beside a GPU.
    pub host_experts: u64,
    /// Rows that routed experts computed with the GPU and with the host, since loading.
    pub expert_rows: [u64; 2],
    /// The part of the GPU's rows that was computed with copies of experts of the host's memory.
    #[serde(default)]
    pub copied_expert_rows: u64,
    /// Bytes of experts' weights that were sent there since loading.
    #[serde(default)]
    pub expert_bytes_sent: u64,
    /// Microseconds since loading that the host waited for the GPU's rows before its experts could begin.
    #[serde(default)]
    pub expert_wait_us: u64,
    /// Microseconds since loading that the host computed its experts, while the GPU waited or computed what it had besides.
    #[serde(default)]
    pub host_expert_us: u64,
}

/// A stage of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageStatus {
    /// Name of the stage's worker.
    pub worker: String,
    /// Layers of the stage.
    pub layers: Range<usize>,
}

/// Why it is not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// A question on its way to the supervisor.
#[derive(Debug)]
pub struct Asked {
    /// The question or order.
    pub question: Question,
    /// Gets the result.
    pub reply: oneshot::Sender<Result<Answer, Refused>>,
}

/// Puts questions to a running cluster; clones share it.
#[derive(Clone, Debug)]
pub struct Admin {
    supervisor: mpsc::Sender<Asked>,
    cache: Option<Cache>,
}

impl Admin {
    /// A handle, and what the supervisor hears.
    pub fn channel() -> (Self, mpsc::Receiver<Asked>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self { supervisor: sender, cache: None }, receiver)
    }

    /// The same, which is asked of kept prompts too.
    pub fn with_cache(self, cache: Cache) -> Self {
        Self { cache: Some(cache), ..self }
    }

    /// Asks; an order is answered when it is done.
    ///
    /// # Errors
    /// [`Refused`], and what to do.
    pub async fn ask(&self, question: Question) -> Result<Answer, Refused> {
        // Questions may come every second and must not fill the log.
        if !matches!(question, Question::Status | Question::Cache | Question::Models) {
            tracing::info!(?question, "an operator asks");
        }
        match (&self.cache, question) {
            (Some(cache), Question::Cache) => Ok(Answer::Cache(cache.owners())),
            (Some(cache), Question::DropCache { owner }) => {
                let dropped = cache.drop_of(&owner).await.map_err(Refused)?;
                Ok(Answer::Done(dropped.to_string()))
            }
            (_, question) => self.ask_supervisor(question).await,
        }
    }

    async fn ask_supervisor(&self, question: Question) -> Result<Answer, Refused> {
        let ended = || Refused("the cluster has ended".to_owned());
        let (reply, told) = oneshot::channel();
        self.supervisor.send(Asked { question, reply }).await.map_err(|_| ended())?;
        told.await.map_err(|_| ended())?
    }
}

/// The JSON of one line of the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Answer(Answer),
    Error { error: String },
}

/// Answers questions on a socket in `folder` until `stop`.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(folder: &Path, admin: Admin, stop: CancellationToken) -> std::io::Result<PathBuf> {
    let path = folder.join(SOCKET);
    // A socket that a killed process has left; the folder is locked, so no other process uses it.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    set_private(&path)?;
    let bound = path.clone();
    task::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(task::spawn(serve(stream, admin.clone()))),
                    Err(error) => {
                        tracing::warn!(%error, "the admin socket refuses a connection");
                        tokio::time::sleep(ASKED_WITHIN).await;
                    }
                }
            }
        }
        // It may be gone already.
        let _ = std::fs::remove_file(&path);
    });
    Ok(bound)
}

fn set_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

async fn serve(stream: UnixStream, admin: Admin) {
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    let mut reading = BufReader::new(reading.take(MAX_QUESTION_BYTES));
    let Ok(Ok(_)) = timeout(ASKED_WITHIN, reading.read_line(&mut line)).await else { return };
    let answer = match serde_json::from_str::<Question>(&line) {
        Ok(question) => admin.ask(question).await,
        Err(error) => Err(Refused(format!("this is not a question: {error}"))),
    };
    let line = match answer {
        Ok(answer) => Line::Answer(answer),
        Err(Refused(error)) => Line::Error { error },
    };
    let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
    bytes.push(b'\n');
    // The client may have gone.
    let _ = writing.write_all(&bytes).await;
}

/// Puts a question to the cluster whose socket is at `path`.
///
/// # Errors
/// No process answers there, or [`Refused`].
pub async fn ask_at(path: &Path, question: &Question) -> Result<Answer, Refused> {
    let no_answer = |error: &dyn std::fmt::Display| {
        Refused(format!("no coordinator answers at {}: {error}", path.display()))
    };
    let stream = UnixStream::connect(path).await.map_err(|e| no_answer(&e))?;
    let (reading, mut writing) = stream.into_split();
    let mut bytes = serde_json::to_vec(question).map_err(|e| no_answer(&e))?;
    bytes.push(b'\n');
    writing.write_all(&bytes).await.map_err(|e| no_answer(&e))?;
    let mut line = String::new();
    BufReader::new(reading).read_line(&mut line).await.map_err(|e| no_answer(&e))?;
    match serde_json::from_str(&line) {
        Ok(Line::Answer(answer)) => Ok(answer),
        Ok(Line::Error { error }) => Err(Refused(error)),
        Err(_) => Err(no_answer(&"it ended before it answered")),
    }
}
