//! Compiled grammars. A grammar is compiled once for all answers that its owner holds to it.
//!
//! An owner's grammars are its own. The result of compiling follows from the text alone, so that another owner's would
//! do as well. But the time of an answer's first token would tell a guesser that another client has sent exactly this
//! text, and texts of grammars hold names and choices out of other people's data.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::Matcher;

use super::ConstraintError;

/// Compiled grammars that are kept.
pub const MAX_COMPILED: usize = 32;

/// Bytes of their texts. A compiled grammar takes some sixty times as much: these are 64 MiB.
const MAX_COMPILED_BYTES: usize = 1 << 20;

type Name = [u8; 32];
type Slot = Arc<OnceLock<Result<Mutex<Matcher>, ConstraintError>>>;

/// The compiled grammars that were used last.
#[derive(Default)]
pub(super) struct Compiled {
    all: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_name: BTreeMap<Name, Entry>,
    uses: u64,
    /// Number of compilations so far.
    compiled: u64,
}

struct Entry {
    owner: u64,
    bytes: usize,
    last_use: u64,
    slot: Slot,
}

impl Compiled {
    /// A matcher at the beginning of a grammar. A caller that asks for a grammar in compilation waits for it.
    pub fn matcher(
        &self,
        owner: u64,
        grammar: &str,
        compile: impl FnOnce() -> Result<Matcher, ConstraintError>,
    ) -> Result<Matcher, ConstraintError> {
        let slot = self.slot(owner, grammar);
        let mut is_new = false;
        let made = slot.get_or_init(|| {
            is_new = true;
            compile().map(Mutex::new)
        });
        if is_new {
            self.lock().compiled += 1;
        }
        // A deep copy: how much of its limits one answer has used up is nothing to another.
        let copy =
            |m: &Mutex<Matcher>| m.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        made.as_ref().map(copy).map_err(Clone::clone)
    }

    /// Number of compilations so far.
    pub fn n_compiled(&self) -> u64 {
        self.lock().compiled
    }

    fn slot(&self, owner: u64, grammar: &str) -> Slot {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&owner.to_le_bytes());
        hasher.update(grammar.as_bytes());
        let name = *hasher.finalize().as_bytes();
        let mut kept = self.lock();
        kept.uses += 1;
        let now = kept.uses;
        let bytes = grammar.len();
        let new = || Entry { owner, bytes, last_use: now, slot: Slot::default() };
        let entry = kept.by_name.entry(name).or_insert_with(new);
        entry.last_use = now;
        let slot = entry.slot.clone();
        kept.limit(name);
        slot
    }

    /// Bytes of texts whose grammars are kept, in all and of one owner.
    #[cfg(test)]
    fn bytes(&self, owner: u64) -> (usize, usize) {
        let kept = self.lock();
        let of = |entry: &Entry| if entry.owner == owner { entry.bytes } else { 0 };
        (kept.by_name.values().map(|entry| entry.bytes).sum(), kept.by_name.values().map(of).sum())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Lets go of grammars until there are no more than may be: of the owner who has the greatest share of places or of
    /// bytes, the one that was used longest ago. `but` stays.
    fn limit(&mut self, but: Name) {
        loop {
            let mut held: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
            for entry in self.by_name.values() {
                let (n, bytes) = held.entry(entry.owner).or_default();
                (*n, *bytes) = (*n + 1, *bytes + entry.bytes);
            }
            let is_full = self.by_name.len() > MAX_COMPILED
                || held.values().map(|(_, bytes)| bytes).sum::<usize>() > MAX_COMPILED_BYTES;
            let share = |owner: &u64| {
                held.get(owner).map(|(n, bytes)| {
                    (n * MAX_COMPILED_BYTES).max(bytes.saturating_mul(MAX_COMPILED))
                })
            };
            let may_go = self.by_name.iter().filter(|(name, _)| **name != but);
            let rank =
                |(_, entry): &(&Name, &Entry)| (share(&entry.owner), Reverse(entry.last_use));
            let next = may_go.max_by_key(rank).map(|(name, _)| *name).filter(|_| is_full);
            let Some(next) = next else { return };
            self.by_name.remove(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_in_bytes_and_each_owner_pays_for_itself() {
        let compiled = Compiled::default();
        let grammar =
            |n: usize, bytes: usize| n.to_string() + &" ".repeat(bytes - n.to_string().len());
        let ask = |owner, n, bytes| {
            let refused = || Err(ConstraintError::Grammar("none of these is one".to_owned()));
            assert!(compiled.matcher(owner, &grammar(n, bytes), refused).is_err());
        };
        ask(2, 0, 1000);
        // More than there are places, and more than there are bytes.
        (0..2 * MAX_COMPILED).for_each(|n| ask(1, n, 10));
        assert_eq!(compiled.lock().by_name.len(), MAX_COMPILED);
        (0..10).for_each(|n| ask(1, n, MAX_COMPILED_BYTES / 4));
        let (all, of_polite) = compiled.bytes(2);
        assert!(all <= MAX_COMPILED_BYTES && of_polite == 1000, "{all} {of_polite}");
        let before = compiled.n_compiled();
        ask(2, 0, 1000);
        assert_eq!(compiled.n_compiled(), before, "the other owner's is there still");
        ask(1, 99, 2 * MAX_COMPILED_BYTES);
        assert_eq!(compiled.lock().by_name.len(), 1, "one alone is always kept");
    }
}
