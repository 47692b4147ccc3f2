//! Reused memory for copies. Fresh pages of the system must be cleared first, which costs more than the copy itself.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::store::Budget;

/// Smaller buffers are left to the allocator, which has them at hand.
const LEAST_BYTES: usize = 64 << 10;

/// Buffers that no copy uses now: as many as fit into the budget of copies beside those that are kept.
#[derive(Debug, Default)]
pub struct Buffers {
    spare: Mutex<Spare>,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Spare {
    /// Buffers by capacity; no list is empty.
    by_size: BTreeMap<usize, Vec<Vec<u8>>>,
    nbytes: usize,
}

impl Spare {
    fn put(&mut self, buffer: Vec<u8>) {
        self.nbytes += buffer.capacity();
        self.by_size.entry(buffer.capacity()).or_default().push(buffer);
    }

    /// The smallest buffer whose size is in this range.
    fn take(&mut self, sizes: impl RangeBounds<usize>) -> Option<Vec<u8>> {
        let (&size, list) = self.by_size.range_mut(sizes).next()?;
        let buffer = list.pop();
        if list.is_empty() {
            self.by_size.remove(&size);
        }
        self.nbytes -= size;
        buffer
    }
}

impl Buffers {
    /// An empty pool. Buffers that wait in it take at most what `budget` has left.
    pub fn new(budget: Arc<Budget>) -> Self {
        Self { budget, ..Self::default() }
    }

    /// An empty buffer with room for `nbytes` that was used before, if there is one of about that size; if not, others
    /// make way for a fresh one.
    pub fn used_before(&self, nbytes: usize) -> Option<Vec<u8>> {
        if nbytes < LEAST_BYTES {
            return None;
        }
        let mut spare = self.spare();
        if let Some(buffer) = spare.take(nbytes..=nbytes.saturating_mul(2)) {
            return Some(buffer);
        }
        while !self.has_room(&spare, nbytes) && spare.take(..).is_some() {}
        None
    }

    /// An empty buffer with room for `nbytes`.
    pub fn take(&self, nbytes: usize) -> Vec<u8> {
        self.used_before(nbytes).unwrap_or_else(|| Vec::with_capacity(nbytes))
    }

    /// The bytes of a buffer, which is used again when all clones of them are dropped.
    pub fn share(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if buffer.capacity() < LEAST_BYTES {
            buffer.into()
        } else {
            Bytes::from_owner(Lent { buffer, home: self.clone() })
        }
    }

    /// Gives back what waits.
    pub fn clear(&self) {
        *self.spare() = Spare::default();
    }

    fn has_room(&self, spare: &Spare, more: usize) -> bool {
        spare.nbytes.saturating_add(more) as u64 <= self.budget.left()
    }

    fn spare(&self) -> MutexGuard<'_, Spare> {
        // Nothing panics while it is held.
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that copies share.
struct Lent {
    buffer: Vec<u8>,
    home: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut spare = self.home.spare();
        if self.home.has_room(&spare, buffer.capacity()) {
            buffer.clear();
            spare.put(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers beside copies that may take so many times [`LEAST_BYTES`].
    fn buffers(limit: usize) -> (Arc<Buffers>, Arc<Budget>) {
        let budget = Arc::new(Budget::default());
        budget.set_limit((limit * LEAST_BYTES) as u64);
        (Arc::new(Buffers::new(budget.clone())), budget)
    }

    #[test]
    fn a_buffer_is_used_again_when_nobody_has_its_bytes() {
        let (buffers, _) = buffers(8);
        let mut first = buffers.take(2 * LEAST_BYTES);
        first.resize(2 * LEAST_BYTES, 7);
        let at = first.as_ptr();
        let bytes = buffers.share(first);
        let part = bytes.slice(3..5);
        drop(bytes);
        assert!(buffers.used_before(2 * LEAST_BYTES).is_none(), "a part of it is in use");
        assert_eq!(part[..], [7, 7]);
        drop(part);
        assert!(buffers.used_before(2 * LEAST_BYTES + 1).is_none(), "it is too small");
        assert!(buffers.used_before(LEAST_BYTES - 1).is_none(), "it is far too large");
        let again = buffers.take(2 * LEAST_BYTES - 1);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        assert!(buffers.used_before(2 * LEAST_BYTES).is_none(), "it is taken");
    }

    #[test]
    fn what_waits_takes_what_copies_leave() {
        let (buffers, budget) = buffers(4);
        let give_back = |n: usize| {
            let all: Vec<_> = (0..n).map(|_| buffers.share(buffers.take(LEAST_BYTES))).collect();
            drop(all);
            buffers.spare().nbytes / LEAST_BYTES
        };
        assert_eq!(give_back(6), 4);
        // A fresh one of another size needs the room of three.
        assert!(buffers.used_before(3 * LEAST_BYTES).is_none());
        assert_eq!(buffers.spare().nbytes, LEAST_BYTES);
        buffers.clear();
        budget.set_limit(0);
        assert_eq!(give_back(6), 0);
        budget.set_limit(u64::MAX);
        // Small ones do not wait.
        drop(buffers.share(buffers.take(10)));
        assert_eq!(buffers.spare().nbytes, 0);
    }
}
