//! How much checkpoints may take of a disk: one limit for all workers that share the folder, such as the stages of a node.
//!
//! A file beside the folder has the number of bytes that all of them take. Who writes adds to it before, and nobody exceeds
//! the limit so, however many write. The number is measured again when a worker opens the folder, and where no room is left. So
//! what a process has added that was killed, or removed, does not stay in it or out of it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::Key;
use super::folder::checkpoints;

/// Ends the name of the file with the number; the folder itself has those of workers only.
const NUMBER: &str = "checkpoint-bytes";

/// The limit and the folder that it is of.
#[derive(Debug)]
pub struct Space {
    dir: PathBuf,
    limit: u64,
}

/// The number, which nobody else reads or changes until this is dropped.
struct Number(File);

impl Number {
    fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; size_of::<u64>()];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(&self, nbytes: u64) -> io::Result<()> {
        self.0.write_all_at(&nbytes.to_le_bytes(), 0)
    }
}

impl Space {
    /// The space of this folder, whose checkpoints are measured. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(dir: &Path, limit: u64) -> io::Result<Self> {
        let space = Self { dir: dir.to_owned(), limit };
        space.measure()?;
        Ok(space)
    }

    /// Adds so many bytes, if they are within the limit; whether they are. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn take(&self, nbytes: u64) -> io::Result<bool> {
        let number = self.number()?;
        let total = number.read()?.saturating_add(nbytes);
        let is_within = total <= self.limit;
        if is_within {
            number.write(total)?;
        }
        Ok(is_within)
    }

    /// Gives back so many bytes that were counted. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn give_back(&self, nbytes: u64) -> io::Result<()> {
        let number = self.number()?;
        number.write(number.read()?.saturating_sub(nbytes))
    }

    /// Measures what is in the folder. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn measure(&self) -> io::Result<()> {
        let number = self.number()?;
        number.write(checkpoints(&self.dir)?.iter().map(|file| file.nbytes).sum())
    }

    /// The bytes that all checkpoints take, and the limit; `None` where that cannot be read. Blocks.
    pub fn used(&self) -> Option<[u64; 2]> {
        Some([self.number().ok()?.read().ok()?, self.limit])
    }

    fn number(&self) -> io::Result<Number> {
        let path = self.dir.with_extension(NUMBER);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        // Others have it for as long as it takes to read or measure.
        file.lock()?;
        if file.metadata()?.len() < size_of::<u64>() as u64 {
            Number(file.try_clone()?).write(0)?;
        }
        Ok(Number(file))
    }
}

/// The files of a sequence's checkpoints.
#[derive(Debug)]
pub struct Sequence {
    /// The sequence's name.
    pub name: Key,
    /// Where they are, in whatever worker's folder.
    pub files: Vec<PathBuf>,
    /// Bytes that they take.
    pub nbytes: u64,
    /// When one of them was last written.
    written: SystemTime,
}

impl Sequence {
    /// Whether a worker writes the sequence: it has a file of it locked.
    pub fn is_written(&self) -> bool {
        let is_locked = |path: &PathBuf| File::open(path).is_ok_and(|of| of.try_lock().is_err());
        self.files.iter().any(is_locked)
    }
}

/// The sequences with checkpoints in a folder, those first that were written longest ago. Blocks.
///
/// # Errors
/// The disk's.
pub fn sequences(dir: &Path) -> io::Result<Vec<Sequence>> {
    let mut by_name: BTreeMap<Key, Sequence> = BTreeMap::new();
    for file in checkpoints(dir)? {
        let (name, files, written) = (file.name, Vec::new(), SystemTime::UNIX_EPOCH);
        let fresh = || Sequence { name, files, nbytes: 0, written };
        let of = by_name.entry(name).or_insert_with(fresh);
        of.nbytes += file.nbytes;
        of.written = of.written.max(file.written);
        of.files.push(file.path);
    }
    let mut all: Vec<Sequence> = by_name.into_values().collect();
    all.sort_by_key(|sequence| (sequence.written, sequence.name));
    Ok(all)
}
