//! Compiled grammars. A grammar is compiled once for all answers that its owner holds to it.
//!
//! An owner's grammars are its own. What comes out of compiling follows from the text alone, so that a neighbour's
//! would do as well. But the time of an answer's first token would tell a guesser that somebody has sent exactly this
//! text, and texts of grammars hold names and choices out of other people's data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::Matcher;

use super::ConstraintError;

/// Compiled grammars that are kept; the one that was used longest ago goes first.
pub const MAX_COMPILED: usize = 32;

type Name = [u8; 32];
type Slot = Arc<OnceLock<Result<Mutex<Matcher>, ConstraintError>>>;

/// Those that were used last.
#[derive(Default)]
pub(super) struct Compiled {
    all: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    by_name: BTreeMap<Name, (u64, Slot)>,
    uses: u64,
    /// How often one was compiled.
    compiled: u64,
}

impl Compiled {
    /// A matcher at the beginning of a grammar. Who asks for one that is being compiled waits for it.
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

    /// How many were compiled so far.
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
        let slot = kept.by_name.entry(name).or_default();
        slot.0 = now;
        let slot = slot.1.clone();
        if kept.by_name.len() > MAX_COMPILED {
            let oldest = kept.by_name.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(name, _)| *name) {
                kept.by_name.remove(&oldest);
            }
        }
        slot
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
