//! Kept states, and the radix tree of their tokens.

use std::collections::{BTreeMap, BTreeSet};

use brigade_engine::batch::{PageId, SlotId};
use brigade_spec::Prefixes;

use crate::events::{KeptId, Micros, RequestId};
use crate::memory::prefix::PrefixCounts;
use crate::memory::prefix::habits::{ConversationNo, Habits};
use crate::memory::prefix::tree::{NodeId, Space, Stop, Tree, Walk};
use crate::sequence::{Half, SeqNo};

/// A prompt's tokens and space. Both must match for one prompt to begin with another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prompt<'a> {
    pub tokens: &'a [u32],
    pub space: &'a Space,
}

impl Prompt<'_> {
    /// The tokens that may be taken from kept states. At least one row is left to compute: the one that the first
    /// token is drawn from.
    pub(super) fn beginning(&self) -> &[u32] {
        &self.tokens[..self.tokens.len().saturating_sub(1)]
    }
}

/// A kept state as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptInfo {
    /// The state's id.
    pub id: KeptId,
    /// Slot of the state, on every stage.
    pub slot: SlotId,
    /// The tokens of its positions.
    pub tokens: Vec<u32>,
}

/// A kept state with its bookkeeping.
#[derive(Debug)]
pub(crate) struct Kept {
    pub id: KeptId,
    pub slot: SlotId,
    /// Pages that hold its positions.
    pub blocks: Vec<PageId>,
    pub node: NodeId,
    pub owner: u64,
    /// The request whose end it is; `None` for a prompt's end or a companion's, or if it came from elsewhere.
    pub request: Option<RequestId>,
    /// The running sequence that it was or is a copy of, or whose companion; `None` if it came from elsewhere.
    pub left_by: Option<SeqNo>,
    /// Whether the stages hold its state already.
    pub filled: bool,
    /// Whether the state is being read or filled on the stages, so that it must not be evicted.
    pub pinned: bool,
    /// Whether the stages write it to records. It goes only where a running sequence needs its pages.
    pub written: bool,
    /// Whether the state's numbers may be invalid: it is dropped when it is not pinned any more.
    pub spoilt: bool,
    /// A request that waits would begin with it: it goes last.
    pub wanted: bool,
    /// The time until which its client is expected back: it is evicted last of its owner's.
    pub lingers: Micros,
    /// A prompt that repeats most of it has gone another way since it was used.
    pub left: bool,
    /// The conversation whose state it is.
    pub conversation: ConversationNo,
    /// Conversations that have begun in its space since it was used.
    pub begun_since: u32,
    /// Tokens that it had at first.
    pub whole: u32,
    pub last_use: u64,
    /// The time of that.
    pub used_at: Micros,
    /// Requests that began with it.
    pub hits: u64,
}

impl Kept {
    /// Whether it does not go for the sake of another kept state.
    pub fn stays(&self) -> bool {
        self.pinned || self.written
    }
}

/// Facts about a state that is to be kept.
#[derive(Debug)]
pub(crate) struct NewKept<'a> {
    pub slot: SlotId,
    pub blocks: Vec<PageId>,
    pub prompt: Prompt<'a>,
    pub owner: u64,
    pub origin: Origin,
    pub filled: bool,
    pub pinned: bool,
}

/// What left a state behind; nothing, if it came from elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    /// The request whose end it is.
    pub request: Option<RequestId>,
    /// The running sequence that it was or is a copy of, or whose companion.
    pub left_by: Option<SeqNo>,
    pub conversation: Option<ConversationNo>,
}

/// A holder of tokens in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Kept(KeptId),
    /// A running sequence: the tokens that it knew when it got its place.
    Live(SeqNo, Half),
}

/// A state with which a sequence can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Kept(KeptId),
    Live(SeqNo, Half),
}

impl Source {
    /// The kept state that it is, if it is one.
    pub fn kept(self) -> Option<KeptId> {
        match self {
            Self::Kept(id) => Some(id),
            Self::Live(..) => None,
        }
    }
}

/// How long the end of a conversation goes last that waits for the result of a tool. Four of five conversations that
/// go on through an API do so within this time.
const LINGERS_US: Micros = 10_000_000;

/// A prompt that repeats one part in so many of a state goes on with its conversation, or leaves it for good.
pub(super) const SAME_AFTER: u32 = 2;

/// A node of the tree; the holders behind it share their first `common` tokens with a prompt.
pub(super) struct Level {
    pub node: NodeId,
    pub common: u32,
}

/// All kept states of a line. Knows who was used when, not how many there may be.
#[derive(Debug, Default)]
pub(crate) struct KeptPool {
    all: BTreeMap<KeptId, Kept>,
    pub(super) tree: Tree<Holder>,
    /// States that are marked as wanted.
    wanted: BTreeSet<KeptId>,
    next: u64,
    pub(super) uses: u64,
    /// The time of what happens.
    pub now: Micros,
    /// States go by their age alone.
    pub(super) by_age: bool,
    /// What owners' conversations were like.
    pub(super) habits: BTreeMap<u64, Habits>,
    pub(super) n_conversations: u64,
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

    /// A conversation of which nothing else is known.
    pub fn new_conversation(&mut self) -> ConversationNo {
        self.n_conversations += 1;
        ConversationNo(self.n_conversations)
    }

    pub fn insert(&mut self, new: NewKept<'_>) -> KeptId {
        let id = KeptId(self.next);
        self.next += 1;
        self.uses += 1;
        self.counts.kept += 1;
        let NewKept { slot, blocks, prompt, owner, origin, filled, pinned } = new;
        let Origin { request, left_by, conversation } = origin;
        let conversation = conversation.unwrap_or_else(|| self.new_conversation());
        let node = self.tree.insert(prompt.space, prompt.tokens, Holder::Kept(id));
        let (wanted, last_use, used_at) = (false, self.uses, self.now);
        let kept = Kept {
            id,
            slot,
            blocks,
            node,
            owner,
            request,
            left_by,
            filled,
            pinned,
            written: false,
            spoilt: false,
            wanted,
            lingers: 0,
            left: false,
            conversation,
            begun_since: 0,
            whole: prompt.tokens.len() as u32,
            last_use,
            used_at,
            hits: 0,
        };
        self.all.insert(id, kept);
        id
    }

    /// The stages do not write it any more.
    pub fn written(&mut self, id: KeptId) {
        if let Some(kept) = self.all.get_mut(&id) {
            kept.written = false;
        }
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

    /// Removes a running sequence as a holder of a node.
    pub fn leave(&mut self, node: NodeId, no: SeqNo, half: Half) {
        self.tree.remove(node, Holder::Live(no, half));
    }

    /// Notes a use of the state.
    pub fn touch(&mut self, id: KeptId) {
        self.uses += 1;
        if let Some(kept) = self.all.get_mut(&id) {
            (kept.last_use, kept.used_at) = (self.uses, self.now);
            (kept.lingers, kept.left, kept.begun_since) = (0, false, 0);
        }
    }

    /// Marks a path as left for good where a prompt repeats most of it and then differs: a message was edited, or a
    /// turn was regenerated. Where several paths diverge already, one more says nothing about them.
    pub fn leave_behind(&mut self, prompt: Prompt<'_>) {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        if walk.common as usize == prompt.tokens.len() {
            return;
        }
        let only = |stop: &Stop| self.tree.only_child(stop.node);
        let Some(left) = walk.within.or_else(|| walk.passed.last().and_then(only)) else { return };
        let behind: Vec<Holder> = self.holders_behind(left, None).collect();
        for holder in behind {
            if let Holder::Kept(id) = holder
                && let Some(kept) = self.all.get_mut(&id)
            {
                kept.left |= self.tree.end(kept.node) <= SAME_AFTER * walk.common;
            }
        }
    }

    /// A request begins with its first `len` positions. Where these are the smaller part of it, they say nothing about
    /// the rest: the same instructions, and another conversation.
    pub fn hit(&mut self, id: KeptId, len: u32) {
        let Some(kept) = self.all.get_mut(&id) else { return };
        kept.hits += 1;
        if self.tree.end(kept.node) <= SAME_AFTER.saturating_mul(len) {
            self.touch(id);
        }
    }

    /// The client of a request that has ended is expected back.
    pub fn linger(&mut self, now: Micros, request: RequestId) {
        for kept in self.all.values_mut().filter(|kept| kept.request == Some(request)) {
            kept.lingers = now + LINGERS_US;
        }
    }

    /// Marks the states with which waiting requests would begin.
    pub fn want(&mut self, wanted: BTreeSet<KeptId>) {
        if wanted != self.wanted {
            for kept in self.all.values_mut() {
                kept.wanted = wanted.contains(&kept.id);
            }
            self.wanted = wanted;
        }
    }

    /// The levels from the point where a prompt's tokens leave the tree, back to its root. Everything behind a level
    /// shares so many tokens with them.
    pub(super) fn levels(&self, walk: &Walk) -> impl Iterator<Item = Level> {
        let within = walk.within.map(|node| Level { node, common: walk.common });
        let passed = walk.passed.iter().rev();
        let passed = passed.map(|Stop { node, end }| Level { node: *node, common: *end });
        within.into_iter().chain(passed).filter(|level| level.common > 0)
    }

    /// The state that covers most of a prompt's first tokens, and the number of these tokens. `progress`: positions
    /// of a running sequence that are sent.
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
        walk.passed.iter().rev().find_map(|Stop { node, end }| {
            let holders = self.tree.holders(*node).iter();
            let filled = holders.filter_map(|holder| match holder {
                Holder::Kept(id) => self.all.get(id).filter(|kept| kept.filled),
                Holder::Live(..) => None,
            });
            let newest = filled.max_by_key(|kept| kept.last_use)?;
            Some((Source::Kept(newest.id), *end)).filter(|(_, len)| *len > 0)
        })
    }

    /// Any prefix of a state, or of what a running sequence has read. Among equals it is the kept one that was used
    /// last.
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

    /// All holders behind a node, but not behind `seen`, which was visited before.
    pub(super) fn holders_behind(
        &self,
        node: NodeId,
        seen: Option<NodeId>,
    ) -> impl Iterator<Item = Holder> {
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
                Holder::Live(_, Half::Companion) | Holder::Kept(_) => None,
            }));
            seen = Some(node);
        }
        readers
    }

    /// Positions behind `from` at which other prompts and answers left the way of this one, or ended; the last is where
    /// it leaves the way of all.
    pub fn forks(&self, prompt: Prompt<'_>, from: u32) -> Vec<u32> {
        let walk = self.tree.walk(prompt.space, prompt.beginning());
        let passed = walk.passed.iter().map(|stop| stop.end);
        let mut forks: Vec<u32> = passed.chain([walk.common]).filter(|at| *at > from).collect();
        forks.dedup();
        forks
    }

    /// The nodes of states that a running sequence and its companion left behind, while they are kept.
    pub fn left_by(&self, no: SeqNo) -> Vec<NodeId> {
        let left = self.all.values().filter(|kept| kept.left_by == Some(no));
        left.map(|kept| kept.node).collect()
    }

    /// States at a node and before it.
    pub fn before(&self, node: NodeId) -> Vec<KeptId> {
        self.held_at(self.tree.up(node))
    }

    /// States whose tokens are a prefix of the prompt.
    pub fn begins(&self, prompt: Prompt<'_>) -> Vec<KeptId> {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        self.held_at(walk.passed.into_iter().map(|stop| stop.node))
    }

    fn held_at(&self, nodes: impl Iterator<Item = NodeId>) -> Vec<KeptId> {
        let holders = nodes.flat_map(|node| self.tree.holders(node));
        let kept = holders.filter_map(|holder| match holder {
            Holder::Kept(id) => Some(*id),
            Holder::Live(..) => None,
        });
        kept.collect()
    }

    fn may_go(&self, holder: Holder) -> Option<KeptId> {
        match holder {
            Holder::Kept(id) => self.all.get(&id).filter(|kept| !kept.stays()).map(|kept| kept.id),
            Holder::Live(..) => None,
        }
    }

    /// The state with exactly these tokens.
    pub fn same(&self, prompt: Prompt<'_>) -> Option<KeptId> {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        let last = walk.passed.last().filter(|_| walk.common as usize == prompt.tokens.len())?;
        let at_end = walk.within.is_none().then_some(last)?;
        self.tree.holders(at_end.node).iter().find_map(|holder| match holder {
            Holder::Kept(id) => Some(*id),
            Holder::Live(..) => None,
        })
    }

    /// States that are useless beside one with these tokens, and may be dropped.
    pub fn covered_by(&self, prompt: Prompt<'_>, prefixes: Prefixes) -> Vec<KeptId> {
        let walk = self.tree.walk(prompt.space, prompt.tokens);
        let whole = prompt.tokens.len() as u32;
        let covered = walk.passed.iter().filter(|stop| match prefixes {
            Prefixes::All => true,
            Prefixes::Whole | Prefixes::None => stop.end == whole,
        });
        let holders = covered.flat_map(|stop| self.tree.holders(stop.node));
        holders.filter_map(|holder| self.may_go(*holder)).collect()
    }

    /// The namespace that a state is in.
    pub fn space_of(&self, kept: &Kept) -> Option<Space> {
        self.tree.space_of(kept.node)
    }
}

#[cfg(test)]
mod tests;
