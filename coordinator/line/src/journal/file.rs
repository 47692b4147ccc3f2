//! The journal's file: read once, then appended to, and written anew beside itself when much of it is over.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::records::{Old, Record};

/// Format of the file.
const VERSION: u32 = 1;

/// How often the log is told that the disk refuses.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    brigade_journal: u32,
    model: String,
}

/// Requests of `model` that were not over, by number. A line that cannot be read ends the file: a process or a
/// machine ended while it was written.
pub(super) fn read(path: &Path, model: &str) -> io::Result<BTreeMap<u64, Old>> {
    let mut found = BTreeMap::new();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        file => file?,
    };
    let mut lines = BufReader::new(file).lines();
    let header =
        lines.next().transpose()?.and_then(|line| serde_json::from_str::<Header>(&line).ok());
    let wanted = Header { brigade_journal: VERSION, model: model.to_owned() };
    match header {
        Some(header) if header == wanted => {}
        Some(_) => {
            tracing::warn!(
                path = %path.display(),
                "the journal is of another model, or of another version: its requests are dropped"
            );
            return Ok(found);
        }
        None => return Ok(found),
    }
    for line in lines {
        let Some(record) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else {
            tracing::info!(path = %path.display(), "the journal ends in the middle of a line");
            break;
        };
        match record {
            Record::Open { no, opened } => drop(found.insert(no, Old::new(opened))),
            Record::Over { no } => drop(found.remove(&no)),
            Record::Token { no, .. } | Record::Finish { no, .. } => {
                if let Some(old) = found.get_mut(&no) {
                    old.take(record);
                }
            }
        }
    }
    Ok(found)
}

/// Writes the file.
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

    /// Syncs what was written if the last time is longer ago than `every`, or `now`.
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
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.push(b'\n');
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
