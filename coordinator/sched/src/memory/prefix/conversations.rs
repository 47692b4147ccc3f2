//! Conversations, as far as prompts show them: with which one a prompt goes on, and how likely one goes on at all.
//!
//! Eviction asks two things. **Others begun**: a client that begins a conversation has often ended another one, so a
//! state's odds fall with each conversation that has begun in its space since it was used. **Where they stop**:
//! clients summarize a conversation at some length and begin anew. Where several have stopped near the longest prompt,
//! a state that leaves no room for a turn before that length is hardly asked for again.

use crate::events::{KeptId, Request};
use crate::line::Line;
use crate::memory::prefix::habits::ConversationNo;
use crate::memory::prefix::kept::{Holder, Kept, KeptPool, Level, Prompt, SAME_AFTER};
use crate::sequence::Half;

/// Owners that are remembered, beside those with kept states.
const OWNERS: usize = 64;

impl Line {
    /// The conversation of a request that begins; `None` where it says nothing about later prompts.
    pub(super) fn conversation(
        &mut self,
        request: &Request,
        half: Half,
        prompt: Prompt<'_>,
    ) -> Option<ConversationNo> {
        let talks = self.reuses(request) && half == Half::Own;
        talks.then(|| self.kept.arrives(prompt, request.share.owner))
    }
}

impl KeptPool {
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
        let (slot, blocks) = (SlotId(0), vec![]);
        let (owner, filled, pinned) = (OWNER, true, false);
        pool.insert(NewKept { slot, blocks, prompt, owner, origin, filled, pinned })
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
