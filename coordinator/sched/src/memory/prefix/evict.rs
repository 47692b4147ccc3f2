//! Makes room: evicts kept states, or their last pages, where others need their places.

use brigade_engine::batch::{PageId, SeqOp, SlotId};
use brigade_spec::Prefixes;

use crate::events::KeptId;
use crate::line::Line;
use crate::memory::pages::Holder;
use crate::memory::prefix::kept::Kept;

impl Line {
    /// Closes kept states, or gives up their last pages, until `n` pages are free or only `except` and pinned ones are left.
    pub fn make_room(&mut self, n: u32, except: Option<KeptId>) {
        let prefixes = self.spec.prefixes;
        while self.blocks.n_free() < n
            && let Some(id) = self.kept.next_for_pages(except, prefixes, |kept| self.own(kept))
        {
            if !self.shorten(id, n - self.blocks.n_free()) {
                self.kept.counts.evicted_for_pages += 1;
                self.evict(id);
            }
        }
    }

    /// Pages that a kept state alone has.
    fn own(&self, kept: &Kept) -> usize {
        kept.blocks.iter().filter(|block| self.blocks.n_holders(**block) == 1).count()
    }

    /// Gives up the last pages of a kept state until `n` of them are free; whether something of its own is left before
    /// them.
    fn shorten(&mut self, id: KeptId, n: u32) -> bool {
        // Only where any position can begin a sequence, and all stages take positions back.
        if self.spec.prefixes != Prefixes::All || !self.spec.ahead {
            return false;
        }
        let Some(kept) = self.kept.get(id).filter(|kept| kept.filled) else { return false };
        let is_own = |block: &PageId| self.blocks.n_holders(*block) == 1;
        let own = kept.blocks.iter().enumerate().filter(|(_, block)| is_own(block));
        let own: Vec<usize> = own.map(|(at, _)| at).collect();
        let Some(first_to_go) = own.len().checked_sub(n as usize).filter(|at| *at > 0) else {
            return false;
        };
        let left = own[first_to_go];
        let (len, slot) = (left as u32 * self.spec.block_positions, kept.slot);
        let Some(space) = self.kept.space_of(kept) else { return false };
        self.kept.shorten(id, &space, len);
        let gone = self.kept.get_mut(id).map(|kept| kept.blocks.split_off(left));
        for block in gone.into_iter().flatten() {
            self.blocks.give_back(block, Holder::Kept);
        }
        self.ops.push(SeqOp::Truncate { slot, len, planes: None });
        true
    }

    /// Closes kept states, but for pinned ones.
    pub fn clear_kept(&mut self) {
        while let Some(id) = self.kept.next_for_slot(None, self.spec.prefixes) {
            self.evict(id);
        }
    }

    /// Takes a slot for a kept state of `newcomer`; where none is free, one goes whose loss costs least.
    pub(super) fn take_kept_slot(&mut self, newcomer: u64) -> Option<SlotId> {
        if self.slots.n_free() == 0
            && let Some(id) = self.kept.next_for_slot(Some(newcomer), self.spec.prefixes)
        {
            self.kept.counts.evicted_for_places += 1;
            self.evict(id);
        }
        let taken = self.slots.take(1)?;
        taken.first().map(|slot| SlotId(*slot))
    }

    /// Closes a kept sequence.
    pub fn evict(&mut self, id: KeptId) {
        if let Some(slot) = self.give_up(id) {
            self.ops.push(SeqOp::Close { slot });
        }
    }

    /// Frees a kept sequence's places; its slot is still to be closed.
    pub(super) fn give_up(&mut self, id: KeptId) -> Option<SlotId> {
        let kept = self.kept.remove(id)?;
        self.settling.retain(|(of, _)| *of != id);
        let holder = if kept.pinned { Holder::Running } else { Holder::Kept };
        for &block in &kept.blocks {
            self.blocks.give_back(block, holder);
        }
        self.slots.give_back(kept.slot.0);
        Some(kept.slot)
    }

    /// Pages of so many positions.
    pub fn pages_of(&self, positions: u64) -> u32 {
        let pages = positions.div_ceil(u64::from(self.spec.block_positions));
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}
