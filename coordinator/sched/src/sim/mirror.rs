//! The state of every simulated stage: slots, pages, lengths and contents. It applies ubatches as a real stage would,
//! refuses what one would refuse, and makes up the rows that the last stage returns.
//!
//! State is modelled in both ways that layers keep it. For attention there are the tokens that were written
//! into pages. For recurrent layers there are the tokens that a slot has taken in. The two are compared
//! when a sequence is read, but for windows of drafts. So a page that was given to two sequences is found, and so is a copy of the
//! wrong state.
//!
//! [`super::tokens`] decides which token is drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use brigade_engine::batch::{
    AdapterUse, PageId, Planes, RowOutput, RowValue, SampledToken, SamplerSetup, SeqOp, SeqPart,
    SlotId, TokenMark, UBatch, Want,
};
use brigade_spec::Prefixes;

use super::block::Block;
use super::rng::mix;
use super::tokens::{Chain, next_token};
use crate::LineSpec;
use crate::events::has_companion;

/// An open slot, as others see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenSequence<'a> {
    /// Seed of the sampler it was opened with, which names whose it is; kept copies have none.
    pub seed: Option<u64>,
    /// Tokens of its positions.
    pub tokens: &'a [u32],
}

#[derive(Debug)]
struct OpenSlot {
    seed: Option<u64>,
    /// Whether the sequence's draws need a companion.
    has_companion: bool,
    blocks: Vec<u32>,
    /// All it has absorbed: what a recurrent state stands for.
    tokens: Vec<u32>,
    /// The ubatch that a token was asked of and that is not back.
    awaiting: Option<u64>,
    /// A draw that found no mask: its token and position.
    put_off: Option<(u32, u32)>,
    /// LoRA adapters of its rows.
    adapters: Arc<[AdapterUse]>,
    /// Plane of the recurrent state.
    plane: SlotId,
    /// The position of a window's row at which the last token was drawn, and the token.
    drawn: Option<(usize, u32)>,
    /// Whether the sequence's drafts were wrong, and it has not been taken back yet.
    refuted: bool,
}

/// The stages' bookkeeping, checked.
#[derive(Debug)]
pub(super) struct Mirror {
    spec: LineSpec,
    open: BTreeMap<SlotId, OpenSlot>,
    /// Tokens that lie in each page that was ever written.
    pages: BTreeMap<u32, Vec<u32>>,
    /// Tokens that the recurrent state in each plane has taken in.
    planes: BTreeMap<SlotId, Vec<u32>>,
    next_id: u64,
    stop_every: u64,
    /// One in this many draws finds no mask; 0: none.
    late_every: u64,
    draws: u64,
    block: Block,
    /// Drafts of the block that were told.
    pub n_drafted: u64,
}

impl Mirror {
    pub fn new(spec: LineSpec, stop_every: u64, late_every: u64, block: Block) -> Self {
        Self {
            spec,
            open: BTreeMap::new(),
            pages: BTreeMap::new(),
            planes: BTreeMap::new(),
            next_id: 0,
            stop_every,
            late_every,
            draws: 0,
            block,
            n_drafted: 0,
        }
    }

    /// Whether the next draw finds no mask.
    fn is_late(&mut self) -> bool {
        self.draws += 1;
        self.late_every > 0 && mix(self.draws).is_multiple_of(self.late_every)
    }

    /// Draws a token that was put off, or puts it off once more.
    fn draw(&mut self, ubatch: u64, slot: SlotId) -> Result<RowOutput, String> {
        let is_late = self.is_late();
        // Windows that are of no use any more may still be on their way.
        let may = |open: &&mut OpenSlot| open.awaiting.is_none() || open.refuted;
        let open = self.open.get_mut(&slot).filter(may);
        let open = open.ok_or_else(|| format!("a draw of {slot:?}, which is not open or drawn"))?;
        let (id, pos) = open.put_off.ok_or_else(|| format!("no draw of {slot:?} was put off"))?;
        open.awaiting = Some(ubatch);
        if is_late {
            return Ok(RowOutput { slot, pos, value: RowValue::NotYet, mask_us: 300 });
        }
        open.put_off = None;
        let value = RowValue::Sampled(SampledToken { id, ..SampledToken::default() });
        Ok(RowOutput { slot, pos, value, mask_us: 0 })
    }

    pub fn n_open(&self) -> usize {
        self.open.len()
    }

    /// Applies a ubatch as it is sent (stages run them in this order) and returns its rows.
    pub fn apply(&mut self, ubatch: &UBatch) -> Result<Vec<RowOutput>, String> {
        ensure(ubatch.id == self.next_id, || {
            format!("ubatch {} after {}", ubatch.id, self.next_id)
        })?;
        self.next_id += 1;
        let rows = ubatch.n_rows();
        ensure(rows <= self.spec.max_rows as usize, || format!("{rows} rows in a ubatch"))?;
        let mut sources = BTreeSet::new();
        let (mut out, mut companion) = (Vec::new(), None);
        for op in &ubatch.ops {
            match op {
                SeqOp::Draw { slot } => out.push(self.draw(ubatch.id, *slot)?),
                op => self.apply_op(op, &mut sources)?,
            }
        }
        let mut seen = BTreeSet::new();
        for part in &ubatch.parts {
            ensure(seen.insert(part.slot), || format!("{:?} twice in a ubatch", part.slot))?;
            ensure(!part.tokens.is_empty(), || format!("empty part of {:?}", part.slot))?;
            self.apply_part(ubatch.id, part, &mut companion, &mut out)?;
        }
        ensure(companion.is_none(), || "a companion before no draw".to_string())?;
        Ok(out)
    }

    /// `ubatch` is back at the coordinator. Its slots may belong to others by now.
    pub fn returned(&mut self, ubatch: u64) {
        for slot in self.open.values_mut().filter(|slot| slot.awaiting == Some(ubatch)) {
            slot.awaiting = None;
        }
    }

    /// An open sequence that has computed nothing gets the state after `tokens`.
    pub fn put_back(&mut self, slot: SlotId, tokens: Vec<u32>) -> Result<(), String> {
        let per_page = self.spec.block_positions as usize;
        let open = self.open.get_mut(&slot);
        let open = open.ok_or_else(|| format!("a state for {slot:?}, which is not open"))?;
        ensure(open.tokens.is_empty(), || format!("a state for {slot:?}, which has one"))?;
        for (chunk, block) in tokens.chunks(per_page).zip(&open.blocks) {
            let mut page = chunk.to_vec();
            page.resize(per_page, u32::MAX);
            self.pages.insert(*block, page);
        }
        self.planes.insert(slot, tokens.clone());
        open.tokens = tokens;
        self.read_back(slot)
    }

    /// The open sequence in `slot`.
    pub fn sequence(&self, slot: SlotId) -> Option<OpenSequence<'_>> {
        self.open.get(&slot).map(OpenSlot::sequence)
    }

    /// All open sequences.
    pub fn sequences(&self) -> impl Iterator<Item = OpenSequence<'_>> {
        self.open.values().map(OpenSlot::sequence)
    }

    /// `sources`: sequences that were copied in this ubatch; the copy may have taken over their pages.
    fn apply_op(&mut self, op: &SeqOp, sources: &mut BTreeSet<SlotId>) -> Result<(), String> {
        self.block.follow(op, self.spec)?;
        match op {
            SeqOp::Open { slot, blocks, sampler, .. } => {
                self.open_slot(*slot, blocks, sampler.as_deref(), Vec::new())
            }
            SeqOp::Copy { src, dst, len, blocks, sampler, .. } => {
                let tokens = self.copied(*src, *len as usize, blocks)?;
                self.open_slot(*dst, blocks, sampler.as_deref(), tokens)?;
                let adapters = self.open[src].adapters.clone();
                self.open.entry(*dst).and_modify(|open| open.adapters = adapters);
                sources.insert(*src);
                self.read_back(*dst)
            }
            SeqOp::Close { slot } => {
                if !sources.remove(slot) {
                    self.read_back(*slot)?;
                }
                let closed = self.open.remove(slot);
                ensure(closed.is_some(), || format!("close of {slot:?}, which is not open"))
            }
            SeqOp::Grow { slot, blocks } => {
                let open = self.open.get_mut(slot);
                let open = open.ok_or_else(|| format!("pages for {slot:?}, which is not open"))?;
                open.blocks.extend(blocks.iter().map(|b| b.0));
                check_pages(*slot, &open.blocks, self.spec.n_blocks)
            }
            SeqOp::Adapt { slot, adapters } => {
                let open = self.open.get_mut(slot).filter(|open| open.tokens.is_empty());
                let open = open.ok_or_else(|| {
                    format!("adapters for {slot:?}, which is not open or has rows")
                })?;
                open.adapters = adapters.clone();
                Ok(())
            }
            SeqOp::Name { slot, .. } | SeqOp::Draft { slot } => {
                let is_open = self.open.contains_key(slot);
                ensure(is_open, || format!("{op:?} is about a sequence that is not open"))
            }
            SeqOp::Checkpoint { slot, len, mark, plane: Some(plane), .. } => {
                let there = self.planes.get(plane).filter(|some| some.len() == *len as usize);
                ensure(there.map(|some| TokenMark::of(some)) == Some(*mark), || {
                    format!(
                        "a checkpoint of {slot:?} at {len} in {plane:?}, which has another state"
                    )
                })
            }
            SeqOp::Checkpoint { slot, len, mark, plane: None, .. } => {
                self.read_back(*slot)?;
                let tokens = &self.open[slot].tokens;
                let whole = self.spec.prefixes == Prefixes::Whole;
                let there = tokens.get(..*len as usize).filter(|some| !whole || some == tokens);
                ensure(there.map(TokenMark::of) == Some(*mark), || {
                    format!("a checkpoint of {slot:?} at {len}, it has {}", tokens.len())
                })
            }
            SeqOp::Truncate { slot, len, planes } => self.truncate(*slot, *len as usize, *planes),
            SeqOp::Draw { .. } => Err(format!("unexpected {op:?}")),
        }
    }

    fn open_slot(
        &mut self,
        slot: SlotId,
        blocks: &[PageId],
        sampler: Option<&SamplerSetup>,
        tokens: Vec<u32>,
    ) -> Result<(), String> {
        let n_slots = self.spec.n_slots + self.spec.n_kept;
        ensure(slot.0 < n_slots, || format!("open of {slot:?}: no such slot"))?;
        let blocks: Vec<u32> = blocks.iter().map(|b| b.0).collect();
        check_pages(slot, &blocks, self.spec.n_blocks)?;
        let seed = sampler.map(|sampler| sampler.seed);
        let has_companion = sampler.is_some_and(has_companion);
        let adapters = Arc::from([]);
        let (awaiting, put_off) = (None, None);
        let (plane, drawn, refuted) = (slot, None, false);
        self.planes.insert(slot, tokens.clone());
        let fresh = OpenSlot {
            seed,
            has_companion,
            blocks,
            tokens,
            awaiting,
            put_off,
            adapters,
            plane,
            drawn,
            refuted,
        };
        ensure(self.open.insert(slot, fresh).is_none(), || format!("{slot:?} opened twice"))
    }

    /// A sequence is taken back to its first `len` positions, whose recurrent state is in one of `planes` and is to be in the
    /// other.
    fn truncate(&mut self, name: SlotId, len: usize, planes: Option<Planes>) -> Result<(), String> {
        let Some(slot) = self.open.get_mut(&name) else {
            return Err(format!("{name:?} is taken back and not open"));
        };
        let have = slot.tokens.len();
        ensure(len <= have, || format!("{name:?} is taken back to {len} of {have} positions"))?;
        slot.tokens.truncate(len);
        // Its rows in flight are stale.
        (slot.drawn, slot.refuted, slot.awaiting) = (None, false, None);
        slot.put_off = slot.put_off.filter(|(_, pos)| (*pos as usize) < len);
        ensure(planes.is_some() == (self.spec.prefixes == Prefixes::Whole), || {
            format!("{name:?} is taken back to the state of {planes:?}")
        })?;
        if let Some(planes) = planes {
            slot.plane = planes.to;
            let tokens = slot.tokens.clone();
            self.check_planes(name, planes)?;
            self.planes.insert(planes.to, tokens);
        }
        self.read_back(name)
    }

    /// Checks the planes of a part: the one that is read has the sequence's state, and no other sequence uses the one
    /// that is written.
    fn check_planes(&self, name: SlotId, planes: Planes) -> Result<(), String> {
        let tokens = &self.open[&name].tokens;
        ensure(self.planes.get(&planes.from) == Some(tokens), || {
            format!("{:?} has not the state of {name:?} at {}", planes.from, tokens.len())
        })?;
        let others = self.open.iter().filter(|(other, _)| **other != name);
        let mut taken = others.flat_map(|(other, open)| [*other, open.plane]);
        let n_slots = self.spec.n_slots + self.spec.n_kept;
        ensure(planes.to.0 < n_slots && !taken.any(|plane| plane == planes.to), || {
            format!("{name:?} writes its state to {:?}", planes.to)
        })
    }

    /// Results for the rows of a window, from the tokens of their sequence, up to the first wrong draft.
    fn verify(&mut self, part: &SeqPart, known: usize, late: &[bool], out: &mut Vec<RowOutput>) {
        let (name, first) = (part.slot, part.pos as usize + known);
        let Some(slot) = self.open.get_mut(&name) else { return };
        let mut put = |pos: usize, value| {
            out.push(RowOutput { slot: name, pos: pos as u32, value, mask_us: 0 });
        };
        let is_wrong = |(pos, drawn)| pos == first && drawn != slot.tokens[first];
        if slot.refuted || slot.drawn.take().is_some_and(is_wrong) {
            slot.refuted = true;
            return put(first, RowValue::Refuted);
        }
        let mut chain = Chain::of(&slot.tokens[..first], &slot.adapters);
        for pos in first..slot.tokens.len() {
            chain.push(slot.tokens[pos]);
            let id = chain.next(self.stop_every);
            if late[pos - first] {
                slot.put_off = (late.len() == 1).then_some((id, pos as u32));
                slot.refuted = true;
                return put(pos, RowValue::NotYet);
            }
            let token = SampledToken { id, ..SampledToken::default() };
            put(pos, RowValue::Sampled(token));
            match slot.tokens.get(pos + 1) {
                None => slot.drawn = Some((pos + 1, id)),
                Some(next) if *next == id => {}
                Some(_) => {
                    slot.refuted = true;
                    break;
                }
            }
        }
    }

    /// Drafts of the model's own block behind the last token that was drawn of a window, if one was. `room`: the
    /// sequence's limit of positions.
    fn draft(&mut self, part: &SeqPart, room: usize, out: &mut [RowOutput]) -> Result<(), String> {
        self.block.check(part, self.spec, &self.open[&part.slot].tokens, room)?;
        let Some(RowOutput { pos, value: RowValue::Sampled(token), .. }) = out.last_mut() else {
            return Ok(());
        };
        let before = &self.open[&part.slot].tokens[..=*pos as usize];
        token.drafted = self.block.draft(part, before, token.id);
        self.n_drafted += token.drafted.len() as u64;
        Ok(())
    }

    /// Copies the first `len` positions of `src` to pages `to`, page by page, and returns what a
    /// recurrent state copied from it stands for.
    fn copied(&mut self, src: SlotId, len: usize, to: &[PageId]) -> Result<Vec<u32>, String> {
        self.read_back(src)?;
        let source = &self.open[&src];
        let have = source.tokens.len();
        ensure(len <= have, || format!("{len} of {have} positions of {src:?} copied"))?;
        ensure(len == have || self.spec.prefixes == Prefixes::All, || {
            format!("{src:?} has a state at {have} only, not at {len}")
        })?;
        let n_pages = len.div_ceil(self.spec.block_positions as usize);
        ensure(to.len() >= n_pages, || format!("{} pages for {len} positions", to.len()))?;
        for (&from, to) in source.blocks[..n_pages].iter().zip(to) {
            if from != to.0 {
                self.pages.insert(to.0, self.pages[&from].clone());
            }
        }
        Ok(source.tokens[..len].to_vec())
    }

    /// Checks that the pages of an open sequence hold the tokens that it has taken in.
    fn read_back(&self, name: SlotId) -> Result<(), String> {
        let Some(slot) = self.open.get(&name) else {
            return Err(format!("{name:?} is not open"));
        };
        if self.spec.prefixes == Prefixes::Whole {
            ensure(self.planes.get(&slot.plane) == Some(&slot.tokens), || {
                format!("{:?} has not the state of {name:?}", slot.plane)
            })?;
        }
        let per_page = self.spec.block_positions as usize;
        for (i, (tokens, block)) in slot.tokens.chunks(per_page).zip(&slot.blocks).enumerate() {
            let held = self.pages.get(block).map_or(&[][..], |page| &page[..tokens.len()]);
            ensure(held == tokens, || {
                format!("page {block}, number {i} of {name:?}, holds another's positions")
            })?;
        }
        Ok(())
    }

    /// For each draw of a part whether its mask is late.
    fn late_draws(&mut self, part: &SeqPart, known: usize) -> Vec<bool> {
        let n_draws = match part.want {
            Want::Verify => part.tokens.len() - known,
            Want::Sample => 1,
            _ => 0,
        };
        (0..n_draws).map(|_| self.is_late()).collect()
    }

    /// `companion`: the tokens that the companion before this part has absorbed, and its adapters.
    fn apply_part(
        &mut self,
        ubatch: u64,
        part: &SeqPart,
        companion: &mut Option<(Vec<u32>, Arc<[AdapterUse]>)>,
        out: &mut Vec<RowOutput>,
    ) -> Result<(), String> {
        let name = part.slot;
        let per_page = self.spec.block_positions as usize;
        let planes = part.ahead.and_then(|ahead| ahead.planes);
        if let Some(planes) = planes {
            ensure(self.open.contains_key(&name), || format!("rows of {name:?}, not open"))?;
            self.check_planes(name, planes)?;
        }
        let known = part.ahead.map_or(0, |ahead| ahead.known as usize);
        let late = self.late_draws(part, known);
        let Some(slot) = self.open.get_mut(&name) else {
            return Err(format!("rows of {name:?}, which is not open"));
        };
        ensure(slot.awaiting.is_none() || part.want == Want::Verify, || {
            format!("{name:?} is in two ubatches while it decodes")
        })?;
        // Windows that were on their way are of no use any more.
        ensure(slot.put_off.is_none() || slot.refuted, || {
            format!("rows of {name:?}, whose draw was put off")
        })?;
        ensure(part.pos as usize == slot.tokens.len(), || {
            format!("{name:?} continues at {}, it has {} positions", part.pos, slot.tokens.len())
        })?;
        let (end, room) = (slot.tokens.len() + part.tokens.len(), slot.blocks.len() * per_page);
        ensure(end <= room, || format!("{name:?} outgrew its {room} positions"))?;
        for &token in &part.tokens {
            let pos = slot.tokens.len();
            let page = self.pages.entry(slot.blocks[pos / per_page]);
            page.or_insert_with(|| vec![u32::MAX; per_page])[pos % per_page] = token;
            slot.tokens.push(token);
            if part.want == Want::Logits {
                let value = RowValue::Logits(vec![f32::from(token as u16)]);
                out.push(RowOutput { slot: name, pos: pos as u32, value, mask_us: 0 });
            }
        }
        slot.plane = planes.map_or(slot.plane, |planes| planes.to);
        self.planes.insert(slot.plane, slot.tokens.clone());
        let before = companion.take();
        let has_companion = part.want == Want::Sample && slot.has_companion;
        ensure(before.is_some() == has_companion, || {
            format!("{name:?} wants a companion: {has_companion}, or has one before it")
        })?;
        if part.want == Want::Verify {
            slot.awaiting = Some(ubatch);
            self.verify(part, known, &late, out);
            self.draft(part, room, out)?;
        } else if part.want == Want::Companion {
            slot.awaiting = Some(ubatch);
            *companion = Some((slot.tokens.clone(), slot.adapters.clone()));
            self.read_back(name)?;
        } else if part.want == Want::Sample {
            slot.awaiting = Some(ubatch);
            let (before, its) = before.unwrap_or_else(|| (Vec::new(), slot.adapters.clone()));
            ensure(its == slot.adapters, || format!("{name:?}'s companion has other adapters"))?;
            let both = [slot.tokens.as_slice(), &before].concat();
            let id = next_token(&both, &slot.adapters, self.stop_every);
            let (pos, token) = (end as u32 - 1, SampledToken { id, ..SampledToken::default() });
            slot.put_off = late[0].then_some((id, pos));
            let value = if late[0] { RowValue::NotYet } else { RowValue::Sampled(token) };
            out.push(RowOutput { slot: name, pos, value, mask_us: 0 });
            self.read_back(name)?;
        }
        Ok(())
    }
}

/// Checks that such pages exist, and that none is named twice.
fn check_pages(slot: SlotId, blocks: &[u32], n_blocks: u32) -> Result<(), String> {
    let beyond = blocks.iter().find(|block| **block >= n_blocks);
    ensure(beyond.is_none(), || format!("{slot:?} has page {beyond:?}, which there is not"))?;
    let distinct: BTreeSet<_> = blocks.iter().collect();
    ensure(distinct.len() == blocks.len(), || format!("{slot:?} has a page twice"))
}

impl OpenSlot {
    fn sequence(&self) -> OpenSequence<'_> {
        OpenSequence { seed: self.seed, tokens: &self.tokens }
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
