//! The pool's task: dials workers that join, and handles those that fall silent.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::net::Network;
use brigade_proto::task::joined;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::lend::WorkerId;
use super::locked;
use super::state::{HOLDERS_COME_WITHIN, State};
use crate::members::conn::WorkerError;
use crate::members::dial::{self, Connected, Dial};
use crate::members::heartbeats::Heartbeats;
use crate::members::member::Origin;

/// How often it looks at what only time changes ...
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// ... and at the start, when many workers come.
const LOOK_FIRST_EVERY: Duration = Duration::from_millis(50);

type Attempt = (WorkerId, Result<Connected, WorkerError>);

/// The task's state.
#[derive(Debug)]
pub struct Task {
    state: Arc<Mutex<State>>,
    network: Network,
    coordinator_id: String,
    attempts: JoinSet<Attempt>,
    /// Workers that are being dialled.
    dialled: Vec<WorkerId>,
    heartbeats: Heartbeats,
}

impl Task {
    pub fn new(state: Arc<Mutex<State>>, network: Network, coordinator_id: String) -> Self {
        let (attempts, dialled, heartbeats) = Default::default();
        Self { state, network, coordinator_id, attempts, dialled, heartbeats }
    }

    /// Takes joins for as long as it is polled.
    pub async fn run(mut self, mut joins: mpsc::Receiver<Address>) -> Infallible {
        let began = Instant::now();
        let mut look = tokio::time::interval(LOOK_FIRST_EVERY);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    let now = Instant::now();
                    if look.period() < LOOK_EVERY && now - began >= HOLDERS_COME_WITHIN {
                        look = tokio::time::interval(LOOK_EVERY);
                    }
                    locked(&self.state).look_again(now);
                }
                Some(address) = joins.recv() => self.joined(address),
                Some(attempt) = self.attempts.join_next() => {
                    let (id, attempt) = joined(attempt).await;
                    self.attempted(id, attempt);
                }
                (id, error) = self.heartbeats.next_silent() => {
                    locked(&self.state).silent(id, &error.to_string());
                }
            }
        }
    }

    fn joined(&mut self, address: Address) {
        let dial = locked(&self.state).joined(&address, Instant::now());
        let Some(id) = dial.filter(|id| !self.dialled.contains(id)) else { return };
        self.dialled.push(id);
        let dial = Dial {
            origin: Origin::Joined(address),
            called: None,
            local: None,
            coordinator_id: self.coordinator_id.clone(),
            network: self.network.clone(),
            pki: None,
            needs: None,
        };
        self.attempts.spawn(async move { (id, dial::connect(dial).await) });
    }

    fn attempted(&mut self, id: WorkerId, attempt: Result<Connected, WorkerError>) {
        self.dialled.retain(|dialled| *dialled != id);
        let (mut state, now) = (locked(&self.state), Instant::now());
        match attempt {
            Ok(Connected { conn, .. }) => {
                if state.connected(id, conn.clone(), now) {
                    self.heartbeats.listen(id, &conn);
                }
            }
            Err(error) => {
                if state.not_connected(id, &error.to_string(), now) {
                    tracing::warn!(%error, "a worker that joined is refused");
                }
            }
        }
    }
}
