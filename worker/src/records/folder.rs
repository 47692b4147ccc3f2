//! Bundles as files of a folder. A file is written under another name and renamed, and its bytes are checked when
//! they are read. So damage by a crash is found. Bundles of kept prefixes are not synced to the disk; checkpoints are,
//! since they are to survive the machine.
//!
//! Workers of one machine may share a cache. Each has a folder of its own in it, for as long as it runs. A folder
//! without a worker, because fewer workers run, is taken over by one that has run for a while.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::rate::Rate;
use super::record::{Bundle, PREAMBLE_BYTES, head_bytes};
use super::{Key, MAX_AGE};

/// Where records lie, in the cache's folder.
const FOLDER: &str = "records";

/// Where earlier releases have kept prefixes, and checkpoints with the number of their bytes.
const OLD_PREFIXES: &str = "prefixes";
const OLD_CHECKPOINTS: [&str; 2] = ["checkpoints", "checkpoints.bytes"];

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

/// How long a new worker waits for the folder of one that is ending, if it wants what is in it, and how often it looks.
pub const LET_GO_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The unit in which the file system allocates.
const BLOCK_BYTES: u64 = 4096;

/// Prompts are in it: only its owner may read it.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Where a worker's records lie, and how fast they may be written. A folder there is opened when it is needed.
#[derive(Debug)]
pub struct Home {
    dir: PathBuf,
    folder: Mutex<Option<Arc<Folder>>>,
    /// The rate for all that is written there.
    pub rate: Rate,
}

/// A folder of bundles that is this process's.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    /// Held while a bundle is written.
    writing: Mutex<()>,
    _lock: File,
}

/// What a file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Kept prefixes.
    Prefix,
    /// The checkpoints of a sequence with this name.
    Checkpoint(Key),
}

/// A file of a checkpoint.
#[derive(Debug)]
pub struct CheckpointFile {
    /// Where it is.
    pub path: PathBuf,
    /// The sequence's name.
    pub name: Key,
    /// The file's number among those of its folder.
    pub no: u64,
    /// Bytes that it takes.
    pub nbytes: u64,
    /// When it was written.
    pub written: SystemTime,
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

impl Home {
    /// The home of records in a cache's folder, to which so much is written.
    pub fn of(cache: &Path, rate: Rate) -> Arc<Self> {
        Self::at(cache.join(FOLDER), rate)
    }

    /// The home of records in this folder.
    pub fn at(dir: PathBuf, rate: Rate) -> Arc<Self> {
        Arc::new(Self { dir, folder: Mutex::default(), rate })
    }

    /// The folder that the workers' own are in.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// This worker's folder. If it is opened now, the bundles of kept prefixes in it come along. `patience`: how long
    /// to wait for one of those that are there, before a new one is made. Blocks.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub fn folder(&self, patience: Duration) -> io::Result<(Arc<Folder>, Vec<Found>)> {
        let mut opened = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*opened {
            return Ok((folder.clone(), Vec::new()));
        }
        let (folder, found) = Folder::open(&self.dir, patience)?;
        let folder = Arc::new(folder);
        *opened = Some(folder.clone());
        Ok((folder, found))
    }
}

impl Folder {
    /// Locks the first folder in `dir` that no worker has, and lists the bundles in it. Blocks.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    fn open(dir: &Path, patience: Duration) -> io::Result<(Self, Vec<Found>)> {
        let folder = Self::free(dir, patience)?;
        let found = folder.look_through()?;
        Ok((folder, found))
    }

    /// The first free folder. A new one is made when no existing one becomes free in time: this worker's predecessor
    /// may still be ending.
    fn free(dir: &Path, patience: Duration) -> io::Result<Self> {
        let begun = Instant::now();
        loop {
            let places = (0..MAX_SHARING).map(|place| dir.join(place.to_string()));
            let (there, absent): (Vec<_>, Vec<_>) = places.partition(|place| place.is_dir());
            for place in &there {
                if let Some(folder) = Self::locked(place.clone())? {
                    return Ok(folder);
                }
            }
            if begun.elapsed() < patience && !there.is_empty() {
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

    /// Removes bundles that were not read for long from folders that no worker has. It is for workers that do not
    /// keep prefixes. Blocks.
    pub fn expire(dir: &Path) {
        for left in left_over(dir, Duration::ZERO) {
            // Files that cannot be removed now are tried again at the next start.
            files(&left.dir)
                .into_iter()
                .filter(|path| is_old(path))
                .for_each(|path| drop(fs::remove_file(path)));
        }
    }

    /// Whether a file is in it.
    pub fn has(&self, path: &Path) -> bool {
        path.parent() == Some(&self.dir)
    }

    /// A folder, if no other worker has it.
    fn locked(dir: PathBuf) -> io::Result<Option<Self>> {
        let lock = create(&dir.join(LOCK_FILE), OpenOptions::new().create(true))?;
        let writing = Mutex::default();
        Ok(lock.try_lock().is_ok().then_some(Self { dir, writing, _lock: lock }))
    }

    /// Moves the bundles of prefixes of folders that are left over into this one; they get numbers from `next` on.
    /// Checkpoints stay, where all workers find them. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn take_over(&self, mut next: u64) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for left in left_over(self.dir.parent().unwrap_or(&self.dir), LEFT_AFTER) {
            let theirs = left.look_through()?;
            let (folder, records) = (left.dir.display(), theirs.len());
            if records > 0 {
                tracing::info!(%folder, records, "taking over records of kept prefixes that an ended worker has left");
            }
            for Found { no, bundle, read_at } in theirs {
                fs::rename(left.path(Sort::Prefix, no), self.path(Sort::Prefix, next))?;
                all.push(Found { no: next, bundle, read_at });
                next = next.saturating_add(1);
            }
        }
        Ok(all)
    }

    /// The bundles of kept prefixes in the folder. Old checkpoints are removed, and what is no bundle.
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
            let path = entry.path();
            let is_checkpoint = matches!(sorted(&path), Some((Sort::Checkpoint(_), _)));
            if is_ours && is_checkpoint && !is_old(&path) {
                continue;
            }
            match is_ours.then(|| found_in(&path)).flatten() {
                Some(bundle) => found.push(bundle),
                None => {
                    fs::remove_file(path)?;
                    removed += usize::from(name != DRAFT && !(is_ours && is_checkpoint));
                }
            }
        }
        if !is_ours {
            create(&form, OpenOptions::new().create(true).truncate(true))?
                .write_all(FORM.as_bytes())?;
        }
        if removed > 0 {
            let (folder, is_old) = (self.dir.display(), !is_ours);
            tracing::warn!(%folder, removed, is_old, "records are damaged or of another release, and removed");
        }
        Ok(found)
    }

    /// Writes a bundle, of which here are all parts. Returns where it is. Blocks.
    ///
    /// # Errors
    /// The disk refuses. The bundle is not in the folder then.
    pub fn write(&self, sort: Sort, no: u64, parts: &[&[u8]]) -> io::Result<PathBuf> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (draft, path) = (self.dir.join(DRAFT), self.path(sort, no));
        let written = create(&draft, OpenOptions::new().create(true).truncate(true))
            .and_then(|mut file| {
                parts.iter().try_for_each(|part| file.write_all(part))?;
                if let Sort::Checkpoint(_) = sort {
                    file.sync_data()?;
                }
                // The file system's own clock has coarse ticks.
                file.set_modified(SystemTime::now())
            })
            .and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            // The unfinished draft takes room that is not counted.
            let _ = fs::remove_file(&draft);
        }
        written.map(|()| path)
    }

    /// Some bytes of a bundle of prefixes, which count as read now. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn read(&self, no: u64, place: Range<u64>) -> io::Result<Bytes> {
        let file = File::open(self.path(Sort::Prefix, no))?;
        let len = usize::try_from(place.end - place.start).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, place.start)?;
        Ok(bytes.into())
    }

    /// A bundle of prefixes is of use: it stays longer.
    pub fn touch(&self, no: u64) {
        // If it cannot be noted, it goes earlier.
        let _ = File::options()
            .append(true)
            .open(self.path(Sort::Prefix, no))
            .and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Removes the file of a bundle of prefixes.
    pub fn remove(&self, no: u64) {
        // Files that cannot be removed now are tried again at the next start.
        let _ = fs::remove_file(self.path(Sort::Prefix, no));
    }

    fn path(&self, sort: Sort, no: u64) -> PathBuf {
        self.dir.join(match sort {
            Sort::Prefix => format!("{no:016x}"),
            Sort::Checkpoint(name) => format!("{:032x}-{no:016x}", u128::from_be_bytes(name)),
        })
    }
}

/// The files of checkpoints in the folders of all workers in `dir`. Blocks.
///
/// # Errors
/// The disk's.
pub fn checkpoints(dir: &Path) -> io::Result<Vec<CheckpointFile>> {
    let mut all = Vec::new();
    for worker in fs::read_dir(dir)? {
        for path in files(&worker?.path()) {
            // Another worker may remove it meanwhile.
            let (Some((Sort::Checkpoint(name), no)), Ok(about)) =
                (sorted(&path), fs::metadata(&path))
            else {
                continue;
            };
            let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            all.push(CheckpointFile { path, name, no, nbytes: on_disk(about.len()), written });
        }
    }
    Ok(all)
}

/// Moves records of kept prefixes that an earlier release has written in a cache's folder to where they are now, and
/// removes its checkpoints, whose form was another one. Blocks.
pub fn settle_old(cache: &Path) {
    move_prefixes(&cache.join(OLD_PREFIXES), &cache.join(FOLDER));
    let [folder, number] = OLD_CHECKPOINTS.map(|name| cache.join(name));
    let Ok(sequences) = fs::read_dir(&folder) else { return };
    let paths = sequences.flatten().map(|entry| entry.path());
    // A worker of that release may still run, and has what it writes locked.
    let n = paths.filter(|path| !is_in_use(path) && fs::remove_dir_all(path).is_ok()).count();
    if fs::remove_dir(&folder).is_ok() {
        let _ = fs::remove_file(number);
    }
    let folder = folder.display();
    tracing::info!(%folder, n, "checkpoints of an earlier release cannot be read, and are removed");
}

/// Moves the folders of workers that have ended.
fn move_prefixes(from: &Path, to: &Path) {
    let Ok(old) = fs::read_dir(from) else { return };
    // What cannot be made or moved now is tried again at the next start.
    let _ = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(to);
    let mut places = (0..MAX_SHARING).map(|place| to.join(place.to_string()));
    for folder in old.flatten().map(|entry| entry.path()) {
        // A worker of that release that still runs keeps its own.
        if let Ok(Some(_ours)) = Folder::locked(folder.clone()) {
            places.find(|place| fs::rename(&folder, place).is_ok());
        }
    }
    let _ = fs::remove_dir(from);
}

/// Whether a worker of an earlier release has files of a sequence locked.
fn is_in_use(sequence: &Path) -> bool {
    let layers = fs::read_dir(sequence).into_iter().flatten().flatten();
    let pages = layers.filter_map(|layers| File::open(layers.path().join("pages")).ok());
    pages.into_iter().any(|pages| pages.try_lock().is_err())
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
    let named = entries.filter(|entry| sorted(&entry.path()).is_some());
    named.map(|entry| entry.path()).collect()
}

/// How long ago a file was read or written, as this worker notes it.
fn idle(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

fn is_old(path: &Path) -> bool {
    idle(path).is_some_and(|of| of > MAX_AGE)
}

/// What a bundle is of, and its number, by its file's name.
fn sorted(path: &Path) -> Option<(Sort, u64)> {
    let name = path.file_name()?.to_str()?;
    let (sort, no) = match name.split_once('-') {
        Some((of, no)) if of.len() == 32 => {
            (Sort::Checkpoint(u128::from_str_radix(of, 16).ok()?.to_be_bytes()), no)
        }
        Some(_) => return None,
        None => (Sort::Prefix, name),
    };
    (no.len() == 16).then_some((sort, u64::from_str_radix(no, 16).ok()?))
}

fn create(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.write(true).mode(FILE_MODE).open(path)
}

/// The bundle in a file, if it is one of whole length.
fn found_in(path: &Path) -> Option<Found> {
    let Some((Sort::Prefix, no)) = sorted(path) else { return None };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_earlier_releases_have_left_is_moved_or_removed() {
        let folder = format!("brigade-old-records-{}", std::process::id());
        let cache = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&cache);
        let write = |path: &str| {
            let path = cache.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, b"1").unwrap();
            path
        };
        write("prefixes/0/0000000000000001");
        write("prefixes/1/0000000000000002");
        write("records/0/0000000000000003");
        let used = write("checkpoints/01/0-2/pages");
        let unused = write("checkpoints/02/0-2/pages");
        let number = write("checkpoints.bytes");
        let of_old_worker = File::open(&used).unwrap();
        of_old_worker.try_lock().unwrap();
        let running = Folder::locked(cache.join("prefixes/1")).unwrap();
        settle_old(&cache);
        let has = |path: &str| cache.join(path).exists();
        assert!(has("records/1/0000000000000001") && has("records/0/0000000000000003"));
        assert!(has("prefixes/1/0000000000000002"), "a worker has it");
        drop(running);
        assert_eq!([&used, &unused, &number].map(|path| path.exists()), [true, false, true]);
        drop(of_old_worker);
        settle_old(&cache);
        assert!(!has("checkpoints") && !number.exists());
        assert!(has("records/2/0000000000000002") && !has("prefixes"));
        fs::remove_dir_all(cache).unwrap();
    }
}
