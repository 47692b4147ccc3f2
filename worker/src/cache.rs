//! Blobs on disk, named by their blake3: what was pushed to this worker, kept for the next start.
//!
//! Layout of the directory: `blobs/<hex>` complete and verified, `parts/<hex>` being received.
//! A blob is synced and renamed only after its hash was right. Its modification time is then set to
//! [`VERIFIED_MTIME`]: any later write changes it, and the blob is hashed again before use. Access
//! times order the eviction. Several workers may share one directory: parts are locked, renames
//! are atomic, and a file that is evicted while mapped lives on until it is unmapped.

use std::collections::HashSet;
use std::fs::{self, File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use blake3::Hash;

/// Modification time of a verified blob: one day after the Unix epoch, which no write leaves.
const VERIFIED_MTIME: Duration = Duration::from_secs(86_400);
/// How long a part that another worker is receiving is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// A directory of blobs under a size bound.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    limit_bytes: u64,
}

/// Why the cache cannot serve or keep a blob.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The bytes do not have their hash; what was received is deleted.
    #[error("blob {hash} is corrupt: the {nbytes} bytes received have the hash {found}")]
    Corrupt {
        /// What it was named.
        hash: Hash,
        /// What it is.
        found: Hash,
        /// Its size.
        nbytes: u64,
    },
    /// A chunk that does not follow what is on disk.
    #[error(
        "blob {hash}: a chunk of {len} bytes at {offset} does not fit {have} of {nbytes} bytes"
    )]
    Gap {
        /// The blob.
        hash: Hash,
        /// Where the chunk claims to be.
        offset: u64,
        /// Its length.
        len: u64,
        /// Bytes on disk.
        have: u64,
        /// Bytes of the blob.
        nbytes: u64,
    },
    /// Another process has been receiving it for too long.
    #[error("blob {hash} is being received by another worker: try again")]
    Locked {
        /// The blob.
        hash: Hash,
    },
    /// More is needed at once than the bound allows.
    #[error(
        "the stage needs {needed_bytes} bytes of cache and the limit is {limit_bytes}: raise \
         --cache-limit"
    )]
    TooLarge {
        /// Bytes of all blobs of the stage.
        needed_bytes: u64,
        /// The bound.
        limit_bytes: u64,
    },
    /// The disk.
    #[error("cache file {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Cache {
    /// Uses `dir`, creating it if needed; it will hold at most `limit_bytes`.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn open(dir: &Path, limit_bytes: u64) -> Result<Self, CacheError> {
        let cache = Self { dir: dir.to_owned(), limit_bytes };
        for sub in [cache.dir.join("blobs"), cache.dir.join("parts")] {
            fs::create_dir_all(&sub).map_err(at(&sub))?;
        }
        Ok(cache)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of a complete blob whose bytes are known to be right; marks it as used. A blob that
    /// was written to since it was verified is hashed again, and deleted if it is wrong.
    ///
    /// # Errors
    /// [`CacheError::Io`] where it is there and cannot be read.
    pub fn lookup(&self, hash: &Hash, nbytes: u64) -> Result<Option<PathBuf>, CacheError> {
        let path = self.blob(hash);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        let meta = file.metadata().map_err(at(&path))?;
        let untouched = meta.modified().is_ok_and(|time| time == verified_mtime());
        if meta.len() == nbytes && (untouched || hash_file(&path)? == *hash) {
            mark_verified(&file).map_err(at(&path))?;
            return Ok(Some(path));
        }
        tracing::warn!(path = %path.display(), "deleting a cached blob whose bytes have changed");
        fs::remove_file(&path).map_err(at(&path))?;
        Ok(None)
    }

    /// How much of a blob is here. A part that is complete (its receiver died before publishing
    /// it) is published now; one that is wrong is deleted.
    ///
    /// # Errors
    /// As [`Cache::lookup`] and [`Cache::receive`].
    pub fn state(&self, hash: &Hash, nbytes: u64) -> Result<BlobState, CacheError> {
        if let Some(path) = self.lookup(hash, nbytes)? {
            return Ok(BlobState::Complete(path));
        }
        let part = self.part(hash);
        let received = fs::metadata(&part).map_or(0, |meta| meta.len());
        if received < nbytes {
            return Ok(BlobState::Partial(received));
        }
        if received > nbytes {
            remove_if_there(&part)?;
            return Ok(BlobState::Partial(0));
        }
        match self.receive(*hash, nbytes)?.finish() {
            Ok(()) => Ok(BlobState::Complete(self.blob(hash))),
            Err(CacheError::Corrupt { .. }) => Ok(BlobState::Partial(0)),
            Err(error) => Err(error),
        }
    }

    /// Makes room for `incoming_bytes` more by deleting the blobs and parts longest unused, but
    /// none of `keep`.
    ///
    /// # Errors
    /// [`CacheError::TooLarge`] where `keep` and `incoming_bytes` alone exceed the bound;
    /// [`CacheError::Io`].
    pub fn make_room(&self, incoming_bytes: u64, keep: &HashSet<Hash>) -> Result<(), CacheError> {
        let (mut kept_bytes, mut total_bytes, mut others) = (0, 0, Vec::new());
        for sub in ["blobs", "parts"] {
            let dir = self.dir.join(sub);
            for entry in fs::read_dir(&dir).map_err(at(&dir))? {
                let path = entry.map_err(at(&dir))?.path();
                // Another worker may have deleted or renamed it since it was listed.
                let Ok(meta) = fs::metadata(&path) else { continue };
                total_bytes += meta.len();
                if hash_of_name(&path).is_some_and(|hash| keep.contains(&hash)) {
                    kept_bytes += meta.len();
                } else {
                    let used = meta.accessed().unwrap_or(SystemTime::UNIX_EPOCH);
                    others.push((used, meta.len(), path));
                }
            }
        }
        let needed_bytes = kept_bytes + incoming_bytes;
        if needed_bytes > self.limit_bytes {
            return Err(CacheError::TooLarge { needed_bytes, limit_bytes: self.limit_bytes });
        }
        others.sort();
        for (_, nbytes, path) in others {
            if total_bytes + incoming_bytes <= self.limit_bytes {
                break;
            }
            // A part that another worker is receiving right now is locked, and stays.
            let in_use = File::open(&path).is_ok_and(|f| f.try_lock().is_err());
            if !in_use {
                remove_if_there(&path)?;
                total_bytes -= nbytes;
            }
        }
        Ok(())
    }

    /// Starts or resumes receiving a blob. Blocks while another worker receives the same one.
    ///
    /// # Errors
    /// [`CacheError::Locked`], [`CacheError::Io`].
    pub fn receive(&self, hash: Hash, nbytes: u64) -> Result<BlobWriter, CacheError> {
        let path = self.part(&hash);
        let file = lock_part(&path, hash)?;
        let done = self.lookup(&hash, nbytes)?.is_some();
        let have = if done { nbytes } else { file.metadata().map_err(at(&path))?.len() };
        Ok(BlobWriter { file, path, target: self.blob(&hash), hash, nbytes, have, done })
    }

    fn blob(&self, hash: &Hash) -> PathBuf {
        self.dir.join("blobs").join(hash.to_hex().as_str())
    }

    fn part(&self, hash: &Hash) -> PathBuf {
        self.dir.join("parts").join(hash.to_hex().as_str())
    }
}

/// How much of a blob is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlobState {
    /// All of it, verified.
    Complete(PathBuf),
    /// This many bytes from its start.
    Partial(u64),
}

/// Opens a part for appending, alone. Whoever had it before may have renamed or deleted it by the
/// time it is ours; then it is opened anew.
fn lock_part(path: &Path, hash: Hash) -> Result<File, CacheError> {
    let patience = Instant::now() + LOCK_WAIT;
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
    file: File,
    path: PathBuf,
    target: PathBuf,
    hash: Hash,
    nbytes: u64,
    have: u64,
    /// Another worker completed it while we waited: what comes is not needed.
    done: bool,
}

impl BlobWriter {
    /// True if a chunk that ends at `end` was the blob's last.
    pub fn is_complete(&self, end: u64) -> bool {
        end == self.nbytes && self.have == self.nbytes
    }

    /// Appends a chunk.
    ///
    /// # Errors
    /// [`CacheError::Gap`], [`CacheError::Io`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), CacheError> {
        if self.done {
            return Ok(());
        }
        let len = data.len() as u64;
        if offset != self.have || len > self.nbytes.saturating_sub(self.have) {
            let Self { hash, nbytes, have, .. } = *self;
            return Err(CacheError::Gap { hash, offset, len, have, nbytes });
        }
        self.file.write_all(data).map_err(at(&self.path))?;
        self.have += len;
        Ok(())
    }

    /// Verifies, syncs and publishes a complete blob.
    ///
    /// # Errors
    /// [`CacheError::Corrupt`], and the part is gone; [`CacheError::Gap`] if it is not complete;
    /// [`CacheError::Io`].
    pub fn finish(self) -> Result<(), CacheError> {
        if self.done {
            // The part was created anew, empty, when the other worker renamed its own.
            return remove_if_there(&self.path);
        }
        let Self { hash, nbytes, have, .. } = self;
        if have != nbytes {
            return Err(CacheError::Gap { hash, offset: nbytes, len: 0, have, nbytes });
        }
        let found = hash_file(&self.path)?;
        if found != hash {
            remove_if_there(&self.path)?;
            return Err(CacheError::Corrupt { hash, found, nbytes });
        }
        self.file.sync_all().map_err(at(&self.path))?;
        mark_verified(&self.file).map_err(at(&self.path))?;
        fs::rename(&self.path, &self.target).map_err(at(&self.target))?;
        let dir = self.target.parent().unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(at(dir))
    }
}

fn verified_mtime() -> SystemTime {
    SystemTime::UNIX_EPOCH + VERIFIED_MTIME
}

fn mark_verified(file: &File) -> io::Result<()> {
    let times = FileTimes::new().set_modified(verified_mtime()).set_accessed(SystemTime::now());
    file.set_times(times)
}

fn hash_file(path: &Path) -> Result<Hash, CacheError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap_rayon(path).map_err(at(path))?;
    Ok(hasher.finalize())
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
