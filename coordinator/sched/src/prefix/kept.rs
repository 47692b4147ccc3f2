//! Kept states and the tree they stand in.

use std::collections::{BTreeMap, BTreeSet};

use brigade_engine::batch::{BlockId, SlotId};
use brigade_spec::Prefixes;

use super::PrefixCounts;
use super::place::Place;
use super::tree::{NodeId, Space, Tree, Walk};
use crate::events::{KeptId, Micros, RequestId};
use crate::sequence::{Half, SeqNo};

/// Tokens, and what has to be the same besides for one prompt to begin with another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt<'a> {
    pub tokens: &'a [u32],
    pub space: &'a Space,
}

impl Prompt<'_> {
    /// What others may stand for. At least one row is left to compute, the one that the first token is drawn from.
    pub(super) fn beginning(&self) -> &[u32] {
        &self.tokens[..self.tokens.len().saturating_sub(1)]
    }
}

/// A kept state as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptInfo {
    /// Its name.
    pub id: KeptId,
    /// Where it is, on every stage.
    pub slot: SlotId,
    /// The tokens of its positions.
    pub tokens: Vec<u32>,
}

/// A kept state.
#[derive(Debug)]
pub(crate) struct Kept {
    pub id: KeptId,
    pub slot: SlotId,
    /// Those that hold its positions.
    pub blocks: Vec<BlockId>,
    pub node: NodeId,
    pub owner: u64,
    /// Whose end it is; `None` for a prompt's end or a guide's, or if it came from elsewhere.
    pub request: Option<RequestId>,
    /// The running sequence that it was or is a copy of, or whose guide; `None` if it came from elsewhere.
    pub left_by: Option<SeqNo>,
    pub place: Place,
    /// Whether the stages hold its state already.
    pub filled: bool,
    /// Somebody reads or fills it on the stages: it must not go.
    pub pinned: bool,
    /// A request that waits would begin with it: it goes last.
    pub wanted: bool,
    /// Until then its client is expected back: it goes last of its owner's.
    pub lingers: Micros,
    /// A prompt that repeats most of it has gone another way since it was used.
    pub left: bool,
    pub last_use: u64,
}

/// What is new about a state to be kept.
#[derive(Debug)]
pub(crate) struct NewKept<'a> {
    pub slot: SlotId,
    pub blocks: Vec<BlockId>,
    pub prompt: Prompt<'a>,
    pub owner: u64,
    pub request: Option<RequestId>,
    pub left_by: Option<SeqNo>,
    pub place: Place,
    pub filled: bool,
    pub pinned: bool,
}

/// Who has tokens in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Kept(KeptId),
    /// A sequence that runs: what it knew when it got its place.
    Live(SeqNo, Half),
}

/// What a sequence can begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Kept(KeptId),
    Live(SeqNo, Half),
}

/// How long the end of a conversation goes last that waits for the result of a tool. Of those that come back through an API,
/// four of five do so within this time.
const LINGERS_US: Micros = 10_000_000;

/// A way is left for good where a prompt has repeated one part in so many of it.
const LEFT_AFTER: u32 = 2;

/// How far into the tree a place is, and what is behind it.
struct Level {
    node: NodeId,
    common: u32,
}

/// All kept states of a line. Knows who was used when, not how many there may be.
#[derive(Debug, Default)]
pub(crate) struct KeptPool {
    all: BTreeMap<KeptId, Kept>,
    pub(super) tree: Tree<Holder>,
    /// Those that are marked as wanted.
    wanted: BTreeSet<KeptId>,
    next: u64,
    pub(super) uses: u64,
    /// The time of what happens.
    pub now: Micros,
    /// States go by their age alone.
    pub(super) by_age: bool,
    pub counts: PrefixCounts,
}

impl KeptPool {
    /// An empty one; `by_age`: whose states go by their age alone.
    pub fn new(by_age: bool) -> Self {
        Self { by_age, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Nodes of all trees.
    pub fn n_nodes(&self) -> usize {
        self.tree.n_nodes()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.all.values()
    }

    pub fn get(&self, id: KeptId) -> Option<&Kept> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: KeptId) -> Option<&mut Kept> {
        self.all.get_mut(&id)
    }

    pub fn info(&self, kept: &Kept) -> KeptInfo {
        KeptInfo { id: kept.id, slot: kept.slot, tokens: self.tree.tokens(kept.node) }
    }

    pub fn insert(&mut self, new: NewKept<'_>) -> KeptId {
        let id = KeptId(self.next);
        self.next += 1;
        self.uses += 1;
        self.counts.kept += 1;
        let NewKept { slot, blocks, prompt, owner, request, left_by, place, filled, pinned } = new;
        let node = self.tree.insert(prompt.space, prompt.tokens, Holder::Kept(id));
        let (wanted, last_use) = (false, self.uses);
        let kept = Kept {
            id,
            slot,
            blocks,
            node,
            owner,
            request,
            left_by,
            place,
            filled,
            pinned,
            wanted,
            lingers: 0,
            left: false,
            last_use,
        };
        self.all.insert(id, kept);
        id
    }

    pub fn remove(&mut self, id: KeptId) -> Option<Kept> {
        let kept = self.all.remove(&id)?;
        self.tree.remove(kept.node, Holder::Kept(id));
        Some(kept)
    }

    /// Only its first positions are kept from now on.
    pub fn shorten(&mut self, id: KeptId, space: &Space, len: u32) {
        let Some(kept) = self.all.get_mut(&id) else { return };
        let mut tokens = self.tree.tokens(kept.node);
        tokens.truncate(len as usize);
        self.tree.remove(kept.node, Holder::Kept(id));
        kept.node = self.tree.insert(space, &tokens, Holder::Kept(id));
        kept.request = None;
        self.counts.shortened += 1;
    }

    /// A sequence with these tokens runs from now on.
    pub fn enter(&mut self, prompt: Prompt<'_>, no: SeqNo, half: Half) -> NodeId {
        self.tree.insert(prompt.space, prompt.tokens, Holder::Live(no, half))
    }

    /// It does not any more.
    pub fn leave(&mut self, node: NodeId, no: SeqNo, half: Half) {
        self.tree.remove(node, Holder::Live(no, half));
    }

    /// It was just of use.
    pub fn touch(&mut self, id: KeptId) {
        self.uses += 1;
        if let Some(kept) = self.all.get_mut(&id) {
            kept.last_use = self.uses;
            (kept.lingers, kept.left) = (0, false);
        }
    }

    /// What a prompt repeats for the most part and then leaves was likely left for good: a message was changed, or a turn told
    /// again. Where several ways part already, one more says nothing about them.
    pub fn leave_behind(&mut self, prompt: Prompt<'_>) {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        if walk.common as usize == prompt.tokens.len() {
            return;
        }
        let only = |node: &NodeId| self.tree.only_child(*node);
        let Some(left) = walk.within.or_else(|| walk.passed.last().and_then(only)) else { return };
        let behind: Vec<Holder> = self.holders_behind(left, None).collect();
        for holder in behind {
            if let Holder::Kept(id) = holder
                && let Some(kept) = self.all.get_mut(&id)
            {
                kept.left |= self.tree.end(kept.node) <= LEFT_AFTER * walk.common;
            }
        }
    }

    /// The client of a request that has ended is expected back.
    pub fn linger(&mut self, now: Micros, request: RequestId) {
        for kept in self.all.values_mut().filter(|kept| kept.request == Some(request)) {
            kept.lingers = now + LINGERS_US;
        }
    }

    /// Which states requests that wait would begin with.
    pub fn want(&mut self, wanted: BTreeSet<KeptId>) {
        if wanted != self.wanted {
            for kept in self.all.values_mut() {
                kept.wanted = wanted.contains(&kept.id);
            }
            self.wanted = wanted;
        }
    }

    /// From where the tokens of a prompt leave the tree back to its root; all that is behind a level shares so many tokens
    /// with them.
    fn levels(&self, walk: &Walk) -> Vec<Level> {
        let within = walk.within.map(|node| Level { node, common: walk.common });
        let passed = walk.passed.iter().rev();
        let passed = passed.map(|node| Level { node: *node, common: self.tree.end(*node) });
        within.into_iter().chain(passed).filter(|level| level.common > 0).collect()
    }

    /// What stands for most of a prompt's first tokens, and for how many. `progress`: positions that are sent of a
    /// running sequence.
    pub fn best(
        &self,
        prompt: Prompt<'_>,
        prefixes: Prefixes,
        progress: impl Fn(SeqNo, Half) -> u32,
    ) -> Option<(Source, u32)> {
        let walk = self.tree.walk(prompt.space, prompt.beginning());
        match prefixes {
            Prefixes::All => self.best_of_any(&walk, progress),
            Prefixes::Whole => self.best_of_whole(&walk),
            Prefixes::None => None,
        }
    }

    /// The deepest state whose tokens all are the prompt's.
    fn best_of_whole(&self, walk: &Walk) -> Option<(Source, u32)> {
        walk.passed.iter().rev().find_map(|node| {
            let holders = self.tree.holders(*node).iter();
            let filled = holders.filter_map(|holder| match holder {
                Holder::Kept(id) => self.all.get(id).filter(|kept| kept.filled),
                Holder::Live(..) => None,
            });
            let newest = filled.max_by_key(|kept| kept.last_use)?;
            Some((Source::Kept(newest.id), self.tree.end(*node))).filter(|(_, len)| *len > 0)
        })
    }

    /// Any prefix of a state, or of what a running sequence has read. Of equals the kept one that was used last.
    fn best_of_any(
        &self,
        walk: &Walk,
        progress: impl Fn(SeqNo, Half) -> u32,
    ) -> Option<(Source, u32)> {
        let mut best: Option<(Source, u32)> = None;
        let mut seen = None;
        for Level { node, common } in self.levels(walk) {
            if best.is_some_and(|(_, len)| len > common) {
                break;
            }
            let (mut newest, mut live) = (None, best);
            for holder in self.holders_behind(node, seen) {
                match holder {
                    Holder::Kept(id) => {
                        let kept = self.all.get(&id).filter(|kept| kept.filled);
                        newest = newest.max(kept.map(|kept| (kept.last_use, kept.id)));
                    }
                    Holder::Live(no, half) => {
                        let len = progress(no, half).min(common);
                        if len > live.map_or(0, |(_, len)| len) {
                            live = Some((Source::Live(no, half), len));
                        }
                    }
                }
            }
            best = newest.map_or(live, |(_, id)| Some((Source::Kept(id), common)));
            seen = Some(node);
        }
        best
    }

    /// All that holds something behind a node, but not behind `seen`, which was looked at before.
    fn holders_behind(&self, node: NodeId, seen: Option<NodeId>) -> impl Iterator<Item = Holder> {
        let nodes = self.tree.behind(node, seen);
        nodes.flat_map(|node| self.tree.holders(node).iter().copied())
    }

    /// Running sequences, and how many of a prompt's first tokens each shares.
    pub fn readers(&self, prompt: Prompt<'_>) -> Vec<(SeqNo, u32)> {
        let walk = self.tree.walk(prompt.space, prompt.beginning());
        let (mut readers, mut seen) = (Vec::new(), None);
        for Level { node, common } in self.levels(&walk) {
            let behind = self.holders_behind(node, seen);
            readers.extend(behind.filter_map(|holder| match holder {
                Holder::Live(no, Half::Own) => Some((no, common)),
                Holder::Live(_, Half::Guide) | Holder::Kept(_) => None,
            }));
            seen = Some(node);
        }
        readers
    }

    /// Positions behind `from` at which other prompts and answers left the way of this one, or ended; the last is where
    /// it leaves the way of all.
    pub fn forks(&self, prompt: Prompt<'_>, from: u32) -> Vec<u32> {
        let walk = self.tree.walk(prompt.space, prompt.beginning());
        let passed = walk.passed.iter().map(|node| self.tree.end(*node));
        let mut forks: Vec<u32> = passed.chain([walk.common]).filter(|at| *at > from).collect();
        forks.dedup();
        forks
    }

    /// What a running sequence and its guide left behind, while that is kept: the nodes.
    pub fn left_by(&self, no: SeqNo) -> Vec<NodeId> {
        let left = self.all.values().filter(|kept| kept.left_by == Some(no));
        left.map(|kept| kept.node).collect()
    }

    /// Those at a node and before it that may go.
    pub fn before(&self, node: NodeId) -> Vec<KeptId> {
        let holders = self.tree.up(node).flat_map(|node| self.tree.holders(node));
        holders.filter_map(|holder| self.may_go(*holder)).collect()
    }

    fn may_go(&self, holder: Holder) -> Option<KeptId> {
        match holder {
            Holder::Kept(id) => self.all.get(&id).filter(|kept| !kept.pinned).map(|kept| kept.id),
            Holder::Live(..) => None,
        }
    }

    /// One with exactly these tokens.
    pub fn same(&self, prompt: Prompt<'_>) -> Option<KeptId> {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        let last = walk.passed.last().filter(|_| walk.common as usize == prompt.tokens.len())?;
        let at_end = walk.within.is_none().then_some(last)?;
        self.tree.holders(*at_end).iter().find_map(|holder| match holder {
            Holder::Kept(id) => Some(*id),
            Holder::Live(..) => None,
        })
    }

    /// Those that are of no use beside one with these tokens, and may go.
    pub fn covered_by(&self, prompt: Prompt<'_>, prefixes: Prefixes) -> Vec<KeptId> {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        let whole = prompt.tokens.len() as u32;
        let covered = walk.passed.iter().filter(|node| match prefixes {
            Prefixes::All => true,
            Prefixes::Whole | Prefixes::None => self.tree.end(**node) == whole,
        });
        let holders = covered.flat_map(|node| self.tree.holders(*node));
        holders.filter_map(|holder| self.may_go(*holder)).collect()
    }

    /// The namespace that a state is in.
    pub fn space_of(&self, kept: &Kept) -> Option<Space> {
        self.tree.space_of(kept.node)
    }
}

#[cfg(test)]
mod tests {
    use brigade_engine::batch::AdapterUse;

    use super::*;
    use crate::namespace::Namespace;

    fn space(owner: u64) -> Space {
        Space::new(Namespace::of_owner(owner), &[])
    }

    fn add(pool: &mut KeptPool, space: &Space, tokens: &[u32]) -> KeptId {
        pool.insert(NewKept {
            slot: SlotId(pool.len() as u32),
            blocks: vec![],
            prompt: Prompt { tokens, space },
            owner: 7,
            request: None,
            left_by: None,
            place: Place::End,
            filled: true,
            pinned: false,
        })
    }

    fn pool(all: &[&[u32]]) -> KeptPool {
        let mut pool = KeptPool::default();
        for tokens in all {
            add(&mut pool, &space(7), tokens);
        }
        pool
    }

    fn best(
        pool: &KeptPool,
        space: &Space,
        tokens: &[u32],
        prefixes: Prefixes,
    ) -> Option<(u64, u32)> {
        let best = pool.best(Prompt { tokens, space }, prefixes, |_, _| 0);
        best.map(|(source, len)| match source {
            Source::Kept(id) => (id.0, len),
            Source::Live(..) => panic!("nobody runs"),
        })
    }

    #[test]
    fn the_longest_usable_one_begins_a_prompt() {
        let mut pool = pool(&[&[1, 2], &[1, 2, 3, 9], &[1, 2, 3, 4], &[7]]);
        let of =
            |pool: &KeptPool, tokens: &[u32], prefixes| best(pool, &space(7), tokens, prefixes);
        assert_eq!(of(&pool, &[1, 2, 3, 4, 5], Prefixes::All), Some((2, 4)));
        assert_eq!(of(&pool, &[1, 2, 3, 4, 5], Prefixes::Whole), Some((2, 4)));
        // One row must be left to compute.
        assert_eq!(of(&pool, &[1, 2, 3, 4], Prefixes::All), Some((2, 3)));
        assert_eq!(of(&pool, &[1, 2, 3, 4], Prefixes::Whole), Some((0, 2)));
        // Of equals the one used last.
        pool.touch(KeptId(1));
        assert_eq!(of(&pool, &[1, 2, 3, 5], Prefixes::All), Some((1, 3)));
        assert_eq!(of(&pool, &[8, 2], Prefixes::All), None);
        assert_eq!(of(&pool, &[7], Prefixes::All), None);
        pool.get_mut(KeptId(2)).unwrap().filled = false;
        assert_eq!(of(&pool, &[1, 2, 3, 4, 5], Prefixes::Whole), Some((0, 2)));
    }

    #[test]
    fn what_a_running_sequence_has_read_begins_others_as_well() {
        let mut pool = pool(&[&[1, 2, 9]]);
        let own = space(7);
        let prompt = Prompt { tokens: &[1, 2, 3, 4], space: &own };
        let node = pool.enter(prompt, SeqNo(5), Half::Own);
        let like = Prompt { tokens: &[1, 2, 3, 4, 5], space: &own };
        let of = |sent| pool.best(like, Prefixes::All, |_, _| sent);
        assert_eq!(of(4), Some((Source::Live(SeqNo(5), Half::Own), 4)));
        assert_eq!(of(3), Some((Source::Live(SeqNo(5), Half::Own), 3)));
        // Of equals the kept one.
        assert_eq!(of(2), Some((Source::Kept(KeptId(0)), 2)));
        assert_eq!(pool.best(like, Prefixes::Whole, |_, _| 4), None);
        assert_eq!(pool.readers(like), [(SeqNo(5), 4)]);
        assert_eq!(pool.readers(Prompt { tokens: &[1, 2, 7, 7], space: &own }), [(SeqNo(5), 2)]);
        assert_eq!(pool.readers(Prompt { tokens: &[1, 2, 3, 4], space: &space(8) }), []);
        pool.leave(node, SeqNo(5), Half::Own);
        assert_eq!(pool.readers(like), []);
    }

    #[test]
    fn forks_are_where_others_went_another_way_or_ended() {
        let pool = pool(&[&[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7], &[1, 9]]);
        let own = space(7);
        let at = |tokens: &[u32], from| pool.forks(Prompt { tokens, space: &own }, from);
        assert_eq!(at(&[1, 2, 3, 4, 5, 8, 8], 0), [1, 4, 5]);
        assert_eq!(at(&[1, 2, 3, 4, 5, 8, 8], 4), [5]);
        assert_eq!(at(&[1, 2, 8], 0), [1, 2]);
        assert!(at(&[8, 8], 0).is_empty());
    }

    #[test]
    fn what_other_adapters_computed_begins_nothing_and_covers_nothing() {
        let mut pool = pool(&[&[1, 2, 3]]);
        let scaled =
            |scale| Space::new(Namespace::of_owner(7), &[AdapterUse { adapter: 0, scale }]);
        add(&mut pool, &scaled(0.5), &[1, 2]);
        let of = |space: &Space| best(&pool, space, &[1, 2, 3, 4], Prefixes::All);
        assert_eq!(of(&space(7)), Some((0, 3)));
        assert_eq!(of(&scaled(0.5)), Some((1, 2)));
        assert_eq!(of(&scaled(0.25)), None);
        let covered =
            |space: &Space| pool.covered_by(Prompt { tokens: &[1, 2, 3], space }, Prefixes::All);
        assert_eq!(covered(&space(7)), [KeptId(0)]);
        assert_eq!(covered(&scaled(0.5)), [KeptId(1)]);
        let same = |space: &Space| pool.same(Prompt { tokens: &[1, 2], space });
        assert_eq!((same(&space(7)), same(&scaled(0.5))), (None, Some(KeptId(1))));
    }

    #[test]
    fn what_another_owner_has_computed_begins_nothing_and_covers_nothing() {
        let pool = pool(&[&[1, 2, 3]]);
        assert!(best(&pool, &space(7), &[1, 2, 3, 4], Prefixes::All).is_some());
        let other = space(8);
        let whole = Prompt { tokens: &[1, 2, 3], space: &other };
        for prefixes in [Prefixes::All, Prefixes::Whole] {
            assert_eq!(best(&pool, &other, &[1, 2, 3, 4], prefixes), None);
            assert_eq!(pool.covered_by(whole, prefixes), []);
        }
        assert_eq!(pool.same(whole), None);
    }

    #[test]
    fn what_a_longer_one_stands_for_as_well_is_of_no_use() {
        let mut pool = pool(&[&[1, 2], &[1, 2, 3], &[1, 3]]);
        let own = space(7);
        let prompt = Prompt { tokens: &[1, 2, 3], space: &own };
        assert_eq!(pool.covered_by(prompt, Prefixes::All), [KeptId(0), KeptId(1)]);
        assert_eq!(pool.covered_by(prompt, Prefixes::Whole), [KeptId(1)]);
        pool.get_mut(KeptId(0)).unwrap().pinned = true;
        assert_eq!(pool.covered_by(prompt, Prefixes::All), [KeptId(1)]);
    }

    /// Prints what it takes to find what begins a prompt; a figure, not a promise.
    #[test]
    fn a_look_up_among_ten_thousand_nodes() {
        const TIMES: u32 = 20;
        let mut rng = crate::sim::Rng::new(1);
        let mut draw = |n: u64| (0..n).map(|_| rng.between(0, 30_000) as u32).collect::<Vec<_>>();
        let prompt = draw(100_001);
        let own = space(7);
        // At each of so many places others went another way: few, as agents do, or all of them at a place of its own.
        for places in [100, 5_000] {
            let mut pool = KeptPool::default();
            let whole = add(&mut pool, &own, &prompt[..99_000]);
            for i in 0..10_000 - places {
                let at = (i % places + 1) * 100_000 / places;
                add(&mut pool, &own, &[&prompt[..at], &draw(20)].concat());
            }
            for (prefixes, len) in [(Prefixes::All, 100_000), (Prefixes::Whole, 99_000)] {
                let took = (0..TIMES).map(|_| {
                    let begun = std::time::Instant::now();
                    let found = best(&pool, &own, &prompt, prefixes).expect("there is one");
                    assert_eq!(found.1, len);
                    assert!(prefixes == Prefixes::All || found.0 == whole.0);
                    begun.elapsed()
                });
                let (least, n) = (took.min().unwrap_or_default(), pool.n_nodes());
                println!(
                    "{prefixes:?}, {places} places, {n} nodes: {least:?}, the least of {TIMES}"
                );
            }
        }
    }

    #[test]
    fn one_that_was_shortened_stands_for_what_is_left() {
        let mut pool = pool(&[&[1, 2, 3, 4, 5, 6]]);
        pool.shorten(KeptId(0), &space(7), 4);
        assert_eq!(best(&pool, &space(7), &[1, 2, 3, 4, 5, 6, 7], Prefixes::All), Some((0, 4)));
        assert_eq!(pool.info(pool.get(KeptId(0)).unwrap()).tokens, [1, 2, 3, 4]);
        assert_eq!(pool.n_nodes(), 1);
    }
}
