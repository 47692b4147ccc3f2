//! Loading ahead: while a line runs, its workers load weights that their stages of the next line lack, so that
//! streams do not wait for them. This takes one thread, and memory beside the stage that computes. Where there is no
//! memory, Load reads everything later.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use brigade_proto::control::{LoadedFacts, Phase, PrepareReply};
use brigade_proto::failure::{Failure, FailureKind};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::prepare::Granted;
use super::{Inner, Resident, Worker, over};
use crate::backend::KeptWeights;
use crate::executor::gone;
use crate::loading::load::{Loaded, LoadedAhead, Loader, Room};
use crate::loading::order::{Order, StageKey};
use crate::machine::ledger::Held;
use crate::weights::cache::{Pinned, Purpose};

/// Weights for the next line's stage.
pub(super) struct Ahead {
    order: Arc<Order>,
    /// Layers that the stage has which computes now, and that stay.
    has: Range<usize>,
    /// Names of their tensors.
    in_memory: HashSet<String>,
    given_up: CancellationToken,
    /// Once it is loaded.
    weights: Option<AheadWeights>,
    /// Its blobs in the cache.
    pinned: Option<Pinned>,
}

/// Weights that were loaded ahead.
pub(super) struct AheadWeights {
    key: StageKey,
    pub(super) kept: KeptWeights,
    nbytes: u64,
    /// The memory for them and the stage that computes.
    pub(super) held: Held,
}

impl AheadWeights {
    /// The names of its tensors that `order` asks for.
    pub(super) fn same_tensors(&self, order: &Order, host_id: &str) -> HashSet<String> {
        let same = self.key.same_tensors(order, host_id);
        self.kept.tensors().filter(|tensor| same.contains(*tensor)).map(str::to_owned).collect()
    }
}

impl Ahead {
    /// Takes the loaded weights, and stops loading.
    pub(super) fn into_weights(self) -> Option<AheadWeights> {
        self.given_up.cancel();
        self.weights
    }
}

impl Inner {
    /// Bytes of weights that were loaded ahead.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.ahead_weights().map_or(0, |weights| weights.nbytes)
    }

    /// Why something that was ahead is not there any more, for the call that was about it.
    fn overtaken(&self, coordinator_id: &str, epoch: u64) -> Failure {
        if !self.session.is_at(coordinator_id, epoch) {
            return over(epoch, &self.session);
        }
        let why =
            "the change for which this was to be loaded was given up, or another took its place";
        Failure::refusal(FailureKind::WrongPhase, why)
    }

    pub(super) fn ahead_weights(&self) -> Option<&AheadWeights> {
        self.ahead.as_ref()?.weights.as_ref()
    }

    /// The line whose stage computes; for calls beside it.
    fn running(&mut self, coordinator_id: &str, epoch: u64) -> Result<&Resident, Failure> {
        self.session.check(Instant::now(), coordinator_id, epoch)?;
        let phase = self.session.phase();
        if !matches!(phase, Phase::Ready | Phase::Running) {
            let why = format!("epoch {epoch} is in {}: no stage computes", phase.as_str_name());
            return Err(Failure::refusal(FailureKind::WrongPhase, why));
        }
        let resident = self.resident.as_ref().filter(|resident| resident.stage.is_some());
        resident.ok_or_else(gone)
    }
}

impl Worker {
    /// Finds the bytes of the stage that this worker will have on the next line.
    ///
    /// # Errors
    /// The session's refusals, WrongPhase where no stage computes, and [`Loader::locate`]'s.
    pub async fn prepare_ahead(
        &self,
        coordinator_id: &str,
        epoch: u64,
        order: Order,
    ) -> Result<PrepareReply, Failure> {
        let order = Arc::new(order);
        let before;
        let (held, had, of_layers, given_up) = {
            let mut inner = self.inner();
            let resident = inner.running(coordinator_id, epoch)?;
            let held = resident.key.same_tensors(&order, &self.loader.host_id);
            let had = resident.key.place().1;
            let of_layers = resident.stage.as_ref().map(|s| s.loaded.facts.layer_tensors.clone());
            let given_up = inner.epoch_over.child_token();
            let ahead = Ahead {
                order: order.clone(),
                has: 0..0,
                in_memory: HashSet::new(),
                given_up: given_up.clone(),
                weights: None,
                pinned: None,
            };
            let had = had.start as usize..had.end as usize;
            before = inner.ahead.replace(ahead);
            (held, had, of_layers.unwrap_or_default(), given_up)
        };
        self.let_go(before).await;
        tracing::info!(epoch, model = order.model_name, "prepare ahead");
        let located = self.locate(order.clone(), held.clone(), Purpose::Ahead, given_up).await?;
        // The memory is granted again when it loads.
        let (reply, Granted { pinned, .. }) = located;
        let mut inner = self.inner();
        let has_pinned = pinned.is_some();
        let ahead = inner.ahead.as_mut().filter(|ahead| Arc::ptr_eq(&ahead.order, &order));
        let Some(ahead) = ahead else { return Err(inner.overtaken(coordinator_id, epoch)) };
        (ahead.has, ahead.in_memory) = stays(&order, &held, had, &of_layers);
        ahead.pinned = pinned;
        if has_pinned {
            // It has what was fetched for the order, too.
            inner.fetched.clear();
        }
        Ok(reply)
    }

    /// Loads the stage that was prepared ahead. `progress` is told `(done, total)` bytes.
    ///
    /// # Errors
    /// The session's refusals; WrongPhase where nothing was prepared, or its bytes are missing; NoMemory where there is
    /// no room beside the stage; what loading fails with. The line runs on.
    pub async fn load_ahead(
        &self,
        coordinator_id: &str,
        epoch: u64,
        progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<LoadedFacts, Failure> {
        let (order, given_up, in_memory, room) = {
            let mut inner = self.inner();
            let resident = inner.running(coordinator_id, epoch)?;
            let (nbytes, taken) = (self.room_beside(resident), resident.held.amount());
            let ahead = inner.ahead.as_ref().ok_or_else(|| {
                Failure::refusal(FailureKind::WrongPhase, "call PrepareAhead first")
            })?;
            let room = Room { nbytes, taken, has: ahead.has.clone() };
            (ahead.order.clone(), ahead.given_up.clone(), ahead.in_memory.clone(), room)
        };
        let started = Instant::now();
        let (loader, loading) = (self.loader.clone(), order.clone());
        // Of the thread, which goes on where this call is given up.
        let alone = self.loads_ahead.clone().lock_owned().await;
        let work = move || {
            let _alone = alone;
            load(&loader, &loading, &in_memory, room, &given_up, progress)
        };
        let (weights, pinned, read_bytes) = on_own_thread(work).await?;
        let nbytes = weights.nbytes;
        let mut weights = Some(weights);
        let noted = self.note_ahead(coordinator_id, epoch, &order, &mut weights, pinned);
        if let Err(refusal) = noted {
            freed(weights).await;
            return Err(refusal);
        }
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(epoch, nbytes, read_bytes, ms = (seconds * 1e3) as u64, "loaded ahead");
        Ok(LoadedFacts {
            weight_bytes: nbytes,
            seconds,
            metadata_hash: order.header.0.as_bytes().to_vec().into(),
            read_bytes,
            ..LoadedFacts::default()
        })
    }

    /// Takes the weights that were loaded for an order, if that is still wanted.
    fn note_ahead(
        &self,
        coordinator_id: &str,
        epoch: u64,
        order: &Arc<Order>,
        weights: &mut Option<AheadWeights>,
        pinned: Option<Pinned>,
    ) -> Result<(), Failure> {
        let mut inner = self.inner();
        let current = inner.session.is_at(coordinator_id, epoch);
        let ahead = inner.ahead.as_mut().filter(|a| current && Arc::ptr_eq(&a.order, order));
        let Some(ahead) = ahead else { return Err(inner.overtaken(coordinator_id, epoch)) };
        (ahead.weights, ahead.pinned) = (weights.take(), pinned);
        Ok(())
    }

    /// Lets go of what was prepared or loaded ahead, and of what is being loaded. It is freed when this returns. The stage
    /// that computes stays.
    ///
    /// # Errors
    /// The session's refusals, and WrongPhase where no stage computes.
    pub async fn forget_ahead(&self, coordinator_id: &str, epoch: u64) -> Result<(), Failure> {
        let forgotten = {
            let mut inner = self.inner();
            inner.running(coordinator_id, epoch)?;
            // What was fetched for its order, whose hashes were not known before.
            inner.fetched.clear();
            inner.ahead.take()
        };
        if let Some(forgotten) = &forgotten {
            let nbytes = forgotten.weights.as_ref().map_or(0, |weights| weights.nbytes);
            tracing::info!(epoch, nbytes, "the next line does not come: its weights are let go");
        }
        self.let_go(forgotten).await;
        Ok(())
    }

    /// Ends what loads ahead, and frees what was loaded. Both are done when this returns.
    pub(super) async fn let_go(&self, ahead: Option<Ahead>) {
        let Some(ahead) = ahead else { return };
        ahead.given_up.cancel();
        let _nothing_loads = self.loads_ahead.lock().await;
        freed(ahead).await;
    }

    /// Whether a blob belongs to the stage that is prepared ahead.
    pub(super) fn wants_ahead(inner: &Inner, blob: &brigade_proto::control::Blob) -> bool {
        inner.ahead.as_ref().is_some_and(|ahead| ahead.order.wants(blob))
    }

    /// Memory beside the stage that computes: its states may be there twice when they move.
    fn room_beside(&self, resident: &Resident) -> u64 {
        let loaded = resident.stage.as_ref().map(|stage| &stage.loaded);
        let taken = loaded.map_or(0, |Loaded { needs, facts, .. }| {
            let stage = needs.weight_bytes.saturating_add(needs.state_bytes);
            stage.saturating_add(facts.state_bytes).saturating_add(facts.copies_bytes)
        });
        let copies = self.copies.nbytes();
        self.loader.ledger.limit().stage.saturating_sub(taken.saturating_add(copies))
    }
}

/// The layers that a worker goes on with, and the names of their tensors: those that it `had`, if all of their tensors are
/// `held`. `of_layers` has the names of each.
fn stays(
    order: &Order,
    held: &HashSet<String>,
    had: Range<usize>,
    of_layers: &BTreeMap<usize, Vec<String>>,
) -> (Range<usize>, HashSet<String>) {
    let wanted = order.spec.layer_begin as usize..order.spec.layer_end as usize;
    let both = had.start.max(wanted.start)..had.end.min(wanted.end);
    let names: HashSet<String> =
        both.clone().filter_map(|layer| of_layers.get(&layer)).flatten().cloned().collect();
    if !both.is_empty() && names.is_subset(held) { (both, names) } else { (0..0, HashSet::new()) }
}

/// Loads an order's stage apart from the tensors that are `in_memory`; returns the bytes that were read, too.
fn load(
    loader: &Loader,
    order: &Order,
    in_memory: &HashSet<String>,
    room: Room,
    given_up: &CancellationToken,
    progress: impl Fn(u64, u64) + Send + 'static,
) -> Result<(AheadWeights, Option<Pinned>, u64), Failure> {
    let found = loader.find(order, in_memory, Purpose::Ahead, given_up)?;
    let key = order.key(found.content.clone());
    let total = order.tensor_bytes();
    let mut done = 0;
    let count = Box::new(move |nbytes: u64| {
        done += nbytes;
        progress(done, total);
    });
    let loaded = loader.load_ahead(order, found, room, given_up, count)?;
    let LoadedAhead { kept, nbytes, read_bytes, held, pinned } = loaded;
    Ok((AheadWeights { key, kept, nbytes, held }, pinned, read_bytes))
}

/// Frees something large beside the threads of the network, on which lanes and heartbeats wait.
async fn freed<T: Send + 'static>(large: T) {
    // A panic of freeing was printed, and there is nothing to be done.
    let _ = tokio::task::spawn_blocking(move || drop(large)).await;
}

/// Runs work that pins its thread: one of the runtime's would stay pinned.
async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("load-ahead".into());
    let spawned = thread.spawn(move || drop(done.send(work())));
    spawned.map_err(|error| {
        Failure::refusal(FailureKind::Io, format!("cannot start a thread to load ahead: {error}"))
    })?;
    let failed = || Failure::refusal(FailureKind::Compute, "loading ahead failed: see the log");
    result.await.unwrap_or_else(|_| Err(failed()))
}
