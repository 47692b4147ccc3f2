//! How much copies may take of a disk: one limit for all workers that share the folder, such as the stages of a node.
//!
//! A file beside the folder has the number of bytes that all of them take. Who writes adds to it before, and nobody exceeds
//! the limit so, however many write. The number is measured again when a worker opens the folder, and where no room is left. So
//! what a process has added that was killed, or removed, does not stay in it or out of it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Ends the name of the file with the number; the folder itself has sequences only.
const NUMBER: &str = "bytes";

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
    /// The space of this folder, whose copies are measured. Blocks.
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

    /// Puts `now` in the place of `before`, of bytes that were counted. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn replace(&self, before: u64, now: u64) -> io::Result<()> {
        let number = self.number()?;
        number.write(number.read()?.saturating_add(now).saturating_sub(before))
    }

    /// Measures what is in the folder. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn measure(&self) -> io::Result<()> {
        let number = self.number()?;
        let nbytes = sequences(&self.dir)?.iter().map(|sequence| sequence.nbytes).sum();
        number.write(nbytes)
    }

    /// The bytes that all copies take, and the limit; `None` where that cannot be read. Blocks.
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

/// The folder of a sequence.
#[derive(Debug)]
pub struct Sequence {
    /// Where it is.
    pub folder: PathBuf,
    /// Bytes of its files.
    pub nbytes: u64,
    /// When one of its files was last written.
    written: SystemTime,
}

/// The sequences in a folder of copies, those first that were written longest ago. Blocks.
///
/// # Errors
/// The disk's.
pub fn sequences(dir: &Path) -> io::Result<Vec<Sequence>> {
    let mut all = Vec::new();
    for folder in folders(dir)? {
        let (mut nbytes, mut written) = (0, SystemTime::UNIX_EPOCH);
        // Another worker may remove it meanwhile.
        for layers in folders(&folder).unwrap_or_default() {
            let files = fs::read_dir(layers).into_iter().flatten().flatten();
            for meta in files.filter_map(|entry| entry.metadata().ok()) {
                nbytes += meta.len();
                written = written.max(meta.modified().unwrap_or(written));
            }
        }
        all.push(Sequence { folder, nbytes, written });
    }
    all.sort_by(|a, b| (a.written, &a.folder).cmp(&(b.written, &b.folder)));
    Ok(all)
}

/// Bytes of the files in a folder; 0 where there is none.
pub fn bytes_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

/// The folders in a folder.
///
/// # Errors
/// The disk's.
pub fn folders(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}
