//! Preparing a stage: its order is checked, and its bytes are found, or named as missing and received.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use brigade_proto::control::{Blob, MissingBlob, PrepareReply, TensorChunk, WeightSource};
use brigade_proto::failure::{Failure, FailureKind};
use tokio_util::sync::CancellationToken;

use super::session::Taken;
use super::{Worker, blocking, over};
use crate::backend::{BuiltFacts, StageNeeds};
use crate::loading::load::Loaded;
use crate::loading::order::Order;
use crate::machine::ledger::Held;
use crate::weights::cache::{Pinned, Purpose};

/// What an order's stage was granted.
pub(super) struct Granted {
    memory: Held,
    /// Its blobs in the cache, if it is loaded from there.
    pub(super) pinned: Option<Pinned>,
}

impl Worker {
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
            let was_ours = inner.session.owner() == Some(coordinator_id);
            let taken = inner.session.prepare(Instant::now(), coordinator_id, epoch)?;
            if taken == Taken::NewEpoch {
                inner.begin_epoch(&self.stop);
            }
            if !was_ours {
                self.copies.parting.clear();
            }
            taken
        };
        let newly = taken == Taken::NewEpoch;
        tracing::info!(epoch, coordinator_id, model = order.model_name, newly, "prepare");
        let order = Arc::new(order);
        let given_up = self.inner().epoch_over.clone();
        let located = match self.resident_serves(&order) {
            // What is pinned for it stays so.
            Some((reply, needs)) => self
                .loader
                .grant(&order, &needs)
                .map(|memory| (reply, Granted { memory, pinned: None })),
            None => {
                let held = self.in_memory(&order);
                self.locate(order.clone(), held, Purpose::Stage, given_up).await
            }
        };
        let mut inner = self.inner();
        let current = inner.session.is_at(coordinator_id, epoch);
        match located {
            Err(failure) => {
                if current {
                    inner.session.release();
                    inner.give_back();
                }
                Err(failure)
            }
            Ok(_) if !current => Err(over(epoch, &inner.session)),
            Ok((reply, Granted { memory, pinned })) => {
                (inner.order, inner.held) = (Some(order), Some(memory));
                if pinned.is_some() {
                    // It has what was fetched for the order, too.
                    inner.fetched.clear();
                }
                inner.pinned = pinned;
                inner.session.heartbeat(Instant::now(), coordinator_id, epoch);
                Ok(reply)
            }
        }
    }

    /// The answer for an order that the stage in memory serves as it is, and what that has.
    fn resident_serves(&self, order: &Order) -> Option<(PrepareReply, StageNeeds)> {
        let inner = self.inner();
        let resident = inner.resident.as_ref();
        let resident = resident.filter(|r| r.serves(order, &self.loader.host_id))?;
        let Loaded { facts, needs, .. } = &resident.stage.as_ref()?.loaded;
        let BuiltFacts { weight_bytes, state_bytes, .. } = *facts;
        let source = WeightSource::Resident.into();
        let reply = PrepareReply { source, weight_bytes, state_bytes, ..PrepareReply::default() };
        Some((reply, needs.clone()))
    }

    /// Tensors of an order whose weights are in memory, those that were loaded ahead too.
    pub(super) fn in_memory(&self, order: &Order) -> HashSet<String> {
        let mut held = self.held_tensors(order);
        if let Some(ahead) = self.inner().ahead_weights() {
            held.extend(ahead.same_tensors(order, &self.loader.host_id));
        }
        held
    }

    /// Tensors of an order whose weights are in memory, in a stage or in the rest of one.
    pub(super) fn held_tensors(&self, order: &Order) -> HashSet<String> {
        let inner = self.inner();
        let resident = inner.resident.as_ref().filter(|resident| resident.executor.is_alive());
        resident.map_or_else(HashSet::new, |r| r.key.same_tensors(order, &self.loader.host_id))
    }

    /// Where an order's bytes are, and what its stage is granted.
    pub(super) async fn locate(
        &self,
        order: Arc<Order>,
        held: HashSet<String>,
        purpose: Purpose,
        given_up: CancellationToken,
    ) -> Result<(PrepareReply, Granted), Failure> {
        let loader = self.loader.clone();
        let (located, memory) = blocking(move || {
            let located = loader.locate(&order, &held, purpose, &given_up)?;
            let memory = loader.grant(&order, &located.needs)?;
            Ok((located, memory))
        })
        .await?;
        let pinned = located.pinned;
        let missing = located.missing.into_iter().map(|(hash, nbytes, offset)| {
            let blake3 = hash.as_bytes().to_vec().into();
            MissingBlob { blob: Some(Blob { blake3, nbytes }), offset }
        });
        let reply = PrepareReply {
            source: located.source.into(),
            needs_hashes: located.needs_hashes,
            missing: missing.collect(),
            weight_bytes: located.needs.weight_bytes,
            state_bytes: located.needs.state_bytes,
        };
        Ok((reply, Granted { memory, pinned }))
    }

    /// Keeps what was fetched in the cache until an order is prepared that needs it, or the epoch is over; one that is over by
    /// now needs nothing.
    pub fn keep_fetched(&self, coordinator_id: &str, epoch: u64, pinned: Arc<Pinned>) {
        let mut inner = self.inner();
        if inner.session.is_at(coordinator_id, epoch) {
            inner.fetched.push(pinned);
        }
    }

    /// The model of the order that is there, for people; empty where there is none.
    pub fn model_name(&self) -> String {
        self.inner().order.as_ref().map_or_else(String::new, |order| order.model_name.clone())
    }

    /// Checks that a chunk belongs to the current epoch and to a blob of its order, and renews the
    /// lease.
    ///
    /// # Errors
    /// Busy or StaleEpoch; BadMessage for a blob that no one asked for.
    pub fn check_push(&self, chunk: &TensorChunk) -> Result<(), Failure> {
        let mut inner = self.inner();
        inner.session.check(Instant::now(), &chunk.coordinator_id, chunk.epoch)?;
        let wanted = |blob: &Blob| {
            let now = inner.order.as_ref().is_some_and(|order| order.wants(blob));
            now || Self::wants_ahead(&inner, blob)
        };
        if chunk.blob.as_ref().is_some_and(wanted) {
            return Ok(());
        }
        Err(Failure::refusal(FailureKind::BadMessage, "Prepare did not name chunk.blob as missing"))
    }
}
