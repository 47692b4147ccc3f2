//! The disk cache: blobs that were pushed to this worker, named by their blake3 hash and kept for the next
//! start.
//!
//! The directory holds:
//!
//! - `blobs/<hex>`: complete and verified blobs;
//! - `parts/<hex>`: blobs that are being received;
//! - `verified/<hex>`: the state ([`FileState`]) that a blob was in when its bytes were known to be right;
//! - `pins`: what loaded and loading stages need ([`Pinned`]).
//!
//! A blob gets its name only after it was synced to the disk and its hash was right. A blob in another state than the
//! noted one is hashed again before it is used. The state includes the change time of the file's metadata, which no
//! program can set back. A verified blob's modification time is set to [`VERIFIED_MTIME`], so that a write within one
//! tick of the file system's clock shows too.
//!
//! Eviction goes by the access times of the notes in `verified`, and leaves what is pinned. Several workers may share one
//! directory: parts are locked, renames are atomic, and pins are seen by all. The bound is of the directory. A blob that is
//! deleted while a stage is read from it makes that loading fail with an error. A directory that cannot be written still
//! serves the blobs in it.

mod pins;
mod space;

pub use pins::{Needed, Pinned, Purpose, Shares, Standing};

use std::fs::{self, File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use blake3::Hash;
use brigade_gguf::FileState;

use crate::machine::reading_threads::Pool;

/// Modification time of a verified blob: one day after the Unix epoch, which no write leaves.
const VERIFIED_MTIME: Duration = Duration::from_secs(86_400);
/// How long a part that another worker is receiving is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOCK_POLL: Duration = Duration::from_millis(50);
/// Bytes of a blob in memory while it is hashed.
const HASH_BYTES: u64 = 16 << 20;
/// Folders of the directory.
const BLOBS: &str = "blobs";
const PARTS: &str = "parts";
const VERIFIED: &str = "verified";
const PINS: &str = "pins";

/// A directory of blobs under a size bound.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    limit_bytes: u64,
    pool: Pool,
    /// Names its pins.
    owner: u64,
    /// The pin of blobs that are fetched before their hashes are known.
    fetched: Option<Arc<Pinned>>,
}

/// A complete blob whose bytes were right when it was in this state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedBlob {
    /// Path of the blob's file.
    pub path: PathBuf,
    /// The state; a file in another one is not this blob.
    pub state: FileState,
}

/// Why the cache cannot serve or keep a blob.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The received bytes do not match their hash, and are deleted.
    #[error("blob {hash} is corrupt: the {nbytes} bytes received have the hash {found}")]
    Corrupt {
        /// The hash that names it.
        hash: Hash,
        /// The hash of the received bytes.
        found: Hash,
        /// Bytes received.
        nbytes: u64,
    },
    /// A chunk that does not follow the bytes on disk.
    #[error(
        "blob {hash}: a chunk of {len} bytes at {offset} does not fit {have} of {nbytes} bytes"
    )]
    Gap {
        /// The blob's hash.
        hash: Hash,
        /// Where the chunk claims to be.
        offset: u64,
        /// Length of the chunk.
        len: u64,
        /// Bytes of the blob on disk.
        have: u64,
        /// Bytes of the blob.
        nbytes: u64,
    },
    /// Another process has been writing it for too long.
    #[error("blob {hash} is being received by another worker: try again")]
    Locked {
        /// The blob's hash.
        hash: Hash,
    },
    /// What other stages need leaves too little of the bound.
    #[error(
        "the stage needs {new_bytes} bytes more of the cache in {dir}, where {} bytes are pinned by {} other stages of {} models, and its \
         limit is {limit_bytes}: unload a model, raise --cache-limit, or give this worker the model's file",
        .standing.nbytes, .standing.stages, .standing.models
    )]
    Pinned {
        /// The cache's directory.
        dir: PathBuf,
        /// Bytes of those blobs of the stage that are not pinned yet.
        new_bytes: u64,
        /// What is pinned.
        standing: Standing,
        /// The cache's limit.
        limit_bytes: u64,
    },
    /// Another process has been making room for too long.
    #[error("another worker makes room in the cache {dir}, and does not end: try again")]
    Waits {
        /// The cache's directory.
        dir: PathBuf,
    },
    /// More is needed at once than the bound allows.
    #[error(
        "the stage needs {needed_bytes} bytes of the cache in {dir} and its limit is {limit_bytes}: \
         raise --cache-limit, or give this worker the model's file"
    )]
    TooLarge {
        /// The cache's directory.
        dir: PathBuf,
        /// Bytes of all blobs of the stage.
        needed_bytes: u64,
        /// The cache's limit.
        limit_bytes: u64,
    },
    /// The disk is full.
    #[error(
        "the stage needs {needed_bytes} bytes more in the cache {dir} and its disk has \
         {free_bytes} free: free some there, give another --cache-dir, or give this worker the \
         model's file"
    )]
    NoSpace {
        /// The cache's directory.
        dir: PathBuf,
        /// Bytes still to be written.
        needed_bytes: u64,
        /// Bytes that may be written there.
        free_bytes: u64,
    },
    /// Nothing can be kept in the directory.
    #[error(
        "the cache {dir} cannot be written ({reason}), and weights have to be kept in it: give a \
         --cache-dir that can be written, or give this worker the model's file"
    )]
    Unwritable {
        /// The cache's directory.
        dir: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// Something else has a blob's name.
    #[error("{path} is in the place of a cached blob and is not a file: remove it")]
    NotAFile {
        /// The path in question.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("cache file {path}: {source}")]
    Io {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Cache {
    /// Uses `dir`, creating it if needed; it will hold at most `limit_bytes`. Blobs are hashed by
    /// `pool`. A directory that cannot be written is told in the log: a worker that has the model's file,
    /// or all blobs, needs none.
    pub fn open(dir: &Path, limit_bytes: u64, pool: Pool) -> Self {
        let (owner, fetched) = (pins::owner(), None);
        let cache = Self { dir: dir.to_owned(), limit_bytes, pool, owner, fetched };
        if let Err(reason) = cache.check_writable() {
            tracing::warn!(%reason, "weights cannot be sent to this worker");
        }
        cache
    }

    /// The cache's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Creates the folders, and sees whether a file can be written.
    ///
    /// # Errors
    /// [`CacheError::Unwritable`].
    fn check_writable(&self) -> Result<(), CacheError> {
        let probe = self.dir.join(PARTS).join(format!("probe-{}", std::process::id()));
        [BLOBS, PARTS, VERIFIED, PINS]
            .iter()
            .try_for_each(|sub| fs::create_dir_all(self.dir.join(sub)))
            .and_then(|()| fs::write(&probe, b""))
            .and_then(|()| fs::remove_file(&probe))
            .map_err(|error| CacheError::Unwritable {
                dir: self.dir.clone(),
                reason: error.to_string(),
            })
    }

    /// A complete blob whose bytes are known to be right; marks it as used. One that was touched
    /// since it was verified is hashed again, and deleted if it is wrong.
    ///
    /// # Errors
    /// [`CacheError::Io`] where it is there and cannot be read, [`CacheError::NotAFile`].
    pub fn lookup(&self, hash: &Hash, nbytes: u64) -> Result<Option<CachedBlob>, CacheError> {
        let path = self.blob(hash);
        let Some(file) = open_if_there(&path)? else { return Ok(None) };
        let state = FileState::of(&file).map_err(at(&path))?;
        let note = self.note(hash);
        if state.nbytes == nbytes && recorded(&note) == Some(state) {
            mark_used(&note);
            return Ok(Some(CachedBlob { path, state }));
        }
        if state.nbytes == nbytes && self.hash_file(&file, &path)? == *hash {
            let state = self.mark_verified(hash, &file, &path)?;
            return Ok(Some(CachedBlob { path, state }));
        }
        tracing::warn!(path = %path.display(), "deleting a cached blob whose bytes have changed");
        fs::remove_file(&path).map_err(at(&path))?;
        remove_if_there(&note)?;
        Ok(None)
    }

    /// Notes the state of a blob whose bytes have just been found right. In a directory that cannot be
    /// written it is hashed again the next time.
    fn mark_verified(
        &self,
        hash: &Hash,
        file: &File,
        path: &Path,
    ) -> Result<FileState, CacheError> {
        let note = self.note(hash);
        let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + VERIFIED_MTIME);
        let marked = file.set_times(times);
        let state = FileState::of(file).map_err(at(path))?;
        let temporary = note.with_extension(std::process::id().to_string());
        let noted = marked
            .and_then(|()| fs::write(&temporary, serde_json::to_vec(&state)?))
            .and_then(|()| fs::rename(&temporary, &note));
        if let Err(error) = noted {
            tracing::debug!(path = %note.display(), %error, "the check of a cached blob cannot be noted");
        }
        Ok(state)
    }

    fn hash_file(&self, file: &File, path: &Path) -> Result<Hash, CacheError> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            let read = file.take(HASH_BYTES).read_to_end(&mut buffer).map_err(at(path))?;
            if read == 0 {
                return Ok(hasher.finalize());
            }
            self.pool.run(|| {
                hasher.update_rayon(&buffer);
            });
        }
    }

    /// How much of a blob is here. A part that is complete (its receiver died before publishing
    /// it) is published now; one that is wrong is deleted.
    ///
    /// # Errors
    /// As [`Cache::lookup`] and [`Cache::receive`].
    pub fn state(&self, hash: &Hash, nbytes: u64) -> Result<BlobState, CacheError> {
        let blob = self.lookup(hash, nbytes).map_err(|error| self.unwritable(error))?;
        if let Some(blob) = blob {
            return Ok(BlobState::Complete(blob));
        }
        let part = self.part(hash);
        let received = match open_if_there(&part)? {
            Some(file) => file.metadata().map_err(at(&part))?.len(),
            None => 0,
        };
        if received < nbytes {
            return Ok(BlobState::Partial(received));
        }
        if received > nbytes {
            remove_if_there(&part)?;
            return Ok(BlobState::Partial(0));
        }
        match self.receive(*hash, nbytes)?.finish() {
            Ok(blob) => Ok(BlobState::Complete(blob)),
            Err(CacheError::Corrupt { .. }) => Ok(BlobState::Partial(0)),
            Err(error) => Err(error),
        }
    }

    /// Starts or resumes receiving a blob. Blocks while another worker receives the same one.
    ///
    /// # Errors
    /// [`CacheError::Locked`], [`CacheError::Unwritable`], [`CacheError::NotAFile`], [`CacheError::Io`].
    pub fn receive(&self, hash: Hash, nbytes: u64) -> Result<BlobWriter, CacheError> {
        let path = self.part(&hash);
        let file = lock_part(&path, hash).map_err(|error| self.unwritable(error))?;
        let done = self.lookup(&hash, nbytes)?;
        let have = match &done {
            Some(_) => nbytes,
            None => file.metadata().map_err(at(&path))?.len(),
        };
        Ok(BlobWriter { cache: self.clone(), file, path, hash, is_named: true, nbytes, have, done })
    }

    /// The same as [`Cache::receive`], for bytes whose hash is not known yet. `key` names them until they have one.
    ///
    /// # Errors
    /// As [`Cache::receive`].
    pub fn receive_unnamed(&self, key: Hash, nbytes: u64) -> Result<BlobWriter, CacheError> {
        let path = self.part(&key);
        let file = lock_part(&path, key).map_err(|error| self.unwritable(error))?;
        let mut have = file.metadata().map_err(at(&path))?.len();
        if have > nbytes {
            file.set_len(0).map_err(at(&path))?;
            have = 0;
        }
        let (cache, hash, done) = (self.clone(), key, None);
        Ok(BlobWriter { cache, file, path, hash, is_named: false, nbytes, have, done })
    }

    /// Deletes a blob that is not needed any more.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn forget(&self, hash: &Hash) -> Result<(), CacheError> {
        remove_if_there(&self.blob(hash))?;
        remove_if_there(&self.note(hash))
    }

    /// Turns a refusal to write into an error about the whole directory.
    fn unwritable(&self, error: CacheError) -> CacheError {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        match error {
            CacheError::Io { source, .. }
                if matches!(source.kind(), PermissionDenied | ReadOnlyFilesystem) =>
            {
                CacheError::Unwritable { dir: self.dir.clone(), reason: source.to_string() }
            }
            other => other,
        }
    }

    fn blob(&self, hash: &Hash) -> PathBuf {
        self.dir.join(BLOBS).join(hash.to_hex().as_str())
    }

    fn note(&self, hash: &Hash) -> PathBuf {
        self.dir.join(VERIFIED).join(hash.to_hex().as_str())
    }

    fn part(&self, hash: &Hash) -> PathBuf {
        self.dir.join(PARTS).join(hash.to_hex().as_str())
    }
}

/// How much of a blob is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobState {
    /// The complete blob, verified.
    Complete(CachedBlob),
    /// So many bytes from the blob's start are there.
    Partial(u64),
}

/// Opens a part for appending, under a lock. If another process has renamed or deleted the part before the lock was
/// free, it is opened anew.
fn lock_part(path: &Path, hash: Hash) -> Result<File, CacheError> {
    let patience = Instant::now() + LOCK_WAIT;
    // Called for its error alone, in case the path is not a regular file.
    open_if_there(path)?;
    loop {
        let file =
            OpenOptions::new().create(true).append(true).read(true).open(path).map_err(at(path))?;
        match file.try_lock() {
            Ok(()) => {
                let ours = file.metadata().map_err(at(path))?.ino();
                if fs::metadata(path).is_ok_and(|there| there.ino() == ours) {
                    return Ok(file);
                }
            }
            Err(TryLockError::Error(error)) => return Err(at(path)(error)),
            Err(TryLockError::WouldBlock) if Instant::now() > patience => {
                return Err(CacheError::Locked { hash });
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
        }
    }
}

/// A blob being received.
#[derive(Debug)]
pub struct BlobWriter {
    cache: Cache,
    file: File,
    path: PathBuf,
    hash: Hash,
    /// Whether `hash` is the bytes' own.
    is_named: bool,
    nbytes: u64,
    have: u64,
    /// Another worker completed the blob before this one had the lock: incoming bytes are not needed.
    done: Option<CachedBlob>,
}

impl BlobWriter {
    /// Bytes that are there.
    pub fn have(&self) -> u64 {
        self.have
    }

    /// True if a chunk that ends at `end` was the blob's last.
    pub fn is_complete(&self, end: u64) -> bool {
        end == self.nbytes && self.have == self.nbytes
    }

    /// Appends a chunk at `offset`.
    ///
    /// # Errors
    /// [`CacheError::Gap`], [`CacheError::NoSpace`], [`CacheError::Io`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), CacheError> {
        if self.done.is_some() {
            return Ok(());
        }
        let len = data.len() as u64;
        if offset != self.have || len > self.nbytes.saturating_sub(self.have) {
            let Self { hash, nbytes, have, .. } = *self;
            return Err(CacheError::Gap { hash, offset, len, have, nbytes });
        }
        self.file.write_all(data).map_err(|error| self.failed(error))?;
        self.have += len;
        Ok(())
    }

    /// Verifies, syncs and publishes a complete blob.
    ///
    /// # Errors
    /// [`CacheError::Corrupt`], and the part is gone; [`CacheError::Gap`] if it is not complete;
    /// [`CacheError::Io`].
    pub fn finish(self) -> Result<CachedBlob, CacheError> {
        self.publish().map(|(_, blob)| blob)
    }

    /// The same as [`BlobWriter::finish`], but names the blob by the hash that its bytes have.
    ///
    /// # Errors
    /// As [`BlobWriter::finish`].
    pub fn publish(mut self) -> Result<(Hash, CachedBlob), CacheError> {
        if let Some(blob) = self.done.take() {
            // The part was created anew, empty, when the other worker renamed its own.
            remove_if_there(&self.path)?;
            return Ok((self.hash, blob));
        }
        let Self { hash, is_named, nbytes, have, .. } = self;
        if have != nbytes {
            return Err(CacheError::Gap { hash, offset: nbytes, len: 0, have, nbytes });
        }
        self.file.rewind().map_err(at(&self.path))?;
        let found = self.cache.hash_file(&self.file, &self.path)?;
        if is_named && found != hash {
            remove_if_there(&self.path)?;
            return Err(CacheError::Corrupt { hash, found, nbytes });
        }
        self.file.sync_all().map_err(|error| self.failed(error))?;
        if let Some(pin) = self.cache.fetched.as_ref().filter(|_| !is_named) {
            pin.named(&hash, &found, nbytes);
        }
        let target = self.cache.blob(&found);
        fs::rename(&self.path, &target).map_err(at(&target))?;
        let dir = target.parent().unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))?;
        let state = self.cache.mark_verified(&found, &self.file, &target)?;
        Ok((found, CachedBlob { path: target, state }))
    }

    fn failed(&self, error: io::Error) -> CacheError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CacheError::NoSpace {
                dir: self.cache.dir.clone(),
                needed_bytes: self.nbytes.saturating_sub(self.have),
                free_bytes: space::free_bytes(&self.cache.dir).unwrap_or(0),
            },
            _ => at(&self.path)(error),
        }
    }
}

/// Opens a file for reading, if there is one. Anything else of that name is an error: it could block, or never be
/// deleted.
fn open_if_there(path: &Path) -> Result<Option<File>, CacheError> {
    let absent = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    };
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(CacheError::NotAFile { path: path.to_owned() }),
        Ok(_) => {}
        Err(error) if absent(&error) => return Ok(None),
        Err(error) => return Err(at(path)(error)),
    }
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if absent(&error) => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// The state that a note says a blob was verified in.
fn recorded(note: &Path) -> Option<FileState> {
    serde_json::from_slice(&fs::read(note).ok()?).ok()
}

/// Where the note cannot be marked, eviction goes by an older use.
fn mark_used(note: &Path) {
    let used = FileTimes::new().set_accessed(SystemTime::now());
    if let Err(error) = File::open(note).and_then(|file| file.set_times(used)) {
        tracing::debug!(path = %note.display(), %error, "cannot mark a blob as used");
    }
}

fn hash_of_name(path: &Path) -> Option<Hash> {
    Hash::from_hex(path.file_name()?.to_str()?).ok()
}

fn remove_if_there(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError::Io { path: path.clone(), source }
}
