//! What every stage keeps: slots, pages, lengths. Applies ubatches as a stage would and refuses what
//! a stage would refuse, and makes up the rows the last stage returns.
//!
//! A made-up token is a hash of all tokens before it, so a client that knows its prompt can tell
//! whether the line was fed the right tokens in the right order.

use std::collections::{BTreeMap, BTreeSet};

use brigade_engine::batch::{
    RowOutput, RowValue, SampledToken, SeqOp, SeqPart, SlotId, UBatch, Want,
};

use super::rng::mix;
use crate::sched::LineSpec;

/// The token that ends a sequence.
pub(super) const STOP_TOKEN: u32 = 0;

/// Made-up tokens are `1..VOCAB`, or [`STOP_TOKEN`] once in a workload's `stop_every`.
const VOCAB: u64 = 32_000;

/// The token after `tokens`.
pub(super) fn next_token(tokens: &[u32], stop_every: u64) -> u32 {
    let hash = tokens.iter().fold(0x5eed, |hash, &t| mix(hash ^ u64::from(t)));
    if stop_every > 0 && mix(hash).is_multiple_of(stop_every) {
        return STOP_TOKEN;
    }
    (1 + hash % (VOCAB - 1)) as u32
}

#[derive(Debug)]
struct OpenSlot {
    blocks: Vec<u32>,
    tokens: Vec<u32>,
    /// The ubatch that a token was asked of and that is not back.
    awaiting: Option<u64>,
}

/// The stages' bookkeeping, checked.
#[derive(Debug)]
pub(super) struct Mirror {
    spec: LineSpec,
    open: BTreeMap<SlotId, OpenSlot>,
    owned: BTreeSet<u32>,
    next_id: u64,
    stop_every: u64,
}

impl Mirror {
    pub fn new(spec: LineSpec, stop_every: u64) -> Self {
        Self { spec, open: BTreeMap::new(), owned: BTreeSet::new(), next_id: 0, stop_every }
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
        for op in &ubatch.ops {
            self.apply_op(op)?;
        }
        let mut seen = BTreeSet::new();
        let mut out = Vec::new();
        for part in &ubatch.parts {
            ensure(seen.insert(part.slot), || format!("{:?} twice in a ubatch", part.slot))?;
            ensure(!part.tokens.is_empty(), || format!("empty part of {:?}", part.slot))?;
            self.apply_part(ubatch.id, part, &mut out)?;
        }
        Ok(out)
    }

    /// `ubatch` is back at the coordinator. Its slots may belong to others by now.
    pub fn returned(&mut self, ubatch: u64) {
        for slot in self.open.values_mut().filter(|slot| slot.awaiting == Some(ubatch)) {
            slot.awaiting = None;
        }
    }

    /// Tokens of the open sequence in `slot`; empty if there is none.
    pub fn tokens(&self, slot: SlotId) -> &[u32] {
        self.open.get(&slot).map_or(&[], |open| &open.tokens)
    }

    /// Tokens of each open sequence.
    pub fn sequences(&self) -> impl Iterator<Item = &[u32]> {
        self.open.values().map(|slot| slot.tokens.as_slice())
    }

    fn apply_op(&mut self, op: &SeqOp) -> Result<(), String> {
        match op {
            SeqOp::Open { slot, blocks, .. } => {
                ensure(slot.0 < self.spec.n_slots, || format!("open of {slot:?}: no such slot"))?;
                for block in blocks {
                    ensure(block.0 < self.spec.n_blocks, || format!("no such page {block:?}"))?;
                    ensure(self.owned.insert(block.0), || format!("{block:?} has two owners"))?;
                }
                let blocks = blocks.iter().map(|b| b.0).collect();
                let fresh = OpenSlot { blocks, tokens: Vec::new(), awaiting: None };
                ensure(self.open.insert(*slot, fresh).is_none(), || {
                    format!("{slot:?} opened twice")
                })
            }
            SeqOp::Close { slot } => {
                let Some(closed) = self.open.remove(slot) else {
                    return Err(format!("close of {slot:?}, which is not open"));
                };
                for block in closed.blocks {
                    self.owned.remove(&block);
                }
                Ok(())
            }
            SeqOp::Copy { .. } | SeqOp::Truncate { .. } => Err(format!("unexpected {op:?}")),
        }
    }

    fn apply_part(
        &mut self,
        ubatch: u64,
        part: &SeqPart,
        out: &mut Vec<RowOutput>,
    ) -> Result<(), String> {
        let name = part.slot;
        let Some(slot) = self.open.get_mut(&name) else {
            return Err(format!("rows of {name:?}, which is not open"));
        };
        ensure(slot.awaiting.is_none(), || {
            format!("{name:?} is in two ubatches while it decodes")
        })?;
        ensure(part.pos as usize == slot.tokens.len(), || {
            format!("{name:?} continues at {}, it has {} positions", part.pos, slot.tokens.len())
        })?;
        let room = slot.blocks.len() * self.spec.block_positions as usize;
        for &token in &part.tokens {
            slot.tokens.push(token);
            if part.want == Want::Logits {
                let value = RowValue::Logits(vec![f32::from(token as u16)]);
                out.push(RowOutput { slot: name, pos: slot.tokens.len() as u32 - 1, value });
            }
        }
        ensure(slot.tokens.len() <= room, || format!("{name:?} outgrew its {room} positions"))?;
        if part.want == Want::Sample {
            slot.awaiting = Some(ubatch);
            let id = next_token(&slot.tokens, self.stop_every);
            let value = RowValue::Sampled(SampledToken { id, logprob: None, top: Vec::new() });
            out.push(RowOutput { slot: name, pos: slot.tokens.len() as u32 - 1, value });
        }
        Ok(())
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
