//! The slots of a line, and how full it is: which of them run sequences, are lent to sequences that run ahead, or hold
//! kept states.
//!
//! All slots are alike, so one that no running sequence needs holds a kept state. Running sequences come first: where
//! no slot is free, a kept state goes at once. So many slots are there for kept states alone that those which are
//! pinned never keep a sequence waiting.

use brigade_engine::batch::SlotId;

use crate::events::{KeptId, Request};
use crate::line::Line;
use crate::sequence::Admitted;
use crate::waiting::fair::{Needs, Places, Usage};

impl Line {
    /// Slots and pages that `request` may ever need.
    pub fn needs(&self, request: &Request) -> Needs {
        let companion = request.companion_positions();
        let slots = 1 + u32::from(companion.is_some());
        let pages = self.pages_of(request.positions());
        Needs { slots, pages: pages.saturating_add(self.pages_of(companion.unwrap_or(0))) }
    }

    /// Whether all that `request` may ever need is free, or held for kept sequences alone.
    pub fn has_room(&self, request: &Request) -> bool {
        let Needs { slots, pages } = self.needs(request);
        self.n_running() + self.n_lent + slots <= self.spec.n_slots
            && self.blocks.total() - self.blocks.n_running() >= pages
    }

    /// How full it is.
    pub fn places(&self) -> Places {
        Places {
            slots: Usage { taken: self.n_running(), total: self.spec.n_slots },
            pages: Usage { taken: self.blocks.n_running(), total: self.blocks.total() },
        }
    }

    /// Slots of running sequences.
    pub fn n_running(&self) -> u32 {
        self.slots.n_taken() - self.kept.len() as u32 - self.n_lent
    }

    /// Slots that may hold kept states: their own, and those that no running sequence has.
    pub(crate) fn n_kept_places(&self) -> usize {
        let is_kept = self.spec.n_kept > 0;
        if is_kept { self.slots.n_free() as usize + self.kept.len() } else { 0 }
    }

    /// Evicts a kept state if no slot is free, for a running sequence of `owner`; not `except`. Whether one is free then.
    pub(super) fn free_slot(&mut self, owner: u64, except: Option<KeptId>) -> bool {
        if self.slots.n_free() > 0 {
            return true;
        }
        let may_go = |id| Some(id) != except && !self.settled.contains(&id);
        let Some(id) = self.kept.next_for_sequence(owner, self.spec.prefixes, may_go) else {
            return false;
        };
        self.kept.counts.evicted_for_places += 1;
        self.evict(id);
        true
    }

    /// Lends a sequence that runs ahead the places of free slots, until so many are lent to it; as many as there are.
    pub fn lend(&mut self, sequence: &mut Admitted, n: u32) {
        let (own, owner) = (sequence.slot, sequence.share.owner);
        let ahead = sequence.ahead.get_or_insert_default();
        for _ in ahead.lent(own).len()..n as usize {
            if self.n_running() + self.n_lent >= self.spec.n_slots {
                return;
            }
            if !self.free_slot(owner, None) {
                return;
            }
            let Some(plane) = self.slots.take(1) else { return };
            self.n_lent += 1;
            ahead.lend(SlotId(plane[0]));
        }
    }

    /// Takes back the spare planes of a sequence whose next part is not sent yet, because a request waits for a
    /// place.
    pub fn take_spare(&mut self, sequence: &mut Admitted) {
        for plane in sequence.go_home() {
            self.slots.give_back(plane.0);
            self.n_lent -= 1;
        }
    }

    /// Takes back the planes that were lent to a sequence that ends.
    pub(super) fn take_lent(&mut self, sequence: &Admitted) {
        let lent = sequence.ahead.as_ref().map(|ahead| ahead.lent(sequence.slot));
        for plane in lent.into_iter().flatten() {
            self.slots.give_back(plane.0);
            self.n_lent -= 1;
        }
    }
}
