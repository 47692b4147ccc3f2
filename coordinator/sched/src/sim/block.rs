//! The model's own drafting block on the simulated last stage. Its accuracy is given, and falls with the depth of a
//! draft. It checks requests to it, and that its drafts are used only where they belong.

use std::collections::BTreeMap;

use brigade_engine::batch::{DraftedToken, MAX_DRAFTED, SeqOp, SeqPart, SlotId, Want};

use super::rng::mix;
use super::tokens::{Chain, STOP_TOKEN, VOCAB};
use crate::LineSpec;

/// How much less often each further draft is right.
const FARTHER: f64 = 0.95;

/// Runs of a sequence that are remembered: more than there can be windows that drafts of them are in.
const MAX_RUNS: usize = 128;

/// The simulated block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// How often the first draft behind a drawn token is right.
    odds: f64,
    seed: u64,
    stop_every: u64,
    /// The block's drafts for each sequence that it follows: the position where a run begins, and the tokens.
    runs: BTreeMap<SlotId, Vec<(usize, Vec<u32>)>>,
    /// Whether all drafts are its own.
    alone: bool,
}

impl Block {
    /// A block whose drafts are right with these odds. With `alone`, there is no other drafter.
    pub fn new(odds: f64, seed: u64, stop_every: u64, alone: bool) -> Self {
        Self { odds, seed, stop_every, runs: BTreeMap::new(), alone }
    }

    /// Follows what happens to sequences.
    pub fn follow(&mut self, op: &SeqOp, spec: LineSpec) -> Result<(), String> {
        match op {
            SeqOp::Open { slot, .. } | SeqOp::Close { slot } => drop(self.runs.remove(slot)),
            SeqOp::Copy { dst, .. } => drop(self.runs.remove(dst)),
            SeqOp::Draft { slot } => {
                let is_first = self.runs.insert(*slot, Vec::new()).is_none();
                return (is_first && spec.own_drafts > 0)
                    .then_some(())
                    .ok_or_else(|| format!("the block is to read {slot:?}, and cannot, or does"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks the request that comes with a part, and that its drafts are the block's own. `tokens`: all tokens of
    /// its sequence, the part's among them. `room`: the sequence's limit.
    pub fn check(
        &self,
        part: &SeqPart,
        spec: LineSpec,
        tokens: &[u32],
        room: usize,
    ) -> Result<(), String> {
        let asked = part.ahead.map_or(0, |ahead| ahead.drafts);
        let reads = self.runs.get(&part.slot);
        let is_bounded = asked as usize <= MAX_DRAFTED && asked <= spec.own_drafts;
        // The token that is drawn stands before them.
        let fits = tokens.len() + asked as usize <= room.min(spec.max_positions as usize);
        if asked > 0 && !(reads.is_some() && is_bounded && fits && part.want == Want::Verify) {
            return Err(format!("{asked} drafts are asked for behind {part:?}"));
        }
        if part.want != Want::Verify || !self.alone {
            return Ok(());
        }
        let known = part.ahead.map_or(0, |ahead| ahead.known as usize);
        let first = part.pos as usize + known + 1;
        for pos in first..tokens.len() {
            let told = |(begin, run): &(usize, Vec<u32>)| {
                let there = tokens[..=pos].get(*begin..);
                there.is_some_and(|there| !there.is_empty() && run.starts_with(there))
            };
            if !reads.is_some_and(|runs| runs.iter().any(told)) {
                return Err(format!("nobody drafted the token at {pos} of {:?}", part.slot));
            }
        }
        Ok(())
    }

    /// The block's drafts behind the `drawn` token that follows the tokens `before`.
    pub fn draft(&mut self, part: &SeqPart, before: &[u32], drawn: u32) -> Vec<DraftedToken> {
        let asked = part.ahead.map_or(0, |ahead| ahead.drafts);
        let Some(runs) = self.runs.get_mut(&part.slot) else { return Vec::new() };
        let mut tokens = [before, &[drawn]].concat();
        let begin = tokens.len();
        let mut odds = self.odds;
        let mut chain = Chain::of(&tokens, &[]);
        while tokens.len() < begin + asked as usize && tokens.last() != Some(&STOP_TOKEN) {
            let right = chain.next(self.stop_every);
            let hash = mix(self.seed ^ mix(tokens.len() as u64 ^ u64::from(right) << 32));
            let is_right = (hash as f64) < odds * u64::MAX as f64;
            let wrong = 1 + (u64::from(right) % (VOCAB - 1)) as u32;
            let token = if is_right { right } else { wrong };
            chain.push(token);
            tokens.push(token);
            odds *= FARTHER;
        }
        runs.push((begin, tokens[begin..].to_vec()));
        if runs.len() > MAX_RUNS {
            runs.remove(0);
        }
        let odds = self.odds as f32;
        tokens[begin..].iter().map(|id| DraftedToken { id: *id, odds }).collect()
    }
}
