//! How the rest of the crate uses a cluster. [`start`] keeps a line up, and [`ask`] puts one question to
//! every worker.

use brigade_proto::task;
use std::sync::Arc;

use brigade_proto::address::Address;
use brigade_proto::control::Capabilities;
use brigade_proto::net::{NetError, Network};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{ClusterConfig, Source};
use crate::members::conn::WorkerError;
use crate::members::dial::{self, Dial};
use crate::members::join;
use crate::members::member::Origin;
use crate::members::own_name::{OwnName, bound_id};
use crate::pool::Seat;
use crate::supervisor::{Ends, Supervisor};
use brigade_line::admin::Admin;
use brigade_line::health::Roll;
use brigade_line::measured::metrics;
use brigade_line::model::Model;
use brigade_line::stages::link::ClusterLink;

/// A supervisor that runs as a task.
#[derive(Debug)]
pub struct Cluster {
    /// Where workers can join, if they can.
    pub control: Option<Address>,
    /// The driver's ends of the channels.
    pub link: ClusterLink,
    /// Takes an operator's questions and orders.
    pub admin: Admin,
    /// Ends after `stop`, when all local workers have ended.
    pub task: JoinHandle<()>,
}

/// Events under way to the driver, which takes them at once.
const EVENT_QUEUE: usize = 64;

/// Starts the supervisor; it builds a line for `model` and keeps it up until `stop`, under the name `own_name`. A pool lends it
/// workers, if it has a seat there.
///
/// # Errors
/// The control address cannot or may not be bound.
pub async fn start(
    config: ClusterConfig,
    seat: Option<Arc<Seat>>,
    own_name: OwnName,
    model: Arc<Model>,
    stop: CancellationToken,
) -> Result<Cluster, NetError> {
    let coordinator_id = bound_id(&config.network, own_name.id());
    let (events, link_events) = mpsc::channel(EVENT_QUEUE);
    let (faults, link_faults) = mpsc::channel(EVENT_QUEUE);
    let (control, joins) = match (&config.control, &seat) {
        (None, None) => (None, None),
        (None, Some(seat)) => (None, seat.loans()),
        (Some(address), _) => {
            let host = join::Host {
                coordinator_id: coordinator_id.clone(),
                network: config.network.clone(),
                pki: config.pki.clone(),
            };
            let (bound, _, joins) = join::listen(address, host, stop.clone()).await?;
            (Some(bound), Some(joins))
        }
    };
    let (admin, asked) = Admin::channel();
    let (called, roll) = watch::channel(Roll::default());
    let supervisor = Supervisor::new(Ends {
        config: Arc::new(config),
        seat,
        model,
        coordinator_id,
        own_name,
        events,
        faults: link_faults,
        joins,
        asked,
        roll: called,
    });
    let task = task::spawn(metrics::of_same_model(supervisor.run(stop)));
    let link = ClusterLink { events: link_events, faults, roll };
    Ok(Cluster { control, link, admin, task })
}

/// Asks every worker of a source what it can do, by name and in order; local ones are started for
/// the question and ended after it.
///
/// # Errors
/// A worker that cannot be started or reached.
pub async fn ask(
    source: Source,
    network: &Network,
) -> Result<Vec<(String, Capabilities)>, WorkerError> {
    let local = match &source {
        Source::Local(options) => Some((**options).clone()),
        Source::Remote(_) | Source::JoinOnly => None,
    };
    let mut asked = Vec::new();
    for origin in Origin::named(&source) {
        let coordinator_id = bound_id(network, OwnName::fresh().id());
        let (local, network) = (local.clone(), network.clone());
        let dial =
            Dial { origin, called: None, local, coordinator_id, network, pki: None, needs: None };
        let connected = dial::connect(dial).await?;
        let conn = &connected.conn;
        asked.push((conn.name().to_string(), conn.capabilities().clone()));
        if let Some(child) = connected.child {
            child.stop().await;
        }
    }
    Ok(asked)
}
