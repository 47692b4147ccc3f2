//! Begins sequences as copies of kept ones, keeps sequences that end, and makes room again.
//!
//! A kept sequence never stands in the way of a running one. Its slot is beyond those of running sequences.
//! Its pages are given up when others are needed: those of the owner who keeps most go first, and of these the longest
//! unused. So nobody who asks much takes away what is kept for somebody who asks little.
//!
//! Changes travel on the next ubatch, in the order in which they were decided. So a copy is always ahead of
//! the close of its source. A copy shares all pages that are full, and a stage copies at most one page.

use std::sync::Arc;

use brigade_engine::batch::{AdapterUse, BlockId, SeqOp, SeqPart, SlotId, Want};
use brigade_spec::Prefixes;

use super::events::{KeptId, Request, RequestId, Share, Work};
use super::fair::{Needs, Places};
use super::kept::{KeptInfo, NewKept, Prompt};
use super::line::Line;
use super::pages::Holder;
use super::replay::Pending;
use super::sequence::{Admitted, Half, SeqNo};

impl Admitted {
    /// Some of its tokens as a prompt of its owner's.
    fn as_prompt<'a>(&'a self, tokens: &'a [u32]) -> Prompt<'a> {
        Prompt { tokens, adapters: &self.adapters, owner: self.share.owner }
    }
}

impl Line {
    /// Slots and pages that `request` may ever need.
    pub fn needs(&self, request: &Request) -> Needs {
        let guide = request.guide_positions();
        let slots = 1 + u32::from(guide.is_some());
        let pages = self.pages_of(request.positions());
        Needs { slots, pages: pages.saturating_add(self.pages_of(guide.unwrap_or(0))) }
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
            slots: (self.n_running(), self.spec.n_slots),
            pages: (self.blocks.n_running(), self.blocks.total()),
        }
    }

    /// Slots of running sequences.
    pub fn n_running(&self) -> u32 {
        self.slots.n_taken() - self.kept.len() as u32 - self.n_lent
    }

    /// Lends a sequence that runs ahead the places of free slots, until so many are lent to it; as many as there are.
    pub fn lend(&mut self, sequence: &mut Admitted, n: u32) {
        let own = sequence.slot;
        let ahead = sequence.ahead.get_or_insert_default();
        for _ in ahead.lent(own).len()..n as usize {
            if self.n_running() + self.n_lent >= self.spec.n_slots {
                return;
            }
            let Some(plane) = self.slots.take(1) else { return };
            self.n_lent += 1;
            ahead.lend(SlotId(plane[0]));
        }
    }

    /// Takes back what a sequence that runs ahead does not need, whose next part is not sent yet: somebody waits for a place.
    pub fn take_spare(&mut self, sequence: &mut Admitted) {
        for plane in sequence.go_home() {
            self.slots.give_back(plane.0);
            self.n_lent -= 1;
        }
    }

    /// Takes back what was lent to a sequence that ends.
    fn take_lent(&mut self, sequence: &Admitted) {
        let lent = sequence.ahead.as_ref().map(|ahead| ahead.lent(sequence.slot));
        for plane in lent.into_iter().flatten() {
            self.slots.give_back(plane.0);
            self.n_lent -= 1;
        }
    }

    /// Reserves places for a request, on every stage at once, and begins it with what is kept of it.
    ///
    /// # Panics
    /// If there is no room ([`Line::has_room`]).
    pub fn admit(&mut self, pending: Pending) -> Admitted {
        let guide = pending.guide();
        let mut sequence = self.admit_one(pending, Half::Own);
        let guide = guide.map(|guide| Box::new(self.admit_one(guide, Half::Guide)));
        // What kept sequences stand for is no progress of this one.
        let reused = sequence.reused + guide.as_ref().map_or(0, |guide| guide.reused);
        sequence.furthest = sequence.furthest.max(reused);
        sequence.guide = guide;
        sequence
    }

    fn admit_one(&mut self, pending: Pending, half: Half) -> Admitted {
        let slot = SlotId(self.slots.take(1).expect("has_room was asked")[0]);
        let (tokens, generates) = (pending.tokens(), pending.generates());
        let Pending {
            request,
            rows_returned,
            furthest,
            losses,
            name,
            blocks: had,
            restorable,
            mu,
            ..
        } = pending;
        let n_pages = self.pages_of(request.positions());
        // Where every row's logits are wanted, every row must be computed.
        let source = generates
            .then(|| {
                let (adapters, owner) = (&request.adapters[..], request.share.owner);
                let prompt = Prompt { tokens: &tokens, adapters, owner };
                self.kept.best(prompt, self.spec.prefixes)
            })
            .flatten();
        let (blocks, reused) = match source {
            Some((source, len)) => {
                (self.begin_with(source, len, slot, n_pages, (&request, half)), len)
            }
            None => {
                self.make_room(n_pages, None);
                // A stage that stayed loaded still holds its state in them.
                let had = if restorable.is_some() { &had[..] } else { &[] };
                let like = self.blocks.take_like(had, n_pages, Holder::Running);
                (like.expect("has_room was asked"), 0)
            }
        };
        Admitted {
            whole: self.spec.prefixes == Prefixes::None,
            request: request.id,
            label: request.label,
            share: request.share,
            deadline: request.deadline,
            n_prompt: request.prompt.len() as u32,
            n_known: tokens.len() as u32,
            tokens,
            work: request.work,
            adapters: request.adapters,
            slot,
            blocks,
            reused,
            opened: reused > 0,
            sent: reused,
            awaiting: false,
            put_off: false,
            masks_late: false,
            rows_returned,
            furthest,
            losses,
            name,
            copied: request.copied,
            named: false,
            checkpointed: reused,
            restoring: false,
            mu,
            guide: None,
            is_guide: half == Half::Guide,
            drafts: request.drafts,
            ahead: None,
        }
    }

    /// Starts `slot` as a copy of the first `len` positions of a kept sequence. Its full pages are
    /// shared; where there is no room for both, the kept one goes.
    fn begin_with(
        &mut self,
        source: KeptId,
        len: u32,
        slot: SlotId,
        n_pages: u32,
        (request, half): (&Request, Half),
    ) -> Vec<BlockId> {
        self.kept.touch(source);
        let kept = self.kept.get_mut(source).expect("it was just found");
        let (src, full) = (kept.slot, (len / self.spec.block_positions) as usize);
        let mut blocks = kept.blocks[..full].to_vec();
        for &block in &blocks {
            self.blocks.share(block, Holder::Running);
        }
        let fresh = n_pages - full as u32;
        self.make_room(fresh, Some(source));
        let spent = self.blocks.n_free() < fresh;
        if spent {
            self.give_up(source);
        }
        blocks.extend(self.blocks.take(fresh, Holder::Running).expect("has_room was asked"));
        let sampler = match &request.work {
            Work::Generate { sampler, .. } if half == Half::Own => Some(sampler.clone()),
            Work::Generate { .. } | Work::Logits | Work::Hidden(_) => None,
        };
        let (copied, request) = (blocks.clone(), request.label.clone());
        self.ops.push(SeqOp::Copy { src, dst: slot, len, blocks: copied, sampler, request });
        if spent {
            self.ops.push(SeqOp::Close { slot: src });
        }
        blocks
    }

    /// Frees a sequence's places for whoever comes next; stages hear of it with the next ubatch.
    pub fn release(&mut self, sequence: &Admitted) {
        self.take_lent(sequence);
        for half in sequence.halves() {
            for &block in &half.blocks {
                self.blocks.give_back(block, Holder::Running);
            }
            self.slots.give_back(half.slot.0);
            if half.opened {
                self.ops.push(SeqOp::Close { slot: half.slot });
            }
        }
    }

    /// A sequence whose numbers are no good: neither it nor what it began with or left behind is kept.
    pub fn discard(&mut self, sequence: &Admitted) {
        for half in sequence.halves() {
            self.evict_covered(half.as_prompt(&half.tokens));
        }
        self.release(sequence);
    }

    /// The same for one that had ended and was kept when its numbers came.
    pub fn discard_kept(&mut self, no: SeqNo) {
        let left = self.kept.left_by(no);
        let left = left.map(|kept| (kept.tokens.clone(), kept.adapters.clone(), kept.owner));
        for (tokens, adapters, owner) in left.collect::<Vec<_>>() {
            self.evict_covered(Prompt { tokens: &tokens, adapters: &adapters, owner });
        }
    }

    /// What stands for a prompt or its beginning goes.
    fn evict_covered(&mut self, prompt: Prompt<'_>) {
        for id in self.kept.covered_by(prompt, Prefixes::All) {
            self.evict(id);
        }
    }

    /// A sequence ended: it is kept as far as its rows were sent, or released. Rows still on their way
    /// are no hindrance: whatever is copied from it comes after them.
    pub fn retire(&mut self, no: SeqNo, mut sequence: Admitted) {
        // The guide first: where one is kept, it is the sequence itself.
        if let Some(guide) = sequence.guide.take() {
            self.retire(no, *guide);
        }
        if !self.worth_keeping(&sequence) {
            return self.release(&sequence);
        }
        let n_kept = sequence.sure_sent();
        let (has, op) = sequence.settle(n_kept);
        self.ops.extend(op);
        self.take_lent(&sequence);
        let mut tokens = sequence.tokens;
        tokens.truncate(n_kept as usize);
        let (adapters, owner) = (sequence.adapters, sequence.share.owner);
        let prompt = Prompt { tokens: &tokens, adapters: &adapters, owner };
        for id in self.kept.covered_by(prompt, self.spec.prefixes) {
            self.evict(id);
        }
        let mut blocks = sequence.blocks;
        let n_used = self.pages_of(n_kept.into()) as usize;
        for &block in &blocks[..n_used] {
            self.blocks.share(block, Holder::Kept);
        }
        for &block in &blocks {
            self.blocks.give_back(block, Holder::Running);
        }
        blocks.truncate(n_used);
        let request = (!sequence.is_guide).then_some(sequence.request);
        if sequence.named {
            self.ops.push(SeqOp::Name { slot: sequence.slot, name: None });
        }
        // Before it is one of them, so that it is not the one to go.
        self.limit_kept(self.spec.n_kept.saturating_sub(1), Some(owner));
        let slot = sequence.slot;
        let rest = tokens[has as usize..].to_vec();
        let filled = rest.is_empty();
        let id = self.kept.insert(NewKept {
            slot,
            blocks,
            tokens,
            adapters,
            owner,
            request,
            left_by: Some(no),
            filled: true,
        });
        if let Some(kept) = self.kept.get_mut(id) {
            kept.filled = filled;
        }
        if !filled {
            let (want, mu, ahead) = (Want::Nothing, None, None);
            let part = SeqPart { slot, pos: has, tokens: rest, want, mu, ahead };
            self.settling.push((id, part));
        }
    }

    fn worth_keeping(&self, sequence: &Admitted) -> bool {
        let generated = matches!(sequence.work, Work::Generate { .. });
        // With one place only, the prompt's end is the better bet where the end of the answer is no
        // prefix of the next prompt unless the template repeats the answer as it was.
        let prompt = &sequence.tokens[..sequence.n_prompt as usize];
        let prompt_is_kept =
            self.spec.n_kept == 1 && self.kept.same(sequence.as_prompt(prompt)).is_some();
        let has_place = self.kept.iter().filter(|kept| kept.pinned).count() < self.n_kept_places();
        generated && sequence.opened && sequence.sure_sent() > 0 && has_place && !prompt_is_kept
    }

    /// The prompt of `sequence` is on its way and nothing after it: where only whole sequences can begin
    /// others, its state is copied before it goes on. Chat templates often rewrite an answer when it
    /// becomes part of the next prompt, and then only the prompt before it is a prefix of that.
    pub fn keep_prompt(&mut self, sequence: &Admitted) {
        let len = sequence.n_prompt;
        let prompt = &sequence.tokens[..len as usize];
        if self.spec.prefixes == Prefixes::All || self.n_kept_places() == 0 {
            return;
        }
        if let Some(same) = self.kept.same(sequence.as_prompt(prompt)) {
            return self.kept.touch(same);
        }
        self.limit_kept(self.spec.n_kept - 1, Some(sequence.share.owner));
        let full = (len / self.spec.block_positions) as usize;
        let fresh = self.pages_of(len.into()) - full as u32;
        self.make_room(fresh, None);
        let has_slot = self.kept.len() < self.n_kept_places();
        let Some(last) = has_slot.then(|| self.blocks.take(fresh, Holder::Kept)).flatten() else {
            return;
        };
        let mut blocks = sequence.blocks[..full].to_vec();
        for &block in &blocks {
            self.blocks.share(block, Holder::Kept);
        }
        blocks.extend(last);
        let slot = SlotId(self.slots.take(1).expect("kept sequences have slots of their own")[0]);
        let (tokens, copied) = (prompt.to_vec(), blocks.clone());
        let (src, request) = (sequence.slot, sequence.label.clone());
        self.ops.push(SeqOp::Copy { src, dst: slot, len, blocks: copied, sampler: None, request });
        let (request, adapters) = (None, sequence.adapters.clone());
        let (left_by, filled, owner) = (None, true, sequence.share.owner);
        self.kept.insert(NewKept {
            slot,
            blocks,
            tokens,
            adapters,
            owner,
            request,
            left_by,
            filled,
        });
    }

    /// Reserves a place for a sequence of `tokens` whose state comes from elsewhere; pinned, and of use
    /// to nobody, until it is filled. It is of those who show no key. `None` if kept sequences that are pinned, and running ones, leave
    /// no room. Stages refuse the state of one that had other adapters.
    pub fn open_kept(&mut self, tokens: Vec<u32>, adapters: Arc<[AdapterUse]>) -> Option<KeptInfo> {
        let n_pages = self.pages_of(tokens.len() as u64);
        let is_free = self.blocks.total() - self.blocks.n_running() >= n_pages;
        let fits = tokens.len() as u64 <= u64::from(self.spec.max_positions);
        if tokens.is_empty() || !fits || !is_free || self.n_kept_places() == 0 {
            return None;
        }
        self.limit_kept(self.spec.n_kept - 1, Some(Share::default().owner));
        if self.kept.len() >= self.n_kept_places() {
            return None;
        }
        self.make_room(n_pages, None);
        let blocks = self.blocks.take(n_pages, Holder::Running)?;
        let slot = SlotId(self.slots.take(1).expect("kept sequences have slots of their own")[0]);
        let (opened, request) = (blocks.clone(), "kept".into());
        self.ops.push(SeqOp::Open { slot, blocks: opened, sampler: None, request });
        self.ops.extend(SeqOp::adapt(slot, &adapters));
        let (copy, request, left_by) = (tokens.clone(), None, None);
        let (owner, filled) = (Share::default().owner, false);
        let new = NewKept { slot, blocks, tokens: copy, adapters, owner, request, left_by, filled };
        let id = self.kept.insert(new);
        Some(KeptInfo { id, slot, tokens })
    }

    /// The stages hold the state of a sequence that was opened with [`Line::open_kept`].
    pub fn kept_filled(&mut self, id: KeptId) {
        if let Some(kept) = self.kept.get_mut(id) {
            kept.filled = true;
        }
        self.unpin(id);
    }

    /// Holds on to a kept sequence; whether it was there and nobody did.
    pub fn pin(&mut self, id: KeptId) -> bool {
        self.set_pinned(id, true)
    }

    /// It may go again.
    pub fn unpin(&mut self, id: KeptId) {
        self.set_pinned(id, false);
    }

    /// Pages of a pinned sequence count as those of a running one: nobody else can have them.
    fn set_pinned(&mut self, id: KeptId, pinned: bool) -> bool {
        let Some(kept) = self.kept.get_mut(id).filter(|kept| kept.pinned != pinned) else {
            return false;
        };
        kept.pinned = pinned;
        let (from, to) = match pinned {
            true => (Holder::Kept, Holder::Running),
            false => (Holder::Running, Holder::Kept),
        };
        for &block in &kept.blocks {
            self.blocks.share(block, to);
            self.blocks.give_back(block, from);
        }
        true
    }

    /// The kept sequence of a request that ended.
    pub fn kept_of(&self, request: RequestId) -> Option<KeptInfo> {
        let of = self.kept.iter().find(|kept| kept.filled && kept.request == Some(request));
        of.map(super::kept::Kept::info)
    }

    /// Closes kept sequences until `n` pages are free or only `except` and pinned ones are left.
    pub fn make_room(&mut self, n: u32, except: Option<KeptId>) {
        while self.blocks.n_free() < n
            && let Some(id) = self.kept.next_for_pages(except)
        {
            self.evict(id);
        }
    }

    /// Closes kept sequences until at most `n` are left, pinned ones apart; so that one of `newcomer` has a place.
    pub fn limit_kept(&mut self, n: u32, newcomer: Option<u64>) {
        while self.kept.len() > n as usize
            && let Some(id) = self.kept.next_for_slot(newcomer)
        {
            self.evict(id);
        }
    }

    /// Closes a kept sequence.
    pub fn evict(&mut self, id: KeptId) {
        if let Some(slot) = self.give_up(id) {
            self.ops.push(SeqOp::Close { slot });
        }
    }

    /// Frees a kept sequence's places; its slot is still to be closed.
    fn give_up(&mut self, id: KeptId) -> Option<SlotId> {
        let kept = self.kept.remove(id)?;
        self.settling.retain(|(of, _)| *of != id);
        let holder = if kept.pinned { Holder::Running } else { Holder::Kept };
        for &block in &kept.blocks {
            self.blocks.give_back(block, holder);
        }
        self.slots.give_back(kept.slot.0);
        Some(kept.slot)
    }

    fn n_kept_places(&self) -> usize {
        self.spec.n_kept as usize
    }

    /// Pages of so many positions.
    pub fn pages_of(&self, positions: u64) -> u32 {
        let pages = positions.div_ceil(u64::from(self.spec.block_positions));
        u32::try_from(pages).unwrap_or(u32::MAX)
    }
}
