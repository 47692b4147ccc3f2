//! Answers whose clients name no length get as long as there is room.
//!
//! A part of such an answer is guaranteed: its pages are reserved with those of the prompt, as for every request.
//! When these are full, it gets one page after the other. That goes on while there are free pages for which no
//! request waits, and its owner leaves room for others. Otherwise the answer ends as if `max_tokens` had been
//! reached. So no request waits for a place that an answer took beyond its part, and none is preempted. An answer
//! that runs alone has the whole context.

use brigade_engine::batch::SeqOp;

use crate::Scheduler;
use crate::drafts::windows::ROWS_AHEAD_OF_EACH;
use crate::events::Work;
use crate::line::Line;
use crate::memory::pages::Holder;
use crate::sequence::{Admitted, Live, SeqNo};
use crate::waiting::admit::Waiting;
use crate::waiting::fair::{Needs, Owners};

impl Scheduler {
    /// Pages that the request needs that has the next place.
    pub(crate) fn pages_of_next(&self) -> u32 {
        self.line.as_ref().map_or(0, |line| pages_of_next(&self.waiting, &self.live, line))
    }

    /// Whether the next row of a sequence, and that of its companion, have pages; they get some if there are any for them. One that
    /// runs ahead gets the pages of its windows before they are needed, if there are any.
    pub(crate) fn has_place_for_next(&mut self, no: SeqNo) -> bool {
        let has_place = self.has_place(no, 0);
        let sequence = self.live.of(no).filter(|_| has_place);
        if let Some(ahead) = sequence.and_then(|sequence| sequence.ahead.as_ref()) {
            let wanted = ahead.wanted.max(ROWS_AHEAD_OF_EACH);
            // One page after the other, the nearest first.
            let pages = (ROWS_AHEAD_OF_EACH..=wanted).step_by(ROWS_AHEAD_OF_EACH as usize);
            for ahead in pages.chain([wanted]) {
                if !self.has_place(no, ahead) {
                    break;
                }
            }
        }
        has_place
    }

    /// Whether there are pages for the row so many positions behind the next one.
    fn has_place(&mut self, no: SeqNo, ahead: u32) -> bool {
        let (Some(line), Some(sequence)) = (&mut self.line, self.live.of(no)) else { return false };
        // An answer gets no pages beyond its `max_tokens`.
        let Work::Generate { max_tokens, .. } = sequence.work else { return false };
        let most = sequence.n_prompt.saturating_add(max_tokens).min(line.spec.max_positions);
        let ahead = ahead.min(most.saturating_sub(sequence.n_tokens()));
        if sequence.n_tokens() >= line.spec.max_positions {
            return false;
        }
        let is_full = |half: &&Admitted| half.is_full(line.spec.block_positions, ahead);
        let pages = sequence.halves().filter(is_full).count() as u32;
        if pages == 0 {
            return true;
        }
        let awaited = pages_of_next(&self.waiting, &self.live, line);
        let (share, waiting) = (sequence.share, self.waiting.owners());
        let needs = Needs { slots: 0, pages };
        let leaves = |owners: &Owners| owners.may_admit(share, needs, line.places(), &waiting);
        let is_free = line.n_unused_pages() >= pages.saturating_add(awaited);
        if !line.spec.grows || !is_free || !leaves(&self.live.owners) {
            return false;
        }
        self.live.owners.grown(share, pages);
        let Some(sequence) = self.live.get_mut(no) else { return false };
        line.grow(sequence, ahead);
        true
    }
}

/// Pages that the request needs that has the next place.
fn pages_of_next(waiting: &Waiting, live: &Live, line: &Line) -> u32 {
    let next = waiting.turn(&live.owners, line).and_then(|at| waiting.get(at));
    next.map_or(0, |next| line.needs(&next.request).pages)
}

impl Line {
    /// Pages that no running sequence has.
    fn n_unused_pages(&self) -> u32 {
        self.blocks.total() - self.blocks.n_running()
    }

    /// Adds one page to the sequence and to its companion, as far as their pages are full.
    ///
    /// # Panics
    /// If there are none: [`Line::n_unused_pages`] was asked.
    fn grow(&mut self, half: &mut Admitted, ahead: u32) {
        if half.is_full(self.spec.block_positions, ahead) {
            self.make_room(1, None);
            let blocks = self.blocks.take(1, Holder::Running).expect("n_unused_pages was asked");
            half.blocks.extend(&blocks);
            self.ops.push(SeqOp::Grow { slot: half.slot, blocks });
        }
        if let Some(companion) = &mut half.companion {
            self.grow(companion, ahead);
        }
    }
}
