//! Checkpoints on the executor's thread. It tracks the names of sequences, which of their pages were copied, and
//! which pages the stage still holds of sequences whose line was lost.
//!
//! This thread only copies memory, into a bounded room. Another thread sends the copies.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use brigade_engine::batch::{CopyName, PageId, SeqOp, SlotId, TokenMark, UBatch};
use brigade_engine::error::{BatchError, SnapshotError};
use brigade_engine::kernels::KV_PAGE;
use brigade_engine::state::{BlockPart, BlockSource, CopyRoom, LayerPrint, StageCopy, Written};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::QUEUE_BYTES;
use super::buffers::Buffers;
use super::gathered::Gathered;
use super::parting::{COPY_WITHIN, Keep, Parting};
use super::piece::Piece;
use super::put::{PutBack, PutPart};
use super::stage_copy::{About, Copied, Wanted};
use super::store::{Head, Item, Store, What};
use crate::backend::{CopyFacts, StageError, StageRunner};
use crate::records::Kind;

/// Bytes that one permit of the outbox stands for.
const PERMIT_BYTES: usize = 1 << 10;

/// Where the copies of checkpoints go.
#[derive(Clone, Debug)]
pub struct Outbox {
    /// The queue of the task that sends them.
    queue: mpsc::UnboundedSender<Outgoing>,
    /// Permits for the bytes that may wait there.
    room: Arc<Semaphore>,
    /// The stage's own recurrent states.
    own: Arc<Store>,
    /// The pool of buffers for copies.
    buffers: Arc<Buffers>,
    /// How often all copies had to begin anew, because sent ones may be lost.
    restarts: Arc<AtomicU64>,
}

/// Where a lane's copies go.
#[derive(Clone, Debug)]
pub struct LaneCopies {
    /// Destination of checkpoints, if any are taken.
    pub outbox: Option<Outbox>,
    /// The store of copies that stay here when the line is taken down.
    pub parting: Arc<Parting>,
    /// Type that values cross cuts in: states depend on it.
    pub wire_type: i32,
}

/// An item for the sending task.
#[derive(Debug)]
pub enum Outgoing {
    /// A copy to send.
    Copy(Box<Taken>),
    /// The copies of this sequence, of these layers, are not needed any more.
    Forget(CopyName, Range<u32>),
}

/// A copy on its way.
#[derive(Debug)]
pub struct Taken {
    /// The sequence and the layers.
    pub head: Head,
    /// The position it is whole at; `None`: the next one goes on.
    pub at: Option<(u32, TokenMark)>,
    /// The parts of the copy.
    pub items: Vec<(Item, Bytes)>,
    _room: OwnedSemaphorePermit,
}

impl Taken {
    /// A copy for which no room is held.
    #[cfg(test)]
    pub fn of(head: Head, at: Option<(u32, TokenMark)>, items: Vec<(Item, Bytes)>) -> Self {
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it is new");
        Self { head, at, items, _room: room }
    }

    /// The parts of what was taken, one by one; their room is free again when they are all gone.
    pub fn into_items(self) -> impl Iterator<Item = (Item, Bytes)> + Send {
        let Self { items, _room: room, .. } = self;
        items.into_iter().inspect(move |_| {
            let _held = &room;
        })
    }
}

impl Outbox {
    /// An outbox whose content comes out of the receiver.
    pub fn new(
        own: Arc<Store>,
        buffers: Arc<Buffers>,
        restarts: Arc<AtomicU64>,
    ) -> (Self, mpsc::UnboundedReceiver<Outgoing>) {
        let (queue, outgoing) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(QUEUE_BYTES / PERMIT_BYTES));
        (Self { queue, room, own, buffers, restarts }, outgoing)
    }
}

impl LaneCopies {
    fn kind(&self, facts: &CopyFacts) -> Kind {
        let text = format!("{}, cuts in type {}", facts.kind, self.wire_type);
        *blake3::hash(text.as_bytes()).as_bytes()
    }
}

/// A sequence with a name.
#[derive(Clone, Debug)]
struct Named {
    name: CopyName,
    /// Full pages that were handed over.
    sent_pages: u32,
    /// [`Outbox::restarts`] when they were.
    restarts: u64,
    /// The position at which it leaves the line, and the mark of its tokens.
    parting: Option<(u32, TokenMark)>,
}

/// Pages of a sequence that a line before this one left behind.
#[derive(Clone, Debug)]
struct Held {
    blocks: Vec<PageId>,
    len: u32,
}

/// The executor's part of checkpoints.
#[derive(Debug)]
pub struct Taker {
    facts: Option<CopyFacts>,
    named: BTreeMap<u32, Named>,
    held: HashMap<CopyName, Held>,
    /// Pages written to since the stage was reset.
    written: HashSet<PageId>,
    /// Of slots whose state comes in parts: how much of each block is there, by layer and place.
    partly: HashMap<u32, HashMap<(u32, u32), Written>>,
    lane: Option<LaneCopies>,
}

impl Taker {
    /// A taker for a stage with these facts; `None`: the stage cannot copy.
    pub fn new(facts: Option<CopyFacts>) -> Self {
        let (named, held, written, partly) = Default::default();
        Self { facts, named, held, written, partly, lane: None }
    }

    /// A lane begins, on which no sequence is open.
    pub fn begin(&mut self, lane: LaneCopies) {
        self.named.clear();
        self.partly.clear();
        self.lane = Some(lane);
    }

    /// Before a ubatch is computed: takes the copies that it asks for, and notes the positions of parting ones.
    ///
    /// # Errors
    /// A position that the stage has not.
    pub fn before(&mut self, runner: &dyn StageRunner, ubatch: &UBatch) -> Result<(), StageError> {
        let (Some(lane), Some(facts)) = (&self.lane, &self.facts) else { return Ok(()) };
        for op in &ubatch.ops {
            let SeqOp::Checkpoint { slot, len, mark, plane, parting } = op else { continue };
            if self.partly.contains_key(&slot.0) {
                continue;
            }
            let Some(named) = self.named.get_mut(&slot.0) else { continue };
            if *parting {
                named.parting = Some((*len, *mark));
                lane.parting.expect();
                continue;
            }
            let Some(outbox) = &lane.outbox else { continue };
            let at = Checkpoint { slot: slot.0, plane: *plane, len: *len, mark: *mark };
            let taken = take(outbox, facts, lane.kind(facts), named, runner, at);
            taken.map_err(|error| StageError {
                slot: Some(slot.0),
                reason: format!("checkpoint: {error}"),
                lost: matches!(error, SnapshotError::Sequence(BatchError::Device(_))),
            })?;
        }
        Ok(())
    }

    /// Called after a ubatch was computed: notes new names and the pages that were written to.
    pub fn after(&mut self, runner: &dyn StageRunner, ubatch: &UBatch) {
        for op in &ubatch.ops {
            match op {
                SeqOp::Name { slot, name: Some(name) } => {
                    let (sent_pages, restarts, parting) = Default::default();
                    let named = Named { name: *name, sent_pages, restarts, parting };
                    self.named.insert(slot.0, named);
                }
                SeqOp::Name { slot, name: None } => self.forget(slot.0),
                SeqOp::Close { slot } => {
                    self.partly.remove(&slot.0);
                    self.forget(slot.0);
                }
                SeqOp::Copy { src, dst, .. } if !self.held.is_empty() => {
                    let shared = runner.places(src.0).unwrap_or_default().0;
                    let copied = runner.places(dst.0).unwrap_or_default().0;
                    self.written.extend(copied.into_iter().filter(|page| !shared.contains(page)));
                }
                _ => {}
            }
        }
        if self.held.is_empty() {
            return;
        }
        for part in &ubatch.parts {
            let Some((blocks, _)) = runner.places(part.slot.0) else { continue };
            let (first, end) = (part.pos as usize, part.pos as usize + part.tokens.len());
            let pages = first / KV_PAGE..end.div_ceil(KV_PAGE);
            self.written.extend(blocks.get(pages).unwrap_or_default());
        }
    }

    fn forget(&mut self, slot: u32) {
        let Some(named) = self.named.remove(&slot) else { return };
        if let Some(outbox) = self.outbox() {
            outbox.own.forget(named.name);
            // The lane may be over; then nobody sends.
            if let Some(facts) = &self.facts {
                let _ = outbox.queue.send(Outgoing::Forget(named.name, facts.layers.clone()));
            }
        }
    }

    fn outbox(&self) -> Option<&Outbox> {
        self.lane.as_ref()?.outbox.as_ref()
    }

    /// Called before the stage forgets all sequences but keeps its memory: their pages may be put back. Parting
    /// copies are taken as `keep` says.
    pub fn reset(&mut self, runner: &dyn StageRunner, keep: Option<&Keep>) {
        let written = std::mem::take(&mut self.written);
        let mut held = std::mem::take(&mut self.held);
        held.retain(|_, held| is_intact(held, held.len, &written));
        let named = std::mem::take(&mut self.named);
        if let (Some(keep), Some(lane), Some(facts)) = (keep, &self.lane, &self.facts) {
            part(keep, facts, lane.kind(facts), &named, runner);
        }
        let takes_copies = self.outbox().is_some();
        let partly = std::mem::take(&mut self.partly);
        // Of some not all of the state is there, also where it was before.
        for half in partly.keys().filter_map(|slot| named.get(slot)) {
            held.remove(&half.name);
        }
        let stays = |slot: &u32, n: &Named| {
            (takes_copies || n.parting.is_some()) && !partly.contains_key(slot)
        };
        // No worker asks for the states of other sequences, and of some not all of the state is there.
        for (slot, named) in named.iter().filter(|(slot, n)| stays(slot, n)) {
            if let Some((blocks, len)) = runner.places(*slot) {
                held.insert(named.name, Held { blocks, len });
            }
        }
        self.held = held;
        self.lane = None;
    }

    /// The position up to which pages of each of these sequences are still here. Pages of all other sequences are
    /// given up.
    pub fn find(&mut self, names: &[CopyName]) -> Vec<u32> {
        self.held.retain(|name, _| names.contains(name));
        let up_to = |name: &CopyName| {
            let held = self.held.get(name)?;
            is_intact(held, held.len, &self.written).then_some(held.len)
        };
        names.iter().map(|name| up_to(name).unwrap_or(0)).collect()
    }

    /// Properties on which copies of the stage's states depend.
    pub fn facts(&self) -> Option<&CopyFacts> {
        self.facts.as_ref()
    }

    /// Writes a part of a sequence's state. The sequence is whole with [`Self::put_back`]; until then it can only be closed.
    ///
    /// # Errors
    /// The slot has another name, something does not fit, or the first part has not come.
    pub fn put_part(
        &mut self,
        runner: &mut dyn StageRunner,
        part: &PutPart,
    ) -> Result<(), SnapshotError> {
        let PutPart { slot, name, len, is_first, gathered, grant: _ } = part;
        let (kind, blocks) = self.target(runner, *slot, *name)?;
        if *is_first {
            self.partly.insert(*slot, HashMap::new());
        }
        let held = self.held_for(*name, *len, &blocks);
        let moved = moved(held.map_or(&[][..], |held| &held.blocks), &blocks, *len);
        self.written.extend(moved);
        let come = self.partly.get_mut(slot).ok_or_else(no_first_part)?;
        let source = |print: &LayerPrint, block: u32| {
            let (pages, rest) = gathered.find(print, block, kind)?;
            let first_page = come.get(&(print.0, block)).map_or(0, |come| come.pages);
            Some(BlockPart { first_page, pages, rest })
        };
        for (layer, block, now) in runner.put_part(*slot, *len, &source)? {
            let come = come.entry((layer, block)).or_default();
            *come = Written { pages: now.pages, rest: come.rest.max(now.rest) };
        }
        Ok(())
    }

    /// Gives a sequence its state again.
    ///
    /// # Errors
    /// The slot has another name, or something is missing; nothing has changed then, beyond parts that were written.
    pub fn put_back(
        &mut self,
        runner: &mut dyn StageRunner,
        put: &PutBack,
    ) -> Result<(), SnapshotError> {
        let (kind, blocks) = self.target(runner, put.slot, put.name)?;
        let none = HashMap::new();
        let come = match (put.has_parts, self.partly.get(&put.slot)) {
            (false, _) => &none,
            (true, come) => come.ok_or_else(no_first_part)?,
        };
        let own = self.own_of(put, kind);
        let held = self.held_for(put.name, put.len, &blocks);
        let source = |print: &LayerPrint, block: u32| -> Option<BlockSource<'_>> {
            if let Some(written) = come.get(&(print.0, block)) {
                return Some(BlockSource::Written(*written));
            }
            match (own.as_ref().and_then(|own| own.find(print, block, kind)), held) {
                (Some((pages, rest)), _) => Some(BlockSource::Bytes { pages, rest }),
                (None, Some(held)) => Some(BlockSource::InPlace(&held.blocks)),
                (None, None) => None,
            }
        };
        runner.put_back(put.slot, put.len, &put.tokens, &source)?;
        let moved = moved(held.map_or(&[][..], |held| &held.blocks), &blocks, put.len);
        self.written.extend(moved);
        self.partly.remove(&put.slot);
        if let (Some(outbox), Some(named)) = (
            self.lane.as_ref().and_then(|lane| lane.outbox.as_ref()),
            self.named.get_mut(&put.slot),
        ) {
            named.sent_pages = put.kept_len / KV_PAGE as u32;
            named.restarts = outbox.restarts.load(Ordering::Relaxed);
        }
        put.name.iter().for_each(|name| drop(self.held.remove(name)));
        Ok(())
    }

    /// The kind of copies that a slot can be restored from, and its pages, if it is open and has this name.
    fn target(
        &self,
        runner: &dyn StageRunner,
        slot: u32,
        name: Option<CopyName>,
    ) -> Result<(Kind, Vec<PageId>), SnapshotError> {
        let refused = |why: &str| SnapshotError::Foreign(why.to_owned());
        let (Some(lane), Some(facts)) = (&self.lane, &self.facts) else {
            return Err(refused("this stage takes no copies"));
        };
        if self.named.get(&slot).map(|named| named.name) != name {
            return Err(refused("the slot is another sequence's"));
        }
        let (blocks, _) = runner.places(slot).ok_or_else(|| refused("the slot is not open"))?;
        Ok((lane.kind(facts), blocks))
    }

    /// The recurrent states of a sequence that are in this worker's memory.
    fn own_of(&self, put: &PutBack, kind: Kind) -> Option<Gathered> {
        let (lane, facts) = (self.lane.as_ref()?, self.facts.as_ref()?);
        let of = |store: &Store| {
            let own = store.pieces(put.name?, facts.layers.clone(), put.len)?;
            (own.head.kind == kind).then(|| Gathered::in_memory(&own))
        };
        let own = lane.outbox.as_ref().and_then(|outbox| of(&outbox.own));
        own.or_else(|| of(&lane.parting.rests))
    }

    /// Pages of a sequence from before, if they are as they were and can be put among `blocks`.
    fn held_for(&self, name: Option<CopyName>, len: u32, blocks: &[PageId]) -> Option<&Held> {
        let held = self.held.get(&name?)?;
        (is_intact(held, len, &self.written) && !are_crossed(held, blocks)).then_some(held)
    }

    /// Copies a part of a sequence's state. `None`: only the properties that states depend on.
    ///
    /// # Errors
    /// The stage takes no copies, or has no such state.
    pub fn copied(
        &self,
        runner: &dyn StageRunner,
        wanted: Option<&Wanted>,
    ) -> Result<Copied, SnapshotError> {
        let (Some(lane), Some(facts)) = (&self.lane, &self.facts) else {
            return Err(SnapshotError::Foreign("this stage takes no copies".to_owned()));
        };
        let about = About {
            kind: lane.kind(facts),
            layers: facts.layers.clone(),
            prints: facts.prints.clone(),
        };
        let (sizes, blocks) = match wanted {
            None => Default::default(),
            Some(Wanted { len, of: None, .. }) => (runner.block_sizes(*len), Vec::new()),
            Some(Wanted { slot, len, of: Some(of) }) => {
                (Vec::new(), runner.copy_part(*slot, *len, of)?)
            }
        };
        Ok(Copied { about, sizes, blocks })
    }
}

fn no_first_part() -> SnapshotError {
    SnapshotError::Foreign("the first part of the state has not come".to_owned())
}

/// Whether the pages of the first `len` positions are unchanged.
fn is_intact(held: &Held, len: u32, written: &HashSet<PageId>) -> bool {
    let n_pages = (len as usize).div_ceil(KV_PAGE);
    let pages = held.blocks.get(..n_pages);
    len <= held.len && pages.is_some_and(|pages| !pages.iter().any(|page| written.contains(page)))
}

/// Pages of the first `len` positions in `blocks` that were not there before.
fn moved(before: &[PageId], blocks: &[PageId], len: u32) -> Vec<PageId> {
    let pages = blocks.iter().zip(0..).take((len as usize).div_ceil(KV_PAGE));
    pages.filter(|(page, at)| before.get(*at) != Some(page)).map(|(page, _)| *page).collect()
}

/// Whether a page is to be copied to where another one of them is.
fn are_crossed(held: &Held, blocks: &[PageId]) -> bool {
    let at: HashMap<PageId, usize> = held.blocks.iter().enumerate().map(|(i, b)| (*b, i)).collect();
    blocks.iter().enumerate().any(|(i, block)| at.get(block).is_some_and(|from| *from != i))
}

/// Takes the parting copies of a stage's sequences, as far as there are room and time for them.
fn part(
    keep: &Keep,
    facts: &CopyFacts,
    kind: Kind,
    named: &BTreeMap<u32, Named>,
    runner: &dyn StageRunner,
) {
    let leaves = named.iter().filter_map(|(slot, named)| Some((*slot, named, named.parting?)));
    let leaves: Vec<_> = leaves.collect();
    // Copies of an earlier line are of no use any more.
    leaves.iter().for_each(|(_, named, _)| keep.parting.forget(named.name));
    if leaves.is_empty() || keep.stays && !facts.has_slots {
        return;
    }
    let begun = Instant::now();
    let mut taken = 0;
    for (slot, named, at) in &leaves {
        if begun.elapsed() > COPY_WITHIN {
            break;
        }
        let head = head(facts, kind, named.name);
        let (len, mark) = *at;
        match part_one(keep, &head, *slot, len, mark, runner) {
            Ok(true) => taken += 1,
            Ok(false) => keep.parting.forget(named.name),
            Err(error) => tracing::warn!(slot, %error, "a state that moves cannot be copied"),
        }
    }
    let (of, nbytes, ms) = (leaves.len(), keep.parting.nbytes(), begun.elapsed().as_millis());
    tracing::info!(
        taken,
        of,
        nbytes,
        ms,
        "copies of states wait here for the next line; streams without one are computed again"
    );
}

/// Takes the parting copy of one sequence; `false`: there is no room for it.
fn part_one(
    keep: &Keep,
    head: &Head,
    slot: u32,
    len: u32,
    mark: TokenMark,
    runner: &dyn StageRunner,
) -> Result<bool, SnapshotError> {
    let (store, first_page) = if keep.stays {
        (&keep.parting.rests, len / KV_PAGE as u32)
    } else {
        (&keep.parting.whole, 0)
    };
    let room = usize::try_from(keep.parting.room()).unwrap_or(usize::MAX);
    let copy = runner.copy_new(slot, len, None, first_page, CopyRoom::fresh(room))?;
    if !copy.complete {
        return Ok(false);
    }
    let items =
        items(copy, len, Bytes::from).into_iter().filter(|(item, _)| !keep.stays || !item.paged);
    for (item, bytes) in items {
        if !store.put(head, item, Piece::Memory(bytes)) {
            return Ok(false);
        }
    }
    store.commit(head, len, mark);
    Ok(true)
}

fn head(facts: &CopyFacts, kind: Kind, name: CopyName) -> Head {
    Head { name, kind, layers: facts.layers.clone(), prints: facts.prints.clone() }
}

/// The position at which a sequence is copied.
struct Checkpoint {
    slot: u32,
    /// The slot in whose place its recurrent states are, if they are in another one's.
    plane: Option<SlotId>,
    len: u32,
    mark: TokenMark,
}

/// Copies the new part of a sequence's state, as far as there is room for it.
fn take(
    outbox: &Outbox,
    facts: &CopyFacts,
    kind: Kind,
    named: &mut Named,
    runner: &dyn StageRunner,
    at: Checkpoint,
) -> Result<(), SnapshotError> {
    let Checkpoint { slot, plane, len, mark } = at;
    let restarts = outbox.restarts.load(Ordering::Relaxed);
    if named.restarts != restarts {
        (named.restarts, named.sent_pages) = (restarts, 0);
    }
    let free = outbox.room.available_permits() * PERMIT_BYTES;
    let buffer = |nbytes| outbox.buffers.take(nbytes);
    let to = CopyRoom { max_bytes: free, buffer: &buffer };
    let copy = runner.copy_new(slot, len, plane, named.sent_pages, to)?;
    if copy.n_pages == 0 && !copy.complete {
        tracing::debug!(slot, len, "no room for a checkpoint: the next one copies what is missing");
        return Ok(());
    }
    let permits = copy.nbytes().div_ceil(PERMIT_BYTES).min(u32::MAX as usize) as u32;
    let Ok(room) = outbox.room.clone().try_acquire_many_owned(permits) else { return Ok(()) };
    named.sent_pages = named.sent_pages.max(copy.first_page + copy.n_pages);
    let at = copy.complete.then_some((len, mark));
    let head = head(facts, kind, named.name);
    let items = items(copy, at.map_or(0, |(len, _)| len), |bytes| outbox.buffers.share(bytes));
    if let Some((len, mark)) = at {
        for (item, bytes) in items.iter().filter(|(item, _)| !item.paged) {
            outbox.own.put(&head, *item, Piece::Memory(bytes.clone()));
        }
        outbox.own.commit(&head, len, mark);
    }
    let taken = Taken { head, at, items, _room: room };
    // The lane may be over; then nobody sends.
    let _ = outbox.queue.send(Outgoing::Copy(Box::new(taken)));
    Ok(())
}

fn items(copy: StageCopy, len: u32, share: impl Fn(Vec<u8>) -> Bytes) -> Vec<(Item, Bytes)> {
    let StageCopy { first_page: first, n_pages: n, blocks, .. } = copy;
    let mut items = Vec::new();
    for of in blocks {
        let item = |what| Item { layer: of.layer, block: of.block, paged: of.paged, what };
        if !of.pages.is_empty() {
            items.push((item(What::Pages { first, n }), share(of.pages)));
        }
        if !of.rest.is_empty() {
            items.push((item(What::Rest { len }), share(of.rest)));
        }
    }
    items
}

#[cfg(test)]
mod tests;
