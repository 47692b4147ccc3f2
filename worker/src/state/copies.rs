//! Checkpoints in the worker's state: lists copies, and restores sequences from them.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_proto::control::CheckpointMode;
use brigade_proto::copies::{FetchRequest, Found, KeepOpen};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::tls::{KeyId, Who};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::lanes::is_named;
use super::snapshots::Door;
use super::{Worker, blocking, check_speaker};
use crate::copies::buffers::Buffers;
use crate::copies::disk::{DISK_BYTES, Disk};
use crate::copies::parting::Parting;
use crate::copies::parts::name_of;
use crate::copies::source::{PieceSource, Source};
use crate::copies::store::{Budget, Pieces, Store, Whole};
use crate::copies::{IN_QUEUE_BYTES, QUEUE_BYTES};
use crate::executor::gone;
use crate::executor::jobs::{HeldFound, Job};
use crate::loading::order::Order;
use crate::records::folder::Home;

/// The copies that are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The sequence's name.
    pub name: CopyName,
    /// The layers of the copies.
    pub layers: Range<u32>,
    /// The position of the copies.
    pub len: u32,
}

/// All copies on this worker.
#[derive(Debug)]
pub struct Copies {
    /// Copies of other workers' stages, in memory.
    pub kept: Arc<Store>,
    /// The stage's recurrent states at the last checkpoints.
    pub own: Arc<Store>,
    /// States of this worker's stage that wait for the next line.
    pub parting: Arc<Parting>,
    /// Memory of all of them that is used again.
    pub buffers: Arc<Buffers>,
    /// Where copies on the disk lie, beside other records.
    pub home: Arc<Home>,
    budget: Arc<Budget>,
    disk: Mutex<Option<Arc<Disk>>>,
    /// Ends the stream that brings others' copies.
    keeping: Mutex<CancellationToken>,
}

impl Copies {
    /// No copies yet; those on the disk will lie at this home.
    pub fn of(home: Arc<Home>) -> Self {
        let budget = Arc::new(Budget::default());
        let kept = Arc::new(Store::new(budget.clone()));
        let own = Arc::new(Store::new(budget.clone()));
        let buffers = Arc::new(Buffers::new(budget.clone()));
        let (parting, disk, keeping) = Default::default();
        Self { kept, own, parting, buffers, home, budget, disk, keeping }
    }

    /// Copies on the disk, once an order has asked for them.
    pub fn disk(&self) -> Option<Arc<Disk>> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that copies of checkpoints take in memory.
    pub fn nbytes(&self) -> u64 {
        self.budget.used()
    }

    /// Drops all copies of checkpoints that are in memory.
    pub(super) fn clear(&self) {
        self.kept.retain(&HashSet::new());
        self.own.retain(&HashSet::new());
        self.buffers.clear();
    }

    /// The copies of some layers of a sequence at a position, wherever they are.
    fn pieces(&self, wanted: &Wanted) -> Option<Pieces> {
        let Wanted { name, layers, len } = wanted;
        let of = |store: &Store| store.pieces(*name, layers.clone(), *len);
        of(&self.kept).or_else(|| of(&self.parting.whole)).or_else(|| of(&self.disk()?.store))
    }

    /// The copies that are here of sequence `i` of a request.
    fn find(&self, i: usize, name: CopyName) -> Vec<Found> {
        let on_disk = self.disk().map(|disk| disk.store.find(name)).unwrap_or_default();
        let kept = self.kept.find(name).into_iter().chain(on_disk);
        let parting = self.parting.whole.find(name).into_iter();
        let parting = parting.map(|whole| Found { parting: true, ..found_of(i, whole) });
        kept.map(|whole| found_of(i, whole)).chain(parting).collect()
    }

    /// Positions at which this stage has the recurrent states of `layers` itself, ascending.
    fn own_positions(&self, name: CopyName, layers: &Range<u32>) -> Vec<(u32, TokenMark)> {
        let of = |store: &Store| store.common(name, layers.clone());
        let mut positions = [of(&self.own), of(&self.parting.rests)].concat();
        positions.sort_unstable();
        positions.dedup();
        positions
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
            // Copies are not counted any more.
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
        let home = self.copies.home.clone();
        let opened = blocking(move || {
            Disk::open(&home, DISK_BYTES).map_err(|error| {
                let why = format!(
                    "--checkpoint disk: {}: {error}; give the worker another --cache-dir",
                    home.dir().display()
                );
                Failure::refusal(FailureKind::Storage, why)
            })
        });
        let disk = opened.await?;
        *self.copies.disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(disk));
        Ok(())
    }

    /// Accepts the stream of copies from the stage whose copies this worker keeps. The returned token is cancelled
    /// when the epoch is over, or when the same stage opens another stream in place of this one.
    ///
    /// # Errors
    /// As [`Self::on_line`]'s; WrongPhase on a line that keeps no copies in memory.
    pub fn begin_keep(&self, open: &KeepOpen, who: &Who) -> Result<CancellationToken, Failure> {
        let order = self.inner().order.clone();
        let copies = order.as_ref().and_then(|order| order.checkpoints.as_ref());
        let may = |key| copies.is_some_and(|copies| copies.kept_key == Some(key));
        let over = self.on_line(&open.coordinator_id, open.epoch, who, may)?;
        if copies.map(|copies| copies.mode) != Some(CheckpointMode::Buddy) {
            let why = "on this line workers keep no copies for each other";
            return Err(Failure::refusal(FailureKind::WrongPhase, why));
        }
        let over = over.child_token();
        let mut keeping = self.copies.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *keeping, over.clone()).cancel();
        Ok(over)
    }

    /// Checks that a worker that calls is on the line of the present epoch, and that the coordinator lets it do so.
    /// The returned token is cancelled when the epoch is over. No lease is renewed: no coordinator called.
    ///
    /// # Errors
    /// Forbidden, over TLS, for a worker whose key `may` does not take; StaleEpoch.
    fn on_line(
        &self,
        coordinator_id: &str,
        epoch: u64,
        who: &Who,
        may: impl FnOnce(KeyId) -> bool,
    ) -> Result<CancellationToken, Failure> {
        let inner = self.inner();
        if !may_touch(inner.order.is_some(), inner.beside.is_some(), is_named(who, may)) {
            let why = format!(
                "{who} may not read or write the copies on this worker: it is not part of its line"
            );
            return Err(Failure::refusal(FailureKind::Forbidden, why));
        }
        if !inner.session.is_at(coordinator_id, epoch) {
            let why = format!("epoch {epoch} is not this worker's");
            return Err(Failure::refusal(FailureKind::StaleEpoch, why));
        }
        Ok(inner.epoch_over.clone())
    }

    /// Keys of the workers that may fetch the copies.
    fn line_keys(&self) -> Vec<KeyId> {
        let inner = self.inner();
        let of_order = inner.order.as_ref().map(|order| &order.line_keys);
        of_order.or(inner.beside.as_ref()).cloned().unwrap_or_default()
    }

    /// The stage's queue; `None` beside the line, where there is no stage.
    fn stage_door(&self, coordinator_id: &str, epoch: u64) -> Result<Option<Door>, Failure> {
        let is_beside = self.inner().beside.is_some();
        if is_beside {
            self.check(coordinator_id, epoch)?;
            return Ok(None);
        }
        self.door(coordinator_id, epoch, 0).map(Some)
    }

    /// The positions at which sequences can be restored from copies that are here. Copies of other sequences are
    /// dropped from memory.
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
        let door = self.stage_door(coordinator_id, epoch)?;
        let live: HashSet<CopyName> = names.iter().copied().collect();
        self.copies.kept.retain(&live);
        self.copies.own.retain(&live);
        self.copies.parting.retain(&live);
        let held = match &door {
            Some(door) => held_by(door, names).await?,
            None => HeldFound { facts: None, up_to: Vec::new() },
        };
        let mut found = Vec::new();
        for (i, name) in names.iter().enumerate() {
            found.extend(self.copies.find(i, *name));
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
                    let mut positions = self.copies.own_positions(*name, &layers);
                    positions.retain(|(len, _)| *len <= up_to);
                    let own = Whole { layers, positions };
                    found.push(Found { in_place: true, ..found_of(i, own) });
                }
            }
        }
        Ok(found)
    }

    /// Handles the coordinator's message that all restored sequences have their states: copies for them are dropped.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; the session's refusals.
    pub async fn settle(&self, coordinator_id: &str, epoch: u64, who: &Who) -> Result<(), Failure> {
        check_speaker(who, coordinator_id)?;
        let door = self.stage_door(coordinator_id, epoch)?;
        self.copies.parting.clear();
        self.lane_ended.notify_waiters();
        match &door {
            Some(door) => held_by(door, &[]).await.map(drop),
            None => Ok(()),
        }
    }

    /// The copies that another worker of the line asks for.
    ///
    /// # Errors
    /// As [`Self::on_line`]'s; BadMessage for an invalid name; WrongPhase where the copies are not here.
    pub fn copies_for(
        &self,
        request: &FetchRequest,
        who: &Who,
    ) -> Result<Box<dyn Source>, Failure> {
        self.check_on_line(request, who)?;
        let FetchRequest { len, layer_begin, layer_end, .. } = *request;
        self.pieces_of(&Wanted {
            name: name_of(&request.name)?,
            layers: layer_begin..layer_end,
            len,
        })
    }

    /// Checks that a worker that fetches is on the line of the present epoch.
    ///
    /// # Errors
    /// As [`Self::on_line`]'s.
    pub(super) fn check_on_line(&self, request: &FetchRequest, who: &Who) -> Result<(), Failure> {
        let line_keys = self.line_keys();
        let may = |key| line_keys.contains(&key);
        self.on_line(&request.coordinator_id, request.epoch, who, may).map(drop)
    }

    /// Copies that are here.
    ///
    /// # Errors
    /// WrongPhase where they are not.
    pub(super) fn pieces_of(&self, wanted: &Wanted) -> Result<Box<dyn Source>, Failure> {
        let pieces = self.copies.pieces(wanted).ok_or_else(|| {
            let why = format!("no copy of layers {:?} at {} is here", wanted.layers, wanted.len);
            Failure::refusal(FailureKind::WrongPhase, why)
        })?;
        Ok(Box::new(PieceSource::from(pieces)))
    }
}

/// The states of these sequences that a stage holds in place. It gives up those of all others.
async fn held_by(door: &Door, names: &[CopyName]) -> Result<HeldFound, Failure> {
    let (answer, held) = oneshot::channel();
    let job = Job::FindHeld { names: names.to_vec(), answer };
    door.jobs.send(job).await.map_err(|_| gone())?;
    held.await.map_err(|_| gone())?
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

/// Whether a caller may read or write the copies here, of a worker with layers, beside a line, or without a part in one. To the
/// last one nobody speaks in its epoch.
fn may_touch(has_layers: bool, is_beside: bool, is_named: bool) -> bool {
    is_named || !(has_layers || is_beside)
}

#[cfg(test)]
mod tests {
    use crate::copies::piece::Piece;
    use crate::copies::store::{ENTRY_BYTES, Head, Item, LAYER_BYTES, What};
    use crate::records::Kind;
    use crate::records::rate::Rate;

    use super::*;

    #[test]
    fn only_who_is_on_the_line_touches_its_copies() {
        for (has_layers, is_beside) in [(true, false), (false, true), (true, true)] {
            assert!(may_touch(has_layers, is_beside, true));
            assert!(!may_touch(has_layers, is_beside, false), "{has_layers} {is_beside}");
        }
        assert!(may_touch(false, false, false));
    }

    #[test]
    fn copies_in_memory_count_until_they_are_dropped() {
        let copies = Copies::of(Home::at("no-cache".into(), Rate::new(1)));
        copies.budget.set_limit(1 << 20);
        let head = Head {
            name: CopyName([1; 16]),
            kind: Kind::default(),
            layers: 0..1,
            prints: vec![blake3::hash(b"weights")],
        };
        let what = What::Pages { first: 0, n: 1 };
        let item = Item { layer: 0, block: 0, paged: true, what };
        assert!(copies.kept.put(&head, item, Piece::Memory(vec![0; 1000].into())));
        assert_eq!(copies.nbytes(), 1000 + ENTRY_BYTES + LAYER_BYTES);
        copies.clear();
        assert_eq!(copies.nbytes(), 0);
    }
}
