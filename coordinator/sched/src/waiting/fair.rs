//! Fair sharing: the line's rows are divided among owners (API keys) by weight.
//!
//! Each owner has a counter of the rows that were computed for it, divided by its weight. The owner with the smallest
//! counter goes first, into a free place and into the next ubatch. This is the virtual token counter of Sheng et al.,
//! "Fairness in Serving Large Language Models" (OSDI 2024). Deficit round robin would have to know a request's cost
//! before it is served, but the length of an answer is known only afterwards. An owner that comes back after a pause
//! may be served [`CREDIT_ROWS`] before the others: turns cannot be saved up without end.
//!
//! A **place** is what a running sequence takes of the line: a slot, and pages of its KV cache.
//!
//! Turns alone do not help an owner that comes while every place is taken, because no sequence is preempted. So
//! owners leave room: the last quarter of the places goes only to owners that hold less than their part of all
//! places. And while only prompts are computed, ubatches stay short, so that few rows are in flight before a
//! newcomer's prompt ([`sizing`](crate::ubatches::sizing)).
//!
//! Nor does order alone help the streams of an owner that has had little. Beside the prompts of a flood each answer
//! slows down to the target gap between tokens. Such answers soon hold all places that their owner may have, and its
//! next requests wait for them. So while an owner that has had little has streams, a ubatch beside them gets a bounded number of
//! prompt rows of owners that have had more. A stream then becomes slower by a factor at most, which
//! [`sizing`](crate::ubatches::sizing) has. In simulation this costs a flood of long prompts 2 % of its speed.
//!
//! Order decides when a token comes, never which one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::events::{Micros, Share};

/// One of this many places is kept for owners that hold less than their part.
const RESERVED_ONE_IN: u32 = 4;

/// Rows that an owner may get before all others when it comes after a pause: a prompt of usual length.
const CREDIT_ROWS: u64 = 1024;

/// An owner that had a new request so lately may soon have another one.
const COMES_AGAIN_WITHIN: Micros = 10_000_000;

/// The charge for a row to an owner of weight 1. Usual weights divide it.
const ROW: u64 = 1 << 16;

/// The usage of an owner, and the places that it holds.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    weight: u64,
    /// Rows computed, in [`ROW`]s over the weight.
    served: u64,
    /// Rows of admitted prompts that are still to be computed.
    promised: u64,
    /// Sequences that have a place.
    running: u32,
    /// Pages of these sequences.
    pages: u32,
    /// When its last request came.
    came: Option<Micros>,
}

/// Places that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    pub slots: u32,
    pub pages: u32,
}

/// How much of something a line has, and how much of that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub taken: u32,
    pub total: u32,
}

/// The places of a line: a sequence takes a slot and pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub slots: Usage,
    pub pages: Usage,
}

fn weight(share: Share) -> u64 {
    u64::from(share.weight.max(1))
}

/// The order among owners, of which the smallest goes first: rows for its weight, and where these are equal, places for its weight.
pub(crate) type Rank = (u64, u64);

/// All owners that were active since the line was last without any.
#[derive(Debug, Default)]
pub(crate) struct Owners(BTreeMap<u64, Owner>);

impl Owners {
    fn get(&self, share: Share) -> Owner {
        self.0.get(&share.owner).copied().unwrap_or_default()
    }

    fn get_mut(&mut self, share: Share) -> &mut Owner {
        let owner = self.0.entry(share.owner).or_default();
        owner.weight = weight(share);
        owner
    }

    /// Notes a new request of an owner; `waiting` are the owners whose requests wait.
    pub fn arrive(&mut self, now: Micros, share: Share, waiting: &BTreeSet<u64>) {
        self.rank_newcomer(share, waiting);
        self.get_mut(share).came = Some(now);
    }

    /// Whether a request of another owner may come soon.
    pub fn another_may_come(&self, now: Micros, share: Share) -> bool {
        let is_soon = |came: Micros| now.saturating_sub(came) < COMES_AGAIN_WITHIN;
        let mut others = self.0.iter().filter(|(id, _)| **id != share.owner);
        others.any(|(_, other)| other.came.is_some_and(is_soon))
    }

    /// Gives an owner that was away a rank among those that were not.
    fn rank_newcomer(&mut self, share: Share, waiting: &BTreeSet<u64>) {
        let active = |id: &u64, owner: &Owner| owner.running > 0 || waiting.contains(id);
        if self.0.get(&share.owner).is_some_and(|owner| active(&share.owner, owner)) {
            return;
        }
        let least = self.0.iter().filter(|(id, o)| active(id, o)).map(|(_, o)| o.served).min();
        match least {
            // All owners are idle: their history is forgotten, so that all start equal.
            None => self.0.clear(),
            Some(least) => {
                let credit = CREDIT_ROWS * ROW / weight(share);
                let owner = self.get_mut(share);
                owner.served = owner.served.max(least.saturating_sub(credit));
            }
        }
    }

    /// A request got its places, with so many rows to compute before its first token.
    pub fn admitted(&mut self, share: Share, rows: u32, taken: Needs) {
        let owner = self.get_mut(share);
        owner.promised += u64::from(rows);
        owner.running += taken.slots;
        owner.pages += taken.pages;
    }

    /// A request got more pages than it began with.
    pub fn grown(&mut self, share: Share, pages: u32) {
        self.get_mut(share).pages += pages;
    }

    /// A request gave up its places, with so many rows of its prompt not computed.
    pub fn left(&mut self, share: Share, rows: u32, taken: Needs) {
        let owner = self.get_mut(share);
        owner.promised = owner.promised.saturating_sub(rows.into());
        owner.running = owner.running.saturating_sub(taken.slots);
        owner.pages = owner.pages.saturating_sub(taken.pages);
    }

    /// No owner has a place any more.
    pub fn all_left(&mut self) {
        for owner in self.0.values_mut() {
            let Owner { weight, served, came, .. } = *owner;
            *owner = Owner { weight, served, came, ..Owner::default() };
        }
    }

    /// Counts rows of an owner that were sent; `of_prompt` of them are a prompt's.
    pub fn sent(&mut self, share: Share, rows: u32, of_prompt: u32) {
        let owner = self.get_mut(share);
        owner.promised = owner.promised.saturating_sub(of_prompt.into());
        owner.served += u64::from(rows) * ROW / owner.weight;
    }

    /// Charges an owner for other work that counts as so many rows.
    pub fn charge(&mut self, share: Share, rows: u64) {
        let owner = self.get_mut(share);
        owner.served += rows.saturating_mul(ROW) / owner.weight;
    }

    /// The rank for a place: rows served and promised for its weight, then places held for its weight.
    pub fn rank_for_place(&self, share: Share) -> Rank {
        let (owner, weight) = (self.get(share), weight(share));
        (owner.served + owner.promised * ROW / weight, u64::from(owner.running) * ROW / weight)
    }

    /// The rank for the next rows of a prompt: rows served for its weight.
    pub fn rank_for_rows(&self, share: Share) -> Rank {
        let owner = self.get(share);
        (owner.served, u64::from(owner.running) * ROW / weight(share))
    }

    /// Whether the owner may take `needs` without using the places kept for others. `waiting` are the owners with
    /// queued requests.
    pub fn may_admit(
        &self,
        share: Share,
        needs: Needs,
        places: Places,
        waiting: &BTreeSet<u64>,
    ) -> bool {
        let owner = self.get(share);
        // An owner without a running request may have one of any size.
        if !share.leaves_room || owner.running == 0 {
            return true;
        }
        let active = |(id, other): &(&u64, &Owner)| other.running > 0 || waiting.contains(id);
        let all: u64 = self.0.iter().filter(active).map(|(_, other)| other.weight).sum();
        let own = weight(share);
        let may = |more: u32, held: u32, Usage { taken, total }: Usage| {
            // The places are divided among all active owners and one more, as heavy as this one, that may come next.
            let part = (u64::from(total) * own / (all + own)) as u32;
            taken + more <= total - total / RESERVED_ONE_IN || held + more <= part
        };
        let has_slot = needs.slots == 0 || may(needs.slots, owner.running, places.slots);
        has_slot && may(needs.pages, owner.pages, places.pages)
    }
}

/// The owner with the most waiting requests for its weight, if the newcomer has fewer: the newcomer's request takes the place of one
/// of these in the queue. `counts`: each owner's waiting requests.
pub(crate) fn most_waiting(counts: &BTreeMap<u64, (Share, usize)>, newcomer: Share) -> Option<u64> {
    let of = |share: Share, n: usize| n as u64 * ROW / weight(share);
    let own = counts.get(&newcomer.owner).map_or(0, |(_, n)| *n);
    let most = counts.values().map(|(share, n)| (of(*share, *n), Reverse(share.owner))).max();
    let (most, Reverse(owner)) = most?;
    (owner != newcomer.owner && most > of(newcomer, own + 1)).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(owner: u64, weight: u32) -> Share {
        Share { owner, weight, leaves_room: true }
    }

    fn needs(pages: u32) -> Needs {
        Needs { slots: 1, pages }
    }

    #[test]
    fn rows_count_by_weight_and_turns_are_not_saved_up() {
        let (mut owners, nobody) = (Owners::default(), BTreeSet::new());
        let (a, b) = (share(1, 4), share(2, 1));
        owners.arrive(0, a, &nobody);
        owners.admitted(a, 100, needs(2));
        owners.sent(a, 100, 100);
        owners.arrive(0, b, &nobody);
        assert_eq!(owners.rank_for_rows(b).0, 0, "who is new is ahead");
        owners.sent(a, 9_900, 0);
        owners.left(b, 0, needs(0));
        owners.arrive(0, b, &nobody);
        let credit = owners.rank_for_rows(a).0 - owners.rank_for_rows(b).0;
        assert_eq!(credit, CREDIT_ROWS * ROW, "but not by more than that");
        owners.sent(b, CREDIT_ROWS as u32, 0);
        owners.admitted(b, 10, needs(1));
        owners.sent(b, 10, 10);
        owners.sent(a, 39, 0);
        assert!(
            owners.rank_for_rows(a) < owners.rank_for_rows(b),
            "39 rows of weight 4 for 10 of 1"
        );
        owners.sent(a, 2, 0);
        assert!(owners.rank_for_rows(a) > owners.rank_for_rows(b));
        owners.left(a, 0, needs(2));
        owners.left(b, 0, needs(1));
        owners.arrive(0, a, &nobody);
        assert_eq!(owners.rank_for_place(a), (0, 0), "everybody was idle");
    }

    #[test]
    fn what_is_charged_counts_as_rows_do() {
        let (mut owners, nobody) = (Owners::default(), BTreeSet::new());
        let (a, b) = (share(1, 2), share(2, 2));
        owners.arrive(0, a, &nobody);
        owners.admitted(a, 0, needs(1));
        owners.arrive(0, b, &nobody);
        owners.admitted(b, 0, needs(1));
        owners.charge(a, 100);
        owners.sent(b, 99, 0);
        assert!(owners.rank_for_rows(a) > owners.rank_for_rows(b));
        owners.sent(b, 2, 0);
        assert!(owners.rank_for_rows(a) < owners.rank_for_rows(b));
    }

    #[test]
    fn the_last_quarter_is_for_those_who_hold_little() {
        let (mut owners, nobody) = (Owners::default(), BTreeSet::new());
        let (a, b) = (share(1, 4), share(2, 4));
        let places =
            |taken| Places { slots: Usage { taken, total: 8 }, pages: Usage { taken, total: 80 } };
        for taken in 0..6 {
            assert!(owners.may_admit(a, needs(1), places(taken), &nobody), "{taken}");
            owners.admitted(a, 1, needs(1));
        }
        assert!(!owners.may_admit(a, needs(1), places(6), &nobody));
        let alone = Share { leaves_room: false, ..a };
        assert!(owners.may_admit(alone, needs(1), places(6), &nobody), "the only one may have all");
        for taken in 6..8 {
            assert!(owners.may_admit(b, needs(1), places(taken), &nobody));
            owners.admitted(b, 1, needs(1));
        }
        owners.left(a, 0, needs(1));
        assert!(
            !owners.may_admit(a, needs(1), places(7), &nobody),
            "five of eight are more than a third"
        );
        assert!(!owners.may_admit(b, needs(1), places(7), &nobody), "a third of eight are two");
        assert!(owners.may_admit(share(3, 1), needs(1), places(7), &nobody), "who has nothing");
    }

    #[test]
    fn who_has_most_waiting_makes_place() {
        let (a, b) = (share(1, 4), share(2, 4));
        let counts = |n| BTreeMap::from([(1, (a, n))]);
        assert_eq!(most_waiting(&counts(2), b), Some(1));
        assert_eq!(most_waiting(&counts(1), b), None, "no more than the newcomer would have");
        assert_eq!(most_waiting(&counts(9), a), None, "nobody makes place for itself");
        assert_eq!(
            most_waiting(&counts(4), share(3, 1)),
            None,
            "one of weight 1 is four of weight 4"
        );
    }
}
