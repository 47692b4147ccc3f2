//! The eviction order of kept states, when places or pages are needed.
//!
//! The owner that holds most gives up a state first. So an owner with many requests cannot evict the states of one
//! with few. States that waiting requests would begin with are evicted last, and just before them conversations that
//! wait for the result of a tool. Among the others, the state goes whose loss costs least. Its cost is the rows to
//! compute again, weighted by how likely that is and how long ago the state was used. Only the rows behind the state
//! before it in the tree count, so of two states close to each other one has little value. A path that a prompt
//! repeated for the most part and then left was likely left for good: a message was edited, or a turn was
//! regenerated. Prompts continue behind the ends of others, and at forks, but seldom in between. The price is a place
//! for each state. This is the rule of Pan et al., "Marconi" (MLSys 2025), with an age in uses instead of ranks, and
//! with the shape of the tree.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use brigade_spec::Prefixes;

use crate::events::KeptId;
use crate::memory::prefix::kept::{Holder, Kept, KeptPool};

/// How likely it is that a prompt goes on behind a state beside the only way that is known, beside one where ways part.
const ON_ONE_WAY: f64 = 0.25;

/// How likely a prompt goes on behind a state whose way was left for another one, beside one that was not.
const WHERE_LEFT: f64 = 0.03;

/// The power of its age by which a state of recurrent layers loses value; tuned on traces of agents with seeds 1 to 20. Such
/// states go as a whole, so few conversations are kept, and one that has waited for long is often still asked for.
const AGE_OF_WHOLE: f64 = 0.6;

/// How soon a state goes: the least first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank {
    wanted: bool,
    lingers: bool,
    value: f64,
    id: KeptId,
}

impl Rank {
    fn order(&self, other: &Self) -> Ordering {
        let by_use = self.wanted.cmp(&other.wanted).then(self.lingers.cmp(&other.lingers));
        let by_value = by_use.then(self.value.total_cmp(&other.value));
        by_value.then(self.id.cmp(&other.id))
    }
}

impl KeptPool {
    /// Rows that would be read again without a state, for who begins with it.
    fn saves(&self, kept: &Kept, prefixes: Prefixes) -> u32 {
        let end = self.tree.end(kept.node);
        let before = self.tree.up(kept.node).skip(1);
        let nearest = match prefixes {
            // A state behind the same fork covers the tokens before it.
            Prefixes::All => before.map(|node| self.tree.end(node)).next(),
            Prefixes::Whole | Prefixes::None => {
                let is_state = |holder: &Holder| match holder {
                    Holder::Kept(id) => self.get(*id).is_some_and(|kept| kept.filled),
                    Holder::Live(..) => false,
                };
                let mut states = before.filter(|n| self.tree.holders(*n).iter().any(is_state));
                states.next().map(|node| self.tree.end(node))
            }
        };
        end - nearest.unwrap_or(0)
    }

    /// A state's value now; the smallest is evicted first.
    pub(super) fn value(&self, kept: &Kept, prefixes: Prefixes) -> f64 {
        if self.by_age {
            return kept.last_use as f64;
        }
        let odds = if self.tree.n_children(kept.node) == 1 { ON_ONE_WAY } else { 1.0 };
        f64::from(self.saves(kept, prefixes)) * odds * self.freshness(kept, prefixes)
    }

    /// How likely it is to be used soon, wherever it stands.
    fn freshness(&self, kept: &Kept, prefixes: Prefixes) -> f64 {
        let uses = (self.uses + 1).saturating_sub(kept.last_use).max(1) as f64;
        let age = match prefixes {
            Prefixes::All => uses,
            Prefixes::Whole | Prefixes::None => uses.powf(AGE_OF_WHOLE),
        };
        let odds = if kept.left { WHERE_LEFT } else { 1.0 };
        odds * self.goes_on(kept) / age
    }

    /// The value of a new state in the middle of a prompt that would save `rows` rows.
    pub(super) fn value_of_new(rows: u32) -> f64 {
        f64::from(rows) * ON_ONE_WAY
    }

    /// The next to go when places are needed, one of them for this owner: of the owner that has the most.
    pub fn next_for_slot(&self, newcomer: Option<u64>, prefixes: Prefixes) -> Option<KeptId> {
        let value = |kept: &Kept| self.value(kept, prefixes);
        self.next_to_go(|kept| !kept.stays(), newcomer, |_| 1, value)
    }

    /// The same when a running sequence of `owner` needs a slot, among states that `may_go`. Those that are being written
    /// go last.
    pub fn next_for_sequence(
        &self,
        owner: u64,
        prefixes: Prefixes,
        may_go: impl Fn(KeptId) -> bool,
    ) -> Option<KeptId> {
        let value = |kept: &Kept| self.value(kept, prefixes);
        let may_go = |kept: &Kept| !kept.pinned && may_go(kept.id);
        let newcomer = Some(owner);
        let first = self.next_to_go(|kept| may_go(kept) && !kept.written, newcomer, |_| 1, value);
        first.or_else(|| self.next_to_go(may_go, newcomer, |_| 1, value))
    }

    /// The same when pages are needed: of the owner that has the most pages. Not `except`. Where states give up single
    /// pages, the one whose last use is longest ago; else the one whose `own` pages are worth least each. States that are
    /// being written go last.
    pub fn next_for_pages(
        &self,
        except: Option<KeptId>,
        prefixes: Prefixes,
        own: impl Fn(&Kept) -> usize,
    ) -> Option<KeptId> {
        let value = |kept: &Kept| match prefixes {
            Prefixes::All if self.by_age => kept.last_use as f64,
            Prefixes::All => self.freshness(kept, prefixes),
            Prefixes::Whole | Prefixes::None => match own(kept) {
                // Its eviction would free no page.
                0 => f64::INFINITY,
                _ if self.by_age => self.value(kept, prefixes),
                pages => self.value(kept, prefixes) / pages as f64,
            },
        };
        let size = |kept: &Kept| kept.blocks.len();
        let may_go = |kept: &Kept| !kept.pinned && Some(kept.id) != except;
        let first = self.next_to_go(|kept| may_go(kept) && !kept.written, None, size, value);
        first.or_else(|| self.next_to_go(may_go, None, size, value))
    }

    fn next_to_go(
        &self,
        may_go: impl Fn(&Kept) -> bool,
        newcomer: Option<u64>,
        size: impl Fn(&Kept) -> usize,
        value: impl Fn(&Kept) -> f64,
    ) -> Option<KeptId> {
        let mut held: BTreeMap<u64, usize> = newcomer.map(|owner| (owner, 1)).into_iter().collect();
        for kept in self.iter() {
            *held.entry(kept.owner).or_default() += size(kept);
        }
        let may_go = || self.iter().filter(|kept| may_go(kept));
        let most = may_go().filter_map(|kept| held.get(&kept.owner)).max().copied()?;
        let of_most = may_go().filter(|kept| held.get(&kept.owner) == Some(&most));
        let lingers = |kept: &Kept| kept.lingers > self.now;
        let rank =
            |k: &Kept| Rank { wanted: k.wanted, lingers: lingers(k), value: value(k), id: k.id };
        let ranks = of_most.map(rank);
        ranks.min_by(Rank::order).map(|rank| rank.id)
    }
}

#[cfg(test)]
mod tests {
    use brigade_engine::batch::SlotId;

    use super::*;
    use crate::events::RequestId;
    use crate::memory::namespace::Namespace;
    use crate::memory::prefix::kept::{NewKept, Origin, Prompt};
    use crate::memory::prefix::tree::Space;

    fn add(pool: &mut KeptPool, owner: u64, tokens: &[u32]) -> KeptId {
        let space = Space::new(Namespace::of_owner(owner), &[]);
        pool.insert(NewKept {
            slot: SlotId(0),
            blocks: vec![],
            prompt: Prompt { tokens, space: &space },
            owner,
            origin: Origin::default(),
            filled: true,
            pinned: false,
        })
    }

    fn next(pool: &KeptPool) -> Option<KeptId> {
        pool.next_for_slot(None, Prefixes::Whole)
    }

    #[test]
    fn the_longest_unused_of_equals_goes_first_unless_it_is_pinned_or_wanted() {
        let mut pool = KeptPool::default();
        let [first, second, third] = [1, 2, 3].map(|token| add(&mut pool, 0, &[token]));
        pool.touch(first);
        for prefixes in [Prefixes::All, Prefixes::Whole] {
            assert_eq!(pool.next_for_pages(None, prefixes, |_| 1), Some(second));
            assert_eq!(pool.next_for_pages(Some(second), prefixes, |_| 1), Some(third));
        }
        pool.get_mut(second).unwrap().pinned = true;
        assert_eq!(next(&pool), Some(third));
        pool.want([third].into());
        assert_eq!(next(&pool), Some(first), "what is wanted goes last");
        pool.remove(first);
        assert_eq!(next(&pool), Some(third), "but it goes");
        pool.remove(third);
        assert_eq!(next(&pool), None);
    }

    #[test]
    fn a_conversation_that_waits_for_a_tool_goes_last_for_a_while() {
        let mut pool = KeptPool::default();
        let [calls, other, wanted] = [1, 2, 3].map(|token| add(&mut pool, 0, &[token]));
        pool.get_mut(calls).unwrap().request = Some(RequestId(7));
        pool.want([wanted].into());
        pool.linger(5_000_000, RequestId(7));
        pool.now = 14_999_999;
        assert_eq!(next(&pool), Some(other));
        pool.now = 15_000_000;
        assert_eq!(next(&pool), Some(calls), "it is the oldest");
        pool.now = 5_000_000;
        pool.remove(other);
        assert_eq!(next(&pool), Some(calls), "but before what is wanted");
        pool.linger(5_000_000, RequestId(7));
        pool.touch(calls);
        pool.remove(wanted);
        let newer = add(&mut pool, 0, &[4]);
        assert_eq!(next(&pool), Some(calls), "its client came back");
        pool.remove(newer);
    }

    #[test]
    fn what_saves_little_beside_another_goes_before_what_is_older() {
        let mut pool = KeptPool::default();
        let long: Vec<u32> = (0..1000).collect();
        let old = add(&mut pool, 0, &long[..500]);
        let near = add(&mut pool, 0, &long[..510]);
        assert_eq!(next(&pool), Some(near), "10 rows of 510");
        // Without the one before it, all of them.
        pool.remove(old);
        let other = add(&mut pool, 0, &[7; 100]);
        assert_eq!(next(&pool), Some(other));
        // A state on the path of one prompt is worth less than one at a fork.
        let on_way = add(&mut pool, 0, &[8; 900]);
        add(&mut pool, 0, &[8; 2000]);
        pool.remove(other);
        pool.remove(near);
        assert_eq!(next(&pool), Some(on_way));
        let mut turned = [8; 1000];
        turned[900..].fill(9);
        let turned = add(&mut pool, 0, &turned);
        assert_eq!(next(&pool), Some(turned), "100 rows behind the place where ways part");
    }

    #[test]
    fn what_a_prompt_repeated_and_then_left_goes_before_what_is_older() {
        for prefixes in [Prefixes::All, Prefixes::Whole] {
            let mut pool = KeptPool::default();
            let other = add(&mut pool, 0, &[7; 1000]);
            let told = add(&mut pool, 0, &[8; 1000]);
            let goes = |pool: &KeptPool| pool.next_for_pages(None, prefixes, |_| 1);
            let space = Space::new(Namespace::of_owner(0), &[]);
            let leaves_at = |pool: &mut KeptPool, at: usize| {
                let tokens = [&[8; 1000][..at], &[9; 100]].concat();
                pool.leave_behind(Prompt { tokens: &tokens, space: &space });
            };
            leaves_at(&mut pool, 400);
            assert_eq!(
                goes(&pool),
                Some(other),
                "an agent with the same instructions says nothing"
            );
            leaves_at(&mut pool, 900);
            assert_eq!(goes(&pool), Some(told));
            pool.touch(told);
            assert_eq!(goes(&pool), Some(other), "somebody went on there");
            // Two ways part there: a third one says nothing about them.
            let turned = [&[8; 900][..], &[9; 100]].concat();
            let turned = add(&mut pool, 0, &turned);
            leaves_at(&mut pool, 900);
            assert!(!pool.get(turned).is_some_and(|kept| kept.left), "the same once more");
            let third = [&[8; 900][..], &[5; 100]].concat();
            pool.leave_behind(Prompt { tokens: &third, space: &space });
            assert!(pool.iter().all(|kept| !kept.left));
        }
    }

    #[test]
    fn of_equals_the_one_goes_that_frees_most_pages() {
        let mut pool = KeptPool::default();
        let [few, many, none] = [1, 2, 3].map(|token| add(&mut pool, 0, &[token]));
        let own = |kept: &Kept| [1, 9, 0][kept.id.0 as usize];
        assert_eq!(pool.next_for_pages(None, Prefixes::Whole, own), Some(many));
        pool.remove(many);
        assert_eq!(pool.next_for_pages(None, Prefixes::Whole, own), Some(few));
        pool.remove(few);
        assert_eq!(pool.next_for_pages(None, Prefixes::Whole, own), Some(none), "if need be");
    }

    #[test]
    fn the_owner_that_has_most_gives_up_something() {
        let mut pool = KeptPool::default();
        let old = add(&mut pool, 1, &[1; 10]);
        let [_, theirs] = [2, 3].map(|token| add(&mut pool, 2, &[token; 900]));
        let goes = pool.next_for_slot(None, Prefixes::Whole);
        assert!(goes.is_some_and(|id| id != old), "not that of who has less");
        pool.remove(theirs);
        assert_eq!(
            pool.next_for_slot(Some(1), Prefixes::Whole),
            Some(old),
            "a second one of its own"
        );
    }
}
