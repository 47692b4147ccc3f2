//! Sequences that run ahead ([`crate::drafts::ahead`]): the parts that they send, and the effect of each drawn token.

use brigade_engine::batch::{Ahead, Planes, SeqOp, SeqPart, SlotId, Want};

use crate::drafts::ahead::{NextWindow, Outcome, Window};
use crate::events::Micros;
use crate::sequence::Admitted;

impl Admitted {
    /// Positions on the line whose tokens are sure.
    pub fn sure_sent(&self) -> u32 {
        self.sent.min(self.n_tokens())
    }

    /// How often its drafts were taken back.
    pub fn run(&self) -> u32 {
        self.ahead.as_ref().map_or(0, |ahead| ahead.run())
    }

    /// The number of windows in flight.
    pub fn n_windows(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.n_windows())
    }

    /// Whether its next part does not begin where the sent rows end.
    pub fn is_taken_back(&self) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.is_taken_back())
    }

    /// Drafts in flight, behind its sure tokens.
    pub fn drafts_in_flight(&self) -> Vec<u32> {
        let Some(ahead) = &self.ahead else { return Vec::new() };
        let n_sure = self.n_tokens();
        let of = |w: &Window| {
            let known = n_sure.saturating_sub(w.pos).min(w.tokens.len() as u32);
            w.tokens[known as usize..].to_vec()
        };
        ahead.windows.iter().flat_map(of).collect()
    }

    /// Brings its state to its own plane, where nothing of it is in flight; the planes that it has no use for then.
    pub fn go_home(&mut self) -> Vec<SlotId> {
        let (slot, len) = (self.slot, self.sent);
        let Some(ahead) = &mut self.ahead else { return Vec::new() };
        if ahead.windows.is_empty()
            && let Some(plane) = ahead.plane.take()
        {
            let planes = Some(Planes { from: plane, to: slot });
            ahead.take_back = Some(SeqOp::Truncate { slot, len, planes });
            ahead.spare.push(plane);
        }
        let (own, lent) = ahead.spare.drain(..).partition(|plane| *plane == slot);
        // Its own is free only while its state is elsewhere.
        ahead.spare = if ahead.plane.is_some() { own } else { Vec::new() };
        lent
    }

    /// Drafts that may still be sent: nothing lies behind the last token that was asked for, or behind its pages of so many
    /// positions.
    pub fn room_ahead(&self, max_tokens: u32, block_positions: u32) -> u32 {
        let end = self.end_ahead(max_tokens, block_positions);
        end.saturating_sub(self.sent.max(self.n_tokens()))
    }

    /// The position from which on there are no drafts: see [`Self::room_ahead`].
    pub fn end_ahead(&self, max_tokens: u32, block_positions: u32) -> u32 {
        let end = self.n_prompt.saturating_add(max_tokens).saturating_sub(1);
        let pages = (self.blocks.len() as u32).saturating_mul(block_positions);
        end.min(pages)
    }

    /// The next window, sent `now`: sure tokens that were not sent, and drafts, marked as sent.
    ///
    /// # Panics
    /// If it has nothing to send, or no plane for a state.
    pub fn next_window(&mut self, now: Micros, window: &NextWindow) -> SeqPart {
        let NextWindow { drafts, in_planes, asked } = window;
        let (slot, pos, n_drawn) = (self.slot, self.sent, self.n_tokens());
        let sure = self.tokens.get(pos as usize..).unwrap_or(&[]);
        let tokens: Vec<u32> = sure.iter().chain(&drafts.tokens).copied().collect();
        assert!(!tokens.is_empty(), "{:?} has nothing to send", self.request);
        let known = self.n_tokens().saturating_sub(1).saturating_sub(pos);
        let ahead = self.ahead.get_or_insert_default();
        let planes = in_planes.then(|| {
            let from = ahead.plane.unwrap_or(slot);
            // Sure tokens are never taken back.
            if drafts.tokens.is_empty() {
                return Planes { from, to: from };
            }
            let to = ahead.spare.pop().expect("a window that keeps its state has a plane");
            ahead.plane = (to != slot).then_some(to);
            Planes { from, to }
        });
        let sure = ahead.windows.front().map_or(pos, |oldest| oldest.pos);
        let (from, n_sure) = ((drafts.source, drafts.matched), tokens.len() - drafts.tokens.len());
        let (copy, sent_at) = (tokens.clone(), now);
        let window = Window { pos, tokens: copy, planes, from, n_sure, n_drawn, sent_at };
        ahead.windows.push_back(window);
        self.sent = pos + tokens.len() as u32;
        self.awaiting = true;
        let ahead = Some(Ahead { sure, known, planes, drafts: *asked });
        SeqPart { slot, pos, tokens, want: Want::Verify, mu: None, ahead }
    }

    /// The state from which a sequence that ends, or leaves, can go on. It has the most positions up to `most` that
    /// one of its planes has, and the result says what brings it back there.
    pub fn settle(&mut self, most: u32) -> (u32, Option<SeqOp>) {
        let (slot, sent) = (self.slot, self.sent);
        let Some(ahead) = &mut self.ahead else { return (most.min(sent), None) };
        if let Some(SeqOp::Truncate { len, planes, .. }) = ahead.take_back.take() {
            let planes = planes.map(|planes| Planes { to: slot, ..planes });
            return (len.min(most), Some(SeqOp::Truncate { slot, len, planes }));
        }
        let in_planes = ahead.windows.iter().any(|w| w.planes.is_some()) || ahead.plane.is_some();
        if !in_planes {
            let len = most.min(sent);
            let op = (len < sent).then_some(SeqOp::Truncate { slot, len, planes: None });
            return (len, op);
        }
        let ends = ahead.windows.iter().filter_map(|w| {
            let planes = w.planes?;
            Some([(w.pos, planes.from), (w.pos + w.tokens.len() as u32, planes.to)])
        });
        let now = (sent, ahead.plane.unwrap_or(slot));
        let marks = ends.flatten().chain([now]).filter(|(len, _)| *len <= most);
        let (len, from) = marks.max_by_key(|(len, _)| *len).unwrap_or((0, slot));
        let planes = Some(Planes { from, to: slot });
        (len, Some(SeqOp::Truncate { slot, len, planes }))
    }

    /// How many positions, all of them sure, a plane has the state of, and which plane: the most that there are.
    pub fn sure_state(&self) -> (u32, SlotId) {
        let (sent, slot) = (self.sent, self.slot);
        let Some(ahead) = &self.ahead else { return (sent, slot) };
        // It stays where it was until it is taken back, or home.
        if let Some(SeqOp::Truncate { len, planes: Some(planes), .. }) = ahead.take_back {
            return (len, planes.from);
        }
        let keeps_its_beginning = |w: &Window| {
            let Planes { from, to } = w.planes?;
            (from != to).then_some((w.pos, from))
        };
        let mark = ahead.windows.iter().find_map(keeps_its_beginning);
        mark.unwrap_or((sent, ahead.plane.unwrap_or(slot)))
    }

    /// Tokens that its client had said to expect: those that were drafted and drawn, and those drafted in vain; `None`: none
    /// were drafted.
    pub fn expected(&self) -> Option<[u32; 2]> {
        let counts = self.ahead.as_ref()?.expected;
        (counts != [0, 0]).then_some(counts)
    }

    /// A token was drawn at a window's row, and is now the last sure one.
    pub fn drawn_ahead(&mut self, now: Micros, pos: u32, token: u32) -> Outcome {
        let outcome = self.outcome(now, pos, token);
        if let Some(ahead) = &mut self.ahead {
            ahead.count(outcome.judged());
        }
        outcome
    }

    /// Handles a window's row without a token, whose mask was not made in time. Whether that row is to be sent again:
    /// the stage keeps it where it is the window's only one that a token is drawn from.
    pub fn no_mask_ahead(&mut self, pos: u32) -> bool {
        let Some(window) = self.ahead.as_ref().and_then(|ahead| ahead.windows.front()) else {
            return false;
        };
        let is_kept = window.tokens.len() == window.n_sure.max(1);
        let (len, from) = match window.planes {
            _ if is_kept => (pos + 1, window.planes.map(|planes| planes.to)),
            Some(planes) => (window.pos, Some(planes.from)),
            None => (pos, None),
        };
        self.back(len, from);
        self.masks_late = !is_kept;
        !is_kept
    }

    fn outcome(&mut self, now: Micros, pos: u32, token: u32) -> Outcome {
        let n_tokens = self.n_tokens();
        let Some(ahead) = &mut self.ahead else { return Outcome::Ready(None) };
        let Some(window) = ahead.windows.front() else { return Outcome::Ready(None) };
        let (start, planes) = (window.pos, window.planes);
        let end = start + window.tokens.len() as u32;
        if pos + 1 < end {
            let at = (pos + 1 - start) as usize;
            let right = window.tokens[at] == token;
            let judged = Some(window.judged(at, right));
            if right {
                return Outcome::Goes(judged);
            }
            // Where there is a state at the end only, the window's rows are read again from its beginning.
            let (len, from) = match planes {
                Some(planes) => (start, Some(planes.from)),
                None => (pos + 1, None),
            };
            self.back(len, from);
            return Outcome::Ready(judged);
        }
        let done = ahead.windows.pop_front();
        if let Some(Planes { from, to }) = done.and_then(|w| w.planes)
            && from != to
        {
            ahead.free(from);
        }
        let Some(next) = ahead.windows.front() else { return Outcome::Ready(None) };
        let right = next.tokens[0] == token;
        let (judged, since) = (Some(next.judged(0, right)), next.sent_at);
        if right {
            ahead.note_overlap(since, now);
            return Outcome::Goes(judged);
        }
        let from = planes.map(|planes| planes.to);
        self.back(n_tokens - 1, from);
        Outcome::Ready(judged)
    }

    /// Takes all windows in flight back: the sequence goes on behind its first `len` positions, whose state is in the
    /// plane `from`.
    fn back(&mut self, len: u32, from: Option<SlotId>) {
        let slot = self.slot;
        self.sent = len;
        let Some(ahead) = &mut self.ahead else { return };
        let lent = ahead.lent(slot);
        ahead.windows.clear();
        ahead.run += 1;
        // The state stays where it is, and all other planes are free.
        ahead.plane = from.filter(|plane| *plane != slot);
        let own = ahead.plane.map(|_| slot);
        let free = lent.into_iter().filter(|plane| Some(*plane) != ahead.plane).chain(own);
        ahead.spare = free.collect();
        let planes = from.map(|from| Planes { from, to: from });
        ahead.take_back = Some(SeqOp::Truncate { slot, len, planes });
    }
}
