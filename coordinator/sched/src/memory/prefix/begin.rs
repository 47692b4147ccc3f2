//! Looks up the kept states that waiting requests would begin with. Such states are evicted last, and they decide
//! which request goes first ([`overtake`](crate::waiting::overtake)).
//!
//! A look-up walks through a whole prompt. So it is made again only when a tree has changed, and for few requests at a time:
//! those that are first in the queue.

use std::collections::BTreeSet;

use crate::line::Line;
use crate::memory::prefix::beginning::Beginning;
use crate::memory::prefix::kept::Prompt;
use crate::memory::prefix::tree::Space;
use crate::sequence::{Half, Live};
use crate::waiting::admit::Waiting;
use crate::waiting::replay::Pending;

/// Requests in the queue that are looked up again at once: with prompts of 100,000 tokens, one or two milliseconds.
const LOOKED_UP_AT_ONCE: usize = 16;

impl Line {
    /// The states that requests in the queue would begin with go last.
    pub fn want(&mut self, live: &Live, waiting: &mut Waiting) {
        let (mut wanted, mut left) = (BTreeSet::new(), LOOKED_UP_AT_ONCE);
        for pending in waiting.queue_mut() {
            if left > 0 && !self.is_looked_up(pending) {
                self.look_up(live, pending);
                left -= 1;
            }
            wanted.extend(pending.begins.iter().flat_map(|begins| begins.states).flatten());
        }
        self.kept.want(wanted);
    }

    fn is_looked_up(&self, pending: &Pending) -> bool {
        pending.begins.is_some_and(|begins| begins.changes == self.kept.tree.changes)
    }

    /// The longest known beginning of a waiting request's prompt.
    pub fn look_up(&self, live: &Live, pending: &mut Pending) -> Beginning {
        let known = pending.begins.filter(|_| self.is_looked_up(pending));
        let begins = known.unwrap_or_else(|| self.beginning(live, pending));
        pending.begins = Some(begins);
        begins
    }

    fn beginning(&self, live: &Live, pending: &Pending) -> Beginning {
        let request = &pending.request;
        let mut begins = Beginning { changes: self.kept.tree.changes, ..Beginning::default() };
        if !self.reuses(request) {
            return begins;
        }
        let space = Space::of(request);
        for (half, state) in [Half::Own, Half::Companion].into_iter().zip(&mut begins.states) {
            let Some(tokens) = pending.known(half) else { continue };
            let prompt = Prompt { tokens: &tokens, space: &space };
            let best = self.best(live, prompt);
            let mut rows = best.map_or(0, |(_, len)| len);
            match pending.restorable {
                // A state of its own has more.
                Some(own) if own >= rows => rows = own,
                _ => {
                    *state = best.and_then(|(source, _)| source.kept());
                }
            }
            if self.waits_for_readers(request) && !pending.interrupted {
                rows = self.read_by(live, prompt, rows).map_or(rows, |(until, _)| until);
            }
            begins.rows += rows;
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brigade_engine::batch::{Companion, SamplerSetup, SlotId};
    use brigade_spec::Prefixes;

    use super::*;
    use crate::events::{KeptId, Request, RequestId, Work};
    use crate::memory::pages::Holder;
    use crate::memory::prefix::kept::{NewKept, Origin};
    use crate::sim;
    use crate::waiting::fair::Usage;
    use crate::{Event, SchedConfig, Scheduler};

    /// Tokens of a prompt.
    const N: u32 = 128;

    fn tokens(first: u32) -> Vec<u32> {
        (0..N).map(|i| first + i).collect()
    }

    fn request(id: u64, prompt: Vec<u32>, companion: Option<Vec<u32>>) -> Request {
        let of_draws = companion.is_some().then_some(Companion { scale: 2.0 });
        let sampler = Arc::new(SamplerSetup { companion: of_draws, ..SamplerSetup::default() });
        let (max_tokens, stop_tokens) = (64, [].into());
        let work = Work::Generate { max_tokens, sure: max_tokens, sampler, stop_tokens };
        Request {
            companion: companion.map(Into::into),
            ..Request::new(RequestId(id), prompt, work)
        }
    }

    /// A line with states of these tokens, two pages each, the first one unused longest.
    fn line(n_blocks: u32, states: &[&[u32]]) -> (Line, Vec<KeptId>) {
        let spec =
            crate::LineSpec { n_blocks, n_kept: 8, prefixes: Prefixes::Whole, ..sim::roomy(1) };
        let mut line = Line::new(1, spec, &SchedConfig::default(), 0, &[]);
        let ids = states.iter().map(|tokens| keep(&mut line, tokens)).collect();
        (line, ids)
    }

    /// Keeps a state of these tokens, of two pages.
    fn keep(line: &mut Line, tokens: &[u32]) -> KeptId {
        let space = Space::of(&request(0, vec![1], None));
        line.kept.insert(NewKept {
            slot: SlotId(line.slots.take(1).unwrap()[0]),
            blocks: line.blocks.take(2, Holder::Kept).unwrap(),
            prompt: Prompt { tokens, space: &space },
            owner: 0,
            origin: Origin::default(),
            filled: true,
            pinned: false,
        })
    }

    /// The order of eviction while these requests wait.
    fn order(line: &mut Line, waiting: &mut Waiting) -> Vec<KeptId> {
        line.want(&Live::default(), waiting);
        let mut gone = Vec::new();
        while let Some(id) = line.kept.next_for_slot(None, Prefixes::Whole) {
            line.evict(id);
            gone.push(id);
        }
        gone
    }

    fn behind(prompt: &[u32]) -> Vec<u32> {
        [prompt, &[7, 8, 9]].concat()
    }

    #[test]
    fn what_a_guided_request_would_begin_with_goes_last_for_both_of_its_prompts() {
        let [own, companion, other] = [1_000, 2_000, 3_000].map(tokens);
        for (has_companion, goes) in [(true, [2, 0, 1]), (false, [1, 2, 0])] {
            let (mut line, ids) = line(16, &[&own, &companion, &other]);
            let mut waiting = Waiting::new(9);
            let companion = has_companion.then(|| behind(&companion));
            waiting.push(0, request(1, behind(&own), companion)).unwrap();
            assert_eq!(
                order(&mut line, &mut waiting),
                goes.map(|i: usize| ids[i]),
                "{has_companion}"
            );
        }
    }

    #[test]
    fn what_a_request_of_a_lost_line_would_begin_with_goes_last_with_what_it_had_drawn() {
        let prompt = tokens(1_000);
        let drawn = [prompt.clone(), vec![5; 64]].concat();
        let other = tokens(3_000);
        let (mut line, ids) = line(16, &[&drawn, &prompt, &other]);
        let mut waiting = Waiting::new(9);
        let answer = [vec![5; 63], vec![5, 6]].concat();
        let mut pending = Pending::gone_on(request(1, prompt, None), answer, None);
        pending.begins = None;
        waiting.go_on(0, pending, Some(true));
        let gone = order(&mut line, &mut waiting);
        assert_eq!(gone.last(), Some(&ids[0]), "it begins behind the answer's first tokens");
    }

    #[test]
    fn a_state_of_its_own_that_is_longer_leaves_others_alone() {
        let (prompt, other) = (tokens(1_000), tokens(3_000));
        for (restorable, last) in [(Some(N + 1), 1), (Some(N - 1), 0), (None, 0)] {
            let (mut line, ids) = line(16, &[&prompt, &other]);
            let mut waiting = Waiting::new(9);
            let lost = Pending::gone_on(request(1, prompt.clone(), None), vec![5; 9], None);
            waiting.go_on(0, Pending { restorable, ..lost }, Some(true));
            assert_eq!(order(&mut line, &mut waiting).last(), Some(&ids[last]), "{restorable:?}");
        }
    }

    #[test]
    fn a_state_that_came_later_is_found_though_there_was_none_before() {
        let prompt = tokens(1_000);
        let (mut line, ids) = line(16, &[&tokens(3_000)]);
        let mut waiting = Waiting::new(9);
        let lost = Pending::gone_on(request(1, behind(&prompt), None), vec![5], None);
        waiting.go_on(0, lost, Some(true));
        line.want(&Live::default(), &mut waiting);
        let late = keep(&mut line, &prompt);
        // It would be the next to go, were it not for the one that waits.
        line.kept.touch(ids[0]);
        line.kept.touch(ids[0]);
        assert_eq!(order(&mut line, &mut waiting), [ids[0], late]);
    }

    #[test]
    fn what_is_wanted_takes_no_place_from_anybody() {
        let prompt = tokens(1_000);
        let (mut line, _) = line(4, &[&prompt, &tokens(3_000)]);
        let mut waiting = Waiting::new(9);
        waiting.push(0, request(1, behind(&prompt), None)).unwrap();
        line.want(&Live::default(), &mut waiting);
        let large = request(2, vec![9; 192], None);
        assert_eq!(line.needs(&large).pages, 4);
        assert!(line.has_room(&large) && line.places().pages == Usage { taken: 0, total: 4 });
        let sequence = line.admit(&Live::default(), Pending::new(large));
        assert_eq!((sequence.blocks.len(), line.kept.len()), (4, 0), "both states went");
    }

    #[test]
    fn nothing_is_loaded_into_pages_that_the_next_request_needs() {
        let spec = crate::LineSpec { n_blocks: 8, n_kept: 2, ..sim::roomy(1) };
        let opened = |waits: bool| {
            let mut scheduler = Scheduler::new(SchedConfig::default());
            scheduler.step(0, Event::LineUp { epoch: 1, line: spec });
            // Five of eight pages; and then one that needs four.
            scheduler.step(0, Event::Submit(request(1, vec![3; 256], None)));
            if waits {
                scheduler.step(0, Event::Submit(request(2, vec![4; 192], None)));
            }
            assert_eq!(scheduler.queue().count(), usize::from(waits));
            let loads = request(3, vec![5; 129], None);
            scheduler.open_kept_of(0, &loads, 128).0.is_some()
        };
        assert_eq!((opened(false), opened(true)), (true, false));
    }

    #[test]
    fn no_state_is_written_whose_pages_the_next_request_needs() {
        let spec = crate::LineSpec { n_blocks: 8, n_kept: 2, ..sim::roomy(1) };
        let mut scheduler = Scheduler::new(SchedConfig::default());
        scheduler.step(0, Event::LineUp { epoch: 1, line: spec });
        let (opened, _) = scheduler.open_kept_of(0, &request(1, vec![5; 129], None), 128);
        scheduler.step(0, Event::KeptReady(opened.unwrap().id));
        let is_written = |scheduler: &mut Scheduler| {
            scheduler.line.as_mut().unwrap().ops.clear();
            scheduler.unsaved(&BTreeSet::new()).is_some()
        };
        assert!(is_written(&mut scheduler));
        // Five of eight pages, and a token that may need the next one: the state's two are left beside that.
        scheduler.step(0, Event::Submit(request(2, vec![3; 256], None)));
        assert!(is_written(&mut scheduler));
        scheduler.step(0, Event::Submit(request(3, vec![4; 192], None)));
        assert_eq!(scheduler.queue().count(), 1);
        assert!(!is_written(&mut scheduler), "that one needs four");
    }
}
