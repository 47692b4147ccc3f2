//! The list of kept states for operators, who may drop them.

use std::collections::BTreeMap;

use crate::Scheduler;
use crate::events::{KeptId, Micros};
use crate::line::Line;

/// A kept state, without its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenState {
    /// The state's id.
    pub id: KeptId,
    /// The number of its owner.
    pub owner: u64,
    /// Tokens that it stands for.
    pub tokens: u32,
    /// KV pages that it holds, those that it shares among them.
    pub pages: u32,
    /// Microseconds since it was last used, or made.
    pub idle_us: Micros,
    /// Requests that began with it.
    pub hits: u64,
}

/// The totals of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenOwner {
    /// The owner's number.
    pub owner: u64,
    /// Number of kept states.
    pub states: u32,
    /// KV pages that they hold, each counted once.
    pub pages: u32,
    /// Requests that began with one of them.
    pub hits: u64,
}

/// All kept states of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Totals by the owner's number.
    pub owners: Vec<SeenOwner>,
    /// States, the oldest first.
    pub states: Vec<SeenState>,
}

impl Line {
    fn seen(&self, now: Micros) -> Seen {
        // The last owner for which each page was counted.
        let mut counted: Vec<Option<u64>> = vec![None; self.blocks.total() as usize];
        let mut by_owner: BTreeMap<u64, Vec<&crate::memory::prefix::kept::Kept>> = BTreeMap::new();
        for kept in self.kept.iter().filter(|kept| kept.filled) {
            by_owner.entry(kept.owner).or_default().push(kept);
        }
        let mut seen = Seen::default();
        for (owner, states) in by_owner {
            let mut all = SeenOwner { owner, ..SeenOwner::default() };
            for kept in states {
                let new = kept
                    .blocks
                    .iter()
                    .filter(|block| counted[block.0 as usize].replace(owner) != Some(owner));
                all.pages += new.count() as u32;
                all.states += 1;
                all.hits += kept.hits;
                seen.states.push(SeenState {
                    id: kept.id,
                    owner,
                    tokens: self.kept.tree.end(kept.node),
                    pages: kept.blocks.len() as u32,
                    idle_us: now.saturating_sub(kept.used_at),
                    hits: kept.hits,
                });
            }
            seen.owners.push(all);
        }
        seen.states.sort_unstable_by_key(|state| state.id);
        seen
    }

    /// Drops the kept states of an owner, or of all; pinned ones stay.
    pub fn forget(&mut self, owner: Option<u64>) {
        let is_theirs = |whose: u64| owner.is_none_or(|owner| owner == whose);
        let gone = self.kept.iter().filter(|kept| !kept.pinned && is_theirs(kept.owner));
        let gone: Vec<KeptId> = gone.map(|kept| kept.id).collect();
        self.kept.counts.dropped += gone.len() as u64;
        gone.into_iter().for_each(|id| self.evict(id));
    }
}

impl Scheduler {
    /// Lists all kept states of the line.
    pub fn seen(&self, now: Micros) -> Seen {
        self.line.as_ref().map(|line| line.seen(now)).unwrap_or_default()
    }
}
