//! Admission of connections. There are caps on connections in all and from one address, and connections that send
//! nothing are closed. Every accepted connection counts here until it closes.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep, timeout};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::limits::{
    FIRST_CALL_MS, HANDSHAKE_BYTES, IDLE_MS, MAX_CONNECTIONS, MAX_PEER_BYTES, MAX_PEER_CONNECTIONS,
    MAX_STRANGER_BYTES, PREPARES_AT_ONCE,
};
use crate::tls::error_text::trouble;
use crate::tls::stream::{Offer, Socket, Transport};
use crate::tls::{Hangup, Who};

/// The time between two looks for idle connections, and the pause after the system refuses a connection.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time from a connection to the end of its TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_millis(FIRST_CALL_MS);
/// A connection whose handshake failed counts for so long: handshakes cost us more than they cost a flood.
const FAILED_COUNTS_FOR: Duration = Duration::from_secs(1);
/// The time between two warnings about refused connections.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Where a connection comes from, as far as caps go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A Unix socket: a process of this machine.
    Local,
    /// An address; of IPv6 the first 64 bits, of which everybody has as many as he likes.
    Ip(IpAddr),
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("this machine"),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

impl Peer {
    pub(super) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => Self::Ip(IpAddr::V6((u128::from(ip) & !u128::from(u64::MAX)).into())),
            v4 @ IpAddr::V4(_) => Self::Ip(v4),
        }
    }
}

/// Counts what comes in through one listener.
#[derive(Debug)]
pub struct Door {
    peers: Mutex<HashMap<Peer, Weak<Account>>>,
    connections: Mutex<Vec<Weak<Connection>>>,
    held: AtomicUsize,
    pub(super) prepares: Arc<Semaphore>,
}

/// Connections and bytes of one address.
#[derive(Debug, Default)]
struct Account {
    connections: AtomicUsize,
    held: AtomicUsize,
}

/// An accepted connection with its counts.
#[derive(Debug)]
pub(super) struct Connection {
    door: Arc<Door>,
    peer: Peer,
    account: Arc<Account>,
    calls: Mutex<Calls>,
    /// A call of it came from the coordinator that holds the worker.
    known: AtomicBool,
    hangup: Arc<Hangup>,
    /// The peer, once a handshake has told.
    who: OnceLock<Who>,
}

#[derive(Debug)]
struct Calls {
    open: usize,
    made: bool,
    since: Instant,
}

/// The connection that a call came on; in the extensions of every request.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Connection>);

/// An open call: as long as it lives, its connection is not idle.
#[derive(Debug)]
pub struct OpenCall(Caller);

impl Caller {
    /// Where it comes from.
    pub fn peer(&self) -> Peer {
        self.0.peer
    }

    /// The peer's identity.
    pub fn who(&self) -> Who {
        self.0.who.get().cloned().unwrap_or_default()
    }

    /// Notes that it speaks for the coordinator that holds this worker, so it may be silent.
    pub fn known(&self) {
        self.0.known.store(true, Ordering::Relaxed);
    }

    pub(super) fn door(&self) -> &Door {
        &self.0.door
    }

    pub(super) fn begin(&self) -> OpenCall {
        let mut calls = lock(&self.0.calls);
        calls.open += 1;
        calls.made = true;
        OpenCall(self.clone())
    }

    /// Counts bytes of a message that is not complete; false where that is over a cap.
    pub(super) fn hold(&self, nbytes: usize) -> bool {
        let (all, own) = (&self.0.door.held, &self.0.account.held);
        let is_within = fits(all.fetch_add(nbytes, Ordering::Relaxed), nbytes, MAX_STRANGER_BYTES)
            && fits(own.load(Ordering::Relaxed), nbytes, MAX_PEER_BYTES);
        if is_within {
            own.fetch_add(nbytes, Ordering::Relaxed);
        } else {
            all.fetch_sub(nbytes, Ordering::Relaxed);
        }
        is_within
    }

    pub(super) fn let_go(&self, nbytes: usize) {
        self.0.door.held.fetch_sub(nbytes, Ordering::Relaxed);
        self.0.account.held.fetch_sub(nbytes, Ordering::Relaxed);
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut calls = lock(&self.0.0.calls);
        calls.open -= 1;
        calls.since = Instant::now();
    }
}

impl Door {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            peers: Mutex::default(),
            connections: Mutex::default(),
            held: AtomicUsize::new(0),
            prepares: Arc::new(Semaphore::new(PREPARES_AT_ONCE)),
        })
    }

    /// Lets a connection in; `None` where there are too many.
    pub(super) fn admit(self: &Arc<Self>, peer: Peer) -> Option<Arc<Connection>> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        let mut peers = lock(&self.peers);
        peers.retain(|_, account| account.strong_count() > 0);
        let account = peers.get(&peer).and_then(Weak::upgrade).unwrap_or_default();
        let from_here = account.connections.load(Ordering::Relaxed);
        if connections.len() >= MAX_CONNECTIONS || from_here >= MAX_PEER_CONNECTIONS {
            return None;
        }
        account.connections.fetch_add(1, Ordering::Relaxed);
        peers.insert(peer, Arc::downgrade(&account));
        let connection = Arc::new(Connection {
            door: self.clone(),
            peer,
            account,
            calls: Mutex::new(Calls { open: 0, made: false, since: Instant::now() }),
            known: AtomicBool::new(false),
            hangup: Arc::default(),
            who: OnceLock::new(),
        });
        connections.push(Arc::downgrade(&connection));
        Some(connection)
    }

    /// Closes the connections that have said nothing for too long.
    fn close_idle(&self) {
        let all: Vec<_> = lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
        all.iter().filter(|connection| connection.is_idle()).for_each(|c| c.hangup.now());
    }
}

impl Connection {
    fn is_idle(&self) -> bool {
        let calls = lock(&self.calls);
        let patience = if calls.made { IDLE_MS } else { FIRST_CALL_MS };
        calls.open == 0
            && !self.known.load(Ordering::Relaxed)
            && calls.since.elapsed() > Duration::from_millis(patience)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.account.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while one is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that was let in.
#[derive(Debug)]
pub struct Guarded {
    stream: Transport,
    connection: Arc<Connection>,
}

impl Connected for Guarded {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        Caller(self.connection.clone())
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The TLS handshake of a connection that came in, bounded in time and counted with strangers' bytes.
async fn shake_hands(offer: Offer, socket: Socket, connection: Arc<Connection>) -> Option<Guarded> {
    let caller = Caller(connection.clone());
    if !caller.hold(HANDSHAKE_BYTES) {
        return None;
    }
    let accepted = timeout(HANDSHAKE_WITHIN, offer.accept(socket, connection.hangup.clone())).await;
    caller.let_go(HANDSHAKE_BYTES);
    let why = match accepted {
        Ok(Ok(stream)) => {
            // It is set only here.
            let _ = connection.who.set(stream.who().clone());
            return Some(Guarded { stream, connection });
        }
        Ok(Err(error)) => trouble(&error).map_or_else(|| error.to_string(), |tls| tls.words),
        Err(_) => format!("no handshake within {FIRST_CALL_MS} ms"),
    };
    tracing::debug!(peer = %connection.peer, why, "a connection was refused");
    sleep(FAILED_COUNTS_FOR).await;
    None
}

/// Connections as they are let in.
pub struct Entrance<I> {
    incoming: I,
    offer: Offer,
    handshakes: JoinSet<Option<Guarded>>,
    door: Arc<Door>,
    look: Interval,
    pause: Option<Pin<Box<Sleep>>>,
    turned_away: TurnedAway,
}

/// Connections that were one too many, with a warning now and then.
#[derive(Debug, Default)]
pub(super) struct TurnedAway {
    n: u64,
    warned: Option<Instant>,
}

impl TurnedAway {
    /// Counts one from `peer`.
    pub(super) fn one(&mut self, peer: Peer) {
        self.n += 1;
        if self.warned.is_none_or(|at| at.elapsed() > WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                %peer,
                turned_away = self.n,
                "too many connections: at most {MAX_CONNECTIONS}, {MAX_PEER_CONNECTIONS} from one \
                 address; idle ones close by themselves"
            );
        }
    }
}

impl<I> Entrance<I> {
    /// Counts what `incoming` accepts, and lets in what speaks as is offered.
    pub fn new(incoming: I, offer: Offer) -> Self {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let door = Door::new();
        let handshakes = JoinSet::new();
        let turned_away = TurnedAway::default();
        Self { incoming, offer, handshakes, door, look, pause: None, turned_away }
    }
}

impl<I, S> Stream for Entrance<I>
where
    I: Stream<Item = io::Result<S>> + Unpin,
    S: Into<Socket>,
{
    type Item = io::Result<Guarded>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.look.poll_tick(cx).is_ready() {
            self.door.close_idle();
        }
        loop {
            // A handshake that failed, or whose task did, has let its connection go.
            while let Poll::Ready(Some(ended)) = self.handshakes.poll_join_next(cx) {
                if let Ok(Some(guarded)) = ended {
                    return Poll::Ready(Some(Ok(guarded)));
                }
            }
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.pause = None;
            }
            let socket: Socket = match Pin::new(&mut self.incoming).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Ok(stream))) => stream.into(),
                // Out of file descriptors, perhaps: asking again at once would only burn a core.
                Poll::Ready(Some(Err(error))) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.pause = Some(Box::pin(sleep(LOOK_EVERY)));
                    continue;
                }
            };
            // A peer that is gone already has no address.
            let Ok(ip) = socket.peer_ip() else { continue };
            let peer = ip.map_or(Peer::Local, Peer::of);
            let Some(connection) = self.door.admit(peer) else {
                self.turned_away.one(peer);
                continue;
            };
            if self.offer.is_plain_only() {
                let stream = Transport::plain(socket, connection.hangup.clone());
                return Poll::Ready(Some(Ok(Guarded { stream, connection })));
            }
            let offer = self.offer.clone();
            self.handshakes.spawn(shake_hands(offer, socket, connection));
        }
    }
}

/// Whether `more` bytes may be held beside those that are.
fn fits(held: usize, more: usize, most: usize) -> bool {
    held.saturating_add(more) <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_held_up_to_the_cap() {
        let kib = 1 << 10;
        assert!(fits(0, kib, kib) && fits(kib, kib, 2 * kib));
        assert!(!fits(kib, 1, kib) && !fits(usize::MAX, 1, kib));
    }
}
