//! Writes a state as records, without those that are here already.
//!
//! The stage copies a part of it between two ubatches, the part is written, and then comes the next one. So saving a
//! state takes little memory, and ubatches wait for little.

use std::collections::BTreeMap;
use std::sync::Arc;

use blake3::Hash;
use brigade_engine::kernels::KV_PAGE;
use brigade_engine::state::{BlockCopy, StageCopy};
use brigade_proto::failure::{Failure, FailureKind};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::store::Store;
use super::wire::At;
use super::{MAX_STEP_BYTES, STEP_BYTES};
use crate::copies::parts::bad;
use crate::copies::stage_copy::Copied;
use crate::executor::changes::Unchanged;
use crate::executor::gone;
use crate::executor::jobs::Job;
use crate::records::Key;
use crate::records::record::{About, Id, NewRecord, Whose, encode};

/// A state that is to be saved.
#[derive(Debug)]
pub struct Saving {
    /// The store for the records.
    pub store: Arc<Store>,
    /// The keys of the position.
    pub at: At,
    /// The cluster and the owner.
    pub whose: Whose,
    /// The sequence's place in the stage.
    pub slot: u32,
    /// Length of the sequence in tokens.
    pub len: u32,
    /// Until when it is there; `None`: the coordinator leaves it there.
    pub unchanged: Option<Unchanged>,
}

/// Whether a layer has blocks with pages, and blocks without.
#[derive(Debug, Default)]
struct Shape {
    paged: bool,
    unpaged: bool,
}

impl Shape {
    /// A layer without blocks has pages of nothing.
    fn has_pages(&self) -> bool {
        self.paged || !self.unpaged
    }
}

impl Saving {
    /// Saves the missing records of a sequence of the stage that takes `jobs`. Returns the bytes that were written.
    ///
    /// # Errors
    /// The stage refuses, the keys do not belong to this state, the state is gone, or the disk is full. Written
    /// records stay: each is right by itself.
    pub async fn run(&self, jobs: &mpsc::Sender<Job>) -> Result<u64, Failure> {
        let copy =
            |first, room| copied(jobs, Some((self.slot, self.len, first, room)), self.unchanged);
        let full = self.len / KV_PAGE as u32;
        let (Some(tail), true) = (self.at.tail, self.at.keys.chain.len() == full as usize + 1)
        else {
            return Err(bad(format!("prefix.keys are not of position {}", self.len)));
        };
        // Describes the layers, and costs nothing.
        let about = copy(full, 0).await?;
        if about.layers != self.at.keys.layers {
            return Err(bad("prefix.keys are not of the stage's layers"));
        }
        let shapes = shapes(&about);
        let Some(mut first) = self.first_missing(&shapes, full, tail) else { return Ok(0) };
        let (mut written, mut room) = (0, STEP_BYTES);
        loop {
            let copied = copy(first, room).await?;
            let StageCopy { n_pages, complete, .. } = copied.copy;
            if n_pages == 0 && !complete {
                if room >= MAX_STEP_BYTES {
                    let why = format!(
                        "a page or a state of a prefix has more than {MAX_STEP_BYTES} bytes"
                    );
                    return Err(Failure::refusal(FailureKind::NoMemory, why));
                }
                room *= 2;
                continue;
            }
            for bundle in self.bundles(copied, &shapes, tail) {
                let (store, nbytes) = (self.store.clone(), bundle.len());
                let put = tokio::task::spawn_blocking(move || store.put(bundle)).await;
                let put = put.unwrap_or_else(|error| Err(std::io::Error::other(error)));
                written += put.map_err(|error| {
                    let why = format!("--prefix-disk: {error}");
                    Failure::refusal(FailureKind::Storage, why)
                })?;
                if let Some(then) = self.store.home().rate.sent(nbytes) {
                    tokio::time::sleep_until(then).await;
                }
            }
            if complete {
                return Ok(written);
            }
            first += n_pages;
        }
    }

    /// Full pages before the first that a layer lacks; `None`: all is here, and was of use.
    fn first_missing(&self, shapes: &BTreeMap<u32, Shape>, full: u32, tail: Key) -> Option<u32> {
        let keys = &self.at.keys;
        let paged = shapes.iter().filter(|(_, shape)| shape.has_pages());
        let held = paged
            .filter_map(|(layer, _)| Some(self.store.pages(&keys.chain, keys.line(*layer)?).0));
        let held = held.min().unwrap_or(full);
        let rest =
            |line: &Key| Id { chain: keys.chain[full as usize], line: *line, tail: Some(tail) };
        if held < full || !keys.lines.iter().all(|line| self.store.has(&rest(line))) {
            return Some(held);
        }
        let pages = keys.chain[1..].iter().flat_map(|chain| {
            keys.lines.iter().map(|line| Id { chain: *chain, line: *line, tail: None })
        });
        let used: Vec<Id> = pages.chain(keys.lines.iter().map(rest)).collect();
        self.store.touch(used.iter());
        None
    }

    /// A bundle for each page that was copied, and one for the part that is good for this position alone.
    fn bundles(&self, copied: Copied, shapes: &BTreeMap<u32, Shape>, tail: Key) -> Vec<Vec<u8>> {
        let Copied {
            copy: StageCopy { first_page, n_pages, complete, blocks, .. },
            kind,
            prints,
            ..
        } = copied;
        let keys = &self.at.keys;
        let mut by_layer: BTreeMap<u32, Vec<(u32, bool, Bytes, Bytes)>> = BTreeMap::new();
        for BlockCopy { layer, block, paged, pages, rest } in blocks {
            let (pages, rest) = (Bytes::from(pages), Bytes::from(rest));
            by_layer.entry(layer).or_default().push((block, paged, pages, rest));
        }
        let none = Vec::new();
        let layers = || shapes.iter().zip(&keys.lines).zip(&prints);
        let bundle = |chain: Key, tail: Option<Key>, len: u32, page: Option<usize>| {
            let record = |(((layer, shape), line), print): (((&u32, &Shape), &Key), &Hash)| {
                let id = Id { chain, line: *line, tail };
                let wanted = (page.is_none() || shape.has_pages()) && !self.store.has(&id);
                let blocks = by_layer.get(layer).unwrap_or(&none);
                let parts = blocks.iter().filter_map(|(block, paged, pages, rest)| match page {
                    Some(at) if *paged => {
                        let nbytes = pages.len() / n_pages as usize;
                        Some((*block, true, pages.slice(at * nbytes..(at + 1) * nbytes)))
                    }
                    Some(_) => None,
                    None => Some((*block, *paged, rest.clone())),
                });
                let about = About {
                    id,
                    layer: *layer,
                    print: *print,
                    len,
                    has_pages: shape.has_pages(),
                    alone: !shape.unpaged,
                    pages: u32::from(page.is_some()),
                };
                wanted.then(|| NewRecord { about, parts: parts.collect() })
            };
            let records: Vec<NewRecord> = layers().filter_map(record).collect();
            (!records.is_empty()).then(|| encode(self.whose, kind, &records))
        };
        let pages = (0..n_pages as usize).filter_map(|at| {
            let page = first_page as usize + at + 1;
            bundle(keys.chain[page], None, (page * KV_PAGE) as u32, Some(at))
        });
        let last = *keys.chain.last().unwrap_or(&[0; 16]);
        let rest = complete.then(|| bundle(last, Some(tail), self.len, None)).flatten();
        pages.chain(rest).collect()
    }
}

/// Has a stage copy a part of a sequence's state. `of`: its slot, its positions, the number of pages to leave out,
/// and the limit of bytes. `None`: only the properties that states depend on.
///
/// # Errors
/// There is no such sequence, it is not `unchanged`, or the lane is over.
pub async fn copied(
    jobs: &mpsc::Sender<Job>,
    of: Option<(u32, u32, u32, usize)>,
    unchanged: Option<Unchanged>,
) -> Result<Copied, Failure> {
    let (answer, copied) = oneshot::channel();
    jobs.send(Job::Copy { of, unchanged, answer }).await.map_err(|_| gone())?;
    copied.await.map_err(|_| gone())?
}

fn shapes(about: &Copied) -> BTreeMap<u32, Shape> {
    let mut shapes: BTreeMap<u32, Shape> =
        about.layers.clone().map(|layer| (layer, Shape::default())).collect();
    for block in &about.copy.blocks {
        let shape = shapes.entry(block.layer).or_default();
        shape.paged |= block.paged;
        shape.unpaged |= !block.paged;
    }
    shapes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use brigade_engine::batch::{SeqOp, SlotId, UBatch};

    use super::super::store::{Rooms, Sizes};
    use super::super::wire::Keys;
    use super::*;
    use crate::executor::changes::Changes;
    use crate::machine::ledger::{Amount, Ledger};
    use crate::records::BYTES_PER_SECOND;
    use crate::records::folder::Home;
    use crate::records::rate::Rate;

    const EPOCH: u64 = 2;
    const SLOT: u32 = 3;
    /// Two full pages, and a token.
    const LEN: u32 = 2 * KV_PAGE as u32 + 1;

    /// One layer with pages, of which each copy has one.
    fn piece(first_page: u32, room: usize) -> Copied {
        let is_about = room == 0;
        let n_pages = u32::from(first_page < 2 && !is_about);
        let complete = first_page + n_pages == 2 && !is_about;
        let pages = vec![first_page as u8; 256 * n_pages as usize];
        let rest = vec![9; usize::from(complete)];
        let blocks = vec![BlockCopy { layer: 0, block: 0, paged: true, pages, rest }];
        let copy = StageCopy { first_page, n_pages, complete, blocks, ..StageCopy::default() };
        Copied { copy, kind: [7; 32], layers: 0..1, prints: vec![blake3::hash(b"0")] }
    }

    /// A stage, whose slot gets another sequence in ubatch 5 after so many copies.
    async fn stage(mut jobs: mpsc::Receiver<Job>, copies_before: usize) {
        let mut changes = Changes::of_lane(EPOCH);
        let mut n_copies = 0;
        while let Some(job) = jobs.recv().await {
            let Job::Copy { of: Some((slot, _, first, room)), unchanged, answer } = job else {
                panic!("only copies are asked for");
            };
            if n_copies == copies_before {
                let slot = SlotId(SLOT);
                let open =
                    SeqOp::Open { slot, blocks: vec![], sampler: None, request: "next".into() };
                let ops = vec![SeqOp::Close { slot }, open];
                changes.follow(&UBatch { id: 5, ops, ..UBatch::default() });
            }
            n_copies += 1;
            let checked = unchanged.map_or(Ok(()), |unchanged| changes.check(slot, unchanged));
            let _ = answer.send(checked.map(|()| piece(first, room)));
        }
    }

    /// The outcome of a save, and how many pages and whether the rest are in the store.
    async fn saved(copies_before: usize) -> (Result<u64, Failure>, usize, bool) {
        let sizes = Sizes { ram: 1 << 20, disk: 0 };
        let ledger = Ledger::alone(Amount::default());
        let rooms = Rooms::of(&ledger, sizes);
        let store = Arc::new(
            Store::open(Home::of(Path::new("nowhere"), Rate::new(BYTES_PER_SECOND)), sizes, rooms)
                .unwrap(),
        );
        let keys =
            Keys { chain: vec![[0; 16], [1; 16], [2; 16]], layers: 0..1, lines: vec![[4; 16]] };
        let saving = Saving {
            store: store.clone(),
            at: At { keys, tail: Some([5; 16]) },
            whose: Whose { realm: [1; 16], owner: [2; 16] },
            slot: SLOT,
            len: LEN,
            unchanged: Some(Unchanged { epoch: EPOCH, ubatch: 4 }),
        };
        let (jobs, queue) = mpsc::channel(1);
        let stage = tokio::spawn(stage(queue, copies_before));
        let result = saving.run(&jobs).await;
        drop(jobs);
        stage.await.unwrap();
        let has = |page: u8, tail| store.has(&Id { chain: [page; 16], line: [4; 16], tail });
        let pages = [1, 2].into_iter().filter(|page| has(*page, None)).count();
        (result, pages, has(2, Some([5; 16])))
    }

    #[tokio::test]
    async fn a_save_ends_where_its_slot_has_another_sequence() {
        for copies_before in [0, 1, 2] {
            let (result, pages, rest) = saved(copies_before).await;
            assert_eq!(result.unwrap_err().kind(), FailureKind::StaleEpoch);
            // Nothing of the next sequence is in the records; the first page of this one is right.
            assert_eq!((pages, rest), (copies_before.saturating_sub(1), false));
        }
        let (result, pages, rest) = saved(3).await;
        assert!(result.is_ok() && pages == 2 && rest, "{result:?}, {pages} pages");
    }
}
