//! Bundles as files of a folder. A file is written under another name and renamed, and its bytes are checked when
//! they are read. So files need not be synced to the disk, and damage by a crash is found.
//!
//! Workers of one machine may share a cache. Each has a folder of its own in it, for as long as it runs. A folder
//! without a worker, because fewer workers run, is taken over by one that has run for a while.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::record::{Bundle, PREAMBLE_BYTES, head_bytes};

/// The form of the folder; one of another form is emptied.
const FORM: &str = "1\n";

/// Names of the file with the form, of that which is locked, and of one that is not whole.
const FORM_FILE: &str = "form";
const LOCK_FILE: &str = "lock";
const DRAFT: &str = "draft";

/// Workers that share a cache at most.
const MAX_SHARING: usize = 256;

/// A folder that was unlocked for so long is left over; a worker that starts again is back sooner.
const LEFT_AFTER: Duration = Duration::from_secs(600);

/// How long a new worker waits for the folder of one that is ending, and how often it looks.
const LET_GO_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The unit in which the file system allocates.
const BLOCK_BYTES: u64 = 4096;

/// Prompts are in it: only its owner may read it.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// A folder of bundles that is this process's.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    _lock: File,
}

/// A bundle that was found.
#[derive(Debug)]
pub struct Found {
    /// The bundle's number.
    pub no: u64,
    /// The bundle's head.
    pub bundle: Bundle,
    /// When it was last read.
    pub read_at: SystemTime,
}

/// Bytes of the disk that a file of so many takes.
pub fn on_disk(nbytes: u64) -> u64 {
    nbytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

impl Folder {
    /// Locks the first folder in `dir` that no worker has, and lists the bundles in it. Blocks.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub fn open(dir: &Path) -> io::Result<(Self, Vec<Found>)> {
        let folder = Self::free(dir)?;
        let found = folder.look_through()?;
        Ok((folder, found))
    }

    /// The first free folder. A new one is made when no existing one becomes free in time: this worker's predecessor
    /// may still be ending.
    fn free(dir: &Path) -> io::Result<Self> {
        let begun = Instant::now();
        loop {
            let places = (0..MAX_SHARING).map(|place| dir.join(place.to_string()));
            let (there, absent): (Vec<_>, Vec<_>) = places.partition(|place| place.is_dir());
            for place in &there {
                if let Some(folder) = Self::locked(place.clone())? {
                    return Ok(folder);
                }
            }
            if begun.elapsed() < LET_GO_WITHIN && !there.is_empty() {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let new = absent.into_iter().next();
            let new = new.ok_or_else(|| {
                io::Error::other(format!("{MAX_SHARING} workers have folders there"))
            })?;
            DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&new)?;
            // Another worker may have locked it first.
            if let Some(folder) = Self::locked(new)? {
                return Ok(folder);
            }
        }
    }

    /// Removes bundles that were not read for `age` from folders that no worker has. It is for workers that do not
    /// keep records. Blocks.
    pub fn expire(dir: &Path, age: Duration) {
        for left in left_over(dir, Duration::ZERO) {
            let old =
                files(&left.dir).into_iter().filter(|path| idle(path).is_some_and(|of| of > age));
            // Files that cannot be removed now are tried again at the next start.
            old.for_each(|path| drop(fs::remove_file(path)));
        }
    }

    /// A folder, if no other worker has it.
    fn locked(dir: PathBuf) -> io::Result<Option<Self>> {
        let lock = create(&dir.join(LOCK_FILE), OpenOptions::new().create(true))?;
        Ok(lock.try_lock().is_ok().then_some(Self { dir, _lock: lock }))
    }

    /// Moves the bundles of folders that are left over into this one; they get numbers from `next` on. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn take_over(&self, mut next: u64) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for left in left_over(self.dir.parent().unwrap_or(&self.dir), LEFT_AFTER) {
            let theirs = left.look_through()?;
            let (folder, records) = (left.dir.display(), theirs.len());
            tracing::info!(%folder, records, "taking over records of kept prefixes that an ended worker has left");
            for Found { no, bundle, read_at } in theirs {
                fs::rename(left.path(no), self.path(next))?;
                all.push(Found { no: next, bundle, read_at });
                next = next.saturating_add(1);
            }
        }
        Ok(all)
    }

    /// The bundles in the folder; other files are removed.
    fn look_through(&self) -> io::Result<Vec<Found>> {
        let form = self.dir.join(FORM_FILE);
        let is_ours = fs::read_to_string(&form).is_ok_and(|text| text == FORM);
        let (mut found, mut removed) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == LOCK_FILE || name == FORM_FILE {
                continue;
            }
            match is_ours.then(|| found_in(&entry.path())).flatten() {
                Some(bundle) => found.push(bundle),
                None => {
                    fs::remove_file(entry.path())?;
                    removed += usize::from(name != DRAFT);
                }
            }
        }
        if !is_ours {
            create(&form, OpenOptions::new().create(true).truncate(true))?
                .write_all(FORM.as_bytes())?;
        }
        if removed > 0 {
            let (folder, is_old) = (self.dir.display(), !is_ours);
            tracing::warn!(%folder, removed, is_old, "records of prefixes are damaged or of another release, and removed");
        }
        Ok(found)
    }

    /// Writes a bundle. Blocks.
    ///
    /// # Errors
    /// The disk refuses. The bundle is not in the folder then.
    pub fn write(&self, no: u64, bytes: &[u8]) -> io::Result<()> {
        let draft = self.dir.join(DRAFT);
        let written = create(&draft, OpenOptions::new().create(true).truncate(true))
            .and_then(|mut file| {
                file.write_all(bytes)?;
                // The file system's own clock has coarse ticks.
                file.set_modified(SystemTime::now())
            })
            .and_then(|()| fs::rename(&draft, self.path(no)));
        if written.is_err() {
            // The unfinished draft takes room that is not counted.
            let _ = fs::remove_file(&draft);
        }
        written
    }

    /// Some bytes of a bundle, which count as read now. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn read(&self, no: u64, place: Range<u64>) -> io::Result<Bytes> {
        let file = File::open(self.path(no))?;
        let len = usize::try_from(place.end - place.start).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, place.start)?;
        Ok(bytes.into())
    }

    /// A bundle is of use: it stays longer.
    pub fn touch(&self, no: u64) {
        // If it cannot be noted, it goes earlier.
        let _ = File::options()
            .append(true)
            .open(self.path(no))
            .and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Removes a bundle's file.
    pub fn remove(&self, no: u64) {
        // Files that cannot be removed now are tried again at the next start.
        let _ = fs::remove_file(self.path(no));
    }

    fn path(&self, no: u64) -> PathBuf {
        self.dir.join(format!("{no:016x}"))
    }
}

/// The folders in `dir` that no worker has, and in which nothing was read or written for the time `since`.
fn left_over(dir: &Path, since: Duration) -> Vec<Folder> {
    let all = (0..MAX_SHARING).map(|place| dir.join(place.to_string()));
    let folders =
        all.filter(|dir| dir.is_dir()).filter_map(|dir| Folder::locked(dir).ok().flatten());
    let is_idle = |path: &PathBuf| idle(path).is_some_and(|of| of >= since);
    let is_left = |folder: &Folder| {
        let files = files(&folder.dir);
        !files.is_empty() && files.iter().all(is_idle)
    };
    folders.filter(is_left).collect()
}

/// The bundles of a folder, as far as names tell.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|entry| number(&entry.path()).is_some());
    named.map(|entry| entry.path()).collect()
}

/// How long ago a file was read or written, as this worker notes it.
fn idle(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// The number of a bundle by its file's name.
fn number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str().filter(|name| name.len() == 16)?;
    u64::from_str_radix(name, 16).ok()
}

fn create(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.write(true).mode(FILE_MODE).open(path)
}

/// The bundle in a file, if it is one of whole length.
fn found_in(path: &Path) -> Option<Found> {
    let no = number(path)?;
    let mut file = File::open(path).ok()?;
    let mut bytes = vec![0; PREAMBLE_BYTES];
    file.read_exact(&mut bytes).ok()?;
    bytes.resize(PREAMBLE_BYTES + head_bytes(&bytes)?, 0);
    file.read_exact(&mut bytes[PREAMBLE_BYTES..]).ok()?;
    let bundle = Bundle::decode(&bytes)?;
    let about = file.metadata().ok()?;
    let is_whole = about.len() == bundle.nbytes();
    is_whole.then(|| Found {
        no,
        bundle,
        read_at: about.modified().unwrap_or(SystemTime::UNIX_EPOCH),
    })
}
