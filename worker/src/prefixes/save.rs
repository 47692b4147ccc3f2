//! Writes a state as records, without those that are here already.
//!
//! The stage copies a part of it between two ubatches, the part is written, and then comes the next one. So saving a
//! state takes little memory, and ubatches wait for little.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use blake3::Hash;
use brigade_engine::kernels::KV_PAGE;
use brigade_engine::state::{BlockCopy, BlockSize, CopyOf};
use brigade_proto::failure::{Failure, FailureKind};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::store::Store;
use super::wire::At;
use super::{MAX_STEP_BYTES, STEP_BYTES};
use crate::copies::parts::bad;
use crate::copies::stage_copy::{About as StageAbout, Copied, Wanted};
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

/// Whether a layer has blocks with pages, and blocks without, and bytes of all of them.
#[derive(Debug, Default)]
struct Shape {
    paged: bool,
    unpaged: bool,
    page_bytes: usize,
    rest_bytes: usize,
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
        let (slot, len, full) = (self.slot, self.len, self.len / KV_PAGE as u32);
        let copy = |of| copied(jobs, Some(Wanted { slot, len, of }), self.unchanged);
        let (Some(tail), true) = (self.at.tail, self.at.keys.chain.len() == full as usize + 1)
        else {
            return Err(bad(format!("prefix.keys are not of position {len}")));
        };
        let Copied { about, sizes, .. } = copy(None).await?;
        if about.layers != self.at.keys.layers {
            return Err(bad("prefix.keys are not of the stage's layers"));
        }
        let shapes = shapes(&about, &sizes);
        let Some(first) = self.first_missing(&shapes, full, tail) else { return Ok(0) };
        let mut written = 0;
        for of in steps(&shapes, first..full)? {
            let copied = copy(Some(of.clone())).await?;
            written += self.put(self.bundles(copied, &of, &shapes, tail)).await?;
        }
        Ok(written)
    }

    /// Writes bundles at the rate that is allowed. Returns the bytes that they take on the disk.
    ///
    /// # Errors
    /// The disk refuses.
    async fn put(&self, bundles: Vec<Vec<u8>>) -> Result<u64, Failure> {
        let mut written = 0;
        for bundle in bundles {
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
        Ok(written)
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
    fn bundles(
        &self,
        copied: Copied,
        of: &CopyOf,
        shapes: &BTreeMap<u32, Shape>,
        tail: Key,
    ) -> Vec<Vec<u8>> {
        let Copied { about: StageAbout { kind, layers: all, prints }, blocks, .. } = copied;
        let (keys, n_pages) = (&self.at.keys, of.pages.len());
        let mut by_layer: BTreeMap<u32, Vec<(u32, bool, Bytes, Bytes)>> = BTreeMap::new();
        for BlockCopy { layer, block, paged, pages, rest } in blocks {
            let (pages, rest) = (Bytes::from(pages), Bytes::from(rest));
            by_layer.entry(layer).or_default().push((block, paged, pages, rest));
        }
        let none = Vec::new();
        let layers = || {
            let described = shapes.iter().zip(&keys.lines).zip(&prints).zip(all.clone());
            described.filter(|(.., layer)| of.layers.contains(layer)).map(|(of, _)| of)
        };
        let bundle = |chain: Key, tail: Option<Key>, len: u32, page: Option<usize>| {
            let record = |(((layer, shape), line), print): (((&u32, &Shape), &Key), &Hash)| {
                let id = Id { chain, line: *line, tail };
                let wanted = (page.is_none() || shape.has_pages()) && !self.store.has(&id);
                let blocks = by_layer.get(layer).unwrap_or(&none);
                let parts = blocks.iter().filter_map(|(block, paged, pages, rest)| match page {
                    Some(at) if *paged => {
                        let nbytes = pages.len() / n_pages;
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
        let pages = (0..n_pages).filter_map(|at| {
            let page = of.pages.start as usize + at + 1;
            bundle(keys.chain[page], None, (page * KV_PAGE) as u32, Some(at))
        });
        let last = *keys.chain.last().unwrap_or(&[0; 16]);
        let rest = of.rest.then(|| bundle(last, Some(tail), self.len, None)).flatten();
        pages.chain(rest).collect()
    }
}

/// Has a stage copy a part of a sequence's state. `None`: only the properties that states depend on.
///
/// # Errors
/// There is no such sequence, it is not `unchanged`, or the lane is over.
pub async fn copied(
    jobs: &mpsc::Sender<Job>,
    wanted: Option<Wanted>,
    unchanged: Option<Unchanged>,
) -> Result<Copied, Failure> {
    let (answer, copied) = oneshot::channel();
    jobs.send(Job::Copy { wanted, unchanged, answer }).await.map_err(|_| gone())?;
    copied.await.map_err(|_| gone())?
}

/// What is copied one after the other: full pages in order, several of all layers at once or one of some layers, and then the
/// part that is good for one position alone.
///
/// # Errors
/// A page or a state of a layer is too large.
fn steps(shapes: &BTreeMap<u32, Shape>, pages: Range<u32>) -> Result<Vec<CopyOf>, Failure> {
    let of_pages = groups(shapes, |shape| shape.page_bytes)?;
    let all: usize = shapes.values().map(|shape| shape.page_bytes).sum();
    // Some layers of one page at a time, or all layers of as many as have room.
    let at_once = match of_pages.len() {
        0 | 1 => (STEP_BYTES / all.max(1)).max(1),
        _ => 1,
    };
    let mut steps = Vec::new();
    for first in pages.clone().step_by(at_once) {
        let pages = first..pages.end.min(first.saturating_add(at_once as u32));
        let step = |layers: &Range<u32>| CopyOf {
            layers: layers.clone(),
            pages: pages.clone(),
            rest: false,
        };
        steps.extend(of_pages.iter().map(step));
    }
    let rests = groups(shapes, |shape| shape.rest_bytes)?;
    let rest = |layers| CopyOf { layers, pages: pages.end..pages.end, rest: true };
    steps.extend(rests.into_iter().map(rest));
    Ok(steps)
}

/// Layers in runs that have [`STEP_BYTES`] at most, or one layer.
///
/// # Errors
/// A layer has more than [`MAX_STEP_BYTES`].
fn groups(
    shapes: &BTreeMap<u32, Shape>,
    nbytes: impl Fn(&Shape) -> usize,
) -> Result<Vec<Range<u32>>, Failure> {
    let (mut groups, mut of_last) = (Vec::<Range<u32>>::new(), 0);
    for (layer, shape) in shapes {
        let nbytes = nbytes(shape);
        if nbytes > MAX_STEP_BYTES {
            let why = format!(
                "a page or a state of layer {layer} has {nbytes} bytes, a record {MAX_STEP_BYTES} at most"
            );
            return Err(Failure::refusal(FailureKind::NoMemory, why));
        }
        match groups.last_mut() {
            Some(last) if of_last + nbytes <= STEP_BYTES => {
                last.end = layer + 1;
                of_last += nbytes;
            }
            _ => {
                groups.push(*layer..layer + 1);
                of_last = nbytes;
            }
        }
    }
    Ok(groups)
}

fn shapes(about: &StageAbout, sizes: &[BlockSize]) -> BTreeMap<u32, Shape> {
    let mut shapes: BTreeMap<u32, Shape> =
        about.layers.clone().map(|layer| (layer, Shape::default())).collect();
    for block in sizes {
        let shape = shapes.entry(block.layer).or_default();
        shape.paged |= block.paged;
        shape.unpaged |= !block.paged;
        shape.page_bytes += block.page_bytes;
        shape.rest_bytes += block.rest_bytes;
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

    /// One layer, each page of which has as many bytes as are copied at once.
    fn piece(of: Option<CopyOf>) -> Copied {
        let about = StageAbout { kind: [7; 32], layers: 0..1, prints: vec![blake3::hash(b"0")] };
        let Some(CopyOf { pages, rest, .. }) = of else {
            let (page_bytes, rest_bytes) = (STEP_BYTES, 1);
            let size = BlockSize { layer: 0, block: 0, paged: true, page_bytes, rest_bytes };
            return Copied { about, sizes: vec![size], blocks: Vec::new() };
        };
        let (first, n) = (pages.start as u8, pages.len());
        let (pages, rest) = (vec![first; 256 * n], vec![9; usize::from(rest)]);
        let blocks = vec![BlockCopy { layer: 0, block: 0, paged: true, pages, rest }];
        Copied { about, sizes: Vec::new(), blocks }
    }

    /// A stage, whose slot gets another sequence in ubatch 5 after so many copies.
    async fn stage(mut jobs: mpsc::Receiver<Job>, copies_before: usize) {
        let mut changes = Changes::of_lane(EPOCH);
        let mut n_copies = 0;
        while let Some(job) = jobs.recv().await {
            let Job::Copy { wanted: Some(wanted), unchanged, answer } = job else {
                panic!("only copies are asked for");
            };
            let Wanted { slot, of, .. } = wanted;
            if n_copies == copies_before {
                let slot = SlotId(SLOT);
                let open =
                    SeqOp::Open { slot, blocks: vec![], sampler: None, request: "next".into() };
                let ops = vec![SeqOp::Close { slot }, open];
                changes.follow(&UBatch { id: 5, ops, ..UBatch::default() });
            }
            n_copies += 1;
            let checked = unchanged.map_or(Ok(()), |unchanged| changes.check(slot, unchanged));
            let _ = answer.send(checked.map(|()| piece(of)));
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

    #[test]
    fn what_is_copied_at_once_has_room_and_is_all_in_the_end() {
        let shape = |page: usize, rest: usize| Shape {
            paged: page > 0,
            unpaged: page == 0,
            page_bytes: page,
            rest_bytes: rest,
        };
        let step = STEP_BYTES;
        for layers in [
            vec![shape(step / 100, 5), shape(0, step / 3), shape(step / 100, 5)],
            vec![shape(step / 2, step), shape(step / 2 + 1, 3 * step), shape(step / 4, 1)],
            vec![shape(2 * step, 0), shape(0, step / 2 + 1), shape(0, step / 2)],
        ] {
            let shapes: BTreeMap<u32, Shape> = (4..).zip(layers).collect();
            let steps = steps(&shapes, 3..250).unwrap();
            let (mut pages, mut rests) = (BTreeMap::<u32, u32>::new(), Vec::new());
            for CopyOf { layers, pages: of, rest } in steps {
                let sum = |part: fn(&Shape) -> usize| -> usize {
                    layers.clone().map(|layer| part(&shapes[&layer])).sum()
                };
                let nbytes = sum(|shape| shape.page_bytes) * of.len()
                    + if rest { sum(|shape| shape.rest_bytes) } else { 0 };
                assert!(nbytes <= step || layers.len() == 1 && of.len() <= 1, "{layers:?} {of:?}");
                for layer in layers {
                    let next = pages.entry(layer).or_insert(3);
                    assert_eq!(*next, of.start, "pages of layer {layer} come in order");
                    *next = of.end;
                    rests.extend(rest.then_some(layer));
                }
            }
            assert!(pages.values().all(|end| *end == 250) && pages.len() == 3, "{pages:?}");
            assert_eq!(rests, [4, 5, 6]);
        }
        let large = BTreeMap::from([(0, shape(MAX_STEP_BYTES + 1, 0))]);
        let refused = steps(&large, 0..1).unwrap_err();
        assert!(refused.reason.contains("layer 0"), "{}", refused.reason);
    }

    #[tokio::test]
    async fn a_save_ends_where_its_slot_has_another_sequence() {
        for copies_before in [0, 1, 2, 3] {
            let (result, pages, rest) = saved(copies_before).await;
            assert_eq!(result.unwrap_err().kind(), FailureKind::StaleEpoch);
            // Nothing of the next sequence is in the records; the first page of this one is right.
            assert_eq!((pages, rest), (copies_before.saturating_sub(1), false));
        }
        let (result, pages, rest) = saved(4).await;
        assert!(result.is_ok() && pages == 2 && rest, "{result:?}, {pages} pages");
    }
}
