//! How an owner's conversations go, as far as their prompts show it: how much a turn adds, how many other requests
//! come in between, and at which length conversations stop.
//!
//! Eviction asks two things of it. **Others begun**: a client that begins a conversation has often ended another one,
//! so a state's odds fall with each conversation that has begun in its space since it was used. **Where they stop**:
//! clients summarize a conversation at some length and begin anew. Where several have stopped near the longest prompt,
//! a state that leaves no room for a turn before that length is hardly asked for again.

use std::collections::VecDeque;

use crate::events::KeptId;
use crate::memory::prefix::kept::{Holder, Kept, KeptPool, Level, Prompt, SAME_AFTER};

/// Conversations of an owner that are remembered.
const REMEMBERED: usize = 32;

/// Owners that are remembered, beside those with kept states.
const OWNERS: usize = 64;

/// Conversations that must have stopped near the longest prompt, before this counts as a limit.
const STOPPED_AT_LIMIT: usize = 2;

/// A conversation has stopped when so many times as many requests of its owner came as usual between its turns.
const STOPPED_AFTER: f64 = 2.0;

/// Prompts are near the longest one from this share of it on.
const NEAR_LONGEST: f64 = 0.85;

/// The least odds of a state that leaves no room for a turn.
const NO_ROOM: f64 = 0.1;

/// The turns over which means are taken.
const MEAN_OF: u32 = 32;

/// The number of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConversationNo(u64);

/// A mean of the last values, the newest with the greatest weight.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    mean: f64,
    n: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.n = MEAN_OF.min(self.n + 1);
        self.mean += (value - self.mean) / f64::from(self.n);
    }
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    no: ConversationNo,
    /// Tokens of its longest prompt.
    longest: u32,
    /// The number of its last request among those of its owner.
    last: u64,
}

/// What one owner's conversations were like.
#[derive(Debug, Default)]
pub(super) struct Habits {
    requests: u64,
    /// Tokens between the end of an answer and that of the next prompt.
    growth: Mean,
    /// Requests of the owner from one turn of a conversation to the next.
    between: Mean,
    /// The conversations that began last, oldest first.
    recent: VecDeque<Conversation>,
}

impl Habits {
    /// A prompt of `n` tokens; `known`: of a conversation whose last state has so many.
    fn note(&mut self, no: ConversationNo, n: u32, known: Option<u32>) {
        self.requests += 1;
        if let Some(had) = known {
            self.growth.add(f64::from(n.saturating_sub(had)));
        }
        match self.recent.iter_mut().find(|conversation| conversation.no == no) {
            Some(conversation) => {
                self.between.add((self.requests - conversation.last) as f64);
                conversation.longest = conversation.longest.max(n);
                conversation.last = self.requests;
            }
            None => {
                self.recent.push_back(Conversation { no, longest: n, last: self.requests });
                let too_many = self.recent.len().saturating_sub(REMEMBERED);
                self.recent.drain(..too_many);
            }
        }
    }

    /// The odds that a conversation goes on behind a state of so many tokens.
    fn goes_on(&self, no: ConversationNo, len: u32) -> f64 {
        let longest = self.recent.iter().map(|other| other.longest).max().unwrap_or(0);
        let near = f64::from(longest) * NEAR_LONGEST;
        let has_stopped = |other: &&Conversation| {
            let since = (self.requests - other.last) as f64;
            other.no != no
                && f64::from(other.longest) >= near
                && since >= STOPPED_AFTER * self.between.mean
        };
        if self.recent.iter().filter(has_stopped).count() < STOPPED_AT_LIMIT {
            return 1.0;
        }
        let room = f64::from(longest.saturating_sub(len));
        // Turns are of very different lengths: some fit where their mean does not.
        let fits = room / (room + self.growth.mean.max(1.0));
        fits.max(NO_ROOM)
    }
}

impl KeptPool {
    /// A conversation of which nothing else is known.
    pub fn new_conversation(&mut self) -> ConversationNo {
        self.n_conversations += 1;
        ConversationNo(self.n_conversations)
    }

    /// A prompt arrives: the conversation with which it goes on, or a new one.
    pub fn arrives(&mut self, prompt: Prompt<'_>, owner: u64) -> ConversationNo {
        let known = self.conversation_of(prompt).map(|kept| (kept.conversation, kept.whole));
        let no = match known {
            Some((no, _)) => no,
            None => {
                self.another_began(prompt);
                self.new_conversation()
            }
        };
        if self.habits.len() >= OWNERS && !self.habits.contains_key(&owner) {
            let owners: Vec<u64> = self.iter().map(|kept| kept.owner).collect();
            self.habits.retain(|owner, _| owners.contains(owner));
        }
        let habits = self.habits.entry(owner).or_default();
        habits.note(no, prompt.tokens.len() as u32, known.map(|(_, whole)| whole));
        no
    }

    /// The state used last among those with most of a prompt's tokens, if the prompt repeats enough of it.
    fn conversation_of(&self, prompt: Prompt<'_>) -> Option<&Kept> {
        let walk = self.tree.walk(prompt.space, prompt.beginning());
        let Level { node, common } = self.levels(&walk).next()?;
        let kept = self.holders_behind(node, None).filter_map(|holder| match holder {
            Holder::Kept(id) => self.get(id),
            Holder::Live(..) => None,
        });
        let newest = kept.max_by_key(|kept| (kept.last_use, kept.id))?;
        (newest.whole <= SAME_AFTER.saturating_mul(common)).then_some(newest)
    }

    /// A conversation begins in a space: those that are there get older by it.
    fn another_began(&mut self, prompt: Prompt<'_>) {
        let root = self.tree.root(prompt.space);
        let there: Vec<KeptId> = root
            .into_iter()
            .flat_map(|root| self.holders_behind(root, None))
            .filter_map(|holder| match holder {
                Holder::Kept(id) => Some(id),
                Holder::Live(..) => None,
            })
            .collect();
        for id in there {
            if let Some(kept) = self.get_mut(id) {
                kept.begun_since += 1;
            }
        }
    }

    /// How likely it is that a state's conversation goes on, beside one of which nothing is known.
    pub(super) fn goes_on(&self, kept: &Kept) -> f64 {
        let habits = self.habits.get(&kept.owner);
        let odds = habits.map_or(1.0, |habits| habits.goes_on(kept.conversation, kept.whole));
        odds / f64::from(1 + kept.begun_since)
    }
}

#[cfg(test)]
mod tests {
    use brigade_engine::batch::SlotId;
    use brigade_spec::Prefixes;

    use super::*;
    use crate::memory::namespace::Namespace;
    use crate::memory::prefix::kept::{NewKept, Origin};
    use crate::memory::prefix::place::Place;
    use crate::memory::prefix::tree::Space;

    /// Of whom all these conversations are.
    const OWNER: u64 = 1;

    /// A turn of a conversation in a space: a prompt, and the state behind it.
    fn turn(pool: &mut KeptPool, space: u64, tokens: &[u32]) -> KeptId {
        let space = Space::new(Namespace::of_owner(space), &[]);
        let prompt = Prompt { tokens, space: &space };
        let conversation = Some(pool.arrives(prompt, OWNER));
        for id in pool.covered_by(prompt, Prefixes::All) {
            pool.remove(id);
        }
        let origin = Origin { conversation, ..Origin::default() };
        let (slot, blocks, place) = (SlotId(0), vec![], Place::End);
        let (owner, filled, pinned) = (OWNER, true, false);
        pool.insert(NewKept { slot, blocks, prompt, owner, origin, place, filled, pinned })
    }

    fn next(pool: &KeptPool) -> Option<KeptId> {
        pool.next_for_pages(None, Prefixes::All, |_| 1)
    }

    #[test]
    fn a_conversation_ages_when_another_begins_in_its_space() {
        let mut pool = KeptPool::default();
        let elsewhere = turn(&mut pool, 1, &[1; 100]);
        let before = turn(&mut pool, 2, &[2; 100]);
        assert_eq!(next(&pool), Some(elsewhere), "the older one");
        let goes_on = turn(&mut pool, 2, &[&[2; 100][..], &[3; 100]].concat());
        assert!(pool.get(before).is_none(), "the longer one stands for it");
        assert_eq!(next(&pool), Some(elsewhere), "none began");
        for first in 4..8 {
            let another = turn(&mut pool, 2, &[first; 100]);
            pool.remove(another);
        }
        assert_eq!(next(&pool), Some(goes_on), "four have begun since");
        pool.touch(goes_on);
        assert_eq!(next(&pool), Some(elsewhere));
    }

    #[test]
    fn a_conversation_at_the_length_where_others_stopped_goes_first() {
        let mut pool = KeptPool::default();
        let grow = |pool: &mut KeptPool, token: u32, to: usize| {
            (1..=to / 100).map(|n| turn(pool, 1, &vec![token; n * 100])).last()
        };
        let full = grow(&mut pool, 1, 1000).unwrap();
        pool.remove(full);
        let short = grow(&mut pool, 2, 300).unwrap();
        let long = grow(&mut pool, 3, 1000).unwrap();
        [short, long].into_iter().for_each(|id| pool.touch(id));
        assert_eq!(next(&pool), Some(short), "one conversation does not make a limit");
        pool.remove(long);
        let short = grow(&mut pool, 4, 300).unwrap();
        let long = grow(&mut pool, 5, 1000).unwrap();
        let left: Vec<KeptId> = pool.iter().map(|kept| kept.id).filter(|id| *id < short).collect();
        left.into_iter().for_each(|id| assert!(pool.remove(id).is_some()));
        [short, long].into_iter().for_each(|id| pool.touch(id));
        assert_eq!(next(&pool), Some(long), "two have stopped there");
        pool.remove(long);
        let longer = grow(&mut pool, 6, 600).unwrap();
        [short, longer].into_iter().for_each(|id| pool.touch(id));
        assert_eq!(next(&pool), Some(short), "there is room for more turns");
    }

    #[test]
    fn a_prompt_that_begins_with_a_small_part_of_a_state_is_no_use_of_it() {
        let mut pool = KeptPool::default();
        let [first, second] = [1, 2].map(|token| turn(&mut pool, 1, &[token; 100]));
        pool.hit(first, 49);
        assert_eq!(next(&pool), Some(first));
        pool.hit(first, 50);
        assert_eq!(next(&pool), Some(second));
        assert_eq!(pool.get(first).map(|kept| kept.hits), Some(2));
    }
}
