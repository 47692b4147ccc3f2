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
use records::Record;
pub use records::{Bounds, Opened};

/// How long a record may wait before it is written.
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// How long what was written may wait before it is on the disk for certain.
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
        /// Of the file.
        path: PathBuf,
        /// What it says.
        source: std::io::Error,
    },
}

/// The journal is full: the request can run, but not be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the journal holds as many resumable requests as it may ({} MiB)", .limit >> 20)]
pub struct Full {
    /// It is the key that has all that one may have.
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
    /// [`State::noted`] of what is in the file, or was refused by it.
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
    /// Its key leaves room to others.
    shares: bool,
    /// Tokens of each sequence.
    drawn: Vec<u32>,
    lines: Vec<u8>,
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
                let lines = state.live.values().map(|live| live.lines.clone());
                let live = rewrite.then(|| lines.collect::<Vec<_>>());
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

    /// A number that no live request has. Those of a file may be any: they wrap, and never take another's.
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
            state.note(no, &Record::token(no, (self.sequence, at), token, numerics));
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

    const BOUNDS: Bounds = Bounds { n_vocab: 100 };

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
        let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
        assert!(found.is_empty());
        let (a, b) = (
            journal.begin(opened("a"), false).unwrap(),
            journal.begin(opened("b"), false).unwrap(),
        );
        let numerics = Numerics::of_layers([1, 1]);
        (0..5).for_each(|id| a.recorder(1).token(&token(id), (id == 0).then_some(numerics)));
        a.recorder(0).finished(&FinishReason::Stop(token(9)));
        b.recorder(0).token(&token(6), None);
        b.over();
        drop((a, b));
        journal.close();
        let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
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
        let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
        assert_eq!(found[0].drawn[1].tokens.len(), 6);
        assert_eq!(found[0].drawn[1].numerics, Some(numerics));
        drop(found);
        journal.close();
        let (journal, found) = Journal::open(&folder, "another", BOUNDS).unwrap();
        assert!(found.is_empty(), "tokens of another model are of no use");
        journal.close();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_request_that_is_written_outlives_a_killed_process() {
        let (folder, killed) = (folder("written"), folder("killed"));
        let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
        let mut entries = Vec::new();
        for n in 0..50 {
            let entry = journal.begin(opened(&n.to_string()), false).unwrap();
            entry.written().await;
            entries.push(entry);
            // What a process leaves that is killed here.
            std::fs::copy(folder.join(FILE), killed.join(FILE)).unwrap();
            let (left, found) = Journal::open(&killed, "m", BOUNDS).unwrap();
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
        let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
        let entry = journal.begin(opened("a"), false).unwrap();
        (0..3).for_each(|id| entry.recorder(0).token(&token(id), None));
        drop(entry);
        journal.close();
        let path = folder.join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for cut in (0..whole.len()).rev().step_by(7) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
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

    /// A journal of three requests of two sequences each, with tokens of all in turn, and its lines.
    fn three_requests(folder: &Path) -> Vec<String> {
        let (journal, _) = Journal::open(folder, "m", BOUNDS).unwrap();
        let entries = ["a", "b", "c"].map(|id| journal.begin(opened(id), false).unwrap());
        let numerics = Numerics::of_layers([1]);
        for at in 0..4 {
            for (entry, request) in entries.iter().zip(0..) {
                for sequence in 0..2 {
                    let drawn =
                        SampledToken { mu: Some(1.5), ..token(10 * request + 4 * sequence + at) };
                    let of = entry.recorder(sequence as usize);
                    of.token(&drawn, (at == 0).then_some(numerics));
                }
            }
        }
        entries[1].recorder(0).finished(&FinishReason::Stop(token(99)));
        drop(entries);
        journal.close();
        let text = std::fs::read_to_string(folder.join(FILE)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// What comes back of each request: its stream's name, and the ids that its sequences had drawn.
    fn back(folder: &Path, lines: &[String]) -> BTreeMap<String, Vec<Vec<u32>>> {
        let path = folder.join(FILE);
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let found = file::read(&path, "m", BOUNDS).unwrap().requests;
        let ids = |drawn: &Drawn| drawn.tokens.iter().map(|token| token.id).collect();
        let of = |old: records::Old| (old.opened.id, old.drawn.iter().map(ids).collect());
        found.into_values().map(of).collect()
    }

    #[test]
    fn a_new_request_takes_no_live_ones_number() {
        let folder = folder("numbers");
        let lines = three_requests(&folder).map_numbers(u64::MAX);
        let all = back(&folder, &lines);
        assert_eq!(all.len(), 3);
        let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
        let new = ["d", "e", "f"].map(|id| journal.begin(opened(id), false).unwrap());
        assert_eq!(journal.state().live.len(), 6);
        drop((new, found));
        journal.close();
        assert_eq!(file::read(&folder.join(FILE), "m", BOUNDS).unwrap().requests.len(), 6);
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// Lines of a file of the release before, with numbers that end at the greatest.
    trait MapNumbers {
        fn map_numbers(self, greatest: u64) -> Vec<String>;
    }

    impl MapNumbers for Vec<String> {
        fn map_numbers(self, greatest: u64) -> Vec<String> {
            let mapped = |line: String| {
                let mut line: serde_json::Value = serde_json::from_str(&line).unwrap();
                let fields = line.as_object_mut().unwrap();
                fields.remove("sum");
                if let Some(version) = fields.get_mut("brigade_journal") {
                    *version = 1.into();
                }
                for record in fields.values_mut().filter_map(serde_json::Value::as_object_mut) {
                    let no = record["no"].as_u64().unwrap();
                    record["no"] = (greatest - 2 + no).into();
                }
                line.to_string()
            };
            self.into_iter().map(mapped).collect()
        }
    }

    /// Each place of a record where a value is: keys and indexes that lead there.
    fn places(value: &serde_json::Value, at: &str, out: &mut Vec<String>) {
        use serde_json::Value;
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                out.push(format!("{at}/{name}"));
                places(value, &format!("{at}/{name}"), out);
            }),
            Value::Array(items) => items.iter().enumerate().for_each(|(i, value)| {
                out.push(format!("{at}/{i}"));
                places(value, &format!("{at}/{i}"), out);
            }),
            _ => {}
        }
    }

    #[test]
    fn a_damaged_field_costs_its_own_request_at_most() {
        use serde_json::{Value, json};
        let folder = folder("fields");
        let whole = three_requests(&folder);
        let all = back(&folder, &whole);
        assert_eq!(all.len(), 3);
        // Files of the release before have no sums: there the checks of the fields are all there is.
        let without_sums = |line: &String| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            if line.get("brigade_journal").is_some() {
                line["brigade_journal"] = json!(1);
            }
            line.as_object_mut().unwrap().remove("sum");
            line.to_string()
        };
        let old: Vec<String> = whole.iter().map(without_sums).collect();
        assert_eq!(back(&folder, &old), all);
        let damages =
            [json!(0), json!(u64::MAX), json!("x"), json!([[]]), json!(null), json!(-1.5)];
        let (mut tried, mut whole_back) = (0, 0);
        for (lines, has_sums) in [(&whole, true), (&old, false)] {
            // The header, one of each record, and the last.
            for at in [0, 2, 5, 10, lines.len() - 1] {
                let line: Value = serde_json::from_str(&lines[at]).unwrap();
                let mut all_places = Vec::new();
                places(&line, "", &mut all_places);
                for place in all_places {
                    let (parent, name) = place.rsplit_once('/').unwrap();
                    for damage in damages.iter().map(Some).chain([None]) {
                        let mut damaged = line.clone();
                        let parent = damaged.pointer_mut(parent).unwrap();
                        match (damage, parent) {
                            (Some(value), Value::Object(fields)) => {
                                fields.insert(name.to_owned(), value.clone());
                            }
                            (None, Value::Object(fields)) => drop(fields.remove(name)),
                            (Some(value), Value::Array(items)) => {
                                items[name.parse::<usize>().unwrap()] = value.clone();
                            }
                            (None, Value::Array(items)) => {
                                drop(items.remove(name.parse().unwrap()));
                            }
                            _ => unreachable!("fields are in objects and lists"),
                        }
                        if damaged == line {
                            continue;
                        }
                        let mut lines = lines.clone();
                        lines[at] = damaged.to_string();
                        let found = back(&folder, &lines);
                        tried += 1;
                        if at == 0 {
                            // Whose the file is cannot be said any more.
                            assert!(found.is_empty() || found == all, "{place}: {damage:?}");
                            continue;
                        }
                        let lost = all.iter().filter(|(id, drawn)| found.get(*id) != Some(drawn));
                        let lost: Vec<_> = lost.map(|(id, _)| id.clone()).collect();
                        assert!(lost.len() <= 1 || !has_sums, "{place}, {damage:?}: {lost:?}");
                        // With its sum, what is left of the one is its own as well.
                        for (id, drawn) in found.iter().filter(|_| has_sums) {
                            let begins = |(had, has): (&Vec<u32>, &Vec<u32>)| had.starts_with(has);
                            let is_own = all[id].iter().zip(drawn).all(begins);
                            assert!(is_own, "{place}, {damage:?}: {id} has {drawn:?}");
                        }
                        whole_back += usize::from(lost.is_empty());
                    }
                }
            }
        }
        println!("{tried} damages of fields: nothing was lost by {whole_back}");
        assert!(tried > 500);
        assert!(folder.join(FILE).with_extension("damaged").exists(), "what was damaged is kept");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn bytes_that_are_no_text_end_no_reading() {
        let folder = folder("bytes");
        let whole = three_requests(&folder);
        let all = back(&folder, &whole);
        let text = whole.join("\n") + "\n";
        let mut n_whole = 0;
        let first = whole[0].len() + 1;
        for at in (first..text.len()).step_by(97) {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = 0xff;
            std::fs::write(folder.join(FILE), &bytes).unwrap();
            let found = file::read(&folder.join(FILE), "m", BOUNDS).unwrap().requests;
            let found_whole = found.values().filter(|found| {
                let ids = |drawn: &Drawn| drawn.tokens.iter().map(|t| t.id).collect::<Vec<_>>();
                let drawn: Vec<_> = found.drawn.iter().map(ids).collect();
                all.get(&found.opened.id) == Some(&drawn)
            });
            let n = found_whole.count();
            assert!(n >= 2, "byte {at}: {n} of 3 requests are whole");
            n_whole += n;
            let kept = folder.join(FILE).with_extension("damaged");
            assert_eq!(std::fs::read(&kept).unwrap(), bytes, "the damaged file is kept");
        }
        println!("{n_whole} requests of 3 in each of {} files", (text.len() - first) / 97 + 1);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_key_that_fills_the_journal_leaves_room_to_others() {
        let folder = folder("greedy");
        let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
        let body = "x".repeat(15 << 20);
        let of = |owner| Opened { owner: Some(owner), body: body.clone(), ..opened("large") };
        let begun = (0..100).map_while(|_| journal.begin(of(1), true).ok()).collect::<Vec<_>>();
        let refused = journal.begin(opened_of(1), true).unwrap_err();
        println!("the greedy key: {} requests of 15 MiB, then {refused}", begun.len());
        assert!(refused.is_own && begun.len() <= 5, "{}", begun.len());
        let polite = journal.begin(of(2), true).unwrap();
        let (tokens, noted) = (polite.recorder(0), journal.state().noted);
        tokens.token(&token(1), None);
        assert!(journal.state().noted > noted, "the polite key's tokens are noted");
        let noted = journal.state().noted;
        begun[0].recorder(0).token(&token(1), None);
        assert_eq!(journal.state().noted, noted, "those of the greedy one have no room");
        begun.iter().for_each(Entry::over);
        assert!(journal.begin(opened_of(1), true).is_ok());
        drop((begun, polite));
        journal.close();
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn opened_of(owner: u64) -> Opened {
        Opened { owner: Some(owner), ..opened("small") }
    }

    #[test]
    fn what_is_over_does_not_fill_the_disk() {
        let folder = folder("bounded");
        let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
        let kept = journal.begin(opened("kept"), false).unwrap();
        let body = "x".repeat(1 << 20);
        for _ in 0..20 {
            let large = Opened { body: body.clone(), ..opened("large") };
            journal.begin(large, false).unwrap().over();
            std::thread::sleep(2 * WRITE_EVERY);
        }
        drop(kept);
        journal.close();
        let bytes = std::fs::metadata(folder.join(FILE)).unwrap().len();
        println!("{bytes} bytes are left of 20 MiB");
        assert!(bytes < 2 * MAX_WASTE_BYTES, "{bytes}");
        let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
        assert_eq!(found.len(), 1);
        drop(found);
        journal.close();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
