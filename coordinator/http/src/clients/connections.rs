//! The open connections: how many there are in all and from one host, and which one is closed when there are too
//! many.
//!
//! The connection that has proved least and has been quiet longest is closed first: one without any request before
//! one with some, and that before one that has shown a key. A connection that is being answered stays.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;

/// The client side of a connection: an address. For IPv6 it is the /64, since one client has all of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host(IpAddr);

impl Host {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                Self(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            v4 => Self(v4),
        }
    }
}

/// How much a connection has proved so far, in the order in which connections are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    Nothing,
    Request,
    Key,
}

/// The other end of a connection.
#[derive(Debug)]
pub struct Peer(Mutex<Manner>);

#[derive(Clone, Copy, Debug)]
struct Manner {
    shown: Shown,
    /// Since when it has not had a whole request under way; `None` while one is answered.
    quiet_since: Option<Instant>,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Manner { shown: Shown::Nothing, quiet_since: Some(Instant::now()) }))
    }

    fn lock(&self) -> MutexGuard<'_, Manner> {
        // A panic elsewhere leaves a whole value behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a whole request has arrived.
    pub(crate) fn has_asked(&self) {
        let mut manner = self.lock();
        manner.quiet_since = None;
        manner.shown = manner.shown.max(Shown::Request);
    }

    /// Notes that its request has a valid key.
    pub(crate) fn has_shown_a_key(&self) {
        self.lock().shown = Shown::Key;
    }

    /// Notes that its answer has ended.
    pub(crate) fn is_answered(&self) {
        self.lock().quiet_since = Some(Instant::now());
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().quiet_since.is_some()
    }

    /// The sort key for closing connections: the least goes first. `None` for one that is being answered.
    fn rank(&self) -> Option<(Shown, Instant)> {
        let manner = self.lock();
        Some((manner.shown, manner.quiet_since?))
    }
}

#[derive(Debug)]
struct Entry {
    peer: Arc<Peer>,
    host: Host,
    handle: AbortHandle,
}

/// The table of all open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    entries: HashMap<Id, Entry>,
    of_host: HashMap<Host, usize>,
    limit: usize,
    limit_of_host: usize,
}

impl Connections {
    pub(crate) fn new(limit: usize, limit_of_host: usize) -> Self {
        Self { entries: HashMap::new(), of_host: HashMap::new(), limit, limit_of_host }
    }

    pub(crate) fn insert(&mut self, host: Host, peer: Arc<Peer>, handle: AbortHandle) {
        *self.of_host.entry(host).or_default() += 1;
        self.entries.insert(handle.id(), Entry { peer, host, handle });
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<AbortHandle> {
        let Entry { host, handle, .. } = self.entries.remove(&id)?;
        if let Some(n) = self.of_host.get_mut(&host) {
            *n -= 1;
            if *n == 0 {
                self.of_host.remove(&host);
            }
        }
        Some(handle)
    }

    /// Makes a place for one more connection from `host`, if need be by closing one: of the same host where that
    /// has as many as one may. False if all that could go are being answered.
    pub(crate) fn make_place(&mut self, host: Host) -> bool {
        if self.of_host.get(&host).is_some_and(|n| *n >= self.limit_of_host) {
            return self.close_one(Some(host));
        }
        self.entries.len() < self.limit || self.close_one(None)
    }

    fn close_one(&mut self, of: Option<Host>) -> bool {
        let may_go = |entry: &&Entry| of.is_none_or(|host| entry.host == host);
        let ranked = self.entries.values().filter(may_go);
        let ranked = ranked.filter_map(|entry| Some((entry.peer.rank()?, entry.handle.id())));
        let Some((_, id)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        if let Some(handle) = self.remove(id) {
            handle.abort();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::of(text.parse().unwrap())
    }

    #[test]
    fn one_client_is_one_host() {
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:2"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
        assert_ne!(host("10.0.0.1"), host("10.0.0.2"));
    }

    #[tokio::test]
    async fn who_has_shown_the_least_goes_first_and_a_host_pays_for_itself() {
        let mut open = Connections::new(4, 3);
        let add = |open: &mut Connections, from: &str| {
            let task = tokio::spawn(std::future::pending::<()>());
            let peer = Arc::new(Peer::new());
            open.insert(host(from), peer.clone(), task.abort_handle());
            (peer, task)
        };
        let (known, known_task) = add(&mut open, "10.0.0.1");
        known.has_shown_a_key();
        let (asked, asked_task) = add(&mut open, "10.0.0.2");
        asked.has_asked();
        asked.is_answered();
        let (_, silent) = add(&mut open, "10.0.0.2");
        assert!(open.make_place(host("10.0.0.2")));
        let (busy, busy_task) = add(&mut open, "10.0.0.2");
        busy.has_asked();
        assert!(open.make_place(host("10.0.0.2")), "its own silent one goes");
        assert!(silent.await.unwrap_err().is_cancelled());
        let (_, late) = add(&mut open, "10.0.0.3");
        assert!(open.make_place(host("10.0.0.4")), "the one that never asked goes");
        assert!(late.await.unwrap_err().is_cancelled());
        add(&mut open, "10.0.0.4").0.has_asked();
        assert!(open.make_place(host("10.0.0.5")), "then the one that once did");
        assert!(asked_task.await.unwrap_err().is_cancelled());
        add(&mut open, "10.0.0.5").0.has_asked();
        assert!(open.make_place(host("10.0.0.6")), "then the one with a key");
        assert!(known_task.await.unwrap_err().is_cancelled());
        add(&mut open, "10.0.0.6").0.has_asked();
        assert!(!open.make_place(host("10.0.0.7")), "answers are not cut");
        assert!(!busy_task.is_finished());
    }
}
