//! Request bodies: how long they may take, how many bytes of them are held at once, and where they are read.
//!
//! A body has to be whole within [`BODY_WITHIN`], and may never be silent for [`BODY_STALL`]. Each body may have
//! [`FREE_BODY_BYTES`] for itself. More is taken from room that all bodies share, so that large ones cannot keep
//! small ones out. Its content is parsed on other threads than the driver's, large bodies one at a time; only a short text
//! that is tokenised and no more is read where it arrives. One API key
//! has a share of all this ([`shares`](crate::clients::shares)).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use brigade_dialect::constrain::trials::{Asker, Place, Trials};
use brigade_dialect::text_model::TextModel;
use brigade_text::TextError;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt;

use crate::clients::connections::Peer;
use crate::clients::name::Name;
use crate::clients::shares::{Crowd, Desk, Desks, Part, Room, Tenant};
use crate::error::ApiError;

/// Largest request body: a prompt of a million tokens and room to spare.
pub const MAX_BODY_BYTES: usize = 16 << 20;

/// Bodies of addresses that need less than [`MAX_BODY_BYTES`]: four MiB of text as JSON may write it; as many ids as
/// may be turned into text.
const SMALLER_BODIES: [(&str, usize); 2] = [("/tokenize", 8 << 20), ("/detokenize", 4 << 20)];

/// Bytes of all bodies together that are held at once, beyond [`FREE_BODY_BYTES`] of each.
pub const MAX_BODIES_BYTES: usize = 64 << 20;

/// The part of these bytes for one key's bodies: one of the largest, and a little beside it.
pub const MAX_BODIES_BYTES_OF_A_KEY: usize = MAX_BODIES_BYTES / 4;

/// Bytes that each body may have even where the common room is full.
pub const FREE_BODY_BYTES: usize = 64 << 10;

/// How long a body may take from its head to its last byte.
pub const BODY_WITHIN: Duration = Duration::from_secs(60);

/// How long a body may go without a byte.
pub const BODY_STALL: Duration = Duration::from_secs(10);

/// Texts that are read, templated or tokenised at once.
pub const MAX_ENCODERS: usize = 8;

/// The part of these for one key.
pub const MAX_ENCODERS_OF_A_KEY: usize = MAX_ENCODERS / 2;

/// Size of a large body. Larger ones are read one at a time.
pub const LARGE_BODY_BYTES: usize = 1 << 20;

/// Longest body that is tokenised where it arrived: two changes of threads take longer than a few words do. With the slowest
/// tokenizer, which looks for each part of a word, it is some milliseconds.
pub const SHORT_BODY_BYTES: usize = 1 << 10;

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
pub struct BodyTimes {
    /// Limit from the first byte to the last.
    pub within: Duration,
    /// Limit of the time without a byte.
    pub stall: Duration,
}

impl Default for BodyTimes {
    fn default() -> Self {
        Self { within: BODY_WITHIN, stall: BODY_STALL }
    }
}

/// Limits of the bodies of all requests, and the threads that read them. Clones share them.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// Common room for the bytes of bodies beyond [`FREE_BODY_BYTES`].
    room: Arc<Room>,
    encoders: Arc<Desks>,
    /// One, and of each key one waits for it: keys take turns.
    large: Arc<Desks>,
    /// Where grammars are compiled.
    pub(crate) trials: Arc<Trials>,
    times: BodyTimes,
}

impl Default for Bodies {
    fn default() -> Self {
        Self::new(BodyTimes::default(), MAX_BODIES_BYTES)
    }
}

/// A whole body, and its part of the room, given back when the last copy is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) bytes: Arc<Vec<u8>>,
    room: Option<Arc<Part>>,
    /// The request's identity, whose key the body is charged to.
    name: Option<Name>,
}

/// A body that was taken before its handler asks.
#[derive(Clone, Debug)]
struct Waiting(Arc<Mutex<Option<Taken>>>);

/// Largest body of an address.
fn max_bytes(path: &str) -> usize {
    let smaller = SMALLER_BODIES.iter().find(|(address, _)| *address == path);
    smaller.map_or(MAX_BODY_BYTES, |(_, bytes)| *bytes)
}

impl Taken {
    /// A body from the journal.
    pub(crate) fn of_journal(bytes: Vec<u8>, name: &Name) -> Self {
        Self { bytes: Arc::new(bytes), room: None, name: Some(name.clone()) }
    }

    /// Puts a received body back, where the handler will find it.
    pub(crate) fn wait_in(self, request: &mut Request) {
        request.extensions_mut().insert(Waiting(Arc::new(Mutex::new(Some(self)))));
    }

    fn tenant(&self) -> Tenant {
        self.name.as_ref().and_then(Name::tenant)
    }
}

/// A request whose body was taken before, once more: handlers of both find the body. `None`: it was not.
pub(crate) fn once_more(request: &Request) -> Option<Request> {
    let Waiting(taken) = request.extensions().get()?;
    let body = taken.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    let mut again = Request::new(Body::empty());
    again.method_mut().clone_from(request.method());
    again.uri_mut().clone_from(request.uri());
    again.headers_mut().clone_from(request.headers());
    again.extensions_mut().clone_from(request.extensions());
    body.wait_in(&mut again);
    Some(again)
}

/// A body that is being received.
#[derive(Debug)]
struct Arriving {
    bytes: Vec<u8>,
    room: Option<Part>,
    tenant: Tenant,
}

impl Bodies {
    /// Room for `max_bytes` in all beyond the free part of each.
    pub fn new(times: BodyTimes, max_bytes: usize) -> Self {
        Self {
            room: Room::new(max_bytes, MAX_BODIES_BYTES_OF_A_KEY.min(max_bytes)),
            encoders: Desks::new(MAX_ENCODERS, MAX_ENCODERS_OF_A_KEY),
            large: Desks::new(1, 1),
            trials: Arc::default(),
            times,
        }
    }

    /// Receives the request's body.
    pub(crate) async fn take(&self, mut request: Request) -> Result<Taken, ApiError> {
        if let Some(Waiting(taken)) = request.extensions_mut().remove() {
            let taken = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            return taken.ok_or_else(|| ApiError::server("the body was taken twice"));
        }
        let limit = max_bytes(request.uri().path());
        let claimed = request.headers().get(CONTENT_LENGTH);
        let claimed = claimed.and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
        if claimed.is_some_and(|n| n > limit as u64) {
            return Err(ApiError::too_large(limit));
        }
        let peer = request.extensions().get::<Arc<Peer>>().cloned();
        let name = request.extensions().get::<Name>().cloned();
        let taken = self.receive(request.into_body(), limit, name.as_ref()).await?;
        if let Some(peer) = peer {
            peer.has_asked();
        }
        if let Some(name) = name {
            name.usage.has_body(&taken.bytes);
        }
        Ok(taken)
    }

    async fn receive(
        &self,
        body: Body,
        limit: usize,
        name: Option<&Name>,
    ) -> Result<Taken, ApiError> {
        let tenant = name.and_then(Name::tenant);
        let mut arriving = Arriving { bytes: Vec::new(), room: None, tenant };
        let mut chunks = body.into_data_stream();
        let end = Instant::now() + self.times.within;
        loop {
            let stall = Instant::now() + self.times.stall;
            let Ok(next) = timeout_at(end.min(stall), chunks.next()).await else {
                let late = if end <= stall { self.times.within } else { self.times.stall };
                let what = if end <= stall { "did not arrive within" } else { "did not go on for" };
                let message = format!("the request body {what} {} s", late.as_secs_f32());
                return Err(ApiError::too_slow(message));
            };
            match next {
                None => {
                    let Arriving { bytes, room, .. } = arriving;
                    let (bytes, room) = (Arc::new(bytes), room.map(Arc::new));
                    return Ok(Taken { bytes, room, name: name.cloned() });
                }
                Some(Err(error)) => {
                    let message = format!("the request body cannot be read: {error}");
                    return Err(ApiError::bad_request(message));
                }
                Some(Ok(chunk)) => {
                    if arriving.bytes.len() + chunk.len() > limit {
                        return Err(ApiError::too_large(limit));
                    }
                    self.make_room(&mut arriving, chunk.len())?;
                    arriving.bytes.extend_from_slice(&chunk);
                }
            }
        }
    }

    /// Makes room for `more` bytes. Buffers grow in powers of two, and their whole capacity is counted.
    fn make_room(&self, arriving: &mut Arriving, more: usize) -> Result<(), ApiError> {
        let wanted = arriving.bytes.len() + more;
        if wanted <= arriving.bytes.capacity() {
            return Ok(());
        }
        let reserved = wanted.next_power_of_two();
        let counted = reserved.saturating_sub(FREE_BODY_BYTES);
        let tenant = arriving.tenant;
        let room = arriving.room.get_or_insert_with(|| self.room.part(tenant));
        if let Some(more) = counted.checked_sub(room.n()) {
            room.grow(more).map_err(|crowd| match crowd {
                Crowd::All => ApiError::crowded(),
                Crowd::Own => ApiError::crowded_by_key(MAX_BODIES_BYTES_OF_A_KEY),
            })?;
        }
        arriving.bytes.reserve_exact(reserved - arriving.bytes.len());
        Ok(())
    }

    /// The places where a body is read.
    async fn desks(&self, body: &Taken) -> Result<(Option<Desk>, Desk), ApiError> {
        let closed = |_| ApiError::server("the server is ending");
        let tenant = body.tenant();
        let large = if body.bytes.len() > LARGE_BODY_BYTES {
            Some(self.large.take(tenant).await.map_err(closed)?)
        } else {
            None
        };
        Ok((large, self.encoders.take(tenant).await.map_err(closed)?))
    }

    /// Reads a body, and templates or tokenises what is in it, beside the event loop. A long text or a costly
    /// template takes seconds, and the driver and its heartbeats must not wait for that. With the result
    /// comes the body's part of the room, for answers that are as large as their requests.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        body: Taken,
        text: Arc<TextModel>,
        work: impl FnOnce(&[u8], &TextModel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Option<Arc<Part>>), ApiError> {
        let desks = self.desks(&body).await?;
        let trials = self.trials.clone();
        let runtime = tokio::runtime::Handle::current();
        let place =
            AtDesk { desks: Some(desks), bodies: self.clone(), tenant: body.tenant(), runtime };
        let (done, result) = oneshot::channel();
        let asker = Asker::default();
        // Dropped with this future, which its client's leaving drops.
        let _waits = asker.waits();
        // A boxed task, so that one queue holds readers of all types.
        let task: Box<dyn FnOnce() + Send> = Box::new(move || {
            let Taken { bytes, room, name } = body;
            let owner = name.as_ref().map_or(0, |name| name.usage.share().owner);
            let read = || work(&bytes, &text);
            let (result, compiling) = trials.within(owner, asker, Box::new(place), read);
            drop(bytes);
            name.iter().for_each(|name| name.usage.compiled(compiling));
            // The handler may have been dropped: its client left.
            let _ = done.send(result.map(|value| (value, room)));
        });
        tokio::task::spawn_blocking(task).await.map_err(|error| failed(&error))?;
        result.await.map_err(|error| failed(&error))?
    }

    /// As [`Self::read`], for work whose time is in proportion to the body's length, and which compiles no grammar. A
    /// body of at most [`SHORT_BODY_BYTES`] is read at once, on this thread.
    pub(crate) async fn read_plain<T: Send + 'static>(
        &self,
        body: Taken,
        text: Arc<TextModel>,
        work: impl FnOnce(&[u8], &TextModel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Option<Arc<Part>>), ApiError> {
        if body.bytes.len() > SHORT_BODY_BYTES {
            return self.read(body, text, work).await;
        }
        // Nothing that the work may have left half done is used afterwards.
        let read = AssertUnwindSafe(|| work(&body.bytes, &text));
        let value = catch_unwind(read).map_err(|_| failed(&"the work panicked"))??;
        Ok((value, body.room))
    }
}

/// What a client is told of a fault of ours. The cause goes to the log, since a request may have provoked it.
fn failed(error: &dyn std::fmt::Display) -> ApiError {
    tracing::error!(%error, "reading a request failed");
    ApiError::server("an internal error; the server's log says more")
}

/// The places of a body that is being read. They are left while it waits for a grammar to be compiled: hostile grammars
/// fill the threads that compile, and not those that read.
struct AtDesk {
    desks: Option<(Option<Desk>, Desk)>,
    bodies: Bodies,
    tenant: Tenant,
    runtime: tokio::runtime::Handle,
}

impl Place for AtDesk {
    fn leave(&mut self) {
        self.desks = None;
    }

    fn come_back(&mut self) {
        let taken = self.runtime.block_on(self.bodies.encoders.take(self.tenant));
        // They are never closed; if they were, no request would wait for them.
        self.desks = taken.ok().map(|desk| (None, desk));
    }
}

/// The error of a text that cannot be tokenised, for closures.
pub(crate) fn text_error(error: TextError) -> ApiError {
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(300);

    fn bodies(max_bytes: usize) -> Bodies {
        Bodies::new(BodyTimes::default(), max_bytes)
    }

    fn message(error: &ApiError) -> String {
        error.body()["error"]["message"].as_str().unwrap().to_string()
    }

    #[tokio::test]
    async fn a_body_that_stalls_or_trickles_is_given_up() {
        let silent = tokio_stream::pending::<Result<Vec<u8>, std::io::Error>>();
        let stalls = Bodies::new(BodyTimes { stall: SOON, within: BODY_WITHIN }, 0);
        let error =
            stalls.receive(Body::from_stream(silent), MAX_BODY_BYTES, None).await.unwrap_err();
        assert!(error.status() == 408 && message(&error).contains("did not go on for 0.3 s"));
        let byte = tokio_stream::iter((0..1000).map(|_| Ok::<_, std::io::Error>(vec![b' '])));
        let trickled = byte.throttle(SOON / 10);
        let trickles = Bodies::new(BodyTimes { stall: BODY_STALL, within: SOON }, 0);
        let error =
            trickles.receive(Body::from_stream(trickled), MAX_BODY_BYTES, None).await.unwrap_err();
        assert!(error.status() == 408 && message(&error).contains("did not arrive within 0.3 s"));
    }

    #[tokio::test]
    async fn large_bodies_share_their_room_and_small_ones_always_fit() {
        let bodies = bodies(2 << 20);
        let large = |n: usize| Body::from(vec![b' '; n]);
        let first = bodies.receive(large(2 << 20), MAX_BODY_BYTES, None).await.unwrap();
        let error = bodies.receive(large(1 << 20), MAX_BODY_BYTES, None).await.unwrap_err();
        assert_eq!(error.status(), 503, "{}", message(&error));
        let small = bodies.receive(large(FREE_BODY_BYTES), MAX_BODY_BYTES, None).await.unwrap();
        assert_eq!(small.bytes.len(), FREE_BODY_BYTES);
        drop(first);
        assert!(bodies.receive(large(1 << 20), MAX_BODY_BYTES, None).await.is_ok());
        let error =
            bodies.receive(large(MAX_BODY_BYTES + 1), MAX_BODY_BYTES, None).await.unwrap_err();
        assert_eq!(error.status(), 413);
    }

    #[tokio::test]
    async fn what_a_body_takes_is_what_is_counted() {
        let chunks = tokio_stream::iter((0..10).map(|_| Ok::<_, std::io::Error>(vec![b' '; 5000])));
        let bodies = bodies(64 << 10);
        let taken = bodies.receive(Body::from_stream(chunks), MAX_BODY_BYTES, None).await.unwrap();
        assert_eq!((taken.bytes.len(), taken.bytes.capacity()), (50_000, 64 << 10));
    }

    #[tokio::test]
    async fn compiles_of_grammars_do_not_hold_the_places_where_bodies_are_read() {
        use brigade_dialect::constrain::{Form, FormKind};
        let (bodies, text) = (Bodies::default(), Arc::new(TextModel::sample()));
        let (release, held) = std::sync::mpsc::channel::<()>();
        // Blocks the single owner's trial compilations until `held` is dropped.
        bodies.trials.turns().push(0, move || held.recv().unwrap_or(()));
        let body = || Taken { bytes: Arc::default(), room: None, name: None };
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let compiling: Vec<_> = (0..2 * MAX_ENCODERS)
            .map(|n| {
                let (bodies, text, tell) = (bodies.clone(), text.clone(), tell.clone());
                let kind = FormKind::Regex(format!("a{n}"));
                let form = Form { path: "regex".to_owned(), kind };
                let work = move |_: &[u8], _: &TextModel| {
                    tell.send(()).unwrap();
                    Ok(form.grammar().is_ok())
                };
                tokio::spawn(async move { bodies.read(body(), text, work).await.unwrap().0 })
            })
            .collect();
        // All of them are being read, twice as many as there are places, ...
        for _ in 0..2 * MAX_ENCODERS {
            told.recv().await.unwrap();
        }
        // ... and another body is read beside them.
        assert!(bodies.read(body(), text, |_, _| Ok(true)).await.unwrap().0);
        assert_eq!(bodies.trials.n_tried(), 0);
        release.send(()).unwrap();
        for compiling in compiling {
            assert!(compiling.await.unwrap());
        }
        assert_eq!(bodies.trials.n_tried(), 2 * MAX_ENCODERS as u64);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn bodies_are_read_beside_the_event_loop_large_ones_in_turn() {
        let bodies = Bodies::default();
        let text = Arc::new(TextModel::sample());
        let event_loop = std::thread::current().id();
        let running = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let read = |n: usize| {
            let (bodies, text, running) = (bodies.clone(), text.clone(), running.clone());
            let body = Taken { bytes: Arc::new(vec![b' '; n]), room: None, name: None };
            let work = move |_: &[u8], _: &TextModel| {
                let beside = running.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                running.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                Ok((beside, std::thread::current().id() == event_loop))
            };
            tokio::spawn(async move { bodies.read(body, text, work).await.unwrap().0 })
        };
        let reads: Vec<_> = (0..4).map(|_| read(LARGE_BODY_BYTES + 1)).collect();
        for read in reads {
            assert_eq!(read.await.unwrap(), (0, false), "one at a time, and not here");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn short_bodies_of_plain_work_are_read_where_they_are() {
        let (bodies, text) = (Bodies::default(), Arc::new(TextModel::sample()));
        let event_loop = std::thread::current().id();
        let body = |n: usize| Taken { bytes: Arc::new(vec![b' '; n]), room: None, name: None };
        for (n, is_here) in [(SHORT_BODY_BYTES, true), (SHORT_BODY_BYTES + 1, false)] {
            let here = move |_: &[u8], _: &TextModel| Ok(std::thread::current().id() == event_loop);
            assert_eq!(bodies.read_plain(body(n), text.clone(), here).await.unwrap().0, is_here);
            let fails = |_: &[u8], _: &TextModel| -> Result<(), ApiError> { panic!("a fault") };
            let error = bodies.read_plain(body(n), text.clone(), fails).await.unwrap_err();
            assert_eq!(error.status(), 500, "{}", message(&error));
        }
    }
}
