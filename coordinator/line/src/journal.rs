//! What a coordinator must know to go on with its requests after it was killed: a file of requests and tokens.
//!
//! Only resumable requests are in it: nobody can come back for the others. A request's tokens follow from its prompt
//! and its seed, so that a token which is missing here costs its computing and nothing else. This decides how the file
//! is kept: what happens is written within [`WRITE_EVERY`] and synced to the disk every [`SYNC_EVERY`]. A process
//! that is killed loses tokens of the last few milliseconds, a machine without power those of the last second. A
//! client hears nothing of its request before the request is in the file ([`Entry::written`]), so that no request is
//! lost that somebody could come back for.
//!
//! The file is a header and then one JSON object a line ([`records`]). Requests that are over are dropped when the
//! file has more of them than of others. Requests that would make it larger than [`MAX_LIVE_BYTES`] are not taken.

mod file;
mod records;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use brigade_engine::batch::SampledToken;
use brigade_sched::FinishReason;
use thiserror::Error;
use tokio::sync::watch;

use crate::numerics::Numerics;
pub use records::Opened;
use records::Record;

/// How long a record may wait before it is written.
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// How long what was written may wait before it is on the disk for certain.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Bytes of requests that are not over. New ones are refused beyond it, and tokens are left out.
const MAX_LIVE_BYTES: u64 = 256 << 20;

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
        /// Of the file.
        path: PathBuf,
        /// What it says.
        source: std::io::Error,
    },
}

/// The journal is full: the request can run, but not be resumed.
#[derive(Clone, Copy, Debug, Error)]
#[error("the journal holds as many resumable requests as it may ({} MiB)", MAX_LIVE_BYTES >> 20)]
pub struct Full;

/// The journal of a running server; clones share it.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
    /// [`State::noted`] of what is in the file, or was refused by it.
    written: watch::Sender<u64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct State {
    /// Lines of each request that is not over.
    live: BTreeMap<u64, Vec<u8>>,
    live_bytes: u64,
    /// Lines that are not yet in the file.
    pending: Vec<u8>,
    /// Bytes of all lines so far.
    noted: u64,
    next: u64,
    /// The server has ended.
    closed: bool,
}

/// What one sequence of a request had drawn.
#[derive(Clone, Debug, Default)]
pub struct Drawn {
    /// Its tokens.
    pub tokens: Vec<SampledToken>,
    /// What drew the last of them.
    pub numerics: Option<Numerics>,
    /// How it ended, if it has.
    pub finish: Option<FinishReason>,
}

/// A request that was not over when the last coordinator ended.
#[derive(Debug)]
pub struct Recovered {
    /// As it was taken.
    pub opened: Opened,
    /// Its sequences.
    pub drawn: Vec<Drawn>,
    /// Its place in the journal.
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
    /// Opens the journal in `folder`, and what it has of requests of `model` (a name for everything that tokens
    /// depend on); those of another one are dropped.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(folder: &Path, model: &str) -> Result<(Self, Vec<Recovered>), JournalError> {
        let path = folder.join(FILE);
        let io = |source| JournalError::Io { path: path.clone(), source };
        let found = file::read(&path, model).map_err(io)?;
        let live: BTreeMap<u64, Vec<u8>> =
            found.iter().map(|(no, old)| (*no, records::lines(*no, old))).collect();
        let writer = file::Writer::create(&path, model, live.values()).map_err(io)?;
        let state = State {
            live_bytes: live.values().map(|lines| lines.len() as u64).sum(),
            next: live.keys().last().map_or(0, |no| no + 1),
            live,
            pending: Vec::new(),
            noted: 0,
            closed: false,
        };
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

    /// Takes in a request.
    ///
    /// # Errors
    /// [`Full`].
    pub fn begin(&self, opened: Opened) -> Result<Entry, Full> {
        let mut state = self.state();
        if state.live_bytes >= MAX_LIVE_BYTES {
            return Err(Full);
        }
        let no = state.next;
        state.next += 1;
        state.live.insert(no, Vec::new());
        state.note(no, &Record::Open { no, opened });
        self.0.news.notify_one();
        Ok(Entry { journal: self.clone(), no, noted: state.noted })
    }

    /// Writes what is pending; blocks until it is on the disk. Nothing is noted from now on.
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
                let live = rewrite.then(|| state.live.values().cloned().collect::<Vec<_>>());
                (std::mem::take(&mut state.pending), live, state.noted, state.closed)
            };
            let done = match rewrite {
                // What is pending is a part of it.
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
        if let Some(lines) = self.live.get_mut(&no) {
            self.live_bytes += line.len() as u64;
            self.noted += line.len() as u64;
            lines.extend_from_slice(&line);
            self.pending.extend_from_slice(&line);
        }
    }
}

impl Entry {
    /// For sequence number `sequence` of the request.
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

    /// Nobody will ask for the request any more.
    pub fn over(&self) {
        let mut state = self.journal.state();
        if let Some(lines) = state.live.remove(&self.no) {
            state.live_bytes -= lines.len() as u64;
            state.pending.extend_from_slice(&records::line(&Record::Over { no: self.no }));
        }
    }
}

impl Recorder {
    /// The sequence has drawn its next token; `numerics` where it is not of what drew the one before.
    pub fn token(&self, token: &SampledToken, numerics: Option<Numerics>) {
        let mut state = self.entry.journal.state();
        if state.live_bytes < MAX_LIVE_BYTES {
            let record = Record::token(self.entry.no, self.sequence, token, numerics);
            state.note(self.entry.no, &record);
        }
    }

    /// The sequence has ended by itself.
    pub fn finished(&self, reason: &FinishReason) {
        let record = Record::finish(self.entry.no, self.sequence, reason);
        self.entry.journal.state().note(self.entry.no, &record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("brigade-journal-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // One that a killed test has left.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn opened(id: &str) -> Opened {
        Opened {
            id: id.to_owned(),
            path: "/v1/chat/completions".to_owned(),
            owner: Some(u64::MAX - 1),
            label: "req".to_owned(),
            created: 7,
            seed: u64::MAX,
            prompts: vec![vec![1, 2, 3]],
            guide: Some(vec![4]),
            sequences: 2,
            body: "{\"messages\": []}".to_owned(),
        }
    }

    fn token(id: u32) -> SampledToken {
        SampledToken {
            id,
            logprob: Some(-0.1 - id as f32),
            top: vec![(id, f32::NEG_INFINITY)],
            mu: None,
        }
    }

    #[test]
    fn requests_and_tokens_come_back_as_they_were() {
        let folder = folder("back");
        let (journal, found) = Journal::open(&folder, "m").unwrap();
        assert!(found.is_empty());
        let (a, b) = (journal.begin(opened("a")).unwrap(), journal.begin(opened("b")).unwrap());
        let numerics = Numerics::of_layers([1, 1]);
        (0..5).for_each(|id| a.recorder(1).token(&token(id), (id == 0).then_some(numerics)));
        a.recorder(0).finished(&FinishReason::Stop(token(9)));
        b.recorder(0).token(&token(6), None);
        b.over();
        drop((a, b));
        journal.close();
        let (journal, found) = Journal::open(&folder, "m").unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].opened, opened("a"));
        let drawn = &found[0].drawn;
        assert_eq!(drawn[1].tokens, (0..5).map(token).collect::<Vec<_>>());
        assert_eq!(drawn[0].finish, Some(FinishReason::Stop(token(9))));
        assert!(drawn[1].finish.is_none());
        assert_eq!((drawn[0].numerics, drawn[1].numerics), (None, Some(numerics)));
        // It goes on where it was.
        found[0].entry.recorder(1).token(&token(5), None);
        drop(found);
        journal.close();
        let (journal, found) = Journal::open(&folder, "m").unwrap();
        assert_eq!(found[0].drawn[1].tokens.len(), 6);
        assert_eq!(found[0].drawn[1].numerics, Some(numerics));
        drop(found);
        journal.close();
        let (journal, found) = Journal::open(&folder, "another").unwrap();
        assert!(found.is_empty(), "tokens of another model are of no use");
        journal.close();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_request_that_is_written_outlives_a_killed_process() {
        let (folder, killed) = (folder("written"), folder("killed"));
        let (journal, _) = Journal::open(&folder, "m").unwrap();
        let mut entries = Vec::new();
        for n in 0..50 {
            let entry = journal.begin(opened(&n.to_string())).unwrap();
            entry.written().await;
            entries.push(entry);
            // What a process leaves that is killed here.
            std::fs::copy(folder.join(FILE), killed.join(FILE)).unwrap();
            let (left, found) = Journal::open(&killed, "m").unwrap();
            assert_eq!(found.len(), n + 1);
            drop(found);
            left.close();
        }
        drop(entries);
        journal.close();
        std::fs::remove_dir_all(folder).unwrap();
        std::fs::remove_dir_all(killed).unwrap();
    }

    #[test]
    fn a_line_that_was_cut_off_costs_nothing_before_it() {
        let folder = folder("torn");
        let (journal, _) = Journal::open(&folder, "m").unwrap();
        let entry = journal.begin(opened("a")).unwrap();
        (0..3).for_each(|id| entry.recorder(0).token(&token(id), None));
        drop(entry);
        journal.close();
        let path = folder.join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for cut in (0..whole.len()).rev().step_by(7) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (journal, found) = Journal::open(&folder, "m").unwrap();
            if let Some(request) = found.first() {
                let tokens = &request.drawn[0].tokens;
                let expected: Vec<_> = (0..tokens.len() as u32).map(token).collect();
                assert_eq!(*tokens, expected);
            }
            drop(found);
            journal.close();
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_over_does_not_fill_the_disk() {
        let folder = folder("bounded");
        let (journal, _) = Journal::open(&folder, "m").unwrap();
        let kept = journal.begin(opened("kept")).unwrap();
        let body = "x".repeat(1 << 20);
        for _ in 0..20 {
            let large = Opened { body: body.clone(), ..opened("large") };
            journal.begin(large).unwrap().over();
            std::thread::sleep(2 * WRITE_EVERY);
        }
        drop(kept);
        journal.close();
        let bytes = std::fs::metadata(folder.join(FILE)).unwrap().len();
        println!("{bytes} bytes are left of 20 MiB");
        assert!(bytes < 2 * MAX_WASTE_BYTES, "{bytes}");
        let (journal, found) = Journal::open(&folder, "m").unwrap();
        assert_eq!(found.len(), 1);
        drop(found);
        journal.close();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
