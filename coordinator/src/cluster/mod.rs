//! The workers behind a line: found, checked, placed, loaded, watched, replaced.
//!
//! [`start`] spawns the supervisor, which works towards one loaded line and tells the driver
//! whenever it goes up or down. It does not know requests; the driver does not know workers.
//!
//! Reading order: [`reconcile`] (what to do next, pure), `supervisor` (does it), `conn` (one
//! worker), `local` (child processes), `join` (workers that come by themselves), `facts` and `place`
//! (layers and bytes to workers), `placed` (what came of it), `lease`, `load`, `watch` (who broke it), `lane` (the open
//! line), `link` (what the driver hears of it).

mod conn;
mod facts;
mod hashes;
mod join;
pub mod lane;
mod lease;
mod link;
mod load;
mod local;
mod member;
mod place;
mod placed;
mod push;
pub mod reconcile;
mod states;
mod supervisor;
mod watch;

use std::sync::Arc;

use brigade_proto::address::Address;
use brigade_proto::control::{Capabilities, KvType, WireType};
use brigade_proto::net::NetError;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use conn::WorkerError;
pub use facts::worker_facts;
pub use lane::OpenLine;
pub use link::{ClusterLink, Fault, LineEvent};
pub use local::LocalOptions;
pub use place::PlaceError;
pub use states::StateDoors;

use member::{Member, Origin};

use crate::model::Model;
use crate::plan::Balance;

/// Where workers come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Children of this process.
    Local(LocalOptions),
    /// Workers that listen somewhere, in the line's order.
    Remote(Vec<Address>),
    /// Only those that join.
    JoinOnly,
}

/// What to do about workers that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Give up at once: a command with somebody waiting.
    FailFast,
    /// Try again with growing pauses: a server.
    Forever,
}

/// What every stage is told.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Type of KV cache values.
    pub kv_type: KvType,
    /// Type of boundary values between stages.
    pub wire_type: WireType,
    /// Positions a sequence may have; `None`: what the model was trained on, or what fits.
    pub ctx: Option<u32>,
    /// Sequences at once.
    pub max_seqs: u32,
    /// Sequences kept beside those for later requests; `None`: as many as suit the model.
    pub keep: Option<u32>,
    /// Rows of the largest ubatch.
    pub max_rows: u32,
    /// Kernel table all stages must use.
    pub kernels: Option<String>,
    /// What cuts are balanced for.
    pub balance: Balance,
}

/// What the supervisor is built from.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Where workers come from.
    pub source: Source,
    /// Where more of them may join.
    pub control: Option<Address>,
    /// Workers that must be there before layers are placed.
    pub at_least: usize,
    /// Whether to go beyond loopback in the clear.
    pub insecure_network: bool,
    /// About workers that cannot be reached.
    pub patience: Patience,
    /// For every stage.
    pub stage: StageOptions,
}

/// A running supervisor.
#[derive(Debug)]
pub struct Cluster {
    /// Where workers can join, if they can.
    pub control: Option<Address>,
    /// The driver's ends.
    pub link: ClusterLink,
    /// Ends after `stop`, when all local workers have ended.
    pub task: JoinHandle<()>,
}

/// Events under way to the driver, which takes them at once.
const EVENT_QUEUE: usize = 64;

/// Starts the supervisor; it builds a line for `model` and keeps it up until `stop`.
///
/// # Errors
/// The control address cannot or may not be bound.
pub async fn start(
    config: ClusterConfig,
    model: Arc<Model>,
    stop: CancellationToken,
) -> Result<Cluster, NetError> {
    let coordinator_id = coordinator_id();
    let (events, link_events) = mpsc::channel(EVENT_QUEUE);
    let (faults, link_faults) = mpsc::channel(EVENT_QUEUE);
    let (control, joins) = match &config.control {
        None => (None, None),
        Some(address) => {
            let insecure = config.insecure_network;
            let (bound, joins) =
                join::listen(address, &coordinator_id, insecure, stop.clone()).await?;
            (Some(bound), Some(joins))
        }
    };
    let supervisor = supervisor::Supervisor::new(supervisor::Ends {
        config: Arc::new(config),
        model,
        coordinator_id,
        events,
        faults: link_faults,
        joins,
    });
    let task = tokio::spawn(supervisor.run(stop));
    Ok(Cluster { control, link: ClusterLink { events: link_events, faults }, task })
}

/// Asks every worker of a source what it can do, by name and in order; local ones are started for
/// the question and ended after it.
///
/// # Errors
/// A worker that cannot be started or reached.
pub async fn ask(
    source: Source,
    insecure_network: bool,
) -> Result<Vec<(String, Capabilities)>, WorkerError> {
    let (origins, local): (Vec<Origin>, _) = match source {
        Source::Local(options) => ((0..options.count).map(Origin::Local).collect(), Some(options)),
        Source::Remote(addresses) => (addresses.into_iter().map(Origin::Remote).collect(), None),
        Source::JoinOnly => (Vec::new(), None),
    };
    let id = coordinator_id();
    let mut asked = Vec::new();
    for origin in origins {
        let mut member = Member::new(origin.clone());
        let connected = member::connect(origin, local.clone(), id.clone(), insecure_network);
        member.connected(connected.await?);
        if let Some(conn) = member.conn() {
            asked.push((conn.name().to_string(), conn.capabilities().clone()));
        }
        member.stop().await;
    }
    Ok(asked)
}

/// A name that no other coordinator process has.
fn coordinator_id() -> String {
    format!("{}-{:016x}", std::process::id(), crate::random::u64())
}
