//! The journal's file: read once, then appended to, and written anew beside itself when much of it is over.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::records::{self, Bounds, Old, Record};

/// Format of the file.
const VERSION: u32 = 2;

/// The one before, which is read too: its lines have no sums.
const WITHOUT_SUMS: u32 = 1;

/// How often the log is told that the disk refuses.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The first line; and the second, so that damage to one of them costs nothing.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    brigade_journal: u32,
    model: String,
}

/// The contents of a journal's file.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Requests that were not over, by number.
    pub requests: BTreeMap<u64, Old>,
    /// Where the file is kept that had lines that were damaged.
    pub damaged: Option<PathBuf>,
}

/// Longest line: the largest body, with all its characters escaped, and its prompt.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// Damaged lines that the log is told of one by one.
const MAX_TOLD: usize = 16;

/// Requests of `model` that were not over. A line that cannot be read loses its own request's entry only. Where it is
/// not the last one, which a process or a machine may have ended in, the file is kept beside its successor.
pub(super) fn read(path: &Path, model: &str, bounds: Bounds) -> io::Result<Found> {
    read_keeping(path, model, bounds, &keep_beside)
}

/// The same, without a trace on the disk.
pub(super) fn look_into(path: &Path, model: &str, bounds: Bounds) -> io::Result<Found> {
    read_keeping(path, model, bounds, &|_, _| Ok(()))
}

/// The same, with `keep` for a file that has lines that were damaged.
fn read_keeping(
    path: &Path,
    model: &str,
    bounds: Bounds,
    keep: &dyn Fn(&Path, &mut Found) -> io::Result<()>,
) -> io::Result<Found> {
    let mut found = Found::default();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        file => file?,
    };
    let mut lines = Lines(BufReader::new(file));
    let Some(first) = lines.next()? else { return Ok(found) };
    let mut second = lines.next()?;
    let again = second.take_if(|line| header(line).is_some()).and_then(|line| header(&line));
    let headers = [header(&first), again];
    let Some(usable) = usable(&headers, model) else {
        let path_shown = path.display();
        if headers[0].is_some() {
            tracing::warn!(
                path = %path_shown,
                "the journal is of another model, or of another version: its requests are dropped"
            );
        } else {
            tracing::warn!(path = %path_shown, "the journal's first lines are damaged: its requests are dropped");
            keep(path, &mut found)?;
        }
        return Ok(found);
    };
    let has_sums = usable.brigade_journal == VERSION;
    let is_whole = headers[0].is_some() && headers.iter().flatten().all(|header| header == usable);
    let mut n_damaged = usize::from(!is_whole);
    while let Some(line) = second.take().map_or_else(|| lines.next(), |line| Ok(Some(line)))? {
        let record = records::read(&line.bytes, has_sums);
        let problem = match &record {
            None if !line.is_whole => {
                tracing::info!(path = %path.display(), "the journal ends in the middle of a line");
                break;
            }
            None => Some("it is damaged"),
            Some(record) => bounds.problem(record).or_else(|| repeats(record, &found.requests)),
        };
        let (Some(record), None) = (record, problem) else {
            n_damaged += 1;
            let about = records::seems_about(&line.bytes);
            // Otherwise the next token's place tells that one is missing.
            if !has_sums {
                lose(&mut found.requests, about);
            }
            if n_damaged <= MAX_TOLD {
                let (number, request) = (lines_read(&lines), about.map(|(no, _)| no));
                let why = problem.unwrap_or("it is damaged");
                tracing::warn!(path = %path.display(), line_ends_at = number, request, why, "a line of the journal is left out");
            }
            continue;
        };
        follow(&mut found.requests, record);
    }
    if n_damaged > 0 {
        tracing::warn!(path = %path.display(), lines = n_damaged, "lines of the journal were damaged");
        keep(path, &mut found)?;
    }
    Ok(found)
}

/// Takes what a record says of the requests that are not over.
fn follow(live: &mut BTreeMap<u64, Old>, record: Record) {
    match record {
        Record::Open { no, opened } => drop(live.insert(no, Old::new(opened))),
        Record::Over { no } => drop(live.remove(&no)),
        Record::Token { no, .. } | Record::Finish { no, .. } => {
            if let Some(old) = live.get_mut(&no) {
                old.take(record);
            }
        }
    }
}

/// The header that this version can read and that is of this model.
fn usable<'h>(headers: &'h [Option<Header>; 2], model: &str) -> Option<&'h Header> {
    let of_model = headers.iter().flatten().filter(|header| header.model == model);
    let known = of_model.filter(|header| [VERSION, WITHOUT_SUMS].contains(&header.brigade_journal));
    known.max_by_key(|header| header.brigade_journal)
}

/// The header in a line, if it is one.
fn header(line: &Line) -> Option<Header> {
    serde_json::from_slice(&line.bytes).ok()
}

/// A second request of a number would take the place of the one that has it.
fn repeats(record: &Record, live: &BTreeMap<u64, Old>) -> Option<&'static str> {
    let Record::Open { no, opened } = record else { return None };
    let has_name = || live.values().any(|old| old.opened.id == opened.id);
    (live.contains_key(no) || has_name()).then_some("another request has its number or its name")
}

/// A damaged line seems to be about this request: its tokens from there on are drawn again. If it was about another
/// one, nothing but time is lost.
fn lose(live: &mut BTreeMap<u64, Old>, about: Option<(u64, Option<u32>)>) {
    if let Some((no, sequence)) = about
        && let Some(old) = live.get_mut(&no)
    {
        old.lose(sequence);
    }
}

/// Copies a damaged file to where people find it, in the place of one that was there before.
fn keep_beside(path: &Path, found: &mut Found) -> io::Result<()> {
    let beside = path.with_extension("damaged");
    let (mut from, mut to) = (File::open(path)?, create_private(&beside)?);
    io::copy(&mut from, &mut to)?;
    tracing::warn!(path = %beside.display(), "the damaged journal is kept here: look into it, then remove it");
    found.damaged = Some(beside);
    Ok(())
}

/// The lines of a file, of any bytes.
struct Lines(BufReader<File>);

struct Line {
    bytes: Vec<u8>,
    /// Whether its line end is there.
    is_whole: bool,
}

impl Lines {
    /// The next line. A line that is too long comes in several parts, and none of them is valid.
    fn next(&mut self) -> io::Result<Option<Line>> {
        let mut bytes = Vec::new();
        (&mut self.0).take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let is_whole = bytes.pop_if(|last| *last == b'\n').is_some();
        Ok(Some(Line { bytes, is_whole }))
    }
}

/// Bytes of the file that were read: where the last line ends.
fn lines_read(lines: &Lines) -> u64 {
    let mut file = lines.0.get_ref();
    let read = file.stream_position().unwrap_or(0);
    read - lines.0.buffer().len() as u64
}

/// The open file, for appending and for replacing it.
pub(super) struct Writer {
    path: PathBuf,
    model: String,
    file: File,
    len: u64,
    synced: Instant,
    dirty: bool,
    complained: Option<Instant>,
}

impl Writer {
    /// Begins the file anew with these requests.
    pub fn create<'a>(
        path: &Path,
        model: &str,
        live: impl Iterator<Item = &'a Vec<u8>>,
    ) -> io::Result<Self> {
        let (file, len) = write_new(path, model, live)?;
        Ok(Self {
            path: path.to_owned(),
            model: model.to_owned(),
            file,
            len,
            synced: Instant::now(),
            dirty: false,
            complained: None,
        })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        self.file.write_all(lines)?;
        self.len += lines.len() as u64;
        self.dirty = true;
        Ok(())
    }

    /// Writes a file with these requests alone, and puts it in the place of this one.
    pub fn rewrite<'a>(&mut self, live: impl Iterator<Item = &'a Vec<u8>>) -> io::Result<()> {
        (self.file, self.len) = write_new(&self.path, &self.model, live)?;
        self.dirty = false;
        Ok(())
    }

    /// Syncs written bytes, if the last sync is longer ago than `every` or `now` is set.
    pub fn sync_if_due(&mut self, every: Duration, now: bool) -> io::Result<()> {
        if self.dirty && (now || self.synced.elapsed() >= every) {
            self.file.sync_data()?;
            (self.dirty, self.synced) = (false, Instant::now());
        }
        Ok(())
    }

    /// Says that the disk refuses, not too often. Requests run on; those that are not in the file cannot be gone on
    /// with after a crash.
    pub fn complain(&mut self, error: &io::Error) {
        if self.complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            let path = self.path.display();
            tracing::error!(%path, %error, "the journal cannot be written: requests would not survive a crash");
        }
    }
}

fn write_new<'a>(
    path: &Path,
    model: &str,
    live: impl Iterator<Item = &'a Vec<u8>>,
) -> io::Result<(File, u64)> {
    let header = Header { brigade_journal: VERSION, model: model.to_owned() };
    let mut line = serde_json::to_vec(&header)?;
    line.push(b'\n');
    let mut bytes = line.repeat(2);
    live.for_each(|lines| bytes.extend_from_slice(lines));
    let beside = path.with_extension("new");
    let mut file = create_private(&beside)?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    fs::rename(&beside, path)?;
    // The name is on the disk when its folder is.
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok((file, bytes.len() as u64))
}

/// Prompts are in it: only its owner may read it.
fn create_private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}
