//! Parting copies: the states of sequences that a stage leaves behind when its line is taken down as planned.
//!
//! The last ubatch of the line names a position of each sequence (`SeqOp::Checkpoint` with `parting`). Nothing is
//! copied at that moment: the states stay in place while the stage is at rest and its future is not known yet. They
//! are copied when the stage makes room for another one, on the executor's thread. Where the stage stays, only its
//! recurrent states are copied, since its pages stay in place. The workers of the next line fetch them from here,
//! until the coordinator says that all sequences have their states.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brigade_engine::batch::CopyName;

use super::store::{Budget, Store};
use crate::machine::ledger::{Held, Ledger};

/// How long a stage may take to copy states: sequences that were not begun by then are computed again.
pub const COPY_WITHIN: Duration = Duration::from_secs(3);

/// Parting copies on a worker.
#[derive(Debug)]
pub struct Parting {
    /// Whole states, of layers whose stage was taken apart.
    pub whole: Arc<Store>,
    /// Recurrent states of the stage that stays.
    pub rests: Arc<Store>,
    budget: Arc<Budget>,
    /// The memory that was granted for them.
    held: Mutex<Option<Held>>,
    /// A ubatch has named positions, and it has not been said yet that the copies are not needed any more.
    awaited: AtomicBool,
}

/// The way in which a stage keeps its sequences' states when it is reset.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The store for the copies.
    pub parting: Arc<Parting>,
    /// Whether the stage is used unchanged on the next line.
    pub stays: bool,
}

impl Default for Parting {
    fn default() -> Self {
        let budget = Arc::<Budget>::default();
        let store = || Arc::new(Store::new(budget.clone()));
        let (held, awaited) = Default::default();
        Self { whole: store(), rests: store(), budget, held, awaited }
    }
}

impl Parting {
    /// Bytes of all copies.
    pub fn nbytes(&self) -> u64 {
        self.budget.used()
    }

    /// Bytes for which there is room.
    pub fn room(&self) -> u64 {
        self.budget.left()
    }

    /// Bytes they may take.
    pub fn limit(&self) -> u64 {
        self.budget.limit()
    }

    /// Takes memory for the copies of `states` bytes, as far as there is `room`, and sets that as their limit.
    pub fn allow(&self, ledger: &Ledger, states: u64, room: u64) {
        let mut held = self.held();
        *held = None;
        *held = ledger.beside_up_to(states, room);
        self.fit(held.as_ref().map_or(0, |held| held.amount().stage));
    }

    /// Sets the limit of the copies' bytes. Copies that have no room any more are dropped, sequence by sequence.
    pub fn fit(&self, nbytes: u64) {
        self.budget.set_limit(nbytes);
        for store in [&self.whole, &self.rests] {
            for name in store.all_names() {
                if self.nbytes() <= nbytes {
                    return;
                }
                tracing::info!(
                    nbytes,
                    "no room for a state that moves: its stream is computed again"
                );
                store.forget(name);
            }
        }
    }

    /// A ubatch has named a position.
    pub fn expect(&self) {
        self.awaited.store(true, Ordering::Relaxed);
    }

    /// Whether a worker may still come for them.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// Drops the copies of a sequence.
    pub fn forget(&self, name: CopyName) {
        self.whole.forget(name);
        self.rests.forget(name);
    }

    /// Drops the copies of all sequences but these.
    pub fn retain(&self, live: &HashSet<CopyName>) {
        self.whole.retain(live);
        self.rests.retain(live);
    }

    /// Drops all copies: no worker will fetch them any more.
    pub fn clear(&self) {
        self.awaited.store(false, Ordering::Relaxed);
        self.retain(&HashSet::new());
        *self.held() = None;
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use brigade_engine::batch::TokenMark;

    use super::*;
    use crate::copies::piece::Piece;
    use crate::copies::store::{ENTRY_BYTES, Head, Item, LAYER_BYTES, What};

    const LEN: u32 = 30;

    fn put(parting: &Parting, name: CopyName, layers: Range<u32>, nbytes: usize) -> bool {
        let prints = layers.clone().map(|_| blake3::hash(b"w")).collect();
        let head = Head { name, kind: [3; 32], layers: layers.clone(), prints };
        let mut put = layers.map(|layer| {
            let item = Item { layer, block: 0, paged: false, what: What::Rest { len: LEN } };
            parting.whole.put(&head, item, Piece::Memory(vec![1; nbytes].into()))
        });
        let all = put.all(|put| put);
        parting.whole.commit(&head, LEN, TokenMark([2; 16]));
        all
    }

    #[test]
    fn what_has_no_room_beside_the_next_stage_is_dropped_by_whole_sequences() {
        let parting = Parting::default();
        let [first, second] = [1, 2].map(|n| CopyName([n; 16]));
        assert!(!put(&parting, first, 0..1, 100), "nobody has said how much there may be");
        parting.fit(1 << 20);
        assert!(put(&parting, first, 0..2, 1000) && put(&parting, second, 0..2, 1000));
        let one = 2 * (1000 + ENTRY_BYTES + LAYER_BYTES);
        assert_eq!((parting.nbytes(), parting.room()), (2 * one, (1 << 20) - 2 * one));
        parting.fit(one + 10);
        assert_eq!((parting.nbytes(), parting.room()), (one, 10));
        let left = |name| parting.whole.pieces(name, 0..2, LEN).is_some();
        assert!(left(first) != left(second), "one is whole, and nothing is left of the other");
        parting.expect();
        parting.clear();
        assert_eq!((parting.nbytes(), parting.is_awaited()), (0, false));
    }
}
