//! Progress of the blocks of drafts in each sequence: the entries that they have made, and the positions whose hidden
//! rows are kept.
//!
//! The entry at a position is made of the token there and of the hidden row before it. So the entry behind the last
//! row of a sequence may be there already, where more of the sequence was read before, or drafted. The entry is good
//! as long as the same token comes.
//!
//! A few rows wait until drafts are wanted, since they are read together then; those that are taken back before are never read.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{SeqOp, SlotId};
use crate::kernels::KV_PAGE;
use crate::spec::KEPT_HIDDEN;

/// Rows that wait at most: fewer than hidden ones are kept, so that the one before them is there.
const MAX_WAITING: u32 = KEPT_HIDDEN as u32 / 2;

/// Progress in all sequences.
#[derive(Debug, Default)]
pub(super) struct Readings(BTreeMap<SlotId, Reading>);

/// Progress in one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Whether the sequence is to be read. A copy is not, until [`SeqOp::Draft`] asks for it.
    is_wanted: bool,
    /// Positions of the sequence.
    len: u32,
    /// Position of the first entry, at a page's border; `None`: there are none, and it begins anew at the next one.
    base: Option<u32>,
    /// The tokens from there on.
    tokens: Vec<u32>,
    /// The entries before this position are there.
    read: u32,
    /// Positions whose hidden rows are kept.
    hidden: Range<u32>,
    /// An entry that was made before its token was known to come: its position, and the token.
    next: Option<(u32, u32)>,
}

/// Rows of a sequence that a block reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// Position of the sequence's first entry.
    pub base: u32,
    /// Position of the first row that is read.
    pub from: u32,
    /// The tokens from there on.
    pub tokens: Vec<u32>,
}

impl Reading {
    /// A sequence of `len` positions that is read from here on.
    fn anew(len: u32) -> Self {
        let base = (len == 0).then_some(0);
        Self { is_wanted: true, len, base, read: len, hidden: len..len, ..Self::default() }
    }

    /// Takes the rows before `end` that still wait. They count as read from now on.
    fn take_waiting(&mut self, end: u32) -> Option<Step> {
        let (base, from) = (self.base?, self.read);
        let waiting = from.checked_sub(base)? as usize..end.checked_sub(base)? as usize;
        let tokens = self.tokens.get(waiting).filter(|tokens| !tokens.is_empty())?.to_vec();
        self.read = end;
        Some(Step { base, from, tokens })
    }

    fn has_hidden_before(&self, pos: u32) -> bool {
        pos == 0 || self.hidden.contains(&(pos - 1))
    }

    /// The first `len` positions.
    fn cut(&mut self, len: u32) {
        if len >= self.len {
            return;
        }
        let at = self.base.and_then(|base| len.checked_sub(base));
        let next = at.filter(|_| len < self.read);
        let next = next.and_then(|at| self.tokens.get(at as usize)).map(|token| (len, *token));
        let drafted = self.next.filter(|(pos, _)| *pos == len);
        self.tokens.truncate(at.unwrap_or(0) as usize);
        self.base = self.base.filter(|_| at.is_some()).or((len == 0).then_some(0));
        self.hidden = self.hidden.start.min(len)..self.hidden.end.min(len);
        (self.len, self.read) = (len, self.read.min(len));
        // Drafts may have been written over an entry whose hidden row is kept: that one is made again.
        self.next = drafted.or(next.filter(|_| !self.has_hidden_before(len)));
    }

    /// Goes on with `tokens` from position `pos` on.
    fn go_on(&mut self, pos: u32, tokens: &[u32]) {
        let end = pos + tokens.len() as u32;
        let has_before = self.has_hidden_before(pos);
        match self.base {
            Some(_) if self.next == Some((pos, tokens[0])) => self.read = pos + 1,
            Some(_) if has_before => {}
            _ => {
                let first = if has_before { pos } else { pos + 1 };
                let base = first.next_multiple_of(KV_PAGE as u32);
                self.tokens.clear();
                (self.base, self.read) = ((base <= end).then_some(base), base);
            }
        }
        if let Some(base) = self.base {
            let have = base + self.tokens.len() as u32;
            self.tokens.extend(&tokens[(have.max(pos) - pos) as usize..]);
        }
        let oldest = end.saturating_sub(KEPT_HIDDEN as u32);
        let first = if self.hidden.end == pos { self.hidden.start } else { pos };
        (self.hidden, self.len, self.next) = (first.max(oldest)..end, end, None);
    }

    /// Takes the waiting rows, if there are so many that more would not be kept.
    fn take_due(&mut self) -> Option<Step> {
        (self.len > self.read + MAX_WAITING).then(|| self.take_waiting(self.len))?
    }
}

impl Readings {
    /// Follows an op; `len` are the positions that a sequence has before its rows of this ubatch. Whether a copy took over
    /// what was read of its source.
    pub(super) fn follow(&mut self, op: &SeqOp, len: impl Fn(SlotId) -> u32) -> bool {
        match op {
            SeqOp::Open { slot, .. } | SeqOp::Close { slot } => drop(self.0.remove(slot)),
            SeqOp::Copy { src, dst, len, .. } => {
                self.0.remove(dst);
                let Some(mut copy) = self.0.get(src).cloned() else { return false };
                copy.is_wanted = false;
                copy.cut(*len);
                self.0.insert(*dst, copy);
                return true;
            }
            SeqOp::Truncate { slot, len, .. } => {
                if let Some(reading) = self.0.get_mut(slot) {
                    reading.cut(*len);
                }
            }
            SeqOp::Draft { slot } => {
                let reading = self.0.entry(*slot).or_insert_with(|| Reading::anew(len(*slot)));
                reading.is_wanted = true;
            }
            SeqOp::Grow { .. }
            | SeqOp::Draw { .. }
            | SeqOp::Adapt { .. }
            | SeqOp::Name { .. }
            | SeqOp::Checkpoint { .. } => {}
        }
        false
    }

    /// Whether a sequence is read.
    pub(super) fn has(&self, slot: SlotId) -> bool {
        self.0.get(&slot).is_some_and(|reading| reading.is_wanted)
    }

    /// A sequence goes on with `tokens`, the first of which stands at `pos`. Gives what is to be read now, which reaches to
    /// their end.
    pub(super) fn go_on(&mut self, slot: SlotId, pos: u32, tokens: &[u32]) -> Option<Step> {
        if !self.has(slot) || self.0.get(&slot).is_some_and(|reading| reading.len != pos) {
            self.0.remove(&slot);
            return None;
        }
        let reading = self.0.get_mut(&slot)?;
        reading.go_on(pos, tokens);
        reading.take_due()
    }

    /// The first entry's position, if there is one.
    pub(super) fn base(&self, slot: SlotId) -> Option<u32> {
        self.0.get(&slot)?.base
    }

    /// Positions of a sequence that is read; 0 of any other.
    pub(super) fn len(&self, slot: SlotId) -> u32 {
        self.0.get(&slot).map_or(0, |reading| reading.len)
    }

    /// The positions whose entries were made of rows that were read.
    pub(super) fn entries(&self, slot: SlotId) -> Option<Range<u32>> {
        let reading = self.0.get(&slot)?;
        reading.base.map(|base| base..reading.read)
    }

    /// The first entry's position, if a token at `pos` can be read behind all that is before it.
    pub(super) fn base_for(&self, slot: SlotId, pos: u32) -> Option<u32> {
        let reading = self.0.get(&slot)?;
        reading.base.filter(|base| *base <= pos && reading.has_hidden_before(pos))
    }

    /// Takes the waiting rows of a sequence before position `end`.
    pub(super) fn take_waiting(&mut self, slot: SlotId, end: u32) -> Option<Step> {
        self.0.get_mut(&slot)?.take_waiting(end)
    }

    /// The entry of the `token` that comes at a position was made.
    pub(super) fn has_next(&mut self, slot: SlotId, pos: u32, token: u32) {
        if let Some(reading) = self.0.get_mut(&slot) {
            reading.next = Some((pos, token));
        }
    }

    /// A sequence got another state from somewhere else, of `len` positions.
    pub(super) fn replaced(&mut self, slot: SlotId, len: u32) {
        if let Some(reading) = self.0.get_mut(&slot) {
            *reading = Reading { is_wanted: reading.is_wanted, ..Reading::anew(len) };
        }
    }

    /// Forgets all sequences.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId(0);
    const COPY: SlotId = SlotId(1);

    fn read(n: u32) -> Readings {
        let mut readings = Readings::default();
        readings.follow(&SeqOp::Draft { slot: SLOT }, |_| 0);
        let tokens: Vec<u32> = (0..n).collect();
        let step = readings.go_on(SLOT, 0, &tokens).or_else(|| readings.take_waiting(SLOT, n));
        assert_eq!(step, Some(Step { base: 0, from: 0, tokens }));
        readings
    }

    /// Range of positions that are read when a sequence goes on.
    fn go_on(
        readings: &mut Readings,
        slot: SlotId,
        pos: u32,
        tokens: &[u32],
    ) -> Option<(u32, u32)> {
        let due = readings.go_on(slot, pos, tokens);
        let end = pos + tokens.len() as u32;
        let step = due.or_else(|| readings.take_waiting(slot, end))?;
        assert_eq!(step.from + step.tokens.len() as u32, end);
        assert_eq!(step.tokens[..], tokens[(step.from - pos) as usize..]);
        Some((step.base, step.from))
    }

    fn copied(readings: &mut Readings, len: u32) {
        let (blocks, sampler, request) = (Vec::new(), None, "r".into());
        let op = SeqOp::Copy { src: SLOT, dst: COPY, len, blocks, sampler, request };
        assert!(readings.follow(&op, |_| len));
        readings.follow(&SeqOp::Draft { slot: COPY }, |_| len);
    }

    #[test]
    fn what_is_not_wanted_is_not_read() {
        let mut readings = Readings::default();
        assert_eq!(readings.go_on(SLOT, 0, &[1]), None);
        let mut readings = read(3);
        let (blocks, sampler, request) = (Vec::new(), None, "r".into());
        let op = SeqOp::Copy { src: SLOT, dst: COPY, len: 3, blocks, sampler, request };
        assert!(readings.follow(&op, |_| 3));
        assert!(!readings.has(COPY) && readings.go_on(COPY, 3, &[7]).is_none());
    }

    #[test]
    fn a_window_that_was_taken_back_goes_on_from_the_row_that_is_kept() {
        let mut readings = read(100);
        readings.go_on(SLOT, 100, &[7, 8, 9]);
        readings.follow(&SeqOp::Truncate { slot: SLOT, len: 101, planes: None }, |_| 101);
        assert_eq!(readings.go_on(SLOT, 101, &[5]), None);
        let step = Step { base: 0, from: 100, tokens: vec![7, 5] };
        assert_eq!(readings.take_waiting(SLOT, 102), Some(step));
        assert_eq!(readings.base_for(SLOT, 102), Some(0));
        // What was read is read again where it was taken back.
        readings.follow(&SeqOp::Truncate { slot: SLOT, len: 101, planes: None }, |_| 101);
        assert_eq!(go_on(&mut readings, SLOT, 101, &[5, 6]), Some((0, 101)));
    }

    #[test]
    fn a_few_rows_wait_and_more_do_not() {
        let mut readings = read(100);
        let waiting = |readings: &mut Readings, pos| readings.go_on(SLOT, pos, &[pos, pos + 1]);
        for pos in (100..100 + MAX_WAITING).step_by(2) {
            assert_eq!(waiting(&mut readings, pos), None);
        }
        let step = waiting(&mut readings, 100 + MAX_WAITING).unwrap();
        assert_eq!((step.from, step.tokens.len() as u32), (100, MAX_WAITING + 2));
        assert_eq!(readings.take_waiting(SLOT, 102 + MAX_WAITING), None);
    }

    #[test]
    fn the_entry_of_a_drawn_token_that_was_drafted_from_is_not_made_again() {
        let mut readings = read(40);
        readings.has_next(SLOT, 40, 7);
        assert_eq!(go_on(&mut readings, SLOT, 40, &[7, 8]), Some((0, 41)));
        readings.has_next(SLOT, 42, 9);
        assert_eq!(go_on(&mut readings, SLOT, 42, &[5, 8]), Some((0, 42)), "another came");
        // Behind a wrong draft in the middle of a window.
        readings.has_next(SLOT, 43, 9);
        readings.follow(&SeqOp::Truncate { slot: SLOT, len: 43, planes: None }, |_| 43);
        assert_eq!(go_on(&mut readings, SLOT, 43, &[9, 8]), Some((0, 44)));
        readings.has_next(SLOT, 45, 9);
        readings.follow(&SeqOp::Truncate { slot: SLOT, len: 44, planes: None }, |_| 44);
        assert_eq!(go_on(&mut readings, SLOT, 44, &[9, 8]), Some((0, 44)), "of another place");
    }

    #[test]
    fn a_copy_from_the_middle_goes_on_behind_one_row_that_is_read_again() {
        let mut readings = read(300);
        copied(&mut readings, 64);
        assert_eq!(go_on(&mut readings, COPY, 64, &[64, 5, 6]), Some((0, 65)));
        assert_eq!(readings.base_for(COPY, 67), Some(0));
        // Another token there needs a hidden row that is gone: reading begins anew at the next page.
        let mut readings = read(300);
        copied(&mut readings, 70);
        assert_eq!(go_on(&mut readings, COPY, 70, &[1, 2]), None);
        assert_eq!(readings.base_for(COPY, 72), None);
        assert_eq!(go_on(&mut readings, COPY, 72, &[3; 60]), Some((128, 128)));
        assert_eq!(readings.base_for(COPY, 132), Some(128));
    }

    #[test]
    fn a_copy_of_the_end_has_the_row_that_it_needs_and_what_waits() {
        let mut readings = read(128);
        copied(&mut readings, 128);
        assert_eq!(go_on(&mut readings, COPY, 128, &[9]), Some((0, 128)));
        let mut readings = read(128);
        readings.go_on(SLOT, 128, &[9, 8, 7]);
        copied(&mut readings, 130);
        readings.go_on(COPY, 130, &[6]);
        let step = Step { base: 0, from: 128, tokens: vec![9, 8, 6] };
        assert_eq!(readings.take_waiting(COPY, 131), Some(step));
    }

    #[test]
    fn a_state_from_elsewhere_begins_anew() {
        let mut readings = read(10);
        readings.replaced(SLOT, 64);
        assert_eq!(go_on(&mut readings, SLOT, 64, &[1]), None);
        assert_eq!(go_on(&mut readings, SLOT, 65, &[2; 63]), None);
        assert_eq!(readings.base_for(SLOT, 128), Some(128));
        assert_eq!(go_on(&mut readings, SLOT, 128, &[3]), Some((128, 128)));
        readings.replaced(SLOT, 0);
        assert_eq!(go_on(&mut readings, SLOT, 0, &[1]), Some((0, 0)));
    }
}
