//! blake3 of tensors, on all cores, each computed once: remembered by path, size and time stamp
//! of the file in a small store beside the cache. And the identity of files, by which two
//! processes on one machine know that they mean the same one. Used by coordinators as well.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blake3::Hash;
use brigade_engine::gguf::{Gguf, GgufError, TensorInfo};
use brigade_proto::control::FileHint;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Tensors at least this long are hashed by several threads each, shorter ones by one each.
const SPLIT_BYTES: u64 = 8 << 20;

/// Progress is told after as many bytes of a tensor: some tens of milliseconds.
const PIECE_BYTES: usize = 64 << 20;

/// Progress is logged about as often, at first after as long.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Remembered hashes, one small JSON file a model file.
#[derive(Clone, Debug)]
pub struct HashStore {
    dir: PathBuf,
}

/// Why tensors could not be hashed.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// The model's file.
    #[error(transparent)]
    Model(#[from] GgufError),
    /// A file's size or time stamp cannot be read.
    #[error("cannot look at {path}: {source}")]
    Stat {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Size in bytes.
    pub nbytes: u64,
    /// Modification time, nanoseconds since the Unix epoch.
    pub mtime_ns: i64,
    /// Inode.
    pub inode: u64,
}

impl FileId {
    /// Reads it from the file system.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn of(path: &Path) -> Result<Self, HashError> {
        let stat = |source| HashError::Stat { path: path.to_owned(), source };
        let meta = fs::metadata(path).map_err(stat)?;
        let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        Ok(Self { nbytes: meta.len(), mtime_ns, inode: meta.ino() })
    }
}

/// The files of a model as Prepare names them to workers.
///
/// # Errors
/// A file cannot be looked at.
pub fn file_hints(model: &Gguf, host_id: &str) -> Result<Vec<FileHint>, HashError> {
    model
        .paths()
        .map(|path| {
            let path = fs::canonicalize(path)
                .map_err(|source| HashError::Stat { path: path.to_owned(), source })?;
            let FileId { nbytes, mtime_ns, inode } = FileId::of(&path)?;
            let path = path.to_string_lossy().into_owned();
            Ok(FileHint { path, nbytes, mtime_ns, inode, host_id: host_id.to_owned() })
        })
        .collect()
}

/// One file's remembered hashes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    nbytes: u64,
    mtime_ns: i64,
    /// Hex blake3 by tensor name.
    tensors: BTreeMap<String, String>,
}

impl HashStore {
    /// Remembers in `cache_dir`; nothing is created before there is something to remember.
    pub fn new(cache_dir: &Path) -> Self {
        Self { dir: cache_dir.join("hashes") }
    }

    /// The hashes of `tensors`, in their order, remembered or computed from `model`'s data.
    /// `progress` is told `(done, total)` bytes of those that have to be computed.
    ///
    /// # Errors
    /// The model has no data, or its file cannot be looked at.
    pub fn tensor_hashes(
        &self,
        model: &Gguf,
        tensors: &[&TensorInfo],
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Vec<Hash>, HashError> {
        let paths: Vec<PathBuf> = model.paths().map(Path::to_owned).collect();
        let mut records = paths.iter().map(|p| self.recall(p)).collect::<Result<Vec<_>, _>>()?;
        let known = |t: &TensorInfo| {
            let hex = records.get(t.shard)?.tensors.get(&t.name)?;
            Hash::from_hex(hex).ok()
        };
        let remembered: Vec<Option<Hash>> = tensors.iter().map(|t| known(t)).collect();
        let missing: Vec<&TensorInfo> =
            tensors.iter().zip(&remembered).filter(|(_, h)| h.is_none()).map(|(t, _)| *t).collect();
        let mut computed = compute(model, &missing, progress)?.into_iter();
        let hashes: Vec<Hash> = remembered
            .into_iter()
            .map(|hash| hash.or_else(|| computed.next()).expect("one was computed for each None"))
            .collect();
        if !missing.is_empty() {
            for (tensor, hash) in tensors.iter().zip(&hashes) {
                if let Some(record) = records.get_mut(tensor.shard) {
                    record.tensors.insert(tensor.name.clone(), hash.to_hex().to_string());
                }
            }
            records.iter().for_each(|record| self.remember(record));
        }
        Ok(hashes)
    }

    /// The record of a file as it is now; empty when it has changed since, or was never hashed.
    fn recall(&self, path: &Path) -> Result<Record, HashError> {
        let now = FileId::of(path)?;
        let path = fs::canonicalize(path)
            .map_err(|source| HashError::Stat { path: path.to_owned(), source })?;
        let stored: Option<Record> = fs::read(self.file_of(&path))
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .filter(|r: &Record| {
                r.path == path && r.nbytes == now.nbytes && r.mtime_ns == now.mtime_ns
            });
        let FileId { nbytes, mtime_ns, .. } = now;
        Ok(stored.unwrap_or(Record { path, nbytes, mtime_ns, tensors: BTreeMap::new() }))
    }

    /// Stores a record. Failing costs only time at the next start, so it is logged, not returned.
    fn remember(&self, record: &Record) {
        let target = self.file_of(&record.path);
        let temporary = target.with_extension(format!("{}.part", std::process::id()));
        let stored = fs::create_dir_all(&self.dir)
            .and_then(|()| fs::write(&temporary, serde_json::to_vec(record)?))
            .and_then(|()| fs::rename(&temporary, &target));
        if let Err(error) = stored {
            tracing::warn!(path = %target.display(), %error, "cannot remember tensor hashes");
        }
    }

    fn file_of(&self, path: &Path) -> PathBuf {
        let name = blake3::hash(path.as_os_str().as_encoded_bytes());
        self.dir.join(format!("{}.json", name.to_hex()))
    }
}

fn compute(
    model: &Gguf,
    tensors: &[&TensorInfo],
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Vec<Hash>, HashError> {
    let total: u64 = tensors.iter().map(|t| t.nbytes).sum();
    let (done, log) = (AtomicU64::new(0), ProgressLog::new(model.name()));
    let told = |nbytes: u64| {
        let done = done.fetch_add(nbytes, Relaxed) + nbytes;
        progress(done, total);
        log.told(done, total);
    };
    tensors
        .par_iter()
        .map(|tensor| {
            let data = model.data(tensor)?;
            let mut hasher = blake3::Hasher::new();
            for piece in data.chunks(PIECE_BYTES) {
                if tensor.nbytes >= SPLIT_BYTES {
                    hasher.update_rayon(piece);
                } else {
                    hasher.update(piece);
                }
                told(piece.len() as u64);
            }
            Ok(hasher.finalize())
        })
        .collect()
}

/// Tells the log how far hashing is, now and then: a large file takes minutes.
struct ProgressLog<'a> {
    file: &'a str,
    started: Instant,
    /// Times that [`LOG_EVERY`] had passed when something was last logged.
    logged: AtomicU64,
}

impl<'a> ProgressLog<'a> {
    fn new(file: &'a str) -> Self {
        Self { file, started: Instant::now(), logged: AtomicU64::new(0) }
    }

    fn told(&self, done_bytes: u64, total_bytes: u64) {
        if self.is_due(self.started.elapsed()) {
            let percent = 100 * done_bytes / total_bytes.max(1);
            tracing::info!(file = self.file, done_bytes, total_bytes, percent, "hashing weights");
        }
    }

    /// True once for each time [`LOG_EVERY`] passes, whichever thread asks first.
    fn is_due(&self, elapsed: Duration) -> bool {
        let turns = (elapsed.as_millis() / LOG_EVERY.as_millis()) as u64;
        self.logged.fetch_max(turns, Relaxed) < turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_told_at_intervals_and_never_of_what_is_quick() {
        let log = ProgressLog::new("m.gguf");
        let due = |seconds: f64| log.is_due(Duration::from_secs_f64(seconds));
        let told: Vec<bool> =
            [0.0, 1.0, 4.9, 5.0, 5.1, 9.9, 21.0, 21.0, 24.0, 25.0].map(due).into();
        assert_eq!(told, [0, 0, 0, 1, 0, 0, 1, 0, 0, 1].map(|n| n == 1));
    }
}
