//! Longest cached prefix first: among an owner's waiting requests, the one goes first whose prompt is mostly cached
//! or being computed. So families of prompts that do not fit the memory together are computed one after the other,
//! and not once for each request.
//!
//! No request waits long because of it. A request lets at most [`MOST_OVERTAKEN`] others go first, and none that came
//! more than [`OVERTAKES_WITHIN`] after it. No request overtakes one that waits for room, so that a large one gets
//! its room some day. The order among owners stays: [`fair`](crate::waiting::fair) has decided it before.

use crate::events::Micros;
use crate::line::Line;
use crate::sequence::Live;
use crate::waiting::admit::Waiting;
use crate::waiting::replay::Pending;

/// Requests that one lets go first at most: as many as agents that an owner usually starts together. It is also how many
/// prompts are looked up for a place.
const MOST_OVERTAKEN: u32 = 16;

/// A request that came this much later overtakes nothing. Requests that start together come within this time, and a
/// new client waits no longer than it would notice.
const OVERTAKES_WITHIN: Micros = 2_000_000;

/// Rows that must be there more than of the one that is overtaken: fewer take less time than a ubatch more.
const LEAST_ROWS: u32 = 64;

impl Waiting {
    /// Who goes first of the requests of one owner, of which the one at `first` is the next.
    pub fn goes_first(&mut self, first: usize, line: &Line, live: &Live) -> usize {
        let Some(next) = self.get(first).filter(|next| !next.interrupted) else { return first };
        let (owner, latest) = (next.request.share.owner, next.came + OVERTAKES_WITHIN);
        let (waiting, places) = (self.owners(), line.places());
        let may_start = |pending: &Pending| {
            let needs = line.needs(&pending.request);
            let share = pending.request.share;
            line.has_room(&pending.request) && live.owners.may_admit(share, needs, places, &waiting)
        };
        let own = self.queue_mut().enumerate().skip(first);
        let own = own.filter(|(_, p)| p.request.share.owner == owner && p.hold.is_none());
        let own = own.take_while(|(_, pending)| pending.came <= latest);
        let (mut best, mut most) = (first, None);
        for (at, pending) in own.take(1 + MOST_OVERTAKEN as usize) {
            let rows = line.look_up(live, pending).rows;
            let is_longer = most.is_none_or(|most| rows >= most + LEAST_ROWS);
            if is_longer && (at == first || may_start(pending)) {
                (best, most) = (at, Some(rows));
            }
            if pending.overtaken >= MOST_OVERTAKEN {
                break;
            }
        }
        best
    }

    /// Takes one out that goes before the one at `first`, if that is another one, and all others of its owner up to it.
    pub fn take_before(&mut self, first: usize, at: usize) -> Option<Pending> {
        let taken = self.take(at)?;
        let owner = taken.request.share.owner;
        let overtaken = self.queue_mut().take(at).skip(first);
        let overtaken = overtaken.filter(|p| p.request.share.owner == owner && p.hold.is_none());
        overtaken.for_each(|pending| pending.overtaken += 1);
        Some(taken)
    }
}
