//! Kept prompt states as operators and owners see them: sizes, ages and owners, but never texts or tokens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// States that are shown of each owner, the largest.
const SHOWN_OF_EACH: usize = 10;

/// One kept state of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedState {
    /// Tokens that it stands for.
    pub tokens: u32,
    /// Bytes on all stages together, those among them that others of its owner's share.
    pub bytes: u64,
    /// Seconds since it was last used, or made.
    pub idle_seconds: u64,
    /// Requests that began with it.
    pub hits: u64,
    /// Whether the workers have records of it too.
    pub recorded: bool,
}

/// The kept states of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedOwner {
    /// Name of the key.
    pub owner: String,
    /// How many states, of which some are not among `largest`.
    pub states: u32,
    /// Bytes on all stages together, each counted once.
    pub bytes: u64,
    /// Requests that began with one of them.
    pub hits: u64,
    /// The largest states of the owner, largest first.
    pub largest: Vec<CachedState>,
}

/// The kept states of all owners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cached(pub BTreeMap<u64, CachedOwner>);

impl Cached {
    /// The kept states of one owner; empty if there are none.
    pub fn of(&self, owner: u64) -> CachedOwner {
        self.0.get(&owner).cloned().unwrap_or_default()
    }

    /// Adds a state to its owner's.
    pub(crate) fn add(&mut self, owner: u64, state: CachedState) {
        let largest = &mut self.0.entry(owner).or_default().largest;
        let at = largest
            .partition_point(|other| (other.bytes, other.tokens) >= (state.bytes, state.tokens));
        largest.insert(at, state);
        largest.truncate(SHOWN_OF_EACH);
    }
}

/// Counts of states that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// States that were in memory.
    pub states: u32,
    /// States that stay because a sequence reads them.
    pub left: u32,
    /// Whether workers had records, which are dropped too.
    pub records: bool,
}

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { states, left, records } = self;
        write!(f, "{states} kept states are dropped")?;
        if *records {
            write!(f, ", with their records on all workers that are connected")?;
        }
        if *left > 0 {
            write!(f, "; {left} are being read and stay: ask again")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_an_owner_are_shown() {
        let mut cached = Cached::default();
        for tokens in [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8] {
            let state = CachedState {
                tokens,
                bytes: u64::from(tokens) * 10,
                idle_seconds: 0,
                hits: 0,
                recorded: false,
            };
            cached.add(7, state);
        }
        let shown: Vec<u32> = cached.of(7).largest.iter().map(|state| state.tokens).collect();
        assert_eq!(shown, [9, 8, 6, 5, 5, 5, 4, 3, 3, 2]);
        assert_eq!(cached.of(8), CachedOwner::default());
    }
}
