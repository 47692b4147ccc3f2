//! What a worker holds: the session, the order that is being prepared, and the loaded stage. It has one
//! owner, which the services call. No lock is held while anything blocks.
//!
//! This file has the stage's life from Prepare to Unload. [`lanes`] has the data plane's part. [`snapshots`]
//! reads and writes sequences, [`copies`] puts them back from checkpoints, and [`report`] has what others are told.

mod copies;
mod lanes;
mod report;
mod snapshots;

pub use copies::Copies;
pub use lanes::{LaneGrant, check_speaker};
pub use snapshots::{STALL, StateTurn};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brigade_proto::control::{
    Blob, LoadedFacts, MissingBlob, Phase, PrepareReply, TensorChunk, WeightSource,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::STATES_AT_ONCE;
use brigade_proto::net::Network;
use brigade_proto::tls::Who;
use brigade_proto::tls::party::is_of_key;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::backend::StageShape;
use crate::executor::{Executor, Stuck};
use crate::load::{Loaded, Loader};
use crate::metrics::Meter;
use crate::order::{Order, StageKey};
use crate::output::ResultSender;
use crate::session::{Session, Taken, shown};

/// A worker, shared by its services.
pub struct Worker {
    loader: Loader,
    network: Network,
    inner: Mutex<Inner>,
    /// One load, unload or reset at a time.
    stage_change: tokio::sync::Mutex<()>,
    lane_ended: Notify,
    stop: CancellationToken,
    readings: report::Readings,
    states: Arc<Semaphore>,
    copies: Copies,
    /// Why this process cannot go on, once it cannot.
    stuck: watch::Sender<Option<Stuck>>,
}

struct Inner {
    session: Session,
    order: Option<Arc<Order>>,
    resident: Option<Resident>,
    /// The coordinator's result stream, until a lane takes it.
    results: Option<ResultSender>,
    /// Cancelled when the epoch is over.
    epoch_over: CancellationToken,
    meter: Arc<Meter>,
}

/// A loaded stage.
struct Resident {
    key: StageKey,
    executor: Executor,
    shape: StageShape,
    loaded: Loaded,
}

impl Worker {
    /// A worker that holds nothing yet; `stop` ends its lanes.
    pub fn new(loader: Loader, network: Network, stop: CancellationToken) -> Self {
        let inner = Inner {
            session: Session::default(),
            order: None,
            resident: None,
            results: None,
            epoch_over: stop.child_token(),
            meter: Arc::default(),
        };
        Self {
            loader,
            network,
            inner: Mutex::new(inner),
            stage_change: tokio::sync::Mutex::default(),
            lane_ended: Notify::new(),
            stop,
            readings: report::Readings::default(),
            states: Arc::new(Semaphore::new(STATES_AT_ONCE)),
            copies: Copies::default(),
            stuck: watch::Sender::new(None),
        }
    }

    /// How it speaks with others.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The cache that pushes fill.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// Highest epoch accepted from this coordinator so far.
    pub fn last_epoch(&self, coordinator_id: &str) -> u64 {
        self.inner().session.last_epoch(coordinator_id)
    }

    /// True while a coordinator's lease is good.
    pub fn is_held(&self) -> bool {
        self.inner().session.is_held(Instant::now())
    }

    /// Takes the worker for an epoch and finds the order's bytes. A refusal gives it back.
    ///
    /// # Errors
    /// The session's refusals, and [`Loader::locate`]'s.
    pub async fn prepare(
        &self,
        coordinator_id: &str,
        epoch: u64,
        order: Order,
    ) -> Result<PrepareReply, Failure> {
        let taken = {
            let mut inner = self.inner();
            let taken = inner.session.prepare(Instant::now(), coordinator_id, epoch)?;
            if taken == Taken::NewEpoch {
                inner.begin_epoch(&self.stop);
            }
            taken
        };
        let newly = taken == Taken::NewEpoch;
        tracing::info!(epoch, coordinator_id, model = order.model_name, newly, "prepare");
        let order = Arc::new(order);
        let given_up = self.inner().epoch_over.clone();
        let located = match self.resident_serves(&order) {
            Some(reply) => Ok(reply),
            None => self.locate(order.clone(), given_up).await,
        };
        let mut inner = self.inner();
        let current = inner.session.is_at(coordinator_id, epoch);
        match located {
            Err(failure) => {
                if current {
                    inner.session.release();
                }
                Err(failure)
            }
            Ok(_) if !current => Err(over(epoch, &inner.session)),
            Ok(reply) => {
                inner.order = Some(order);
                inner.session.heartbeat(Instant::now(), coordinator_id, epoch);
                Ok(reply)
            }
        }
    }

    fn resident_serves(&self, order: &Order) -> Option<PrepareReply> {
        let inner = self.inner();
        let resident = inner.resident.as_ref();
        let resident = resident.filter(|r| r.serves(order, &self.loader.host_id))?;
        Some(PrepareReply {
            source: WeightSource::Resident.into(),
            weight_bytes: resident.loaded.facts.weight_bytes,
            state_bytes: resident.loaded.facts.state_bytes,
            ..PrepareReply::default()
        })
    }

    async fn locate(
        &self,
        order: Arc<Order>,
        given_up: CancellationToken,
    ) -> Result<PrepareReply, Failure> {
        let loader = self.loader.clone();
        let located = blocking(move || loader.locate(&order, &given_up)).await?;
        let missing = located.missing.into_iter().map(|(hash, nbytes, offset)| {
            let blake3 = hash.as_bytes().to_vec().into();
            MissingBlob { blob: Some(Blob { blake3, nbytes }), offset }
        });
        Ok(PrepareReply {
            source: located.source.into(),
            needs_hashes: located.needs_hashes,
            missing: missing.collect(),
            weight_bytes: located.needs.weight_bytes,
            state_bytes: located.needs.state_bytes,
        })
    }

    /// Checks that a chunk belongs to the current epoch and to a blob of its order, and renews the
    /// lease.
    ///
    /// # Errors
    /// Busy or StaleEpoch; BadMessage for a blob that no one asked for.
    pub fn check_push(&self, chunk: &TensorChunk) -> Result<(), Failure> {
        let mut inner = self.inner();
        inner.session.check(Instant::now(), &chunk.coordinator_id, chunk.epoch)?;
        let wanted = |blob: &Blob| inner.order.as_ref().is_some_and(|order| order.wants(blob));
        if chunk.blob.as_ref().is_some_and(wanted) {
            return Ok(());
        }
        let why = "chunk.blob is not one that Prepare named as missing";
        Err(Failure::refusal(FailureKind::BadMessage, why))
    }

    /// Loads what was prepared, or empties the stage that serves it already. `progress` is told
    /// `(done, total)` bytes.
    ///
    /// # Errors
    /// The session's refusals, [`Loader::load`]'s; the epoch has failed then.
    pub async fn load(
        &self,
        coordinator_id: &str,
        epoch: u64,
        progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<LoadedFacts, Failure> {
        let _alone = self.stage_change.lock().await;
        let (order, given_up) = {
            let mut inner = self.inner();
            let now = Instant::now();
            inner.session.check_phase(now, coordinator_id, epoch, Phase::Prepared)?;
            let order = inner.order.clone().ok_or_else(|| {
                Failure::refusal(FailureKind::WrongPhase, "Prepare has not been answered yet")
            })?;
            inner.session.advance(coordinator_id, epoch, Phase::Loading);
            (order, inner.epoch_over.clone())
        };
        let started = Instant::now();
        let resident = match self.load_stage(&order, given_up, progress).await {
            Ok(resident) => resident,
            Err(failure) => {
                tracing::error!(epoch, %failure, "loading failed");
                self.inner().session.fail(coordinator_id, epoch, failure.clone());
                return Err(failure);
            }
        };
        let facts = resident.facts(&order, started.elapsed().as_secs_f64());
        let unwanted = {
            let mut inner = self.inner();
            if inner.session.advance(coordinator_id, epoch, Phase::Ready) {
                inner.resident = Some(resident);
                None
            } else {
                Some((resident, over(epoch, &inner.session)))
            }
        };
        if let Some((resident, failure)) = unwanted {
            tracing::info!(epoch, %failure, "nobody wants the stage any more");
            self.free(resident).await?;
            return Err(failure);
        }
        tracing::info!(
            epoch,
            weight_bytes = facts.weight_bytes,
            state_bytes = facts.state_bytes,
            kernels = facts.kernels,
            threads = facts.threads,
            ms = (facts.seconds * 1e3) as u64,
            "loaded"
        );
        Ok(facts)
    }

    async fn load_stage(
        &self,
        order: &Arc<Order>,
        given_up: CancellationToken,
        progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<Resident, Failure> {
        self.open_copies(order).await?;
        let old = self.inner().resident.take();
        if let Some(mut resident) = old {
            if resident.serves(order, &self.loader.host_id) {
                let reset = resident.executor.reset().await;
                if reset.map_err(|stuck| self.end_with(stuck))?.is_ok() {
                    resident.loaded.source = WeightSource::Resident;
                    return Ok(resident);
                }
            }
            self.free(resident).await?;
        }
        let (loader, loading) = (self.loader.clone(), order.clone());
        let total = order.tensor_bytes();
        let mut done = 0;
        let count = move |nbytes: u64| {
            done += nbytes;
            progress(done, total);
        };
        let build = move || {
            let (runner, loaded) = loader.load(&loading, &given_up, Box::new(count))?;
            let shape = runner.shape();
            Ok((runner, (shape, loaded)))
        };
        let (executor, (shape, loaded)) = Executor::start(build).await?;
        Ok(Resident { key: order.key(loaded.content.clone()), executor, shape, loaded })
    }

    /// Ends the epoch and frees its memory, that of a stage that is being loaded too.
    ///
    /// # Errors
    /// Busy or StaleEpoch; Compute where the stage is stuck, and the worker ends.
    pub async fn unload(&self, coordinator_id: &str, epoch: u64) -> Result<(), Failure> {
        {
            let mut inner = self.inner();
            inner.session.check(Instant::now(), coordinator_id, epoch)?;
            inner.session.release();
            inner.begin_epoch(&self.stop);
        }
        let _alone = self.stage_change.lock().await;
        // A new epoch may have begun meanwhile; it may want the stage that is still here, and its copies.
        let stage = {
            let mut inner = self.inner();
            let is_idle = inner.session.phase() == Phase::Idle;
            if is_idle {
                self.copies.clear();
            }
            if is_idle { inner.resident.take() } else { None }
        };
        if let Some(resident) = stage {
            self.free(resident).await?;
        }
        tracing::info!(epoch, "unloaded");
        Ok(())
    }

    async fn free(&self, resident: Resident) -> Result<(), Failure> {
        resident.executor.stop().await.map_err(|stuck| self.end_with(stuck))
    }

    /// A stage that is stuck keeps its memory and its CPUs for as long as the process lives.
    fn end_with(&self, stuck: Stuck) -> Failure {
        tracing::error!(%stuck, "this worker ends, so that another can begin");
        self.stuck.send_replace(Some(stuck));
        Failure::refusal(FailureKind::Compute, format!("{stuck}: this worker ends"))
    }

    /// Ready when this process cannot go on.
    pub async fn stuck(&self) -> Stuck {
        let mut told = self.stuck.subscribe();
        loop {
            let stuck = *told.borrow_and_update();
            match stuck {
                Some(stuck) => return stuck,
                // The sender lives as long as `self`.
                None => drop(told.changed().await),
            }
        }
    }

    /// Checks that `who` may send this worker away: the coordinator that holds it, or any while none does.
    ///
    /// # Errors
    /// Forbidden.
    pub fn check_may_drain(&self, who: &Who) -> Result<(), Failure> {
        let inner = self.inner();
        let Some(owner) = inner.session.owner().filter(|_| inner.session.is_held(Instant::now()))
        else {
            return Ok(());
        };
        let is_owner = who.party().is_none_or(|party| is_of_key(owner, &party.key));
        if is_owner {
            return Ok(());
        }
        let why = format!("coordinator {} holds this worker: only it may drain it", shown(owner));
        Err(Failure::refusal(FailureKind::Forbidden, why))
    }

    /// Takes no new epoch from now on; ready when no lane is open. Returns the epoch that ran.
    pub async fn drain(&self) -> u64 {
        let epoch = {
            let mut inner = self.inner();
            inner.session.drain();
            inner.session.epoch()
        };
        loop {
            let ended = self.lane_ended.notified();
            if self.inner().session.phase() != Phase::Running {
                return epoch;
            }
            ended.await;
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is held; if it did, the state would still be whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Ends whatever the last epoch had running.
    fn begin_epoch(&mut self, stop: &CancellationToken) {
        self.epoch_over.cancel();
        self.epoch_over = stop.child_token();
        self.order = None;
        self.results = None;
        self.meter = Arc::default();
    }
}

impl Resident {
    fn serves(&self, order: &Order, host_id: &str) -> bool {
        self.executor.is_alive() && self.key.serves(order, host_id)
    }

    fn facts(&self, order: &Order, seconds: f64) -> LoadedFacts {
        let facts = &self.loaded.facts;
        LoadedFacts {
            source: self.loaded.source.into(),
            weight_bytes: facts.weight_bytes,
            state_bytes: facts.state_bytes,
            kernels: facts.kernels.clone(),
            threads: facts.threads,
            seconds,
            metadata_hash: order.header.0.as_bytes().to_vec().into(),
            input_width: self.shape.input_width.unwrap_or(0),
            output_width: self.shape.output_width.unwrap_or(0),
        }
    }
}

fn over(epoch: u64, session: &Session) -> Failure {
    let why = match session.epoch() {
        0 => format!("epoch {epoch} is over: the worker was unloaded"),
        now => format!("epoch {epoch} is over: epoch {now} has begun"),
    };
    Failure::refusal(FailureKind::StaleEpoch, why)
}

/// Runs blocking work beside the runtime.
///
/// # Errors
/// What `work` says; Io if it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Failure::refusal(FailureKind::Io, format!("a worker task failed: {error}")))
    })
}
