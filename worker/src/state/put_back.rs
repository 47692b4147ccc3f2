//! Puts a sequence's state back into the stage, part by part: from records and copies that are here, and from those of other
//! workers. The whole state is never in memory beside the stage.

use std::any::Any;
use std::sync::Arc;

use brigade_engine::batch::CopyName;
use brigade_proto::copies::{CopySource, FetchRequest, PutBackRequest};
use brigade_proto::failure::Failure;
use brigade_proto::task;
use brigade_proto::tls::Who;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::copies::Wanted;
use super::prefixes::name_of;
use super::{Worker, blocking, check_speaker};
use crate::copies::fetch::{Fetching, Keeper};
use crate::copies::gathered::Gathered;
use crate::copies::parts::bad;
use crate::copies::put::{PutBack, PutPart};
use crate::copies::source::{Source, check_room};
use crate::copies::store::{Head, Item};
use crate::copies::{MAX_PUTTING_BYTES, PUTTING_BYTES, PUTTING_SHARE};
use crate::executor::changes::Unchanged;
use crate::executor::gone;
use crate::executor::jobs::Job;
use crate::loading::order::key_from_wire;
use crate::prefixes::wire::At;

/// A state on its way into the stage.
struct Putting {
    jobs: mpsc::Sender<Job>,
    slot: u32,
    name: Option<CopyName>,
    len: u32,
    /// Bytes that a sequence has here at most.
    limit: u64,
    /// Bytes that may be in memory at once: a part that is handed over, and one that comes meanwhile.
    room: u64,
    /// Held by whatever has such bytes: the memory, and the turn.
    grant: Arc<dyn Any + Send + Sync>,
    gathered: Gathered,
    /// Bytes that have come.
    come: u64,
    /// The lane, and the last ubatch that may have changed the slot.
    unchanged: Unchanged,
    /// Whether a part was handed over.
    has_parts: bool,
}

impl Putting {
    /// Bytes of a part, and of a page or a rest that is never divided.
    fn part_bytes(&self) -> u64 {
        self.room / 2
    }

    /// Adds an item; what was gathered before goes to the stage if there is no room for both.
    ///
    /// # Errors
    /// More bytes than a sequence has, or than there is memory for; the stage refuses.
    async fn add(&mut self, head: &Head, item: Item, bytes: Bytes) -> Result<(), Failure> {
        let nbytes = bytes.len() as u64;
        self.come += nbytes;
        if self.come > self.limit {
            let why = format!(
                "copies of {} bytes, a sequence has {} here at most",
                self.come, self.limit
            );
            return Err(bad(why));
        }
        check_room(nbytes, self.part_bytes())?;
        if self.gathered.nbytes() + nbytes > self.part_bytes() {
            self.hand_over().await?;
        }
        self.gathered.push(head, item, bytes);
        Ok(())
    }

    /// Gives what was gathered to the stage.
    ///
    /// # Errors
    /// The stage refuses, or the slot has become another sequence's.
    async fn hand_over(&mut self) -> Result<(), Failure> {
        let gathered = std::mem::take(&mut self.gathered);
        if gathered.nbytes() == 0 {
            return Ok(());
        }
        let Self { slot, name, len, unchanged, .. } = *self;
        let (is_first, grant) = (!self.has_parts, self.grant.clone());
        let part = Box::new(PutPart { slot, name, len, is_first, gathered, grant });
        let (answer, done) = oneshot::channel();
        let job = Job::PutPart { part, unchanged, answer };
        self.jobs.send(job).await.map_err(|_| gone())?;
        let now = done.await.map_err(|_| gone())??;
        self.has_parts = true;
        // A coordinator of the release before does not say it.
        self.unchanged.ubatch = self.unchanged.ubatch.min(now.ubatch);
        Ok(())
    }

    /// Gives all that a source has to the stage. The next part is read while the stage takes one.
    ///
    /// # Errors
    /// As [`Self::add`]; something is missing or damaged, or cannot be read.
    async fn take(&mut self, source: Box<dyn Source>) -> Result<(), Failure> {
        let (nbytes, grant) = (self.part_bytes(), self.grant.clone());
        let read = |mut source: Box<dyn Source>| {
            let held = grant.clone();
            let next = blocking(move || {
                let part = source.next(nbytes, nbytes);
                drop(held);
                Ok((source, part?))
            });
            task::spawn(next)
        };
        let mut next = read(source);
        loop {
            // It does not panic, and the runtime runs.
            let (source, part) = next.await.map_err(|_| gone())??;
            if part.is_empty() {
                return Ok(());
            }
            let head = source.head().clone();
            next = read(source);
            for (item, bytes) in part {
                self.add(&head, item, bytes).await?;
            }
            self.hand_over().await?;
        }
    }

    /// Has the stage take the sequence's state for whole.
    ///
    /// # Errors
    /// As [`Self::hand_over`]'s; something is missing.
    async fn end(mut self, tokens: Vec<u32>, kept_len: u32) -> Result<(), Failure> {
        self.hand_over().await?;
        let Self { slot, name, len, unchanged, has_parts, .. } = self;
        let put = Box::new(PutBack { slot, name, len, tokens, kept_len, has_parts });
        let (answer, done) = oneshot::channel();
        self.jobs.send(Job::PutBack { put, unchanged, answer }).await.map_err(|_| gone())?;
        done.await.map_err(|_| gone())?
    }
}

impl Worker {
    /// Restores an open sequence's state at a position. Returns the bytes that came from other workers.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; the session's refusals; or a copy is missing or does not fit.
    /// The sequence can only be closed then.
    pub async fn put_back(&self, request: PutBackRequest, who: &Who) -> Result<u64, Failure> {
        check_speaker(who, &request.coordinator_id)?;
        let PutBackRequest { epoch, coordinator_id, slot, len, kept_len, unchanged_since, .. } =
            &request;
        let at = request.prefix.as_ref().map(At::of).transpose()?;
        let name = name_of(&request.name, at.is_some())?;
        self.door(coordinator_id, *epoch, *slot)?;
        let turn = self.state_turn().await?;
        // Waiting may have taken a while.
        let door = self.door(coordinator_id, *epoch, *slot)?;
        let beside = door.room.saturating_sub(self.copies().parting.nbytes());
        // A node's other stages may have less to spare.
        let share = (door.limit / PUTTING_SHARE).clamp(PUTTING_BYTES, MAX_PUTTING_BYTES);
        let more = share - PUTTING_BYTES;
        let memory = self.loader.ledger.beside_up_to(more, beside.min(more));
        let more = memory.as_ref().map_or(0, |memory| memory.amount().stage);
        let mut putting = Putting {
            jobs: door.jobs,
            slot: *slot,
            name,
            len: *len,
            limit: door.limit,
            room: PUTTING_BYTES + more,
            grant: Arc::new((turn, memory)),
            gathered: Gathered::default(),
            come: 0,
            unchanged: Unchanged { epoch: *epoch, ubatch: unchanged_since.unwrap_or(u64::MAX) },
            has_parts: false,
        };
        let mut fetched = 0;
        for source in &request.sources {
            let layers = source.layer_begin..source.layer_end;
            if source.address.is_empty() {
                let here = match (&at, name) {
                    (Some(at), _) => self.records_of(at.clone(), *len, layers).await?,
                    (None, Some(name)) => self.pieces_of(&Wanted { name, layers, len: *len })?,
                    (None, None) => return Err(bad("put_back.name is missing")),
                };
                putting.take(here).await?;
                continue;
            }
            let mut fetching =
                Fetching::begin(keeper_of(source)?, &self.network, wanted(&request, source))
                    .await?;
            let most = putting.part_bytes();
            while let Some((head, item, bytes)) = fetching.next(most).await? {
                fetched += bytes.len() as u64;
                putting.add(head, item, bytes).await?;
            }
        }
        let (tokens, rest) = request.tokens.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(bad("put_back.tokens are not whole tokens"));
        }
        let tokens = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
        putting.end(tokens, *kept_len).await?;
        Ok(fetched)
    }
}

/// What another worker is asked for.
fn wanted(request: &PutBackRequest, source: &CopySource) -> FetchRequest {
    FetchRequest {
        epoch: request.epoch,
        coordinator_id: request.coordinator_id.clone(),
        name: request.name.clone(),
        len: request.len,
        layer_begin: source.layer_begin,
        layer_end: source.layer_end,
        prefix: request.prefix.clone(),
    }
}

fn keeper_of(source: &CopySource) -> Result<Keeper, Failure> {
    let address = source.address.parse();
    let address = address.map_err(|e| bad(format!("put_back.sources.address: {e}")))?;
    Ok(Keeper { address, key: key_from_wire("put_back.sources.key", &source.key)? })
}

#[cfg(test)]
mod tests {
    use brigade_engine::batch::TokenMark;
    use brigade_engine::kernels::KV_PAGE;
    use brigade_proto::failure::FailureKind;

    use super::*;
    use crate::copies::piece::Piece;
    use crate::copies::source::PieceSource;
    use crate::copies::store::{BlockPieces, Pieces, What};

    const LAYERS: u32 = 3;
    const PAGES: u32 = 50;
    const PAGE_BYTES: usize = 1000;
    const ROOM: u64 = 10_000;

    /// A state with one run of pages in each layer, and a rest.
    fn state() -> Box<dyn Source> {
        let block = |layer| {
            let pages = vec![layer as u8; PAGES as usize * PAGE_BYTES];
            BlockPieces {
                layer,
                block: 0,
                paged: true,
                pages: vec![(PAGES, Piece::Memory(pages.into()))],
                rest: Some(Piece::Memory(vec![9; PAGE_BYTES].into())),
            }
        };
        let prints = (0..LAYERS).map(|layer| blake3::hash(&[layer as u8])).collect();
        let head = Head { name: CopyName([1; 16]), kind: [2; 32], layers: 0..LAYERS, prints };
        let (len, mark) = (PAGES * KV_PAGE as u32 + 1, TokenMark([3; 16]));
        let blocks = (0..LAYERS).map(block).collect();
        Box::new(PieceSource::from(Pieces { head, len, mark, blocks }))
    }

    fn putting(jobs: mpsc::Sender<Job>) -> Putting {
        Putting {
            jobs,
            slot: 4,
            name: Some(CopyName([1; 16])),
            len: PAGES * KV_PAGE as u32 + 1,
            limit: u64::from(LAYERS) * u64::from(PAGES + 1) * PAGE_BYTES as u64,
            room: ROOM,
            grant: Arc::new(()),
            gathered: Gathered::default(),
            come: 0,
            unchanged: Unchanged { epoch: 2, ubatch: u64::MAX },
            has_parts: false,
        }
    }

    /// A stage that says so of each part, and refuses the part after `most`. Returns bytes of the parts, and whether the
    /// sequence became whole.
    async fn stage(mut jobs: mpsc::Receiver<Job>, most: usize) -> (Vec<u64>, bool) {
        let (now, mut parts) = (Unchanged { epoch: 2, ubatch: 7 }, Vec::new());
        while let Some(job) = jobs.recv().await {
            match job {
                Job::PutPart { part, unchanged, answer } => {
                    assert_eq!(part.is_first, parts.is_empty());
                    assert_eq!(unchanged.ubatch, if part.is_first { u64::MAX } else { 7 });
                    let refused = Failure::refusal(FailureKind::StaleEpoch, "another sequence");
                    let may = parts.len() < most;
                    parts.push(part.gathered.nbytes());
                    let _ = answer.send(if may { Ok(now) } else { Err(refused) });
                }
                Job::PutBack { put, unchanged, answer } => {
                    assert_eq!((unchanged, put.has_parts), (now, true));
                    let _ = answer.send(Ok(()));
                    return (parts, true);
                }
                job => panic!("{job:?} was not asked for"),
            }
        }
        (parts, false)
    }

    #[tokio::test]
    async fn a_state_goes_to_the_stage_in_parts_that_have_room() {
        let (jobs, queue) = mpsc::channel(1);
        let stage = tokio::spawn(stage(queue, usize::MAX));
        let mut putting = putting(jobs);
        let all = putting.limit;
        putting.take(state()).await.unwrap();
        putting.end(Vec::new(), 0).await.unwrap();
        let (parts, whole) = stage.await.unwrap();
        assert!(whole && parts.iter().sum::<u64>() == all, "{parts:?}");
        assert!(parts.iter().all(|nbytes| *nbytes <= ROOM / 2), "{parts:?}");
        assert!(parts.len() as u64 <= all / (ROOM / 2) * 2, "{} parts", parts.len());
    }

    #[tokio::test]
    async fn a_slot_that_got_another_sequence_takes_no_more_parts() {
        let (jobs, queue) = mpsc::channel(1);
        let stage = tokio::spawn(stage(queue, 3));
        let mut putting = putting(jobs);
        let refused = putting.take(state()).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::StaleEpoch);
        drop(putting);
        let (parts, whole) = stage.await.unwrap();
        assert!(!whole && parts.len() == 4, "{parts:?}");
    }

    #[tokio::test]
    async fn what_is_more_than_a_sequence_or_than_there_is_room_for_is_refused() {
        let head = Head { name: CopyName([1; 16]), kind: [2; 32], layers: 0..1, prints: vec![] };
        let item = Item { layer: 0, block: 0, paged: false, what: What::Rest { len: 1 } };
        let (jobs, _queue) = mpsc::channel(1);
        let mut small = Putting { limit: 99, ..putting(jobs.clone()) };
        let refused = small.add(&head, item, vec![0; 100].into()).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::BadMessage);
        let large = vec![0; ROOM as usize / 2 + 1];
        let refused = putting(jobs).add(&head, item, large.into()).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::NoMemory);
        assert!(refused.reason.contains("give the worker more"), "{}", refused.reason);
    }
}
