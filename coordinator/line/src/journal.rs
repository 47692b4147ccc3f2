//! The journal: a file of requests and their tokens. After a coordinator was killed, the next one goes on with the
//! requests in it.
//!
//! Only resumable requests are in it, since clients cannot come back for others. A request's tokens follow from its
//! prompt and its seed, so a token that is missing here is only computed again. So lines are written within
//! [`WRITE_EVERY`], and synced to the disk every [`SYNC_EVERY`]. A process that is killed loses tokens of the last
//! few milliseconds, a machine without power those of the last second. A client gets no answer before its request is
//! in the file ([`Entry::written`]), so that no request is lost for which a client could come back.
//!
//! The file is a header and then one JSON object a line ([`records`]). Requests that are over are dropped when the
//! file has more of them than of others. Requests that would make it larger than [`MAX_LIVE_BYTES`] are not taken.

mod file;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use brigade_engine::batch::SampledToken;
use brigade_sched::FinishReason;
use thiserror::Error;
use tokio::sync::watch;

use crate::stages::numerics::Numerics;
use records::Record;
pub use records::{Bounds, Opened};

/// How long a record may wait before it is written.
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// How long written bytes may wait until they are synced to the disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Bytes of requests that are not over, and of these those of one key where there are several. New ones are refused
/// beyond it, and tokens are left out.
const MAX_LIVE_BYTES: u64 = 256 << 20;
const MAX_LIVE_BYTES_OF_A_KEY: u64 = MAX_LIVE_BYTES / 4;

/// Bytes of requests that are over, beyond those of the others, before the file is written anew.
const MAX_WASTE_BYTES: u64 = 4 << 20;

/// Name of the file in the data folder.
const FILE: &str = "requests.journal";

/// Why there is no journal.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The file system refuses.
    #[error("the journal {path}: {source}; name another --data-dir, or go without: --journal off", path = .path.display())]
    Io {
        /// Path of the journal.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The journal is full: the request can run, but not be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the journal is full of resumable requests (its limit is {} MiB)", .limit >> 20)]
pub struct Full {
    /// Whether the key has used up its own part.
    pub is_own: bool,
    limit: u64,
}

/// The journal of a running server; clones share it.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
    /// The value of [`State::noted`] up to which entries are in the file, or could not be written.
    written: watch::Sender<u64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    /// Each request that is not over.
    live: BTreeMap<u64, Live>,
    live_bytes: u64,
    /// The same by key.
    of_owner: BTreeMap<u64, u64>,
    /// Lines that are not yet in the file.
    pending: Vec<u8>,
    /// Bytes of all lines so far.
    noted: u64,
    next: u64,
    /// The server has ended.
    closed: bool,
}

/// A request that is not over.
#[derive(Debug)]
struct Live {
    owner: Option<u64>,
    /// Whether its key leaves room to others.
    shares: bool,
    /// Tokens of each sequence.
    drawn: Vec<u32>,
    lines: Vec<u8>,
}

/// The tokens that one sequence of a request had drawn.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// Drawn tokens, in order.
    pub tokens: Vec<SampledToken>,
    /// Numerics of the line that drew the last of them.
    pub numerics: Option<Numerics>,
    /// How it ended, if it has.
    pub finish: Option<FinishReason>,
}

/// A request that was not over when the last coordinator ended.
#[derive(Debug)]
pub struct Recovered {
    /// The request as it was taken.
    pub opened: Opened,
    /// Tokens of each of its sequences.
    pub drawn: Vec<Drawn>,
    /// The handle to its place in the journal.
    pub entry: Entry,
}

/// A request's place in the journal, until it is dropped with [`Entry::over`].
#[derive(Clone, Debug)]
pub struct Entry {
    journal: Journal,
    no: u64,
    /// [`State::noted`] once the request itself was.
    noted: u64,
}

/// Notes what one sequence of a request draws.
#[derive(Clone, Debug)]
pub struct Recorder {
    entry: Entry,
    sequence: u32,
}

impl Journal {
    /// Whether a journal in `folder` has requests of `model` that were not over. It stays as it is.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn has_requests(folder: &Path, model: &str, bounds: Bounds) -> Result<bool, JournalError> {
        let path = folder.join(FILE);
        let found = file::look_into(&path, model, bounds);
        let found = found.map_err(|source| JournalError::Io { path, source })?;
        Ok(!found.requests.is_empty())
    }

    /// Opens the journal in `folder`, and reads the requests of `model` (a name for everything that tokens depend
    /// on). Requests of another model are dropped.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(
        folder: &Path,
        model: &str,
        bounds: Bounds,
    ) -> Result<(Self, Vec<Recovered>), JournalError> {
        let path = folder.join(FILE);
        let io = |source| JournalError::Io { path: path.clone(), source };
        let found = file::read(&path, model, bounds).map_err(io)?.requests;
        let live = found.iter().map(|(no, old)| {
            let drawn = old.drawn.iter().map(|drawn| drawn.tokens.len() as u32);
            let (owner, lines) = (old.opened.owner, records::lines(*no, old));
            (*no, Live { owner, shares: false, drawn: drawn.collect(), lines })
        });
        let mut state = State { live: live.collect(), ..State::default() };
        for live in state.live.values() {
            let bytes = live.lines.len() as u64;
            state.live_bytes += bytes;
            live.owner.iter().for_each(|owner| *state.of_owner.entry(*owner).or_default() += bytes);
        }
        let lines = state.live.values().map(|live| &live.lines);
        let writer = file::Writer::create(&path, model, lines).map_err(io)?;
        let journal = Self(Arc::new(Shared {
            state: Mutex::new(state),
            news: Condvar::new(),
            written: watch::Sender::new(0),
            thread: Mutex::new(None),
        }));
        let writing = journal.clone();
        let spawned = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writing.write_out(writer));
        *journal.0.thread.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(spawned.map_err(io)?);
        let recovered = found.into_iter().map(|(no, old)| Recovered {
            opened: old.opened,
            drawn: old.drawn,
            entry: Entry { journal: journal.clone(), no, noted: 0 },
        });
        Ok((journal.clone(), recovered.collect()))
    }

    /// Takes in a request; of a key that has others beside it, if it leaves them room.
    ///
    /// # Errors
    /// [`Full`].
    pub fn begin(&self, opened: Opened, has_others: bool) -> Result<Entry, Full> {
        let mut state = self.state();
        let (owner, drawn) = (opened.owner, vec![0; opened.sequences]);
        if owner.filter(|_| has_others).is_some_and(|owner| state.is_full_of(owner)) {
            return Err(Full { is_own: true, limit: MAX_LIVE_BYTES_OF_A_KEY });
        }
        if state.live_bytes >= MAX_LIVE_BYTES {
            return Err(Full { is_own: false, limit: MAX_LIVE_BYTES });
        }
        let no = state.free_number();
        state.live.insert(no, Live { owner, shares: has_others, drawn, lines: Vec::new() });
        state.note(no, &Record::Open { no, opened });
        self.0.news.notify_one();
        Ok(Entry { journal: self.clone(), no, noted: state.noted })
    }

    /// Writes pending entries; blocks until they are on the disk. Nothing is noted from now on.
    pub fn close(&self) {
        self.state().closed = true;
        self.0.news.notify_one();
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic of it was reported when it happened.
        let _ = thread.map(JoinHandle::join);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if it did, the state would still be whole.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal's thread: writes and syncs until the server ends.
    fn write_out(&self, mut writer: file::Writer) {
        let mut broken = false;
        loop {
            let (pending, rewrite, noted, closed) = {
                let state = self.state();
                let waited = self.0.news.wait_timeout(state, WRITE_EVERY);
                let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                let bytes = writer.len() + state.pending.len() as u64;
                let rewrite = broken || bytes > 2 * state.live_bytes + MAX_WASTE_BYTES;
                let lines = state.live.values().map(|live| live.lines.clone());
                let live = rewrite.then(|| lines.collect::<Vec<_>>());
                (std::mem::take(&mut state.pending), live, state.noted, state.closed)
            };
            let done = match rewrite {
                // Lines that are pending are a part of it.
                Some(live) => writer.rewrite(live.iter()),
                None => writer.append(&pending),
            };
            // Where the file refuses, requests run on without it.
            self.0.written.send_replace(noted);
            let done = done.and_then(|()| writer.sync_if_due(SYNC_EVERY, closed));
            broken = done.is_err();
            if closed {
                return;
            }
            if let Err(error) = done {
                // Half a line may be in the file now: it is written anew.
                writer.complain(&error);
                std::thread::sleep(SYNC_EVERY);
            }
        }
    }
}

impl State {
    fn note(&mut self, no: u64, record: &Record) {
        let line = records::line(record);
        if let Some(live) = self.live.get_mut(&no) {
            let bytes = line.len() as u64;
            self.live_bytes += bytes;
            self.noted += bytes;
            live.owner.iter().for_each(|owner| *self.of_owner.entry(*owner).or_default() += bytes);
            live.lines.extend_from_slice(&line);
            self.pending.extend_from_slice(&line);
        }
    }

    /// Whether a key's requests have all the bytes that one's may.
    fn is_full_of(&self, owner: u64) -> bool {
        self.of_owner.get(&owner).is_some_and(|bytes| *bytes >= MAX_LIVE_BYTES_OF_A_KEY)
    }

    /// A number that no live request has. Numbers wrap, since a damaged file may hold any number.
    fn free_number(&mut self) -> u64 {
        while self.live.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let no = self.next;
        self.next = self.next.wrapping_add(1);
        no
    }
}

impl Entry {
    /// A recorder for sequence number `sequence` of the request.
    pub fn recorder(&self, sequence: usize) -> Recorder {
        Recorder { entry: self.clone(), sequence: sequence as u32 }
    }

    /// Ready when the request is in the file: the next coordinator knows it even if this one is killed now. Ready as
    /// well where the file refuses, of which the log tells.
    pub async fn written(&self) {
        let mut written = self.journal.0.written.subscribe();
        // The journal, and so the sender, lives as long as this does.
        let _ = written.wait_for(|written| *written >= self.noted).await;
    }

    /// No client can ask for the request any more.
    pub fn over(&self) {
        let mut state = self.journal.state();
        if let Some(live) = state.live.remove(&self.no) {
            let bytes = live.lines.len() as u64;
            state.live_bytes -= bytes;
            if let Some(owner) = live.owner
                && let Some(left) = state.of_owner.get_mut(&owner)
            {
                *left -= bytes;
                if *left == 0 {
                    state.of_owner.remove(&owner);
                }
            }
            state.pending.extend_from_slice(&records::line(&Record::Over { no: self.no }));
        }
    }
}

impl Recorder {
    /// The sequence has drawn its next token; `numerics` where it is not of what drew the one before.
    pub fn token(&self, token: &SampledToken, numerics: Option<Numerics>) {
        let mut state = self.entry.journal.state();
        let no = self.entry.no;
        let Some(live) = state.live.get_mut(&no) else { return };
        let Some(drawn) = live.drawn.get_mut(self.sequence as usize) else { return };
        let at = *drawn;
        *drawn += 1;
        // A key that has much leaves out its own, so that there is room for another's.
        let owner = live.owner.filter(|_| live.shares);
        let is_full = owner.is_some_and(|owner| state.is_full_of(owner));
        if !is_full && state.live_bytes < MAX_LIVE_BYTES {
            state.note(no, &Record::token(no, self.sequence, at, token, numerics));
        }
    }

    /// The sequence has ended by itself.
    pub fn finished(&self, reason: &FinishReason) {
        let record = Record::finish(self.entry.no, self.sequence, reason);
        self.entry.journal.state().note(self.entry.no, &record);
    }
}
