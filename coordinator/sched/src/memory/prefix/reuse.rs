//! Begins sequences with kept states, and keeps the states of sequences that end.
//!
//! A kept state never stands in the way of a running sequence. Its slot and its pages are given up when others are needed
//! ([`eviction_order`](crate::memory::prefix::eviction_order)); where any position can begin a sequence, the last pages of
//! a state go first, and what is before them stays.
//!
//! Changes travel on the next ubatch, in the order in which they were decided. So a copy is always ahead of
//! the close of its source. A copy shares all pages that are full, and a stage copies at most one page.

use std::sync::Arc;

use brigade_engine::batch::{AdapterUse, PageId, SeqOp, SeqPart, SlotId, Want};
use brigade_spec::Prefixes;

use crate::events::{KeptId, Request, RequestId, Share, Work};
use crate::line::Line;
use crate::memory::namespace::Namespace;
use crate::memory::pages::Holder;
use crate::memory::prefix::hold::Hold;
use crate::memory::prefix::kept::{KeptInfo, NewKept, Origin, Prompt, Source};
use crate::memory::prefix::place::{Mark, Place};
use crate::memory::prefix::tree::Space;
use crate::sequence::{Admitted, Half, Live, SeqNo};
use crate::waiting::replay::Pending;

impl Admitted {
    /// Some of its tokens as a prompt of its owner's.
    fn as_prompt<'a>(&'a self, tokens: &'a [u32]) -> Prompt<'a> {
        Prompt { tokens, space: &self.space }
    }

    /// The half of the guided request that this sequence is.
    fn half(&self) -> Half {
        if self.is_companion { Half::Companion } else { Half::Own }
    }

    /// How many of the tokens that it knew at first other sequences can begin with.
    fn readable(&self) -> u32 {
        if self.restoring { 0 } else { self.sent.min(self.n_known) }
    }
}

/// The half of a running sequence.
fn half_of(live: &Live, no: SeqNo, half: Half) -> Option<&Admitted> {
    let sequence = live.of(no)?;
    match half {
        Half::Own => Some(sequence),
        Half::Companion => sequence.companion.as_deref(),
    }
}

/// A sequence that begins: whose it is, and the places that it gets.
#[derive(Clone, Copy, Debug)]
struct Begins<'a> {
    request: &'a Request,
    /// The sequence of the request that begins: its own, or its guide.
    half: Half,
    /// Whether the model's own block reads its rows too.
    own_drafts: bool,
    n_pages: u32,
}

/// A slot for a sequence that begins, and the state with which it begins, with its number of tokens.
struct Taken {
    slot: SlotId,
    source: Option<(Source, u32)>,
}

/// A sequence's places, how many tokens of its prompt are in them, and the kept state that they come from.
struct Begun {
    slot: SlotId,
    blocks: Vec<PageId>,
    reused: u32,
    source: Option<KeptId>,
}

impl Line {
    /// The state that a prompt can begin with, and the number of tokens that it covers.
    pub(super) fn best(&self, live: &Live, prompt: Prompt<'_>) -> Option<(Source, u32)> {
        let progress = |no, half| half_of(live, no, half).map_or(0, Admitted::readable);
        self.kept.best(prompt, self.spec.prefixes, progress)
    }

    /// Whether a request may begin with what others computed, and leave something to others. Where every row's logits are
    /// wanted, every row must be computed.
    pub(super) fn reuses(&self, request: &Request) -> bool {
        self.n_kept_places() > 0 && matches!(request.work, Work::Generate { .. })
    }

    /// Reserves places for a request, on every stage at once, and begins it with what there is of it.
    ///
    /// # Panics
    /// If there is no room ([`Line::has_room`]).
    pub fn admit(&mut self, live: &Live, pending: Pending) -> Admitted {
        let companion = pending.companion();
        let mut sequence = self.admit_one(live, pending, Half::Own);
        let companion =
            companion.map(|companion| Box::new(self.admit_one(live, companion, Half::Companion)));
        // Reused tokens are not counted as progress of this request.
        let reused = sequence.reused + companion.as_ref().map_or(0, |companion| companion.reused);
        sequence.furthest = sequence.furthest.max(reused);
        sequence.companion = companion;
        sequence
    }

    fn admit_one(&mut self, live: &Live, pending: Pending, half: Half) -> Admitted {
        let tokens = pending.tokens();
        let Pending {
            request,
            rows_returned,
            furthest,
            losses,
            name,
            blocks: had,
            restorable,
            mu,
            held,
            own_drafts,
            ..
        } = pending;
        let own_drafts = own_drafts && half == Half::Own;
        let n_pages = self.pages_of(request.positions());
        let space = Space::of(&request);
        let prompt = Prompt { tokens: &tokens, space: &space };
        let reuses = self.reuses(&request);
        let conversation = self.conversation(&request, half, prompt);
        let begins = Begins { request: &request, half, own_drafts, n_pages };
        let Begun { slot, blocks, reused, source } =
            self.begin(live, prompt, begins, &had, restorable);
        let borders = if half == Half::Own { &request.borders[..] } else { &[] };
        let marks = if reuses { self.marks(prompt, reused, borders) } else { Default::default() };
        if reuses {
            self.count(prompt, reused, held);
        }
        let node = reuses.then(|| self.kept.enter(prompt, live.next_no(), half));
        Admitted {
            whole: self.spec.prefixes == Prefixes::None,
            request: request.id,
            label: request.label,
            share: request.share,
            deadline: request.deadline,
            n_prompt: request.prompt.len() as u32,
            n_known: tokens.len() as u32,
            tokens,
            space,
            node: node.map(|node| (live.next_no(), node)),
            source,
            conversation,
            marks,
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
            companion: None,
            is_companion: half == Half::Companion,
            drafts: request.drafts,
            own_drafts,
            ahead: None,
        }
    }

    /// The state with which a request's prompt is to begin. `restorable`: the position of a state of its own that can be
    /// put back. The model's own block needs the row before the first one that it reads: one more is computed for it.
    fn source(
        &self,
        live: &Live,
        prompt: Prompt<'_>,
        begins: Begins<'_>,
        restorable: Option<u32>,
    ) -> Option<(Source, u32)> {
        let best = if self.reuses(begins.request) { self.best(live, prompt) } else { None };
        // A state of its own has more.
        let best = best.filter(|(_, len)| restorable.is_none_or(|own| own < *len));
        let again = u32::from(begins.own_drafts && self.spec.prefixes == Prefixes::All);
        best.map(|(source, len)| (source, len - again)).filter(|(_, len)| *len > 0)
    }

    /// Takes a slot for a sequence that begins, and finds the state with which it begins: where a state has to go, that one
    /// goes last.
    fn take_slot(
        &mut self,
        live: &Live,
        prompt: Prompt<'_>,
        begins: Begins<'_>,
        restorable: Option<u32>,
    ) -> Taken {
        let mut source = self.source(live, prompt, begins, restorable);
        let (owner, kept) = (begins.request.share.owner, source.and_then(|(s, _)| s.kept()));
        if !self.free_slot(owner, kept) && self.free_slot(owner, None) {
            source = self.source(live, prompt, begins, restorable);
        }
        let slot = SlotId(self.slots.take(1).expect("has_room was asked")[0]);
        Taken { slot, source }
    }

    /// Places for a request. `had`: its pages on a line before; `restorable`: the position of a state of its own that can be
    /// put back.
    fn begin(
        &mut self,
        live: &Live,
        prompt: Prompt<'_>,
        begins: Begins<'_>,
        had: &[PageId],
        restorable: Option<u32>,
    ) -> Begun {
        let Taken { slot, source } = self.take_slot(live, prompt, begins, restorable);
        if let Some((source, len)) = source {
            let blocks = self.begin_with(live, slot, source, len, begins);
            return Begun { slot, blocks, reused: len, source: source.kept() };
        }
        self.make_room(begins.n_pages, None);
        // A stage that stayed loaded still holds its state in them.
        let had = if restorable.is_some() { had } else { &[] };
        let like = self.blocks.take_like(had, begins.n_pages, Holder::Running);
        let blocks = like.expect("has_room was asked");
        Begun { slot, blocks, reused: 0, source: None }
    }

    /// Counts a prompt that got its place, and notes what it leaves behind.
    fn count(&mut self, prompt: Prompt<'_>, reused: u32, held: Option<Hold>) {
        self.kept.leave_behind(prompt);
        self.kept.counts.prompt_tokens += prompt.tokens.len() as u64;
        self.kept.counts.reused_tokens += u64::from(reused);
        let spared = held.map_or(0, |held| reused.saturating_sub(held.begin));
        self.kept.counts.rows_avoided += u64::from(spared);
    }

    /// Starts its slot as a copy of the first `len` positions of another sequence. Its full pages are shared; where there is
    /// no room for a kept one as well, that goes.
    fn begin_with(
        &mut self,
        live: &Live,
        slot: SlotId,
        source: Source,
        len: u32,
        begins: Begins<'_>,
    ) -> Vec<PageId> {
        let Begins { request, half: begun, own_drafts, n_pages } = begins;
        let full = (len / self.spec.block_positions) as usize;
        let (src, mut blocks) = match source {
            Source::Kept(id) => {
                self.kept.hit(id, len);
                let kept = self.kept.get(id).expect("it was just found");
                (kept.slot, kept.blocks[..full].to_vec())
            }
            Source::Live(no, half) => {
                let from = half_of(live, no, half).expect("it was just found");
                (from.slot, from.blocks[..full].to_vec())
            }
        };
        for &block in &blocks {
            self.blocks.share(block, Holder::Running);
        }
        let kept = source.kept();
        let fresh = n_pages - full as u32;
        self.make_room(fresh, kept);
        let spent = kept.filter(|_| self.blocks.n_free() < fresh);
        if let Some(kept) = spent {
            self.kept.counts.evicted_for_pages += 1;
            self.give_up(kept);
        }
        blocks.extend(self.blocks.take(fresh, Holder::Running).expect("has_room was asked"));
        let sampler = match &request.work {
            Work::Generate { sampler, .. } if begun == Half::Own => Some(sampler.clone()),
            Work::Generate { .. } | Work::Logits | Work::Hidden(_) => None,
        };
        let (copied, request) = (blocks.clone(), request.label.clone());
        self.ops.push(SeqOp::Copy { src, dst: slot, len, blocks: copied, sampler, request });
        self.ops.extend(own_drafts.then_some(SeqOp::Draft { slot }));
        if spent.is_some() {
            self.ops.push(SeqOp::Close { slot: src });
        }
        blocks
    }

    /// Frees a sequence's places for the next one; stages hear of it with the next ubatch.
    pub fn release(&mut self, sequence: &Admitted) {
        self.take_lent(sequence);
        for half in sequence.halves() {
            self.leave(half);
            for &block in &half.blocks {
                self.blocks.give_back(block, Holder::Running);
            }
            self.slots.give_back(half.slot.0);
            if half.opened {
                self.ops.push(SeqOp::Close { slot: half.slot });
            }
        }
    }

    /// Removes a running sequence's tokens from the tree.
    fn leave(&mut self, sequence: &Admitted) {
        if let Some((no, node)) = sequence.node {
            self.kept.leave(node, no, sequence.half());
        }
    }

    /// Drops a sequence with invalid numbers, and the kept states that it began with or left behind.
    pub fn discard(&mut self, sequence: &Admitted) {
        for half in sequence.halves() {
            self.note_spoilt(half);
            let before = self.kept.begins(half.as_prompt(&half.tokens));
            // It may have begun with a part of one.
            self.spoil(before.into_iter().chain(half.source).collect());
        }
        self.release(sequence);
    }

    /// The same for one that had ended and was kept when its numbers came.
    pub fn discard_kept(&mut self, no: SeqNo) {
        let left = self.kept.left_by(no);
        left.iter().for_each(|node| self.note_spoilt_at(*node));
        let spoilt = left.into_iter().flat_map(|node| self.kept.before(node));
        self.spoil(spoilt.collect());
    }

    fn spoil(&mut self, mut spoilt: Vec<KeptId>) {
        spoilt.sort_unstable();
        spoilt.dedup();
        for id in spoilt {
            let Some(kept) = self.kept.get_mut(id) else { continue };
            let (was_spoilt, pinned) = (kept.spoilt, kept.pinned);
            // While the stages read or fill its slot it cannot go; no request begins with it until then.
            (kept.spoilt, kept.filled) = (true, false);
            self.kept.counts.spoilt += u64::from(!was_spoilt);
            self.kept.tree.changes += 1;
            if !pinned {
                self.evict(id);
            }
        }
    }

    /// A sequence ended: its state is kept as far as its rows were sent, or released. Rows still on their way do not
    /// matter: copies of it come after them in order.
    pub fn retire(&mut self, no: SeqNo, mut sequence: Admitted) {
        // The companion first: where one is kept, it is the sequence itself.
        if let Some(companion) = sequence.companion.take() {
            self.retire(no, *companion);
        }
        if !self.worth_keeping(&sequence) {
            return self.release(&sequence);
        }
        self.leave(&sequence);
        let n_kept = sequence.sure_sent();
        let (has, op) = sequence.settle(n_kept);
        self.ops.extend(op);
        self.take_lent(&sequence);
        let mut tokens = sequence.tokens;
        tokens.truncate(n_kept as usize);
        let (space, owner) = (sequence.space, sequence.share.owner);
        let prompt = Prompt { tokens: &tokens, space: &space };
        let hits = self.drop_covered(prompt);
        let mut blocks = sequence.blocks;
        let n_used = self.pages_of(n_kept.into()) as usize;
        for &block in &blocks[..n_used] {
            self.blocks.share(block, Holder::Kept);
        }
        for &block in &blocks {
            self.blocks.give_back(block, Holder::Running);
        }
        blocks.truncate(n_used);
        let request = (!sequence.is_companion).then_some(sequence.request);
        if sequence.named {
            self.ops.push(SeqOp::Name { slot: sequence.slot, name: None });
        }
        let slot = sequence.slot;
        let rest = tokens[has as usize..].to_vec();
        let filled = rest.is_empty();
        let origin = Origin { request, left_by: Some(no), conversation: sequence.conversation };
        let pinned = false;
        let new = NewKept { slot, blocks, prompt, owner, origin, filled, pinned };
        let id = self.kept.insert(new);
        if let Some(kept) = self.kept.get_mut(id) {
            kept.hits = hits;
        }
        if !filled {
            let (want, mu, ahead) = (Want::Nothing, None, None);
            let part = SeqPart { slot, pos: has, tokens: rest, want, mu, ahead };
            self.settling.push((id, part));
        }
    }

    /// Drops the states that one with these tokens stands for as well; requests that began with them, which it goes on
    /// counting.
    fn drop_covered(&mut self, prompt: Prompt<'_>) -> u64 {
        let mut hits = 0;
        for id in self.kept.covered_by(prompt, self.spec.prefixes) {
            hits += self.kept.get(id).map_or(0, |kept| kept.hits);
            self.kept.counts.covered += 1;
            self.evict(id);
        }
        hits
    }

    fn worth_keeping(&self, sequence: &Admitted) -> bool {
        let generated = matches!(sequence.work, Work::Generate { .. });
        generated && sequence.opened && sequence.sure_sent() > 0 && self.spec.n_kept > 0
    }

    /// Keeps the states at the marks that prompts have reached, before their next rows are sent.
    pub fn keep_marks(&mut self, live: &mut Live) {
        for no in live.prefilling.clone() {
            for half in [Half::Companion, Half::Own] {
                let sequence = live.get_mut(no);
                let sequence = sequence.and_then(|sequence| match half {
                    Half::Own => Some(sequence),
                    Half::Companion => sequence.companion.as_deref_mut(),
                });
                if let Some(sequence) = sequence
                    && let Some(mark) = sequence.take_mark()
                {
                    self.keep_mark(no, sequence, mark);
                }
            }
        }
    }

    /// Has the state of a sequence copied at the end of its rows sent, before it goes on.
    fn keep_mark(&mut self, no: SeqNo, sequence: &Admitted, mark: Mark) {
        let (len, owner) = (mark.at, sequence.share.owner);
        let prompt = sequence.as_prompt(&sequence.tokens[..len as usize]);
        if let Some(same) = self.kept.same(prompt) {
            return self.kept.touch(same);
        }
        if !self.has_place_for(mark, len - sequence.reused, owner) {
            return;
        }
        let Some(slot) = self.take_kept_slot(owner) else { return };
        let full = (len / self.spec.block_positions) as usize;
        let fresh = self.pages_of(len.into()) - full as u32;
        self.make_room(fresh, None);
        let Some(last) = self.blocks.take(fresh, Holder::Kept) else {
            return self.slots.give_back(slot.0);
        };
        let mut blocks = sequence.blocks[..full].to_vec();
        for &block in &blocks {
            self.blocks.share(block, Holder::Kept);
        }
        blocks.extend(last);
        let (src, copied, request) = (sequence.slot, blocks.clone(), sequence.label.clone());
        self.ops.push(SeqOp::Copy { src, dst: slot, len, blocks: copied, sampler: None, request });
        let conversation = sequence.conversation;
        let origin = Origin { request: None, left_by: Some(no), conversation };
        let (filled, pinned) = (true, false);
        let new = NewKept { slot, blocks, prompt, owner, origin, filled, pinned };
        self.kept.insert(new);
    }

    /// Whether a mark that saves at most so many rows is worth the place of another state.
    fn has_place_for(&self, mark: Mark, rows: u32, owner: u64) -> bool {
        let is_free = self.slots.n_free() > 0;
        if mark.place != Place::Distance || is_free || self.kept.by_age {
            return true;
        }
        let next = self.kept.next_for_slot(Some(owner), self.spec.prefixes);
        let next = next.and_then(|id| self.kept.get(id));
        next.is_some_and(|next| {
            let worth = self.kept.value(next, self.spec.prefixes);
            worth < crate::memory::prefix::KeptPool::value_of_new(rows)
        })
    }

    /// Reserves a place for a sequence of `tokens` whose state comes from elsewhere. It is pinned and cannot be
    /// reused until it is filled. Its owner is that of requests without a key. `None` if kept sequences that are
    /// pinned, and running ones, leave no room. Stages refuse the state of one that had other adapters.
    pub fn open_kept(&mut self, tokens: Vec<u32>, adapters: Arc<[AdapterUse]>) -> Option<KeptInfo> {
        let owner = Share::default().owner;
        self.open_kept_in(
            tokens,
            &Space::new(Namespace::of_owner(owner), &adapters),
            owner,
            &adapters,
        )
    }

    /// The same in any namespace.
    pub(super) fn open_kept_in(
        &mut self,
        tokens: Vec<u32>,
        space: &Space,
        owner: u64,
        adapters: &Arc<[AdapterUse]>,
    ) -> Option<KeptInfo> {
        let n_pages = self.pages_of(tokens.len() as u64);
        let is_free = self.blocks.total() - self.blocks.n_running() >= n_pages;
        let fits = tokens.len() as u64 <= u64::from(self.spec.max_positions);
        if tokens.is_empty() || !fits || !is_free || !self.may_pin() {
            return None;
        }
        let slot = self.take_kept_slot(owner)?;
        self.make_room(n_pages, None);
        let Some(blocks) = self.blocks.take(n_pages, Holder::Running) else {
            self.slots.give_back(slot.0);
            return None;
        };
        let (opened, request) = (blocks.clone(), "kept".into());
        self.ops.push(SeqOp::Open { slot, blocks: opened, sampler: None, request });
        self.ops.extend(SeqOp::adapt(slot, adapters));
        let prompt = Prompt { tokens: &tokens, space };
        let origin = Origin::default();
        // It is pinned while its state is filled.
        let (filled, pinned) = (false, true);
        let new = NewKept { slot, blocks, prompt, owner, origin, filled, pinned };
        let id = self.kept.insert(new);
        Some(KeptInfo { id, slot, tokens })
    }

    /// The stages hold the state of a sequence that was opened with [`Line::open_kept`], or have read that of one that was
    /// pinned.
    pub fn kept_filled(&mut self, id: KeptId) {
        let Some(kept) = self.kept.get_mut(id) else { return };
        if kept.spoilt {
            return self.evict(id);
        }
        kept.filled = true;
        self.kept.tree.changes += 1;
        self.unpin(id);
    }

    /// Whether one more state may be pinned: no more than have slots beside all that may run, so that every other
    /// slot can be had for a sequence.
    fn may_pin(&self) -> bool {
        let pinned = self.kept.iter().filter(|kept| kept.pinned).count();
        pinned < self.spec.n_kept as usize
    }

    /// Pins a kept sequence. Returns whether it was there, not pinned before, and may be.
    pub fn pin(&mut self, id: KeptId) -> bool {
        self.may_pin() && self.set_pinned(id, true)
    }

    /// Ends the pin of a state.
    pub fn unpin(&mut self, id: KeptId) {
        self.set_pinned(id, false);
    }

    /// Pages of a pinned sequence count as those of a running one: other sequences cannot have them.
    fn set_pinned(&mut self, id: KeptId, pinned: bool) -> bool {
        let Some(kept) = self.kept.get_mut(id).filter(|kept| kept.pinned != pinned) else {
            return false;
        };
        kept.pinned = pinned;
        let (from, to) =
            if pinned { (Holder::Kept, Holder::Running) } else { (Holder::Running, Holder::Kept) };
        for &block in &kept.blocks {
            self.blocks.share(block, to);
            self.blocks.give_back(block, from);
        }
        true
    }

    /// The kept sequence of a request that ended.
    pub fn kept_of(&self, request: RequestId) -> Option<KeptInfo> {
        let of = self.kept.iter().find(|kept| kept.filled && kept.request == Some(request));
        of.map(|kept| self.kept.info(kept))
    }
}
