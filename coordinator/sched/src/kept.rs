//! Kept sequences: finished ones whose computed states may begin another request's sequence.
//!
//! A kept sequence is a slot that stays open on all stages, with the pages that hold its positions and the
//! exact tokens of them. A new request that begins with these tokens starts as a copy, and computes only the
//! rest.
//!
//! That is exact. A row's result depends on the tokens before it, and not on where a prompt was cut.
//! Recurrent layers have a state at the end of a sequence only. Where a model has some, only a whole kept
//! sequence can begin another one. Otherwise any prefix of it can. What one set of adapters computed begins nothing of
//! another's, and what one owner computed nothing of another owner's: the time of a first token, and the number of
//! tokens that were there already, would tell a guesser what others have asked.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_engine::batch::{AdapterUse, BlockId, SlotId};
use brigade_spec::Prefixes;

use super::events::{KeptId, RequestId};
use super::sequence::SeqNo;

/// Tokens, and what has to be the same besides for one prompt to begin with another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt<'a> {
    pub tokens: &'a [u32],
    /// Those that they are computed with.
    pub adapters: &'a [AdapterUse],
    pub owner: u64,
}

/// A kept sequence as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptInfo {
    /// Its name.
    pub id: KeptId,
    /// Where it is, on every stage.
    pub slot: SlotId,
    /// The tokens of its positions.
    pub tokens: Vec<u32>,
}

/// A kept sequence.
#[derive(Debug)]
pub(super) struct Kept {
    pub id: KeptId,
    pub slot: SlotId,
    /// Those that hold `tokens`.
    pub blocks: Vec<BlockId>,
    pub tokens: Vec<u32>,
    /// What computed them besides the model: nobody else's prompt begins with it.
    pub adapters: Arc<[AdapterUse]>,
    /// Whose it is: nobody else's prompt begins with it either.
    pub owner: u64,
    /// Whose end it is; `None` for a prompt's end or a guide's, or if it came from elsewhere.
    pub request: Option<RequestId>,
    /// The running sequence that it was, or whose guide; `None` for a prompt's end, or if it came from elsewhere.
    left_by: Option<SeqNo>,
    /// Whether the stages hold its state already.
    pub filled: bool,
    /// Somebody reads or fills it on the stages: it must not go.
    pub pinned: bool,
    last_use: u64,
}

impl Kept {
    pub fn info(&self) -> KeptInfo {
        KeptInfo { id: self.id, slot: self.slot, tokens: self.tokens.clone() }
    }

    /// Whether a prompt is computed as it was, for the same owner.
    fn is_like(&self, prompt: Prompt<'_>) -> bool {
        prompt.owner == self.owner && prompt.adapters == &self.adapters[..]
    }

    /// How many of a prompt's first tokens it can stand for. At least one row is left to compute, the
    /// one that the first token is drawn from.
    fn covers(&self, prompt: Prompt<'_>, prefixes: Prefixes) -> u32 {
        if !self.is_like(prompt) {
            return 0;
        }
        let rest = &prompt.tokens[..prompt.tokens.len().saturating_sub(1)];
        let common = self.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
        match prefixes {
            Prefixes::All => common as u32,
            Prefixes::Whole if common == self.tokens.len() => common as u32,
            Prefixes::Whole | Prefixes::None => 0,
        }
    }
}

/// What is new about a sequence to be kept.
#[derive(Debug)]
pub(super) struct NewKept {
    pub slot: SlotId,
    pub blocks: Vec<BlockId>,
    pub tokens: Vec<u32>,
    pub adapters: Arc<[AdapterUse]>,
    pub owner: u64,
    pub request: Option<RequestId>,
    pub left_by: Option<SeqNo>,
    pub filled: bool,
}

/// All kept sequences of a line. Knows who was used when, not how many there may be.
#[derive(Debug, Default)]
pub(super) struct KeptPool {
    all: Vec<Kept>,
    next: u64,
    uses: u64,
}

impl KeptPool {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.all.iter()
    }

    pub fn get_mut(&mut self, id: KeptId) -> Option<&mut Kept> {
        self.all.iter_mut().find(|kept| kept.id == id)
    }

    pub fn insert(&mut self, new: NewKept) -> KeptId {
        let id = KeptId(self.next);
        self.next += 1;
        let NewKept { slot, blocks, tokens, adapters, owner, request, left_by, filled } = new;
        // Whoever fills it holds on to it meanwhile.
        let pinned = !filled;
        let last_use = 0;
        self.all.push(Kept {
            id,
            slot,
            blocks,
            tokens,
            adapters,
            owner,
            request,
            left_by,
            filled,
            pinned,
            last_use,
        });
        self.touch(id);
        id
    }

    pub fn remove(&mut self, id: KeptId) -> Option<Kept> {
        let at = self.all.iter().position(|kept| kept.id == id)?;
        Some(self.all.remove(at))
    }

    /// It was just of use.
    pub fn touch(&mut self, id: KeptId) {
        self.uses += 1;
        let now = self.uses;
        if let Some(kept) = self.get_mut(id) {
            kept.last_use = now;
        }
    }

    /// The one that stands for most of a prompt's tokens, and for how many; of equals the one used last.
    pub fn best(&self, prompt: Prompt<'_>, prefixes: Prefixes) -> Option<(KeptId, u32)> {
        let usable = self.all.iter().filter(|kept| kept.filled);
        usable
            .map(|kept| (kept.covers(prompt, prefixes), kept.last_use, kept.id))
            .filter(|(len, ..)| *len > 0)
            .max()
            .map(|(len, _, id)| (id, len))
    }

    /// The next to go when slots are needed, one of them for this owner: of the owner that has the most, the one whose last
    /// use is longest ago.
    pub fn next_for_slot(&self, newcomer: Option<u64>) -> Option<KeptId> {
        self.next_to_go(None, newcomer, |_| 1)
    }

    /// The same when pages are needed: of the owner that has the most pages. Not `except`.
    pub fn next_for_pages(&self, except: Option<KeptId>) -> Option<KeptId> {
        self.next_to_go(except, None, |kept| kept.blocks.len())
    }

    fn next_to_go(
        &self,
        except: Option<KeptId>,
        newcomer: Option<u64>,
        size: impl Fn(&Kept) -> usize,
    ) -> Option<KeptId> {
        let mut held: BTreeMap<u64, usize> = newcomer.map(|owner| (owner, 1)).into_iter().collect();
        for kept in &self.all {
            *held.entry(kept.owner).or_default() += size(kept);
        }
        let may_go = self.all.iter().filter(|kept| !kept.pinned && Some(kept.id) != except);
        let rank = |kept: &&Kept| (held.get(&kept.owner).copied(), Reverse(kept.last_use));
        may_go.max_by_key(rank).map(|kept| kept.id)
    }

    /// What a running sequence and its guide left behind, while that is kept.
    pub fn left_by(&self, no: SeqNo) -> impl Iterator<Item = &Kept> {
        self.all.iter().filter(move |kept| kept.left_by == Some(no))
    }

    /// One with exactly these tokens.
    pub fn same(&self, prompt: Prompt<'_>) -> Option<KeptId> {
        let is_same = |kept: &&Kept| kept.tokens == prompt.tokens && kept.is_like(prompt);
        self.all.iter().find(is_same).map(|kept| kept.id)
    }

    /// Those that are of no use beside one with these tokens, and may go.
    pub fn covered_by(&self, prompt: Prompt<'_>, prefixes: Prefixes) -> Vec<KeptId> {
        let covered = |kept: &&Kept| match prefixes {
            _ if !kept.is_like(prompt) => false,
            Prefixes::All => prompt.tokens.starts_with(&kept.tokens),
            Prefixes::Whole | Prefixes::None => prompt.tokens == kept.tokens,
        };
        let may_go = self.all.iter().filter(|kept| !kept.pinned);
        may_go.filter(covered).map(|kept| kept.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt<'a>(tokens: &'a [u32], adapters: &'a [AdapterUse]) -> Prompt<'a> {
        Prompt { tokens, adapters, owner: 7 }
    }

    fn pool(all: &[&[u32]]) -> KeptPool {
        let mut pool = KeptPool::default();
        for (slot, tokens) in (0..).map(SlotId).zip(all) {
            let tokens = tokens.to_vec();
            let (blocks, request, left_by, adapters) = (vec![], None, None, [].into());
            let (owner, filled) = (7, true);
            pool.insert(NewKept {
                slot,
                blocks,
                tokens,
                adapters,
                owner,
                request,
                left_by,
                filled,
            });
        }
        pool
    }

    #[test]
    fn the_longest_usable_one_begins_a_prompt() {
        let mut pool = pool(&[&[1, 2], &[1, 2, 3, 9], &[1, 2, 3, 4], &[7]]);
        let best = |pool: &KeptPool, tokens: &[u32], prefixes| {
            pool.best(prompt(tokens, &[]), prefixes).map(|(id, len)| (id.0, len))
        };
        assert_eq!(best(&pool, &[1, 2, 3, 4, 5], Prefixes::All), Some((2, 4)));
        assert_eq!(best(&pool, &[1, 2, 3, 4, 5], Prefixes::Whole), Some((2, 4)));
        // One row must be left to compute.
        assert_eq!(best(&pool, &[1, 2, 3, 4], Prefixes::All), Some((2, 3)));
        assert_eq!(best(&pool, &[1, 2, 3, 4], Prefixes::Whole), Some((0, 2)));
        // Of equals the one used last.
        pool.touch(KeptId(1));
        assert_eq!(best(&pool, &[1, 2, 3, 5], Prefixes::All), Some((1, 3)));
        assert_eq!(best(&pool, &[8, 2], Prefixes::All), None);
        assert_eq!(best(&pool, &[7], Prefixes::All), None);
        pool.get_mut(KeptId(2)).unwrap().filled = false;
        assert_eq!(best(&pool, &[1, 2, 3, 4, 5], Prefixes::Whole), Some((0, 2)));
    }

    #[test]
    fn the_longest_unused_one_goes_first_unless_it_is_pinned() {
        let mut pool = pool(&[&[1], &[2], &[3]]);
        pool.touch(KeptId(0));
        assert_eq!(pool.next_for_pages(None), Some(KeptId(1)));
        assert_eq!(pool.next_for_pages(Some(KeptId(1))), Some(KeptId(2)));
        pool.get_mut(KeptId(1)).unwrap().pinned = true;
        assert_eq!(pool.next_for_pages(None), Some(KeptId(2)));
        pool.remove(KeptId(2));
        assert_eq!(pool.next_for_pages(Some(KeptId(0))), None);
    }

    #[test]
    fn what_other_adapters_computed_begins_nothing_and_covers_nothing() {
        let mut pool = pool(&[&[1, 2, 3]]);
        let scaled = |scale| AdapterUse { adapter: 0, scale };
        let (blocks, request, left_by) = (vec![], None, None);
        let (slot, tokens, adapters) = (SlotId(9), vec![1, 2], [scaled(0.5)].into());
        let (owner, filled) = (7, true);
        pool.insert(NewKept { slot, blocks, tokens, adapters, owner, request, left_by, filled });
        let best = |adapters: &[AdapterUse]| {
            pool.best(prompt(&[1, 2, 3, 4], adapters), Prefixes::All).map(|(id, len)| (id.0, len))
        };
        assert_eq!(best(&[]), Some((0, 3)));
        assert_eq!(best(&[scaled(0.5)]), Some((1, 2)));
        assert_eq!(best(&[scaled(0.25)]), None);
        assert_eq!(best(&[scaled(0.5), scaled(0.5)]), None);
        let covered =
            |adapters: &[AdapterUse]| pool.covered_by(prompt(&[1, 2, 3], adapters), Prefixes::All);
        assert_eq!(covered(&[]), [KeptId(0)]);
        assert_eq!(covered(&[scaled(0.5)]), [KeptId(1)]);
        assert_eq!(pool.same(prompt(&[1, 2], &[])), None);
        assert_eq!(pool.same(prompt(&[1, 2], &[scaled(0.5)])), Some(KeptId(1)));
    }

    #[test]
    fn what_another_owner_has_computed_begins_nothing_and_covers_nothing() {
        let pool = pool(&[&[1, 2, 3]]);
        let of = |owner| Prompt { tokens: &[1, 2, 3, 4], adapters: &[], owner };
        assert!(pool.best(of(7), Prefixes::All).is_some());
        let whole = |owner| Prompt { tokens: &[1, 2, 3], adapters: &[], owner };
        for prefixes in [Prefixes::All, Prefixes::Whole] {
            assert_eq!(pool.best(of(8), prefixes), None);
            assert_eq!(pool.covered_by(whole(8), prefixes), []);
        }
        assert_eq!((pool.same(whole(7)), pool.same(whole(8))), (Some(KeptId(0)), None));
    }

    #[test]
    fn what_a_longer_one_stands_for_as_well_is_of_no_use() {
        let pool = pool(&[&[1, 2], &[1, 2, 3], &[1, 3]]);
        let ids = |prefixes| pool.covered_by(prompt(&[1, 2, 3], &[]), prefixes);
        assert_eq!(ids(Prefixes::All), [KeptId(0), KeptId(1)]);
        assert_eq!(ids(Prefixes::Whole), [KeptId(1)]);
    }
}
