//! Copies of sequences' states, by name and layer. Knows the position of each part, and whether a copy is complete,
//! but not where copies come from or go.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hash;
use brigade_engine::batch::{CopyName, TokenMark};
use brigade_engine::kernels::KV_PAGE;
use brigade_proto::limits::COPY_POSITIONS;

use super::RESTS_KEPT;
use super::piece::Piece;
use crate::records::Kind;

/// Bytes that a layer of a sequence takes beside its copies: marks of its positions, and places in tables.
pub const LAYER_BYTES: u64 = 2 << 10;

/// Bytes that a run of pages, or the rest of a position, takes beside its own.
pub const ENTRY_BYTES: u64 = 128;

/// Bytes that all copies of a worker may take, and do.
#[derive(Debug, Default)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    /// Sets the limit of bytes.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes they may take.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes for which there is room.
    pub fn left(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    /// Replaces an item of `before` bytes by one of `after` bytes.
    fn replace(&self, before: u64, after: u64) {
        self.used.fetch_add(after, Ordering::Relaxed);
        self.used.fetch_sub(before, Ordering::Relaxed);
    }

    /// Whether there is room for so many more.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.used().saturating_add(bytes) <= self.limit.load(Ordering::Relaxed)
    }
}

/// The sequence and the layers of copies, and their properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The sequence's name.
    pub name: CopyName,
    /// The hash of the properties that the copies depend on.
    pub kind: Kind,
    /// First and end of the layers.
    pub layers: Range<u32>,
    /// Fingerprints of the layers' weights, in order.
    pub prints: Vec<Hash>,
}

/// The place of a part within a sequence's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Layer of the model.
    pub layer: u32,
    /// Place within the layer.
    pub block: u32,
    /// Whether the block has pages.
    pub paged: bool,
    /// The kind of part.
    pub what: What,
}

/// A part of a block's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A run of full pages.
    Pages {
        /// Pages before the run.
        first: u32,
        /// Pages in the run.
        n: u32,
    },
    /// State that is valid at one position alone, such as a recurrent state.
    Rest {
        /// Length of the sequence at that position.
        len: u32,
    },
}

/// Full pages, one after the other.
#[derive(Clone, Debug)]
struct Run {
    first: u32,
    n: u32,
    piece: Piece,
}

#[derive(Debug, Default)]
struct BlockCopies {
    paged: bool,
    runs: Vec<Run>,
    rests: Vec<(u32, Piece)>,
}

#[derive(Debug)]
struct LayerCopies {
    kind: Kind,
    print: Hash,
    blocks: BTreeMap<u32, BlockCopies>,
    marks: Vec<(u32, TokenMark)>,
}

/// Layers whose copies are whole at the same positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// The range of layers.
    pub layers: Range<u32>,
    /// The positions, ascending, each with the mark of its tokens.
    pub positions: Vec<(u32, TokenMark)>,
}

/// One block's state at a position, in pieces.
#[derive(Clone, Debug)]
pub struct BlockPieces {
    /// Layer of the model.
    pub layer: u32,
    /// Place within the layer.
    pub block: u32,
    /// Whether it has pages.
    pub paged: bool,
    /// Runs of full pages: how many, and their bytes.
    pub pages: Vec<(u32, Piece)>,
    /// State that is valid at this position alone, if there is any.
    pub rest: Option<Piece>,
}

/// The state of some layers at a position.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// The sequence and the layers.
    pub head: Head,
    /// Length of the sequence at the position.
    pub len: u32,
    /// The mark of its tokens up to there.
    pub mark: TokenMark,
    /// The blocks that have a state.
    pub blocks: Vec<BlockPieces>,
}

type Names = HashMap<CopyName, BTreeMap<u32, LayerCopies>>;

/// All copies kept for one purpose.
#[derive(Debug, Default)]
pub struct Store {
    names: Mutex<Names>,
    budget: Arc<Budget>,
}

impl Store {
    /// An empty store; `budget` may be shared with other stores.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { names: Mutex::default(), budget }
    }

    /// Keeps a part. `false`: there is no room for it, or earlier parts are missing. Later parts are then useless
    /// until those come.
    pub fn put(&self, head: &Head, item: Item, piece: Piece) -> bool {
        let Some(at) = head.layers.clone().position(|layer| layer == item.layer) else {
            return false;
        };
        if !self.budget.has_room(piece.len() + ENTRY_BYTES + LAYER_BYTES) {
            return false;
        }
        let mut names = self.names();
        let layers = names.entry(head.name).or_default();
        let layer = layer_of(layers, item.layer, head, at, &self.budget);
        let block = layer.blocks.entry(item.block).or_default();
        block.paged = item.paged;
        let before = block.nbytes();
        let taken = match item.what {
            What::Pages { first, n } => block.put_pages(first, n, piece),
            What::Rest { len } => block.put_rest(len, piece),
        };
        self.budget.replace(before, block.nbytes());
        taken
    }

    /// Whether these pages are here already.
    pub fn has_pages(&self, head: &Head, item: Item) -> bool {
        let What::Pages { first, n } = item.what else { return false };
        let names = self.names();
        let layer = names.get(&head.name).and_then(|layers| layers.get(&item.layer));
        let same = layer.filter(|layer| layer.kind == head.kind);
        same.and_then(|layer| layer.blocks.get(&item.block))
            .is_some_and(|b| first + n <= b.n_pages())
    }

    /// Notes that all parts of a position have been put. Nothing is noted where there is no room for layers that have
    /// none.
    pub fn commit(&self, head: &Head, len: u32, mark: TokenMark) {
        let mut names = self.names();
        let has = |number: &u32| names.get(&head.name).is_some_and(|of| of.contains_key(number));
        let n_new = head.layers.clone().filter(|number| !has(number)).count();
        if !self.budget.has_room(LAYER_BYTES * n_new as u64) {
            return;
        }
        let layers = names.entry(head.name).or_default();
        for (at, number) in head.layers.clone().enumerate() {
            let marks = &mut layer_of(layers, number, head, at, &self.budget).marks;
            marks.retain(|(other, _)| *other != len);
            marks.push((len, mark));
            marks.sort_unstable();
            let over = marks.len().saturating_sub(COPY_POSITIONS);
            marks.drain(..over);
        }
    }

    /// Drops a sequence's copies.
    pub fn forget(&self, name: CopyName) {
        if let Some(layers) = self.names().remove(&name) {
            self.freed(layers.values());
        }
    }

    /// Drops the copies of all sequences but these.
    pub fn retain(&self, keep: &HashSet<CopyName>) {
        self.names().retain(|name, layers| {
            let stays = keep.contains(name);
            if !stays {
                self.freed(layers.values());
            }
            stays
        });
    }

    /// Names of all sequences.
    pub fn all_names(&self) -> Vec<CopyName> {
        self.names().keys().copied().collect()
    }

    /// The layers of a sequence that are here, and their positions.
    pub fn find(&self, name: CopyName) -> Vec<Whole> {
        let mut found: Vec<Whole> = Vec::new();
        for (&number, layer) in self.names().get(&name).into_iter().flatten() {
            let positions = layer.positions();
            match found.last_mut() {
                Some(last) if last.layers.end == number && last.positions == positions => {
                    last.layers.end += 1;
                }
                _ => found.push(Whole { layers: number..number + 1, positions }),
            }
        }
        found.retain(|whole| !whole.positions.is_empty());
        found
    }

    /// Positions at which all of `layers` are whole, ascending.
    pub fn common(&self, name: CopyName, layers: Range<u32>) -> Vec<(u32, TokenMark)> {
        let names = self.names();
        let Some(held) = names.get(&name) else { return Vec::new() };
        let mut of_each = layers.map(|number| held.get(&number).map(LayerCopies::positions));
        let mut common = of_each.next().flatten().unwrap_or_default();
        for positions in of_each {
            let positions = positions.unwrap_or_default();
            common.retain(|position| positions.contains(position));
        }
        common
    }

    /// The state of `layers` at position `len`; `None` where any of it is missing.
    pub fn pieces(&self, name: CopyName, layers: Range<u32>, len: u32) -> Option<Pieces> {
        let names = self.names();
        let held = names.get(&name)?;
        let first = held.get(&layers.start)?;
        let (_, mark) = *first.marks.iter().find(|(at, _)| *at == len)?;
        let kind = first.kind;
        let (mut prints, mut blocks) = (Vec::new(), Vec::new());
        for number in layers.clone() {
            let layer = held.get(&number).filter(|layer| layer.kind == kind)?;
            if !layer.marks.contains(&(len, mark)) || !layer.is_whole(len) {
                return None;
            }
            prints.push(layer.print);
            blocks.extend(layer.blocks.iter().map(|(&block, copies)| {
                let BlockCopies { paged, .. } = *copies;
                let (pages, rest) = copies.pieces(len);
                BlockPieces { layer: number, block, paged, pages, rest }
            }));
        }
        Some(Pieces { head: Head { name, kind, layers, prints }, len, mark, blocks })
    }

    fn freed<'a>(&self, layers: impl Iterator<Item = &'a LayerCopies>) {
        let bytes = layers.map(LayerCopies::nbytes).sum();
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Nothing panics while it is held; if it did, the copies would still be whole.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The copies of a layer; those of other weights or another kind make way.
fn layer_of<'a>(
    layers: &'a mut BTreeMap<u32, LayerCopies>,
    number: u32,
    head: &Head,
    at: usize,
    budget: &Budget,
) -> &'a mut LayerCopies {
    let (kind, print) = (head.kind, head.prints[at]);
    let fresh = || LayerCopies { kind, print, blocks: BTreeMap::new(), marks: Vec::new() };
    let layer = layers.entry(number).or_insert_with(|| {
        budget.replace(0, LAYER_BYTES);
        fresh()
    });
    if (layer.kind, layer.print) != (kind, print) {
        budget.replace(layer.nbytes(), LAYER_BYTES);
        *layer = fresh();
    }
    layer
}

impl LayerCopies {
    fn nbytes(&self) -> u64 {
        LAYER_BYTES + self.blocks.values().map(BlockCopies::nbytes).sum::<u64>()
    }

    fn is_whole(&self, len: u32) -> bool {
        self.blocks.values().all(|block| block.is_whole(len))
    }

    fn positions(&self) -> Vec<(u32, TokenMark)> {
        self.marks.iter().filter(|(len, _)| self.is_whole(*len)).copied().collect()
    }
}

impl BlockCopies {
    fn nbytes(&self) -> u64 {
        let pieces = self.runs.iter().map(|run| &run.piece);
        let pieces = pieces.chain(self.rests.iter().map(|(_, piece)| piece));
        pieces.map(|piece| piece.len() + ENTRY_BYTES).sum()
    }

    fn n_pages(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.first + run.n)
    }

    fn put_pages(&mut self, first: u32, n: u32, piece: Piece) -> bool {
        let have = self.n_pages();
        if first + n <= have {
            // Pages never change: it has them.
            return true;
        }
        if first > have {
            return false;
        }
        self.runs.retain(|run| run.first < first);
        if let Some(run) = self.runs.last_mut()
            && run.first + run.n > first
        {
            let keep = first - run.first;
            run.piece.shorten(run.piece.len() / u64::from(run.n) * u64::from(keep));
            run.n = keep;
        }
        self.runs.push(Run { first, n, piece });
        true
    }

    fn put_rest(&mut self, len: u32, piece: Piece) -> bool {
        self.rests.retain(|(other, _)| *other != len);
        self.rests.push((len, piece));
        if self.rests.len() > RESTS_KEPT {
            self.rests.remove(0);
        }
        true
    }

    fn rest(&self, len: u32) -> Option<&Piece> {
        self.rests.iter().find(|(at, _)| *at == len).map(|(_, piece)| piece)
    }

    fn is_whole(&self, len: u32) -> bool {
        let has_rest = self.rest(len).is_some();
        if !self.paged {
            return has_rest;
        }
        let is_full = (len as usize).is_multiple_of(KV_PAGE);
        self.n_pages() >= len / KV_PAGE as u32 && (is_full || has_rest)
    }

    fn pieces(&self, len: u32) -> (Vec<(u32, Piece)>, Option<Piece>) {
        let n_pages = len / KV_PAGE as u32;
        let mut pages = Vec::new();
        for run in self.runs.iter().take_while(|run| run.first < n_pages) {
            let n = run.n.min(n_pages - run.first);
            pages.push((n, run.piece.head(run.piece.len() / u64::from(run.n) * u64::from(n))));
        }
        (pages, self.rest(len).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: CopyName = CopyName([1; 16]);
    const MARK: TokenMark = TokenMark([2; 16]);

    fn store(limit: u64) -> Store {
        let budget = Arc::new(Budget::default());
        budget.set_limit(limit);
        Store::new(budget)
    }

    fn head(layers: Range<u32>) -> Head {
        let prints = layers.clone().map(|l| blake3::hash(&[l as u8])).collect();
        Head { name: NAME, kind: [3; 32], layers, prints }
    }

    /// Ten bytes a page, the number of the page in each.
    fn pages(store: &Store, head: &Head, layer: u32, first: u32, n: u32) -> bool {
        let bytes: Vec<u8> = (first..first + n).flat_map(|page| [page as u8; 10]).collect();
        let item = Item { layer, block: 0, paged: true, what: What::Pages { first, n } };
        store.put(head, item, Piece::Memory(bytes.into()))
    }

    fn rest(store: &Store, head: &Head, layer: u32, paged: bool, len: u32) -> bool {
        let item = Item { layer, block: u32::from(!paged), paged, what: What::Rest { len } };
        store.put(head, item, Piece::Memory(vec![9; 7].into()))
    }

    fn positions(store: &Store) -> Vec<(Range<u32>, Vec<u32>)> {
        let whole = |w: Whole| (w.layers, w.positions.iter().map(|(len, _)| *len).collect());
        store.find(NAME).into_iter().map(whole).collect()
    }

    #[test]
    fn a_position_counts_when_all_of_it_is_here() {
        let (store, head) = (store(1 << 20), head(4..6));
        assert!(pages(&store, &head, 4, 0, 2));
        store.commit(&head, 128, MARK);
        // Layer 5 has no state as far as is known; layer 4 has both pages.
        assert_eq!(positions(&store), [(4..6, vec![128])]);
        assert!(!pages(&store, &head, 4, 3, 1), "page 2 is missing");
        assert!(pages(&store, &head, 4, 2, 1));
        store.commit(&head, 200, MARK);
        assert_eq!(positions(&store), [(4..5, vec![128]), (5..6, vec![128, 200])]);
        assert!(rest(&store, &head, 4, true, 200));
        assert_eq!(positions(&store), [(4..6, vec![128, 200])]);
        let pieces = store.pieces(NAME, 4..6, 128).unwrap();
        assert_eq!(pieces.blocks.len(), 1);
        let read: Vec<u8> =
            pieces.blocks[0].pages.iter().flat_map(|(_, p)| p.read().unwrap()).collect();
        assert_eq!(read, [[0u8; 10], [1; 10]].concat());
        assert!(store.pieces(NAME, 4..7, 128).is_none() && store.pieces(NAME, 4..6, 64).is_none());
    }

    #[test]
    fn of_what_is_good_for_one_position_the_newest_stay() {
        let (store, head) = (store(1 << 20), head(0..1));
        for len in [10, 20, 30, 40] {
            assert!(rest(&store, &head, 0, false, len));
            store.commit(&head, len, MARK);
        }
        assert_eq!(positions(&store), [(0..1, vec![20, 30, 40])]);
        assert_eq!(store.budget.used(), LAYER_BYTES + 3 * (7 + ENTRY_BYTES));
        store.retain(&HashSet::new());
        assert_eq!((store.budget.used(), positions(&store).len()), (0, 0));
    }

    #[test]
    fn layers_that_keep_more_positions_than_others_have_those_in_common() {
        let (store, head) = (store(1 << 20), head(0..2));
        for len in [10, 20, 30, 40] {
            assert!(rest(&store, &head, 1, false, len));
            store.commit(&head, len, MARK);
        }
        // Layer 0 has nothing of its own to keep: every position is good.
        assert_eq!(positions(&store), [(0..1, vec![10, 20, 30, 40]), (1..2, vec![20, 30, 40])]);
        let common: Vec<u32> = store.common(NAME, 0..2).iter().map(|(len, _)| *len).collect();
        assert_eq!(common, [20, 30, 40]);
        assert!(store.common(NAME, 0..3).is_empty());
    }

    #[test]
    fn pages_that_come_again_replace_what_follows_them() {
        let (store, head) = (store(1 << 20), head(0..1));
        assert!(pages(&store, &head, 0, 0, 4));
        assert!(pages(&store, &head, 0, 1, 2), "it has them");
        assert!(pages(&store, &head, 0, 3, 3));
        assert_eq!(store.budget.used(), LAYER_BYTES + 60 + 2 * ENTRY_BYTES);
        store.commit(&head, 6 * 64, MARK);
        let pieces = store.pieces(NAME, 0..1, 6 * 64).unwrap();
        let counts: Vec<u32> = pieces.blocks[0].pages.iter().map(|(n, _)| *n).collect();
        assert_eq!(counts, [3, 3]);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let limit = 2 * (LAYER_BYTES + ENTRY_BYTES) + 25;
        let (store, head) = (store(limit), head(0..4));
        assert!(pages(&store, &head, 0, 0, 2));
        assert!(!pages(&store, &head, 0, 2, 10));
        assert_eq!(store.budget.used(), LAYER_BYTES + 20 + ENTRY_BYTES);
        // Positions of layers for which there is no place are not noted either.
        store.commit(&head, 128, MARK);
        assert!(positions(&store).is_empty());
        store.forget(NAME);
        assert_eq!(store.budget.used(), 0);
        assert!(pages(&store, &head, 0, 0, 1));
    }

    #[test]
    fn copies_of_other_weights_make_way() {
        let (store, mut head) = (store(1 << 20), head(0..1));
        assert!(pages(&store, &head, 0, 0, 2));
        store.commit(&head, 128, MARK);
        head.prints[0] = blake3::hash(b"trained");
        assert!(!pages(&store, &head, 0, 2, 1), "those before it were of other weights");
        assert_eq!((store.budget.used(), positions(&store).len()), (LAYER_BYTES, 0));
    }
}
