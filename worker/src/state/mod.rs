//! The state of a worker: the session, the order that is being prepared, and the loaded stage. It has one owner,
//! which the services call. No lock is held while anything blocks.
//!
//! This file has the stage's life from Load to Unload, and [`prepare`] what comes before. [`lanes`] has the data plane's
//! part. [`snapshots`] reads and writes sequences. [`copies`] restores them from checkpoints, and [`prefixes`] from records. [`retire`] keeps states of
//! a worker beside the line, [`ahead`] loads for the next line, [`disks`] looks at disks, and [`report`] answers questions about
//! the worker.

mod ahead;
mod copies;
mod disks;
mod lanes;
mod prefixes;
mod prepare;
mod put_back;
mod report;
mod resident;
mod retire;
pub mod session;
mod snapshots;

pub use copies::Copies;
pub use lanes::{LaneGrant, check_speaker};
pub use prefixes::Prefixes;
pub use snapshots::{STALL, StateTurn};

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brigade_proto::control::{LoadedFacts, Phase, WeightSource};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{FETCHES_AT_ONCE, STATES_AT_ONCE, WEIGHTS_AT_ONCE};
use brigade_proto::net::Network;
use brigade_proto::tls::party::is_of_key;
use brigade_proto::tls::{KeyId, Who};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::backend::{KeptWeights, StageNeeds};
use crate::executor::metrics::Meter;
use crate::executor::output::ResultSender;
use crate::executor::{Executor, Stuck, gone};
use crate::loading::load::Loader;
use crate::loading::order::Order;
use crate::machine::ledger::Held;
use crate::records::folder::Home;
use crate::weights::cache::{Pinned, Purpose};
use session::{Session, shown};

use ahead::Ahead;
use resident::{ReadyStage, Resident};

/// A worker, shared by its services.
pub struct Worker {
    loader: Loader,
    network: Network,
    inner: Mutex<Inner>,
    /// The lock for loading, unloading and resetting.
    stage_change: tokio::sync::Mutex<()>,
    /// The lock of the thread that loads ahead.
    loads_ahead: Arc<tokio::sync::Mutex<()>>,
    lane_ended: Notify,
    stop: CancellationToken,
    readings: report::Readings,
    disks: disks::Disks,
    states: Arc<Semaphore>,
    fetches: Arc<Semaphore>,
    weights: Arc<Semaphore>,
    copies: Copies,
    /// Records of kept prefixes; `None`: none are kept.
    prefixes: Option<Prefixes>,
    /// Why this process cannot go on, once it cannot.
    stuck: watch::Sender<Option<Stuck>>,
}

struct Inner {
    session: Session,
    order: Option<Arc<Order>>,
    /// The memory that was granted for the order.
    held: Option<Held>,
    /// The order's blobs in the cache.
    pinned: Option<Pinned>,
    /// Blobs that were fetched for an order whose hashes are not known yet.
    fetched: Vec<Arc<Pinned>>,
    /// For a worker beside a line, without an order: the keys of the line's workers.
    beside: Option<Vec<KeyId>>,
    resident: Option<Resident>,
    /// Weights that were loaded for the next line.
    ahead: Option<Ahead>,
    /// The coordinator's result stream, until a lane takes it.
    results: Option<ResultSender>,
    /// Cancelled when the epoch is over.
    epoch_over: CancellationToken,
    meter: Arc<Meter>,
}

impl Worker {
    /// A worker that holds nothing yet, with a home for its records; `stop` ends its lanes.
    pub fn new(loader: Loader, network: Network, home: Arc<Home>, stop: CancellationToken) -> Self {
        let inner = Inner {
            session: Session::default(),
            order: None,
            held: None,
            pinned: None,
            fetched: Vec::new(),
            beside: None,
            resident: None,
            ahead: None,
            results: None,
            epoch_over: stop.child_token(),
            meter: Arc::default(),
        };
        Self {
            loader,
            network,
            inner: Mutex::new(inner),
            stage_change: tokio::sync::Mutex::default(),
            loads_ahead: Arc::default(),
            lane_ended: Notify::new(),
            stop,
            readings: report::Readings::default(),
            disks: disks::Disks::default(),
            states: Arc::new(Semaphore::new(STATES_AT_ONCE)),
            fetches: Arc::new(Semaphore::new(FETCHES_AT_ONCE)),
            weights: Arc::new(Semaphore::new(WEIGHTS_AT_ONCE)),
            copies: Copies::of(home),
            prefixes: None,
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

    /// The right to fetch or gather tensors, until it is dropped.
    ///
    /// # Errors
    /// Busy: [`FETCHES_AT_ONCE`] calls do so.
    pub fn fetch_turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let why = format!("{FETCHES_AT_ONCE} calls fetch tensors: try again");
        let turn = self.fetches.clone().try_acquire_owned();
        turn.map_err(|_| Failure::refusal(FailureKind::Busy, why))
    }

    /// A permit to be sent weights, until it is dropped. Any peer may have one that is admitted (over TLS the
    /// cluster's workers) and knows the hashes that it asks for.
    ///
    /// # Errors
    /// Busy: [`WEIGHTS_AT_ONCE`] calls are being answered.
    pub fn weights_turn(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let why = format!("{WEIGHTS_AT_ONCE} calls are sent weights: try again");
        let turn = self.weights.clone().try_acquire_owned();
        turn.map_err(|_| Failure::refusal(FailureKind::Busy, why))
    }

    /// Highest epoch accepted from this coordinator so far.
    pub fn last_epoch(&self, coordinator_id: &str) -> u64 {
        self.inner().session.last_epoch(coordinator_id)
    }

    /// True while a coordinator's lease is good.
    pub fn is_held(&self) -> bool {
        self.inner().session.is_held(Instant::now())
    }

    /// Loads the prepared stage, or empties the one that serves it already. `progress` is told `(done, total)` bytes.
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
        if let Err(failure) = self.load_stage(&order, given_up, progress).await {
            tracing::error!(epoch, %failure, "loading failed");
            self.inner().session.fail(coordinator_id, epoch, failure.clone());
            return Err(failure);
        }
        let mut unwanted = None;
        let facts = {
            let mut inner = self.inner();
            let current = inner.session.advance(coordinator_id, epoch, Phase::Ready);
            let stage = inner.resident.as_ref().and_then(|resident| resident.stage.as_ref());
            let facts = stage.ok_or_else(gone)?.facts(&order, started.elapsed().as_secs_f64());
            let failure = (!current).then(|| over(epoch, &inner.session));
            // A new epoch may have begun since. It may use the weights that are here.
            if failure.is_some() && inner.session.phase() == Phase::Idle {
                unwanted = inner.resident.take();
            }
            failure.map_or(Ok(facts), Err)
        };
        if let Some(resident) = unwanted {
            tracing::info!(epoch, "the stage came too late for its line: it is unloaded");
            self.free(resident).await?;
        }
        let facts = facts?;
        tracing::info!(
            epoch,
            weight_bytes = facts.weight_bytes,
            state_bytes = facts.state_bytes,
            kernels = facts.kernels,
            threads = facts.threads,
            read_bytes = facts.read_bytes,
            kept_layers = facts.kept_layers,
            ms = (facts.seconds * 1e3) as u64,
            "loaded"
        );
        Ok(facts)
    }

    /// Builds the order's stage from the weights in memory and those that it lacks. After a failure, the weights in
    /// memory may serve the next one.
    async fn load_stage(
        &self,
        order: &Arc<Order>,
        given_up: CancellationToken,
        progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<(), Failure> {
        self.open_copies(order).await?;
        if self.reuse(order).await? {
            let unneeded = self.inner().ahead.take();
            self.let_go(unneeded).await;
            return Ok(());
        }
        let (held, in_memory) = (self.held_tensors(order), self.in_memory(order));
        let (loader, finding, here, until) =
            (self.loader.clone(), order.clone(), in_memory.clone(), given_up.clone());
        let (mut found, memory) = blocking(move || {
            let found = loader.find(&finding, &here, Purpose::Stage, &until)?;
            let memory = loader.grant(&finding, &found.needs)?;
            Ok((found, memory))
        })
        .await?;
        // What is there already counts until it has been taken apart.
        let (executor, _before) = self.emptied(order, &found.needs).await?;
        let pinned = found.pinned.take();
        let ahead = self.inner().ahead.take().and_then(Ahead::into_weights);
        let key = order.key(found.content.clone());
        let (loader, loading) = (self.loader.clone(), order.clone());
        let total = order.tensor_bytes();
        let mut done = 0;
        let count = move |nbytes: u64| {
            done += nbytes;
            progress(done, total);
        };
        let rest = Arc::new(Mutex::new(HashSet::new()));
        let left = rest.clone();
        let build = move |kept: &mut KeptWeights| {
            let count = Box::new(count);
            let _until_built;
            if let Some(ahead) = ahead {
                _until_built = ahead.held;
                // Of the same name there may be another tensor in the stage.
                kept.retain(&|tensor| held.contains(tensor));
                kept.absorb(ahead.kept);
            }
            let loaded = loader.load(&loading, found, &in_memory, &given_up, kept, count);
            let (runner, loaded) = loaded.inspect_err(|_| {
                let names = kept.tensors().map(str::to_owned).collect();
                *left.lock().unwrap_or_else(PoisonError::into_inner) = names;
            })?;
            let shape = runner.shape();
            Ok((runner, ReadyStage { shape, loaded }))
        };
        let built = executor.build(build).await;
        let (key, stage, failure) = match built {
            Ok(stage) => (key, Some(stage), None),
            Err(failure) => {
                let left =
                    std::mem::take(&mut *rest.lock().unwrap_or_else(PoisonError::into_inner));
                (key.rest(&left), None, Some(failure))
            }
        };
        let mut inner = self.inner();
        inner.resident = Some(Resident { key, executor, stage, held: memory, pinned });
        // The stage has its own.
        inner.pinned = None;
        drop(inner);
        failure.map_or(Ok(()), Err)
    }

    /// Empties the stage that is in memory, if it serves the order as it is; whether it does.
    async fn reuse(&self, order: &Order) -> Result<bool, Failure> {
        let old = {
            let mut inner = self.inner();
            let serves = |r: &Resident| r.serves(order, &self.loader.host_id);
            if inner.resident.as_ref().is_some_and(serves) { inner.resident.take() } else { None }
        };
        let Some(mut resident) = old else { return Ok(false) };
        let keep = self.keep(&resident, order.copy_bytes(), true);
        let reset =
            resident.executor.reset(Some(keep)).await.map_err(|stuck| self.end_with(stuck))?;
        let Some(stage) = resident.stage.as_mut().filter(|_| reset.is_ok()) else {
            self.free(resident).await?;
            return Ok(false);
        };
        stage.loaded.source = WeightSource::Resident;
        stage.loaded.read_bytes = 0;
        stage.loaded.kept_layers = (order.spec.layer_end - order.spec.layer_begin) as usize;
        let mut inner = self.inner();
        // What was granted for the order; an earlier one may have had more copies.
        resident.held = inner.held.take().unwrap_or(resident.held);
        inner.resident = Some(resident);
        Ok(true)
    }

    /// The thread of the stage in memory, with no lane and no sequence left, or a new one. States that move stay, as
    /// far as there is room for them beside the stage that is there and beside the one that comes, which `needs` so
    /// much.
    async fn emptied(
        &self,
        order: &Order,
        needs: &StageNeeds,
    ) -> Result<(Executor, Option<Held>), Failure> {
        let old = self.inner().resident.take();
        let later = needs.stage_bytes().saturating_add(order.copy_bytes());
        let room = self.loader.ledger.limit().stage.saturating_sub(later);
        let Some(resident) = old else {
            self.copies.parting.fit(room.min(self.copies.parting.limit()));
            return Ok((Executor::start()?, None));
        };
        let others = order.copy_bytes().saturating_add(self.inner().ahead_bytes());
        let keep = self.keep(&resident, others, false);
        self.copies.parting.fit(room.min(self.copies.parting.limit()));
        let reset =
            resident.executor.reset(Some(keep)).await.map_err(|stuck| self.end_with(stuck))?;
        if reset.is_err() {
            self.free(resident).await?;
            return Ok((Executor::start()?, None));
        }
        Ok((resident.executor, Some(resident.held)))
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
        // A new epoch may have begun since. It may want the stage that is still here, and its copies.
        let (stage, ahead) = {
            let mut inner = self.inner();
            let is_idle = inner.session.phase() == Phase::Idle;
            if is_idle {
                self.copies.clear();
                self.copies.parting.clear();
            }
            if is_idle { (inner.resident.take(), inner.ahead.take()) } else { (None, None) }
        };
        self.let_go(ahead).await;
        if let Some(resident) = stage {
            self.free(resident).await?;
        }
        self.lane_ended.notify_waiters();
        tracing::info!(epoch, "unloaded");
        Ok(())
    }

    async fn free(&self, resident: Resident) -> Result<(), Failure> {
        resident.executor.stop().await.map_err(|stuck| self.end_with(stuck))
    }

    /// A stage that is stuck keeps its memory and its CPUs for as long as the process lives.
    fn end_with(&self, stuck: Stuck) -> Failure {
        tracing::error!(%stuck, "the stage is stuck: this worker process ends, so that it can be restarted");
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

    /// Refuses new epochs from now on. Completes when no lane is open, and no worker waits for its states. Returns
    /// the epoch that ran.
    pub async fn drain(&self) -> u64 {
        let epoch = {
            let mut inner = self.inner();
            inner.session.drain();
            inner.session.epoch()
        };
        loop {
            let ended = self.lane_ended.notified();
            let is_running = self.inner().session.phase() == Phase::Running;
            if !is_running && !self.copies.parting.is_awaited() {
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
    /// Ends all tasks and lanes of the last epoch.
    fn begin_epoch(&mut self, stop: &CancellationToken) {
        self.epoch_over.cancel();
        self.epoch_over = stop.child_token();
        self.order = None;
        self.give_back();
        self.beside = None;
        self.results = None;
        self.meter = Arc::default();
    }

    /// Gives back what was granted for the order.
    fn give_back(&mut self) {
        (self.held, self.pinned) = (None, None);
        self.fetched.clear();
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
/// The errors of `work`; Io if `work` panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Failure::refusal(FailureKind::Io, format!("a worker task failed: {error}")))
    })
}
