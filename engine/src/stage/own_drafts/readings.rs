//! What the blocks of drafts have read of each sequence: which entries are theirs, and of which rows the hidden ones are kept.
//!
//! The entry at a position is made of the token there and of the hidden row before it. So the entry behind the last row of a
//! sequence may be there already, where more of it was read before: it is good as long as the same token comes again.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::batch::{SeqOp, SlotId};
use crate::kernels::KV_PAGE;
use crate::spec::KEPT_HIDDEN;

/// What was read of all sequences.
#[derive(Debug, Default)]
pub(super) struct Readings(BTreeMap<SlotId, Reading>);

/// What was read of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Whether somebody wants it to be read. A copy is not, until somebody says so.
    is_wanted: bool,
    /// Positions of the sequence.
    len: u32,
    /// Position of the first entry, at a page's border; `None`: there are none, and it begins anew at the next one.
    base: Option<u32>,
    /// The tokens of the entries from there on.
    tokens: Vec<u32>,
    /// Positions whose hidden rows are kept.
    hidden: Range<u32>,
    /// The token that the entry behind them was made of, if it is there.
    next: Option<u32>,
}

/// Rows of a part that a block reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// Position of the sequence's first entry.
    pub base: u32,
    /// So many of the part's first rows are not read: their entries are there, or never will be.
    pub skip: usize,
    /// What is read with the first of the others.
    pub before: Before,
}

/// The hidden row before the first one that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// There is none: zeros.
    Nothing,
    /// Kept, of this position.
    Kept(u32),
    /// The part's own, before the first one that is read.
    Own,
}

impl Reading {
    /// A sequence of `len` positions that is read from here on.
    fn anew(len: u32) -> Self {
        let base = (len == 0).then_some(0);
        Self { is_wanted: true, len, base, hidden: len..len, ..Self::default() }
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
        let next = at.and_then(|at| self.tokens.get(at as usize)).copied();
        self.tokens.truncate(at.unwrap_or(0) as usize);
        self.base = self.base.filter(|_| at.is_some()).or((len == 0).then_some(0));
        self.hidden = self.hidden.start.min(len)..self.hidden.end.min(len);
        self.len = len;
        // Drafts may have been written over an entry whose hidden row is kept: that one is made again.
        self.next = next.filter(|_| !self.has_hidden_before(len));
    }

    /// Goes on with `tokens` from position `pos` on.
    fn go_on(&mut self, pos: u32, tokens: &[u32]) -> Option<Step> {
        let end = pos + tokens.len() as u32;
        let kept = if pos == 0 { Before::Nothing } else { Before::Kept(pos - 1) };
        let has_before = self.has_hidden_before(pos);
        let step = match self.base {
            Some(base) if has_before => Some(Step { base, skip: 0, before: kept }),
            Some(base) if self.next == Some(tokens[0]) => {
                Some(Step { base, skip: 1, before: Before::Own })
            }
            _ => {
                let page = KV_PAGE as u32;
                let first = if has_before { pos } else { pos + 1 };
                let base = first.next_multiple_of(page);
                let skip = (base - pos) as usize;
                self.tokens.clear();
                let before = if skip == 0 { kept } else { Before::Own };
                (base <= end).then_some(Step { base, skip, before })
            }
        };
        self.base = step.as_ref().map(|step| step.base);
        if let Some(base) = self.base {
            let have = base + self.tokens.len() as u32;
            self.tokens.extend(&tokens[(have.max(pos) - pos) as usize..]);
        }
        let oldest = end.saturating_sub(KEPT_HIDDEN as u32);
        let first = if self.hidden.end == pos { self.hidden.start } else { pos };
        (self.hidden, self.len, self.next) = (first.max(oldest)..end, end, None);
        step
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

    /// Reads `tokens` of a sequence, the first of which stands at `pos`. `None`: no entries are made of them.
    pub(super) fn go_on(&mut self, slot: SlotId, pos: u32, tokens: &[u32]) -> Option<Step> {
        if !self.has(slot) || self.0.get(&slot).is_some_and(|reading| reading.len != pos) {
            self.0.remove(&slot);
            return None;
        }
        self.0.get_mut(&slot)?.go_on(pos, tokens)
    }

    /// The first entry's position, if there is one.
    pub(super) fn base(&self, slot: SlotId) -> Option<u32> {
        self.0.get(&slot)?.base
    }

    /// The first entry's position, if a token at `pos` can be read behind all that is before it.
    pub(super) fn base_for(&self, slot: SlotId, pos: u32) -> Option<u32> {
        let reading = self.0.get(&slot)?;
        reading.base.filter(|base| *base <= pos && reading.has_hidden_before(pos))
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
        let step = readings.go_on(SLOT, 0, &tokens);
        assert_eq!(step, Some(Step { base: 0, skip: 0, before: Before::Nothing }));
        readings
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
        let step = readings.go_on(SLOT, 101, &[5]);
        assert_eq!(step, Some(Step { base: 0, skip: 0, before: Before::Kept(100) }));
        assert_eq!(readings.base_for(SLOT, 102), Some(0));
    }

    #[test]
    fn a_copy_from_the_middle_goes_on_behind_one_row_that_is_read_again() {
        let mut readings = read(300);
        copied(&mut readings, 64);
        let step = readings.go_on(COPY, 64, &[64, 5, 6]);
        assert_eq!(step, Some(Step { base: 0, skip: 1, before: Before::Own }));
        assert_eq!(readings.base_for(COPY, 67), Some(0));
        // Another token there needs a hidden row that nobody has: it begins anew at the next page.
        let mut readings = read(300);
        copied(&mut readings, 70);
        assert_eq!(readings.go_on(COPY, 70, &[1, 2]), None);
        assert_eq!(readings.base_for(COPY, 72), None);
        let step = readings.go_on(COPY, 72, &[3; 60]);
        assert_eq!(step, Some(Step { base: 128, skip: 56, before: Before::Own }));
        assert_eq!(readings.base_for(COPY, 132), Some(128));
    }

    #[test]
    fn a_copy_of_the_end_has_the_row_that_it_needs() {
        let mut readings = read(128);
        copied(&mut readings, 128);
        let step = readings.go_on(COPY, 128, &[9]);
        assert_eq!(step, Some(Step { base: 0, skip: 0, before: Before::Kept(127) }));
    }

    #[test]
    fn a_state_from_elsewhere_begins_anew() {
        let mut readings = read(10);
        readings.replaced(SLOT, 64);
        assert_eq!(readings.go_on(SLOT, 64, &[1]), None);
        let step = readings.go_on(SLOT, 65, &[2; 63]);
        assert_eq!(step, Some(Step { base: 128, skip: 63, before: Before::Own }));
        let step = readings.go_on(SLOT, 128, &[3]);
        assert_eq!(step, Some(Step { base: 128, skip: 0, before: Before::Kept(127) }));
        readings.replaced(SLOT, 0);
        let step = readings.go_on(SLOT, 0, &[1]);
        assert_eq!(step, Some(Step { base: 0, skip: 0, before: Before::Nothing }));
    }
}
