//! Streams that go on while their client is away, and can be read on where it was cut.
//!
//! A request with `"resumable": true` writes its events here, and clients read them from here: the one that asked, and
//! one that comes back with the id of the last event it has (`GET /v1/streams/ID` with `Last-Event-ID`, or the same
//! POST again with that header). While nobody reads, the request goes on for [`KEPT_FOR`]; as long can its end be read.
//! With a journal it also goes on after the coordinator was killed (`recover`): its tokens are the same ones, so its
//! events are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::response::sse::Event;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::App;
use super::error::ApiError;
use super::events::{DONE, Gone, Of, Position, response};
use crate::handle::Past;
use crate::journal::{Drawn, Entry, Journal, Opened, Recovered};

/// How long a stream is kept that nobody reads.
pub const KEPT_FOR: Duration = Duration::from_secs(300);

/// Resumable streams at once.
const MAX_STREAMS: usize = 1024;

/// Bytes of all their events.
const MAX_EVENT_BYTES: usize = 512 << 20;

/// How often streams that nobody wants are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The header that browsers send when they come back.
const LAST_EVENT_ID: &str = "last-event-id";

/// All resumable streams; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Streams(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    streams: Mutex<HashMap<String, Arc<Stream>>>,
    journal: Option<Journal>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Stream {
    id: String,
    n_choices: usize,
    entry: Option<Entry>,
    state: Mutex<Kept>,
    /// Number of events, and whether they are all.
    news: watch::Sender<(usize, bool)>,
    gone: CancellationToken,
}

#[derive(Debug)]
struct Kept {
    events: Vec<(Of, Arc<str>)>,
    bytes: usize,
    readers: usize,
    /// Since when nobody reads.
    left: Instant,
}

/// A resumable request: its stream, and what its sequences had drawn.
#[derive(Debug)]
pub(super) struct Resumable {
    pub stream: Arc<Stream>,
    drawn: Option<Vec<Drawn>>,
}

impl Resumable {
    /// What is known of sequence number `sequence`.
    pub fn drawn(&self, sequence: usize) -> Option<&Drawn> {
        self.drawn.as_ref()?.get(sequence)
    }

    /// Where sequence number `sequence` is noted, if anywhere.
    pub fn past(&self, sequence: usize) -> Option<Past> {
        let recorder = self.stream.entry.as_ref()?.recorder(sequence);
        Some(Past { recorder, drawn: self.drawn(sequence).map(|drawn| drawn.tokens.clone()) })
    }
}

impl Streams {
    /// Streams that are noted in `journal`, if there is one.
    pub fn new(journal: Option<Journal>) -> Self {
        Self(Arc::new(Shared { streams: Mutex::default(), journal }))
    }

    /// Begins a stream.
    ///
    /// # Errors
    /// 503 where as many are kept as may be.
    pub(super) fn begin(&self, opened: Opened) -> Result<Resumable, ApiError> {
        let full = |what: String| {
            ApiError::unavailable(format!("{what}: try again later, or without \"resumable\""))
        };
        {
            let streams = self.streams();
            let bytes: usize = streams.values().map(|stream| stream.kept().bytes).sum();
            if streams.len() >= MAX_STREAMS || bytes >= MAX_EVENT_BYTES {
                let n = streams.len();
                return Err(full(format!("{n} resumable streams of {bytes} bytes are kept")));
            }
        }
        let (id, n_choices) = (opened.id.clone(), opened.sequences);
        let journal = self.0.journal.as_ref();
        let entry = journal.map(|journal| journal.begin(opened)).transpose();
        let entry = entry.map_err(|error| full(error.to_string()))?;
        Ok(Resumable { stream: self.insert(id, n_choices, entry), drawn: None })
    }

    /// Begins a stream anew that another coordinator had begun.
    pub(super) fn begin_again(&self, recovered: Recovered) -> (Opened, Resumable) {
        let Recovered { opened, drawn, entry } = recovered;
        let stream = self.insert(opened.id.clone(), opened.sequences, Some(entry));
        (opened, Resumable { stream, drawn: Some(drawn) })
    }

    fn insert(&self, id: String, n_choices: usize, entry: Option<Entry>) -> Arc<Stream> {
        let kept = Kept { events: Vec::new(), bytes: 0, readers: 0, left: Instant::now() };
        let stream = Arc::new(Stream {
            id: id.clone(),
            n_choices,
            entry,
            state: Mutex::new(kept),
            news: watch::Sender::new((0, false)),
            gone: CancellationToken::new(),
        });
        self.streams().insert(id, stream.clone());
        stream
    }

    fn get(&self, id: &str) -> Result<Arc<Stream>, ApiError> {
        self.streams().get(id).cloned().ok_or_else(|| {
            ApiError::not_found(format!(
                "there is no stream {id} to be read on: it was not asked for with \"resumable\": true, was \
                 cancelled, or nobody has read it for {} s",
                KEPT_FOR.as_secs()
            ))
        })
    }

    /// Lets go of streams that nobody wants, until `stop`.
    pub async fn sweep(self, stop: CancellationToken) {
        let mut due = tokio::time::interval(SWEEP_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = due.tick() => {}
            }
            let late = |stream: &Arc<Stream>| {
                let kept = stream.kept();
                kept.readers == 0 && kept.left.elapsed() >= KEPT_FOR
            };
            let gone: Vec<_> = self.streams().values().filter(|s| late(s)).cloned().collect();
            gone.into_iter().for_each(|stream| self.remove(&stream));
        }
    }

    /// Lets go of a stream.
    pub(super) fn remove(&self, stream: &Stream) {
        self.streams().remove(&stream.id);
        stream.gone.cancel();
        stream.entry.iter().for_each(Entry::over);
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<String, Arc<Stream>>> {
        // Nothing panics while it is held; if it did, the map would still be whole.
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream {
    /// Adds an event.
    pub fn push(&self, of: Of, text: String) -> Result<(), Gone> {
        if self.gone.is_cancelled() {
            return Err(Gone);
        }
        let is_last = of == Of::End && text == DONE;
        let mut kept = self.kept();
        kept.bytes += text.len();
        kept.events.push((of, text.into()));
        if is_last && kept.readers == 0 {
            kept.left = Instant::now();
        }
        self.news.send_replace((kept.events.len(), is_last));
        Ok(())
    }

    /// Ready when nobody wants it any more.
    pub async fn abandoned(&self) {
        self.gone.cancelled().await;
    }

    /// An answer with its events from `seen` on.
    pub fn follow(self: Arc<Self>, seen: Option<Position>) -> Result<Response, ApiError> {
        let seen = seen.unwrap_or_else(|| Position::start(&self.id, self.n_choices));
        if !seen.is_of(self.n_choices) {
            let message = format!("{} is no event of this stream", seen.id());
            return Err(ApiError::bad_request(message));
        }
        let (events, answer) = response();
        let reader = Reader::new(self);
        tokio::spawn(reader.read(seen, events));
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

/// A client that reads a stream.
struct Reader(Arc<Stream>);

impl Reader {
    fn new(stream: Arc<Stream>) -> Self {
        stream.kept().readers += 1;
        Self(stream)
    }

    async fn read(self, mut seen: Position, events: tokio::sync::mpsc::Sender<Event>) {
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
                if events.send(event).await.is_err() {
                    return;
                }
            }
            if all {
                return;
            }
            tokio::select! {
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

/// Where a client that comes back was cut.
///
/// # Errors
/// 400 for an id that is none of ours.
pub(super) fn position(headers: &HeaderMap) -> Result<Option<Position>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let position = value.to_str().ok().and_then(Position::parse);
    let message = "Last-Event-ID is not the id of an event of this server";
    position.map(Some).ok_or_else(|| ApiError::bad_request(message))
}

/// The answer to a POST of a client that comes back; `None` where it does not.
///
/// # Errors
/// Its stream is not there.
pub(super) fn came_back(app: &App, headers: &HeaderMap) -> Result<Option<Response>, ApiError> {
    let Some(position) = position(headers)? else { return Ok(None) };
    let stream = app.streams.get(position.stream())?;
    stream.follow(Some(position)).map(Some)
}

/// `GET /v1/streams/{id}`.
pub(super) async fn read_on(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let position = position(&headers)?;
    if let Some(other) = position.as_ref().filter(|position| position.stream() != id) {
        let message = format!("Last-Event-ID {} is of another stream than {id}", other.id());
        return Err(ApiError::bad_request(message));
    }
    app.streams.get(&id)?.follow(position)
}

/// `DELETE /v1/streams/{id}`: nobody wants it any more.
pub(super) async fn cancel(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let stream = app.streams.get(&id)?;
    app.streams.remove(&stream);
    Ok(StatusCode::NO_CONTENT)
}
