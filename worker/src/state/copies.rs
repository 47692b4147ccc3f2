//! Checkpoints as far as the worker's state is asked: which copies are here, and putting sequences back.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_proto::control::CheckpointMode;
use brigade_proto::copies::{CopySource, FetchRequest, Found, KeepOpen, PutBackRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::tls::{KeyId, Who};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::lanes::is_named;
use super::{Worker, blocking, check_speaker};
use crate::copies::disk::{DISK_BYTES, Disk};
use crate::copies::fetch::{Gathered, Keeper, Wanted};
use crate::copies::parts::{bad, name_of};
use crate::copies::store::{Budget, Pieces, Store, Whole};
use crate::copies::taker::PutBack;
use crate::copies::{IN_QUEUE_BYTES, QUEUE_BYTES};
use crate::executor::{Job, gone};
use crate::order::{CheckpointOrder, Order, key_from_wire};

/// Folder of copies in the cache's.
const FOLDER: &str = "checkpoints";

/// All copies on this worker.
#[derive(Debug)]
pub struct Copies {
    /// Others' copies, in memory.
    pub kept: Arc<Store>,
    /// This stage's recurrent states at the last checkpoints.
    pub own: Arc<Store>,
    budget: Arc<Budget>,
    disk: Mutex<Option<Arc<Disk>>>,
    /// Ends the stream that brings others' copies.
    keeping: Mutex<CancellationToken>,
}

impl Default for Copies {
    fn default() -> Self {
        let budget = Arc::new(Budget::default());
        let kept = Arc::new(Store::new(budget.clone()));
        let own = Arc::new(Store::new(budget.clone()));
        Self { kept, own, budget, disk: Mutex::default(), keeping: Mutex::default() }
    }
}

impl Copies {
    /// Copies on the disk, once an order has asked for them.
    pub fn disk(&self) -> Option<Arc<Disk>> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that copies take in memory.
    pub fn nbytes(&self) -> u64 {
        self.budget.used()
    }

    /// Drops all that is in memory.
    pub(super) fn clear(&self) {
        self.kept.retain(&HashSet::new());
        self.own.retain(&HashSet::new());
    }

    /// The copies of some layers of a sequence at a position, wherever they are.
    fn pieces(&self, wanted: &Wanted) -> Option<Pieces> {
        let Wanted { name, layers, len } = wanted;
        let of = |store: &Store| store.pieces(*name, layers.clone(), *len);
        of(&self.kept).or_else(|| of(&self.disk()?.store))
    }

    fn find(&self, name: CopyName) -> Vec<Whole> {
        let on_disk = self.disk().map(|disk| disk.store.find(name));
        self.kept.find(name).into_iter().chain(on_disk.into_iter().flatten()).collect()
    }
}

impl Worker {
    /// All copies on this worker.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Makes ready for the copies that an order asks for.
    ///
    /// # Errors
    /// Storage where the folder cannot be used.
    pub(super) async fn open_copies(&self, order: &Order) -> Result<(), Failure> {
        let Some(wanted) = &order.checkpoints else {
            // Nobody counts them any more.
            self.copies.clear();
            return Ok(());
        };
        let on_their_way = match wanted.mode {
            CheckpointMode::Buddy => QUEUE_BYTES + IN_QUEUE_BYTES,
            CheckpointMode::Disk | CheckpointMode::Unspecified => QUEUE_BYTES,
        };
        self.copies.budget.set_limit(wanted.memory_bytes.saturating_sub(on_their_way as u64));
        if wanted.mode != CheckpointMode::Disk || self.copies.disk().is_some() {
            return Ok(());
        }
        let dir = self.loader.cache.dir().join(FOLDER);
        let opened = blocking(move || {
            Disk::open(dir.clone(), DISK_BYTES).map_err(|error| {
                let why = format!(
                    "--checkpoint disk: {}: {error}; give the worker another --cache-dir",
                    dir.display()
                );
                Failure::refusal(FailureKind::Storage, why)
            })
        });
        let disk = opened.await?;
        *self.copies.disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(disk));
        Ok(())
    }

    /// Lets the stage whose copies this worker keeps send them. What comes back is cancelled when the epoch is over, or
    /// when the same stage opens another stream in place of this one.
    ///
    /// # Errors
    /// As [`Self::on_line`]'s; WrongPhase on a line that keeps no copies in memory.
    pub fn begin_keep(&self, open: &KeepOpen, who: &Who) -> Result<CancellationToken, Failure> {
        let may = |copies: &CheckpointOrder, key| copies.kept_key == Some(key);
        let (mode, over) = self.on_line(&open.coordinator_id, open.epoch, who, may)?;
        if mode != CheckpointMode::Buddy {
            let why = "on this line workers keep no copies for each other";
            return Err(Failure::refusal(FailureKind::WrongPhase, why));
        }
        let over = over.child_token();
        let mut keeping = self.copies.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *keeping, over.clone()).cancel();
        Ok(over)
    }

    /// Checks that a worker that calls is on the same line in its present epoch, and that the coordinator lets it do so.
    /// What comes back says where copies go, and when the epoch is over. No lease is renewed: no coordinator called.
    ///
    /// # Errors
    /// Forbidden, over TLS, for a worker whose key `may` does not take; StaleEpoch; WrongPhase on a line without
    /// checkpoints.
    fn on_line(
        &self,
        coordinator_id: &str,
        epoch: u64,
        who: &Who,
        may: impl Fn(&CheckpointOrder, KeyId) -> bool,
    ) -> Result<(CheckpointMode, CancellationToken), Failure> {
        let inner = self.inner();
        let copies = inner.order.as_ref().and_then(|order| order.checkpoints.as_ref());
        if copies.is_some_and(|copies| !is_named(who, |key| may(copies, key))) {
            let why = format!("{who} has no part in the copies that are here");
            return Err(Failure::refusal(FailureKind::Forbidden, why));
        }
        if !inner.session.is_at(coordinator_id, epoch) {
            let why = format!("epoch {epoch} is not this worker's");
            return Err(Failure::refusal(FailureKind::StaleEpoch, why));
        }
        let Some(copies) = copies else {
            let why = "this line takes no checkpoints";
            return Err(Failure::refusal(FailureKind::WrongPhase, why));
        };
        Ok((copies.mode, inner.epoch_over.clone()))
    }

    /// Which positions of sequences can be put back from what is here. Copies of others are dropped from memory.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; the session's refusals; WrongPhase without a lane.
    pub async fn find_copies(
        &self,
        coordinator_id: &str,
        epoch: u64,
        names: &[CopyName],
        who: &Who,
    ) -> Result<Vec<Found>, Failure> {
        check_speaker(who, coordinator_id)?;
        let door = self.door(coordinator_id, epoch, 0)?;
        let live: HashSet<CopyName> = names.iter().copied().collect();
        self.copies.kept.retain(&live);
        self.copies.own.retain(&live);
        let (answer, held) = oneshot::channel();
        let job = Job::FindHeld { names: names.to_vec(), answer };
        door.jobs.send(job).await.map_err(|_| gone())?;
        let held = held.await.map_err(|_| gone())??;
        let mut found = Vec::new();
        for (i, name) in names.iter().enumerate() {
            found.extend(self.copies.find(*name).into_iter().map(|whole| found_of(i, whole)));
            let (Some(facts), Some(&up_to)) = (&held.facts, held.up_to.get(i)) else { continue };
            let in_place = Found {
                name: i as u32,
                layer_begin: facts.layers.start,
                layer_end: facts.layers.end,
                in_place: true,
                ..Found::default()
            };
            match (up_to, facts.has_slots) {
                (0, _) => {}
                (up_to, false) => found.push(Found { up_to, ..in_place }),
                (up_to, true) => {
                    let layers = facts.layers.clone();
                    let mut positions = self.copies.own.common(*name, layers.clone());
                    positions.retain(|(len, _)| *len <= up_to);
                    let own = Whole { layers, positions };
                    found.push(Found { in_place: true, ..found_of(i, own) });
                }
            }
        }
        Ok(found)
    }

    /// The copies that another worker of the line asks for.
    ///
    /// # Errors
    /// As [`Self::on_line`]'s; BadMessage for a name that is none; WrongPhase where they are not here.
    pub fn copies_for(&self, request: &FetchRequest, who: &Who) -> Result<Pieces, Failure> {
        let may = |copies: &CheckpointOrder, key| copies.line_keys.contains(&key);
        self.on_line(&request.coordinator_id, request.epoch, who, may)?;
        let FetchRequest { len, layer_begin, layer_end, .. } = *request;
        self.pieces_of(Wanted {
            name: name_of(&request.name)?,
            layers: layer_begin..layer_end,
            len,
        })
    }

    fn pieces_of(&self, wanted: Wanted) -> Result<Pieces, Failure> {
        self.copies.pieces(&wanted).ok_or_else(|| {
            let why = format!("no copy of layers {:?} at {} is here", wanted.layers, wanted.len);
            Failure::refusal(FailureKind::WrongPhase, why)
        })
    }

    /// Gives an open sequence its state at a position; returns the bytes that came from elsewhere.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; the session's refusals; what is missing, or does not fit. Nothing
    /// has changed then.
    pub async fn put_back(&self, request: PutBackRequest, who: &Who) -> Result<u64, Failure> {
        check_speaker(who, &request.coordinator_id)?;
        let PutBackRequest { epoch, coordinator_id, slot, len, kept_len, .. } = &request;
        let name = name_of(&request.name)?;
        self.door(coordinator_id, *epoch, *slot)?;
        let _turn = self.state_turn().await?;
        // Waiting may have taken a while.
        let door = self.door(coordinator_id, *epoch, *slot)?;
        let limit = door.limit.min(door.room);
        let mut gathered = Gathered::default();
        for source in &request.sources {
            let layers = source.layer_begin..source.layer_end;
            if source.address.is_empty() {
                let pieces = self.pieces_of(Wanted { name, layers, len: *len })?;
                let mut taken = std::mem::take(&mut gathered);
                gathered = blocking(move || {
                    taken.add(&pieces, limit)?;
                    Ok(taken)
                })
                .await?;
                continue;
            }
            let keeper = keeper_of(source)?;
            let wanted = FetchRequest {
                epoch: *epoch,
                coordinator_id: coordinator_id.clone(),
                name: request.name.clone(),
                len: *len,
                layer_begin: layers.start,
                layer_end: layers.end,
            };
            gathered.fetch(&keeper, &self.network, wanted, limit).await?;
        }
        let (tokens, rest) = request.tokens.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(bad("put_back.tokens are no whole tokens"));
        }
        let tokens = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
        let fetched = gathered.nbytes;
        let put = PutBack { slot: *slot, name, len: *len, tokens, gathered, kept_len: *kept_len };
        let (answer, done) = oneshot::channel();
        door.jobs.send(Job::PutBack { put: Box::new(put), answer }).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())??;
        Ok(fetched)
    }
}

fn keeper_of(source: &CopySource) -> Result<Keeper, Failure> {
    let address = source.address.parse();
    let address = address.map_err(|e| bad(format!("put_back.sources.address: {e}")))?;
    Ok(Keeper { address, key: key_from_wire("put_back.sources.key", &source.key)? })
}

fn found_of(name: usize, whole: Whole) -> Found {
    let marks: Vec<u8> = whole.positions.iter().flat_map(|(_, TokenMark(mark))| *mark).collect();
    Found {
        name: name as u32,
        layer_begin: whole.layers.start,
        layer_end: whole.layers.end,
        positions: whole.positions.iter().map(|(len, _)| *len).collect(),
        marks: marks.into(),
        ..Found::default()
    }
}
