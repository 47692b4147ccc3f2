//! What requests that wait would begin with. Such states go last, and it says who goes first
//! ([`overtake`](crate::overtake)).
//!
//! A look-up walks through a whole prompt. So it is made again only when a tree has changed, and for few requests at a time:
//! those that are first in the queue.

use std::collections::BTreeSet;

use super::kept::{Prompt, Source};
use super::tree::Space;
use crate::admit::Waiting;
use crate::events::KeptId;
use crate::line::Line;
use crate::replay::Pending;
use crate::sequence::{Half, Live};

/// Requests in the queue that are looked up again at once: with prompts of 100,000 tokens, one or two milliseconds.
const LOOKED_UP_AT_ONCE: usize = 16;

/// What a request would begin with if it had its place now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The kept state, and that of its guide.
    states: [Option<KeptId>; 2],
    /// Rows that it would not compute, those among them that are being read.
    pub rows: u32,
    /// What the trees were like.
    changes: u64,
}

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

    /// What a request that waits would begin with.
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
        for (half, state) in [Half::Own, Half::Guide].into_iter().zip(&mut begins.states) {
            let Some(tokens) = pending.known(half) else { continue };
            let prompt = Prompt { tokens: &tokens, space: &space };
            let best = self.best(live, prompt);
            let mut rows = best.map_or(0, |(_, len)| len);
            match pending.restorable {
                // A state of its own has more.
                Some(own) if own >= rows => rows = own,
                _ => {
                    *state = best.and_then(|(source, _)| match source {
                        Source::Kept(id) => Some(id),
                        Source::Live(..) => None,
                    });
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
