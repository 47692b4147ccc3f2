//! Streams that go on while their client is away, and can be read on where it was cut.
//!
//! A request with `"resumable": true` writes its events here, and clients read them from here. One client is the one
//! that asked. Another comes back with the id of the last event it has: `GET /v1/streams/ID` with `Last-Event-ID`, or
//! the same POST again with that header. Without a reader the request goes on for [`KEPT_FOR`]. A stream that has
//! ended can be read for the same time. With a journal it also goes on after the coordinator was killed (`recover`).
//! Its tokens are then the same, and so are its events. A stream belongs to the API key that asked for it. For other
//! keys it does not exist. `reconnect` has the addresses.

use brigade_proto::task;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use brigade_line::handle::Past;
use brigade_line::journal::{Drawn, Entry, Journal, Opened, Recovered};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::name::Name;
use crate::clients::shares::{Crowd, Part, Room, Tenant};
use crate::error::ApiError;
use crate::events::position::{Of, Position};
use crate::events::sse::{self, DONE, Gone};

/// How long a stream without a reader is kept.
pub const KEPT_FOR: Duration = Duration::from_secs(300);

/// Resumable streams at once, and of these those of one key where there are several.
const MAX_STREAMS: usize = 1024;
const MAX_STREAMS_OF_A_KEY: usize = MAX_STREAMS / 4;

/// Limit of the bytes of all their events, and of those of one key. A stream that finds no room ends.
const MAX_EVENT_BYTES: usize = 512 << 20;
const MAX_EVENT_BYTES_OF_A_KEY: usize = MAX_EVENT_BYTES / 4;

/// Bytes of one stream's events beyond which it ends.
const MAX_STREAM_BYTES: usize = 64 << 20;

/// How often streams without readers are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The header that browsers send when they come back.
const LAST_EVENT_ID: &str = "last-event-id";

/// All resumable streams; clones share them.
#[derive(Clone, Debug)]
pub struct Streams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    streams: Mutex<HashMap<String, Arc<Stream>>>,
    places: Arc<Room>,
    /// Room for the bytes of events.
    bytes: Arc<Room>,
}

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Shared {
            streams: Mutex::default(),
            places: Room::new(MAX_STREAMS, MAX_STREAMS_OF_A_KEY),
            bytes: Room::new(MAX_EVENT_BYTES, MAX_EVENT_BYTES_OF_A_KEY),
        }))
    }
}

/// A resumable stream.
#[derive(Debug)]
pub(crate) struct Stream {
    id: String,
    /// The key that asked for it, if there were keys.
    owner: Option<u64>,
    n_choices: usize,
    entry: Option<Entry>,
    state: Mutex<Kept>,
    /// The stream's part of the room for streams, in all and for its key.
    _place: Part,
    /// Number of events, and whether they are all.
    news: watch::Sender<(usize, bool)>,
    gone: CancellationToken,
}

#[derive(Debug)]
struct Kept {
    events: Vec<(Of, Arc<str>)>,
    bytes: Part,
    readers: usize,
    /// The time since which it has no reader.
    left: Instant,
}

/// A resumable request: its stream, and the tokens that its sequences had drawn.
#[derive(Debug)]
pub(crate) struct Resumable {
    pub stream: Arc<Stream>,
    drawn: Option<Vec<Drawn>>,
}

impl Resumable {
    /// Tokens of sequence `sequence` in the journal; `None`: the request is new.
    pub fn drawn(&self, sequence: usize) -> Option<&Drawn> {
        self.drawn.as_ref()?.get(sequence)
    }

    /// Ready when the request would outlive this coordinator: only then may its client hear of it.
    pub async fn is_noted(&self) {
        if let Some(entry) = &self.stream.entry {
            entry.written().await;
        }
    }

    /// Where sequence number `sequence` is noted, if anywhere.
    pub fn past(&self, sequence: usize) -> Option<Past> {
        let recorder = self.stream.entry.as_ref()?.recorder(sequence);
        let drawn = self.drawn(sequence);
        let numerics = drawn.and_then(|drawn| drawn.numerics);
        Some(Past { recorder, drawn: drawn.map(|drawn| drawn.tokens.clone()), numerics })
    }
}

impl Streams {
    /// Begins a stream, which is noted in `journal` if there is one.
    ///
    /// # Errors
    /// 503 where as many are kept as may be; 429 where the key has as many as one may.
    pub(crate) fn begin(
        &self,
        opened: Opened,
        tenant: Tenant,
        journal: Option<&Journal>,
    ) -> Result<Resumable, ApiError> {
        let (mut place, mut bytes) = (self.0.places.part(tenant), self.0.bytes.part(tenant));
        place
            .grow(1)
            .map_err(|crowd| full(crowd, "the number of resumable streams is at its limit"))?;
        bytes
            .grow(1)
            .map_err(|crowd| full(crowd, "the resumable streams are at their limit of size"))?;
        let entry = match journal {
            None => None,
            Some(journal) => {
                let entry = journal.begin(opened.clone(), tenant.is_some());
                Some(entry.map_err(|error| {
                    let crowd = if error.is_own { Crowd::Own } else { Crowd::All };
                    full(crowd, &error.to_string())
                })?)
            }
        };
        let stream = Stream::new(&opened, entry, place, bytes);
        Ok(Resumable { stream: self.insert(stream), drawn: None })
    }

    /// Begins a stream anew that another coordinator had begun. It was admitted once, so it gets a place even above
    /// the caps.
    pub(crate) fn begin_again(&self, recovered: Recovered, tenant: Tenant) -> (Opened, Resumable) {
        let Recovered { opened, drawn, entry } = recovered;
        let (mut place, bytes) = (self.0.places.part(tenant), self.0.bytes.part(tenant));
        place.grow_anyway(1);
        let stream = self.insert(Stream::new(&opened, Some(entry), place, bytes));
        (opened, Resumable { stream, drawn: Some(drawn) })
    }

    fn insert(&self, stream: Stream) -> Arc<Stream> {
        let stream = Arc::new(stream);
        self.streams().insert(stream.id.clone(), stream.clone());
        stream
    }

    /// The stream with this id, if the client's key owns it.
    pub(crate) fn get(&self, id: &str, asks: &Name) -> Result<Arc<Stream>, ApiError> {
        let stream = self.streams().get(id).cloned();
        stream.filter(|stream| stream.owner == asks.usage.key_number()).ok_or_else(|| {
            ApiError::not_found(format!(
                "there is no stream {id} to be read on: it was not asked for with \"resumable\": true and this API \
                 key, was cancelled, or was not read for {} s",
                KEPT_FOR.as_secs()
            ))
        })
    }

    /// Drops streams without readers, until `stop`.
    pub async fn sweep(self, stop: CancellationToken) {
        let mut due = tokio::time::interval(SWEEP_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = due.tick() => {}
            }
            let late = |stream: &Arc<Stream>| {
                let kept = stream.kept();
                is_late(kept.readers, kept.left.elapsed())
            };
            let gone: Vec<_> = self.streams().values().filter(|s| late(s)).cloned().collect();
            gone.into_iter().for_each(|stream| self.remove(&stream));
        }
    }

    /// Lets go of a stream.
    pub(crate) fn remove(&self, stream: &Stream) {
        self.streams().remove(&stream.id);
        stream.give_up();
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<String, Arc<Stream>>> {
        // Nothing panics while it is held; if it did, the map would still be whole.
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    fn new(opened: &Opened, entry: Option<Entry>, place: Part, bytes: Part) -> Self {
        let kept = Kept { events: Vec::new(), bytes, readers: 0, left: Instant::now() };
        Self {
            id: opened.id.clone(),
            owner: opened.owner,
            n_choices: opened.sequences,
            entry,
            state: Mutex::new(kept),
            _place: place,
            news: watch::Sender::new((0, false)),
            gone: CancellationToken::new(),
        }
    }

    /// Adds an event and wakes the readers.
    pub fn push(&self, of: Of, text: String) -> Result<(), Gone> {
        if self.gone.is_cancelled() {
            return Err(Gone);
        }
        let mut kept = self.kept();
        let is_large = kept.bytes.n() + text.len() > MAX_STREAM_BYTES;
        if is_large || kept.bytes.grow(text.len()).is_err() {
            let why = if is_large {
                format!("the stream is larger than {} MiB", MAX_STREAM_BYTES >> 20)
            } else {
                "the resumable streams together are at their limit of size".to_owned()
            };
            let why = format!("{why}: ask for less, or without \"resumable\"");
            kept.events.push((Of::End, ApiError::server(why).body().to_string().into()));
            kept.end(&self.news);
            self.give_up();
            return Err(Gone);
        }
        if of == Of::End && text == DONE {
            kept.end(&self.news);
        } else {
            kept.events.push((of, text.into()));
            self.news.send_replace((kept.events.len(), false));
        }
        Ok(())
    }

    /// Ends it with an error.
    pub fn fail(&self, error: &ApiError) {
        let mut kept = self.kept();
        kept.events.push((Of::End, error.body().to_string().into()));
        kept.end(&self.news);
    }

    /// Ends the stream because it has no reader any more.
    fn give_up(&self) {
        self.gone.cancel();
        self.entry.iter().for_each(Entry::over);
    }

    /// Completes when the stream is given up.
    pub async fn abandoned(&self) {
        self.gone.cancelled().await;
    }

    /// An answer with its events from `seen` on.
    pub fn follow(self: Arc<Self>, seen: Option<Position>) -> Result<Response, ApiError> {
        let seen = seen.unwrap_or_else(|| Position::start(&self.id, self.n_choices));
        if !seen.is_of(self.n_choices) {
            let message = format!("{} is not an event of this stream", seen.id());
            return Err(ApiError::bad_request(message));
        }
        let (events, answer) = sse::channel();
        let reader = Reader::new(self);
        task::spawn(reader.read(seen, events));
        Ok(answer)
    }

    fn from(&self, at: usize) -> Vec<(Of, Arc<str>)> {
        self.kept().events.get(at..).unwrap_or_default().to_vec()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // As above.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// The end mark follows, and nothing else.
    fn end(&mut self, news: &watch::Sender<(usize, bool)>) {
        self.events.push((Of::End, DONE.into()));
        if self.readers == 0 {
            self.left = Instant::now();
        }
        news.send_replace((self.events.len(), true));
    }
}

/// The error when there is no room for another stream.
fn full(crowd: Crowd, what: &str) -> ApiError {
    match crowd {
        Crowd::All => {
            ApiError::unavailable(format!("{what}: try again later, or without \"resumable\""))
        }
        Crowd::Own => {
            let message = format!(
                "{what} for one API key: cancel streams that are not read (DELETE /v1/streams/ID), or ask without \
                 \"resumable\""
            );
            ApiError::rate_limited(message, KEPT_FOR.as_secs())
        }
    }
}

/// A client that reads a stream.
struct Reader(Arc<Stream>);

impl Reader {
    fn new(stream: Arc<Stream>) -> Self {
        stream.kept().readers += 1;
        Self(stream)
    }

    async fn read(self, mut seen: Position, events: sse::Sender) {
        let stream = &self.0;
        let mut news = stream.news.subscribe();
        let mut passed = Position::start(&stream.id, stream.n_choices);
        let mut at = 0;
        loop {
            let (_, all) = *news.borrow_and_update();
            for (of, text) in stream.from(at) {
                at += 1;
                passed.pass(of);
                if passed.count(of) <= seen.count(of) {
                    continue;
                }
                seen.pass(of);
                let event = Event::default().id(seen.id()).data(&*text);
                if events.event(event).await.is_err() {
                    return;
                }
            }
            if all {
                return;
            }
            tokio::select! {
                biased;
                changed = news.changed() => if changed.is_err() { return },
                () = events.closed() => return,
                () = stream.gone.cancelled() => return,
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut kept = self.0.kept();
        kept.readers -= 1;
        kept.left = Instant::now();
    }
}

/// The position behind the last event that a returning client has, from its `Last-Event-ID` header.
///
/// # Errors
/// 400 for an id that is none of ours.
pub(crate) fn position(headers: &HeaderMap) -> Result<Option<Position>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let position = value.to_str().ok().and_then(Position::parse);
    let message = "Last-Event-ID is not the id of an event of this server";
    position.map(Some).ok_or_else(|| ApiError::bad_request(message))
}

/// Whether a stream goes that has so many readers, and has had none for so long.
fn is_late(n_readers: usize, left_for: Duration) -> bool {
    n_readers == 0 && left_for >= KEPT_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_waits_for_its_reader_for_a_while() {
        let nearly = KEPT_FOR - Duration::from_millis(1);
        assert!(!is_late(0, Duration::ZERO) && !is_late(0, nearly) && is_late(0, KEPT_FOR));
        assert!(!is_late(1, 2 * KEPT_FOR));
    }

    fn opened(id: usize, owner: u64) -> Opened {
        Opened {
            id: id.to_string(),
            path: "/v1/completions".to_owned(),
            owner: Some(owner),
            label: "r".to_owned(),
            created: 0,
            seed: 0,
            prompts: vec![vec![1]],
            companion: None,
            sequences: 1,
            body: String::new(),
        }
    }

    #[test]
    fn a_key_that_begins_streams_without_end_leaves_places_to_others() {
        let streams = Streams::default();
        let begun =
            (0..).take_while(|id| streams.begin(opened(*id, 1), Some(1), None).is_ok()).count();
        let refused = streams.begin(opened(usize::MAX, 1), Some(1), None).unwrap_err();
        println!("the greedy key: {begun} streams, then {}", refused.body());
        assert_eq!((begun, refused.status().as_u16()), (MAX_STREAMS_OF_A_KEY, 429));
        for id in 0..MAX_STREAMS_OF_A_KEY {
            assert!(
                streams.begin(opened(10_000 + id, 2), Some(2), None).is_ok(),
                "the polite key: {id}"
            );
        }
        // Each gives its place back.
        let first = streams.streams().get("0").cloned().unwrap();
        streams.remove(&first);
        drop(first);
        assert!(streams.begin(opened(usize::MAX, 1), Some(1), None).is_ok());
    }

    #[test]
    fn a_key_whose_streams_grow_without_end_leaves_bytes_to_others() {
        let streams = Streams::default();
        let greedy: Vec<_> =
            (0..8).map(|id| streams.begin(opened(id, 1), Some(1), None).unwrap()).collect();
        let text = "x".repeat(1 << 20);
        let push = |resumable: &Resumable| resumable.stream.push(Of::End, text.clone()).is_ok();
        let mib: usize = greedy.iter().map(|one| (0..64).take_while(|_| push(one)).count()).sum();
        println!("the greedy key's streams: {mib} MiB");
        assert_eq!(mib, (MAX_EVENT_BYTES_OF_A_KEY >> 20) - 1, "a byte of each stands for itself");
        assert!(streams.begin(opened(9, 2), Some(2), None).is_ok_and(|polite| push(&polite)));
    }
}
