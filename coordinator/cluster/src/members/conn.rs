//! The connection to one worker: the handshake, calls that have a deadline, and heartbeats.
//!
//! Control calls and heartbeats each have a connection of their own, so that a heartbeat never waits behind
//! weights. A worker that stops answering heartbeats is lost, whatever else it does.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade_proto::address::{Address, AddressError};
use brigade_proto::capability::{
    Incompatible, Requirements, check_capabilities, check_claims, check_version,
};
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::{
    Capabilities, HealthReply, HealthRequest, HelloRequest, Phase, RetireRequest, UnloadReply,
    UnloadRequest,
};
use brigade_proto::copies::SettleRequest;
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{HEARTBEAT_MS, HEARTBEATS_MISSED, MAX_CONTROL_BYTES};
use brigade_proto::net::{Connection, NetError, Network, speaks_http};
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Response, Status};

use crate::members::pulse::Pulse;
use crate::members::reach::Reach;

/// Interval of heartbeats, and how long each may take.
pub const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_MS);

/// How long a handshake may take.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// How long a worker may take to free a stage.
const UNLOAD_WITHIN: Duration = Duration::from_secs(2);

/// How long a worker may take to copy the states of a stage and to free it.
const RETIRE_WITHIN: Duration = Duration::from_secs(5);

/// How long a worker may take to drop copies.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);

/// Lists of workers that are connected, each as it is now; a worker may be in several.
pub(crate) type Present = Vec<watch::Receiver<Arc<[Conn]>>>;

/// Why a worker cannot be used, by what can be done about it.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// A process of ours that does not come up, or an address that may not be dialled.
    #[error("{reason}")]
    Start {
        /// The cause, in words.
        reason: String,
    },
    /// The worker is not reachable, gone, or silent: try again later.
    #[error("{worker}: {reason}")]
    Lost {
        /// The worker's name.
        worker: String,
        /// The failed call, or the silence.
        reason: String,
    },
    /// The worker answers, but cannot or will not do this; trying again changes nothing.
    #[error("{worker} refuses: {reason}")]
    Refused {
        /// The worker's name.
        worker: String,
        /// The worker's reason.
        reason: String,
    },
    /// The worker's cache has no room for the stage's weights: other models have to go, or the limit is too small.
    #[error("{worker} refuses: {reason}")]
    NoDisk {
        /// The worker's name.
        worker: String,
        /// The worker's reason, with what would help.
        reason: String,
        /// Whether it may pass: other models need that room now.
        passes: bool,
    },
    /// The worker belongs to another coordinator: try again later.
    #[error("{worker} is busy: {reason}")]
    Busy {
        /// The worker's name.
        worker: String,
        /// The coordinator that has it, or that it drains.
        reason: String,
    },
    /// The worker answers heartbeats, but a call to it makes no progress.
    #[error("{worker} is stalled: {reason}")]
    Stalled {
        /// The worker's name.
        worker: String,
        /// The call that it does not get on with.
        reason: String,
    },
    /// The worker is connected, but its stage failed: by itself, or because of a neighbour.
    #[error("{worker}: its stage failed: {reason}")]
    StageFailed {
        /// The worker's name.
        worker: String,
        /// The stage's own report.
        reason: String,
    },
}

impl WorkerError {
    /// Whether the worker will not take its stage, though it is well.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::NoDisk { .. })
    }

    /// Whether the same attempt may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoDisk { passes, .. } => *passes,
            Self::Refused { .. } | Self::Start { .. } => false,
            _ => true,
        }
    }

    fn of_failure(worker: &str, failure: Failure) -> Self {
        let (worker, reason) = (worker.to_string(), failure.reason.clone());
        match failure.kind() {
            FailureKind::PeerLost | FailureKind::Io | FailureKind::Compute => {
                Self::Lost { worker, reason }
            }
            FailureKind::Busy | FailureKind::Draining | FailureKind::StaleEpoch => {
                Self::Busy { worker, reason }
            }
            FailureKind::Storage => Self::NoDisk { worker, reason, passes: false },
            FailureKind::CacheFull => Self::NoDisk { worker, reason, passes: true },
            _ => Self::Refused { worker, reason },
        }
    }
}

/// A connected worker, past its handshake.
#[derive(Clone, Debug)]
pub struct Conn {
    name: String,
    reach: Reach,
    coordinator_id: String,
    control: WorkerClient<Connection>,
    copies: CopiesClient<Connection>,
    heart: WorkerClient<Connection>,
    capabilities: Capabilities,
    wire: u32,
    last_epoch: u64,
    /// Bits of an f64.
    slowdown: Arc<AtomicU64>,
    pulse: Pulse,
}

impl Conn {
    /// Dials a worker and shakes hands. It is called as its certificate says; `name` is for one without, and for a child.
    ///
    /// # Errors
    /// [`WorkerError::Lost`] where nothing answers; [`WorkerError::Refused`] for another wire
    /// version, where one of the two does not believe the other, or for an address that may not be dialled.
    pub async fn open(
        name: &str,
        is_child: bool,
        address: &Address,
        coordinator_id: &str,
        network: &Network,
    ) -> Result<Self, WorkerError> {
        let lost = |reason: String| WorkerError::Lost { worker: name.to_string(), reason };
        let refused = |reason: String| WorkerError::Refused { worker: name.to_string(), reason };
        let failed = |error: NetError| match error {
            // A name may be known later, like a port that is refused.
            NetError::Dial { .. } | NetError::Address(AddressError::Unresolved { .. }) => {
                lost(error.to_string())
            }
            NetError::Refused { reason, .. } => refused(reason),
            error => WorkerError::Start { reason: error.to_string() },
        };
        let client = |connection: Connection| {
            WorkerClient::new(connection)
                .max_decoding_message_size(MAX_CONTROL_BYTES)
                .max_encoding_message_size(MAX_CONTROL_BYTES)
        };
        let (reach, first) = Reach::find(address, network).await.map_err(failed)?;
        let copies = CopiesClient::new(first.clone())
            .max_decoding_message_size(MAX_CONTROL_BYTES)
            .max_encoding_message_size(MAX_CONTROL_BYTES);
        let (mut control, heart) = (client(first), client(reach.dial().await.map_err(failed)?));
        let hello = HelloRequest {
            wire_version: OLDEST_WIRE_VERSION,
            newest_wire_version: WIRE_VERSION,
            software: SOFTWARE.to_string(),
            coordinator_id: coordinator_id.to_string(),
        };
        let reply = timeout(HELLO_WITHIN, control.hello(hello))
            .await
            .map_err(|_| lost(format!("no handshake within {} s", HELLO_WITHIN.as_secs())))?
            .map_err(|status| WorkerError::of_failure(name, Failure::from_status(&status)));
        let reply = match reply {
            Err(WorkerError::Lost { .. }) if speaks_http(address).await => {
                return Err(lost("it speaks HTTP: is this where a worker listens?".to_string()));
            }
            reply => reply?.into_inner(),
        };
        let wire = check_version(reply.wire_version, reply.newest_wire_version, &reply.software)
            .map_err(|e| refused(e.to_string()))?;
        let capabilities = reply
            .capabilities
            .ok_or_else(|| refused("its handshake names no capabilities".to_string()))?;
        check_claims(&capabilities).map_err(|e| refused(e.to_string()))?;
        // A child is known by its number: its certificate is of this process.
        let name = reach.node().filter(|_| !is_child).unwrap_or(name).to_string();
        Ok(Self {
            name,
            reach,
            coordinator_id: coordinator_id.to_string(),
            control,
            copies,
            heart,
            capabilities,
            wire,
            last_epoch: reply.last_epoch,
            slowdown: Arc::new(AtomicU64::new(1f64.to_bits())),
            pulse: Pulse::default(),
        })
    }

    /// A worker with these capabilities that never says a word, for tests of decisions about workers; it is the stage `stage`
    /// of its address.
    #[cfg(test)]
    pub async fn mute(name: &str, stage: u8, capabilities: Capabilities) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (reach, connection) = Reach::unasked(&address.of_stage(stage)).await;
        let control = WorkerClient::new(connection.clone());
        Self {
            name: name.to_owned(),
            reach,
            coordinator_id: "test".to_owned(),
            heart: control.clone(),
            control,
            copies: CopiesClient::new(connection),
            capabilities,
            wire: WIRE_VERSION,
            last_epoch: 0,
            slowdown: Arc::new(AtomicU64::new(1f64.to_bits())),
            pulse: Pulse::default(),
        }
    }

    /// The worker's name in plans and messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which it is dialled.
    pub fn address(&self) -> &Address {
        self.reach.address()
    }

    /// How it is reached.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Version of the wire that is spoken with it.
    pub fn wire(&self) -> u32 {
        self.wire
    }

    /// How many times slower it is than it says, as far as was seen.
    pub fn slowdown(&self) -> f64 {
        f64::from_bits(self.slowdown.load(Ordering::Relaxed))
    }

    /// Notes that it computes this many times slower than it reports.
    pub fn set_slowdown(&self, times: f64) {
        self.slowdown.store(times.to_bits(), Ordering::Relaxed);
    }

    /// The worker's last heartbeat and the time of it.
    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// The worker's capabilities, from the handshake.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The highest epoch of this coordinator that it said, at the handshake, it had accepted.
    pub fn last_epoch(&self) -> u64 {
        self.last_epoch
    }

    /// A client for control calls; clones share the connection.
    pub fn control(&self) -> WorkerClient<Connection> {
        self.control.clone()
    }

    /// A client for calls about copies of states; shares the connection of control calls.
    pub fn copies(&self) -> CopiesClient<Connection> {
        self.copies.clone()
    }

    /// Checks that it has all that `needs` names.
    ///
    /// # Errors
    /// [`WorkerError::Refused`] with what it lacks.
    pub fn check(&self, needs: &Requirements) -> Result<(), WorkerError> {
        check_capabilities(&self.capabilities, needs).map_err(|e: Incompatible| {
            WorkerError::Refused { worker: self.name.clone(), reason: e.to_string() }
        })
    }

    /// Checks that it takes new work: a draining worker passes every other check.
    ///
    /// # Errors
    /// [`WorkerError::Busy`] while it drains.
    pub async fn check_takes_work(&self) -> Result<(), WorkerError> {
        let look = self.health_request(0);
        let reply = self.heart.clone().health(look).await.map_err(|s| self.error(&s))?.into_inner();
        self.pulse.beat(Instant::now(), &reply);
        if reply.draining {
            return Err(self.drains());
        }
        Ok(())
    }

    /// The error for a worker that takes no new line because it drains.
    pub fn drains(&self) -> WorkerError {
        let reason = "it drains and takes no new line".to_string();
        WorkerError::Busy { worker: self.name.clone(), reason }
    }

    /// The meaning of a failed call.
    pub fn error(&self, status: &Status) -> WorkerError {
        WorkerError::of_failure(&self.name, Failure::from_status(status))
    }

    /// Waits for `call`, however long it takes, as long as the worker answers heartbeats.
    ///
    /// # Errors
    /// The call's own, or [`WorkerError::Lost`].
    pub async fn while_alive<T>(
        &self,
        call: impl Future<Output = Result<T, WorkerError>>,
    ) -> Result<T, WorkerError> {
        tokio::select! {
            result = call => result,
            lost = self.silence(0, |_| None) => Err(lost),
        }
    }

    /// Asks for its health every second until three answers in a row are missing. `epoch` 0 only
    /// looks; another one also renews the lease, and its end on the worker counts as a loss.
    /// `seen` may end it with a reason of its own.
    pub async fn silence(
        &self,
        epoch: u64,
        mut seen: impl FnMut(&HealthReply) -> Option<WorkerError>,
    ) -> WorkerError {
        let mut beat = interval(HEARTBEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missed = 0;
        loop {
            beat.tick().await;
            match self.health(epoch).await {
                Ok(reply) => {
                    missed = 0;
                    if let Some(error) =
                        ended(&self.name, self.capabilities.instance, epoch, &reply)
                    {
                        return error;
                    }
                    if let Some(error) = seen(&reply) {
                        return error;
                    }
                }
                Err(reason) => {
                    missed += 1;
                    tracing::warn!(worker = self.name, missed, reason, "no heartbeat");
                    if missed >= HEARTBEATS_MISSED {
                        let reason = format!("it did not answer {missed} heartbeats ({reason})");
                        return WorkerError::Lost { worker: self.name.clone(), reason };
                    }
                }
            }
        }
    }

    /// Sends one heartbeat.
    ///
    /// # Errors
    /// Why there was no answer within its time.
    pub async fn health(&self, epoch: u64) -> Result<HealthReply, String> {
        let request = self.health_request(epoch);
        match timeout(HEARTBEAT, self.heart.clone().health(request)).await {
            Ok(Ok(reply)) => {
                let reply = reply.into_inner();
                self.pulse.beat(Instant::now(), &reply);
                Ok(reply)
            }
            Ok(Err(status)) => Err(Failure::from_status(&status).reason),
            Err(_) => Err(format!("no answer within {} ms", HEARTBEAT.as_millis())),
        }
    }

    fn health_request(&self, epoch: u64) -> HealthRequest {
        let (coordinator_id, revoked) = (self.coordinator_id.clone(), self.reach.revoked().into());
        HealthRequest { epoch, coordinator_id, revoked }
    }

    /// Gives it a place without layers beside the line of `epoch`, whose workers have these keys.
    ///
    /// # Errors
    /// Why it does not keep the states that it had.
    pub async fn retire(&self, epoch: u64, line_keys: Bytes) -> Result<(), WorkerError> {
        let coordinator_id = self.coordinator_id.clone();
        let request = RetireRequest { epoch, coordinator_id, line_keys };
        let call = async {
            let reply = self.control().retire(request).await;
            reply.map(drop).map_err(|status| self.error(&status))
        };
        timeout(RETIRE_WITHIN, call).await.unwrap_or_else(|_| {
            let reason = format!("it did not retire within {} s", RETIRE_WITHIN.as_secs());
            Err(WorkerError::Stalled { worker: self.name.clone(), reason })
        })
    }

    /// Tells it that all sequences of the line of `epoch` have their states.
    pub async fn settle(&self, epoch: u64) {
        let request = SettleRequest { epoch, coordinator_id: self.coordinator_id.clone() };
        match timeout(SETTLE_WITHIN, self.copies().settle(request)).await {
            Ok(Ok(_)) => {}
            // The line is another one by now: its copies go with that one's.
            Ok(Err(status)) => {
                tracing::debug!(worker = self.name, %status, "a worker refuses the message that all streams are restored: it keeps its copies of their states");
            }
            Err(_) => tracing::warn!(
                worker = self.name,
                "a worker does not answer the message that all streams are restored: it may keep its copies of their states"
            ),
        }
    }

    /// Ends an epoch there, as far as the worker still listens.
    pub async fn unload(&self, epoch: u64) {
        let request = self.unload_request(epoch);
        self.unloaded("its stage", self.control().unload(request)).await;
    }

    /// Ends what the worker loads, or has loaded, for a next line that does not come. Its stage on the line of `epoch`
    /// stays.
    pub async fn forget_ahead(&self, epoch: u64) {
        let request = self.unload_request(epoch);
        self.unloaded("what it loaded for the next line", self.control().forget_ahead(request))
            .await;
    }

    fn unload_request(&self, epoch: u64) -> UnloadRequest {
        UnloadRequest { epoch, coordinator_id: self.coordinator_id.clone() }
    }

    /// Waits for the worker to unload `what`. What it answers changes nothing here.
    async fn unloaded(
        &self,
        what: &str,
        answer: impl Future<Output = Result<Response<UnloadReply>, Status>>,
    ) {
        match timeout(UNLOAD_WITHIN, answer).await {
            Ok(Ok(_)) => {}
            Ok(Err(status)) => {
                tracing::debug!(worker = self.name, what, %status, "a worker refuses to unload");
            }
            Err(_) => tracing::warn!(
                worker = self.name,
                what,
                "a worker does not answer the request to unload"
            ),
        }
    }
}

/// Why an answer to a heartbeat says that a worker is lost to the line of `epoch` (0: to none); `instance` is the process that
/// joined.
fn ended(worker: &str, instance: u64, epoch: u64, reply: &HealthReply) -> Option<WorkerError> {
    let worker = worker.to_owned();
    // An older release names no instance, so it differs from one that does.
    if reply.instance != instance {
        // The new process knows nothing that was agreed with the old one, such as that it takes no layers.
        let reason = "its process was started anew".to_owned();
        return Some(WorkerError::Lost { worker, reason });
    }
    if epoch == 0 {
        return None;
    }
    if reply.epoch != epoch {
        let reason = format!("it left epoch {epoch} for {}", reply.epoch);
        return Some(WorkerError::Lost { worker, reason });
    }
    if reply.phase() == Phase::Failed {
        return Some(WorkerError::StageFailed { worker, reason: reply.failure.clone() });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_lost_with_its_process_its_epoch_or_its_stage() {
        let reply = |instance, epoch, phase: Phase| {
            let phase = phase.into();
            HealthReply { instance, epoch, phase, ..HealthReply::default() }
        };
        let of = |epoch, reply| ended("lab", 7, epoch, &reply).map(|error| error.to_string());
        assert_eq!(of(3, reply(7, 3, Phase::Ready)), None);
        assert_eq!(of(0, reply(7, 2, Phase::Failed)), None, "it belongs to no line");
        for (epoch, reply, why) in [
            (0, reply(8, 0, Phase::Ready), "started anew"),
            (3, reply(8, 3, Phase::Ready), "started anew"),
            (3, reply(7, 4, Phase::Ready), "left epoch 3 for 4"),
            (3, reply(7, 3, Phase::Failed), "lab"),
        ] {
            let said = of(epoch, reply).unwrap_or_default();
            assert!(said.contains(why), "{why}: {said}");
        }
    }
}
