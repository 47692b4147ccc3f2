//! Rooms that all clients share: bytes of bodies, places for streams. Each has a cap in all and, where there are several API
//! keys, a cap for each key. So a key that takes all it can leaves room for the others. Without keys there is one owner,
//! who may have all.
//!
//! [`Room`] refuses at once. [`Desks`] queue. A request that waits for its own key's cap does not block requests of
//! other keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::clients::name::Name;

/// The key to which a part of a room is charged. `None`: requests that are not told apart, such as all where there
/// are no keys.
pub(crate) type Tenant = Option<u64>;

impl Name {
    /// The key to which the request's rooms are charged. `None` where there is one key at most.
    pub(crate) fn tenant(&self) -> Tenant {
        self.usage.key_number().filter(|_| self.usage.share().leaves_room)
    }
}

/// Something countable, of which each has a part.
#[derive(Debug)]
pub(crate) struct Room {
    total: usize,
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_tenant: BTreeMap<u64, usize>,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowd {
    /// The key has all that one may have.
    Own,
    /// All keys together have everything.
    All,
}

/// A part of a room, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    room: Arc<Room>,
    tenant: Tenant,
    n: usize,
}

impl Room {
    /// `total` in all, of which one key may have `each`.
    pub fn new(total: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { total, each, taken: Mutex::default() })
    }

    /// An empty part of it.
    pub fn part(self: &Arc<Self>, tenant: Tenant) -> Part {
        Part { room: self.clone(), tenant, n: 0 }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing panics while it is held.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    /// The number of units that this part holds.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Takes `more`, or nothing.
    ///
    /// # Errors
    /// [`Crowd`].
    pub fn grow(&mut self, more: usize) -> Result<(), Crowd> {
        let mut taken = self.room.taken();
        if let Some(tenant) = self.tenant
            && taken.by_tenant.get(&tenant).copied().unwrap_or(0).saturating_add(more)
                > self.room.each
        {
            return Err(Crowd::Own);
        }
        if taken.all.saturating_add(more) > self.room.total {
            return Err(Crowd::All);
        }
        taken.all += more;
        if let Some(tenant) = self.tenant {
            *taken.by_tenant.entry(tenant).or_default() += more;
        }
        drop(taken);
        self.n += more;
        Ok(())
    }

    /// Takes `more` even above the caps, for bytes that are already there and have to be counted.
    pub fn grow_anyway(&mut self, more: usize) {
        let mut taken = self.room.taken();
        taken.all += more;
        if let Some(tenant) = self.tenant {
            *taken.by_tenant.entry(tenant).or_default() += more;
        }
        drop(taken);
        self.n += more;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.all -= self.n;
        if let Some(tenant) = self.tenant
            && let Some(n) = taken.by_tenant.get_mut(&tenant)
        {
            *n -= self.n;
            if *n == 0 {
                taken.by_tenant.remove(&tenant);
            }
        }
    }
}

/// Places where work is done, for which one waits. First come, first served, among those whose keys may have another one.
#[derive(Debug)]
pub(crate) struct Desks {
    all: Arc<Semaphore>,
    each: usize,
    by_tenant: Mutex<BTreeMap<u64, Arc<Semaphore>>>,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Desk {
    _all: OwnedSemaphorePermit,
    own: Option<(Arc<Desks>, u64, OwnedSemaphorePermit)>,
}

impl Desks {
    /// `total` in all, of which one key may have `each`.
    pub fn new(total: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(total)), each, by_tenant: Mutex::default() })
    }

    /// Waits for a place, in order.
    ///
    /// # Errors
    /// Never: the places are not closed.
    pub async fn take(self: &Arc<Self>, tenant: Tenant) -> Result<Desk, AcquireError> {
        let own = match tenant {
            Some(tenant) => {
                let own = self.own(tenant).acquire_owned().await?;
                Some((self.clone(), tenant, own))
            }
            None => None,
        };
        Ok(Desk { _all: self.all.clone().acquire_owned().await?, own })
    }

    fn own(&self, tenant: u64) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(self.each));
        self.by_tenant().entry(tenant).or_insert_with(new).clone()
    }

    fn by_tenant(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Semaphore>>> {
        // Nothing panics while it is held.
        self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let Some((desks, tenant, permit)) = self.own.take() else { return };
        drop(permit);
        let mut by_tenant = desks.by_tenant();
        // Requests that wait for a place hold it as well.
        let is_idle = |own: &Arc<Semaphore>| {
            Arc::strong_count(own) == 1 && own.available_permits() == desks.each
        };
        if by_tenant.get(&tenant).is_some_and(is_idle) {
            by_tenant.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greedy_key_leaves_room_and_without_keys_all_may_be_had() {
        let room = Room::new(100, 25);
        let (mut greedy, mut polite) = (room.part(Some(1)), room.part(Some(2)));
        let n = (0..).take_while(|_| greedy.grow(5).is_ok()).count();
        assert_eq!((n, greedy.grow(1)), (5, Err(Crowd::Own)));
        assert_eq!(polite.grow(25), Ok(()));
        let mut another = room.part(Some(1));
        assert_eq!(another.grow(1), Err(Crowd::Own), "more of the same are no way around it");
        drop(greedy);
        assert_eq!(another.grow(25), Ok(()));
        let mut open = room.part(None);
        assert_eq!(open.grow(51), Err(Crowd::All));
        assert_eq!(open.grow(50), Ok(()));
        drop((polite, another, open));
        assert_eq!(room.part(None).grow(100), Ok(()));
        assert!(room.taken().by_tenant.is_empty());
    }

    #[tokio::test]
    async fn who_waits_at_its_own_cap_stands_in_nobodys_way() {
        let desks = Desks::new(8, 4);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(desks.take(Some(1)).await.unwrap());
        }
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let desks = desks.clone();
                tokio::spawn(async move { drop(desks.take(Some(1)).await) })
            })
            .collect();
        tokio::task::yield_now().await;
        for _ in 0..4 {
            held.push(desks.take(Some(2)).await.unwrap());
        }
        assert_eq!(desks.all.available_permits(), 0, "the other key has the other half");
        held.clear();
        for waiting in waiting {
            waiting.await.unwrap();
        }
        assert_eq!(desks.all.available_permits(), 8);
        assert!(desks.by_tenant().is_empty(), "nothing is remembered of keys that are gone");
    }
}
