//! The blake3 hashes of tensors. Each is computed once, and remembered by path and [`FileState`] in a small store
//! beside the cache. Coordinators use this file as well. This module also has the identity of files, by which two
//! processes on one machine recognise the same file.
//!
//! A remembered hash is valid while the file has the same [`FileState`]. That includes the system's change time, so
//! bytes that changed under a kept modification time are noticed. A file that has been written to just now is hashed
//! and not remembered, because another write could leave the same times.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use blake3::Hash;
use brigade_gguf::{FileState, Gguf, GgufError, TensorFiles, TensorInfo};
use brigade_proto::control::FileHint;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::machine::reading_threads::{Pool, PoolError};

/// Tensors at least this long are hashed by all threads together, one after the other; shorter ones
/// by one thread each.
const SPLIT_BYTES: u64 = 8 << 20;

/// Bytes of a long tensor in memory at a time; progress is told as often.
const PIECE_BYTES: u64 = 64 << 20;

/// Bytes that one thread reads at a time.
const READ_BYTES: usize = 4 << 20;

/// Progress is logged about as often, at first after as long.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Remembered hashes, one small JSON file a model file.
#[derive(Clone, Debug)]
pub struct HashStore {
    dir: PathBuf,
    pool: Pool,
}

/// Why tensors could not be hashed.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// The model's file cannot be used.
    #[error(transparent)]
    Model(#[from] GgufError),
    /// A path that leads nowhere any more.
    #[error("cannot look at {path}: {source}")]
    Stat {
        /// The file's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system refuses threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The caller gave the hashing up.
    #[error("hashing was given up")]
    GivenUp,
}

/// The files of a model as Prepare names them to workers: as they were when they were opened.
///
/// # Errors
/// A file has changed since, so its contents may differ from what was read before.
pub fn file_hints(files: &TensorFiles, host_id: &str) -> Result<Vec<FileHint>, HashError> {
    files.check_unchanged()?;
    let hint = |(path, state): (&Path, &FileState)| FileHint {
        // A path that has gone since is one that no worker finds: weights are sent then.
        path: fs::canonicalize(path).unwrap_or(path.into()).to_string_lossy().into_owned(),
        nbytes: state.nbytes,
        mtime_ns: state.mtime_ns,
        inode: state.inode,
        host_id: host_id.to_owned(),
        ctime_ns: state.ctime_ns,
        device: state.device,
    };
    Ok(files.states().map(hint).collect())
}

/// The state of a file that a coordinator names.
pub fn hinted_state(hint: &FileHint) -> FileState {
    let FileHint { nbytes, mtime_ns, ctime_ns, inode, device, .. } = *hint;
    FileState { nbytes, mtime_ns, ctime_ns, inode, device }
}

/// One file's remembered hashes.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    state: FileState,
    /// Hex blake3 by tensor name.
    tensors: BTreeMap<String, String>,
}

impl HashStore {
    /// Remembers in `cache_dir`, hashes with `pool`; nothing is created before there is something to
    /// remember.
    pub fn new(cache_dir: &Path, pool: Pool) -> Self {
        Self { dir: cache_dir.join("hashes"), pool }
    }

    /// The hashes of `tensors`, in their order, remembered or computed from `files`, which are those
    /// of `model`. `progress` is told `(done, total)` bytes of those that have to be computed.
    ///
    /// # Errors
    /// A file cannot be read, or has changed since it was opened; [`HashError::GivenUp`] soon after
    /// `given_up` is cancelled.
    pub fn tensor_hashes(
        &self,
        model: &Gguf,
        files: &TensorFiles,
        tensors: &[&TensorInfo],
        progress: &(dyn Fn(u64, u64) + Sync),
        given_up: &CancellationToken,
    ) -> Result<Vec<Hash>, HashError> {
        let mut records =
            files.states().map(|(p, s)| self.recall(p, s)).collect::<Result<Vec<_>, _>>()?;
        let known = |t: &TensorInfo| {
            let hex = records.get(t.shard)?.tensors.get(&t.name)?;
            Hash::from_hex(hex).ok()
        };
        let remembered: Vec<Option<Hash>> = tensors.iter().map(|t| known(t)).collect();
        let missing: Vec<&TensorInfo> =
            tensors.iter().zip(&remembered).filter(|(_, h)| h.is_none()).map(|(t, _)| *t).collect();
        let started = SystemTime::now();
        let job = Hashing { files, pool: &self.pool, given_up };
        let mut computed = job.hash_all(model.name(), &missing, progress)?.into_iter();
        files.check_unchanged()?;
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
            let settled = records.iter().filter(|record| record.state.is_settled(started));
            settled.for_each(|record| self.remember(record));
        }
        Ok(hashes)
    }

    /// The record of a file in this state; empty when it was in another one, or was never hashed.
    fn recall(&self, path: &Path, state: &FileState) -> Result<Record, HashError> {
        let path = fs::canonicalize(path)
            .map_err(|source| HashError::Stat { path: path.to_owned(), source })?;
        let stored: Option<Record> = fs::read(self.file_of(&path))
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .filter(|r: &Record| r.path == path && r.state == *state);
        Ok(stored.unwrap_or(Record { path, state: *state, tensors: BTreeMap::new() }))
    }

    /// Stores a record. Failing costs only time at the next start, so it is logged, not returned.
    fn remember(&self, record: &Record) {
        let target = self.file_of(&record.path);
        let temporary = target.with_extension(format!("{}.part", std::process::id()));
        let stored = fs::create_dir_all(&self.dir)
            .and_then(|()| fs::write(&temporary, serde_json::to_vec(record)?))
            .and_then(|()| fs::rename(&temporary, &target));
        if let Err(error) = stored {
            tracing::warn!(path = %target.display(), %error, "the hashes of a file's tensors cannot be stored");
        }
    }

    fn file_of(&self, path: &Path) -> PathBuf {
        let name = blake3::hash(path.as_os_str().as_encoded_bytes());
        self.dir.join(format!("{}.json", name.to_hex()))
    }
}

/// State of hashing a model's tensors.
struct Hashing<'a> {
    files: &'a TensorFiles,
    pool: &'a Pool,
    given_up: &'a CancellationToken,
}

impl Hashing<'_> {
    fn hash_all(
        &self,
        name: &str,
        tensors: &[&TensorInfo],
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Vec<Hash>, HashError> {
        let total: u64 = tensors.iter().map(|t| t.nbytes).sum();
        let (done, log) = (AtomicU64::new(0), ProgressLog::new(name));
        let told = |nbytes: u64| {
            let done = done.fetch_add(nbytes, Relaxed) + nbytes;
            progress(done, total);
            log.told(done, total);
        };
        let one = |tensor: &TensorInfo| {
            let hash = self.hash(tensor, &told)?;
            Ok::<_, HashError>((tensor.name.clone(), hash))
        };
        // Long ones one after the other: each takes all threads, and a piece of it is in memory.
        let (long, short): (Vec<&TensorInfo>, Vec<&TensorInfo>) =
            tensors.iter().partition(|t| t.nbytes >= SPLIT_BYTES);
        let mut by_name: BTreeMap<String, Hash> = self.pool.run(|| {
            let short = short.par_iter().map(|t| one(t));
            short.collect::<Result<_, _>>()
        })?;
        for tensor in long {
            by_name.extend([self.pool.run(|| one(tensor))?]);
        }
        Ok(tensors.iter().map(|tensor| by_name[&tensor.name]).collect())
    }

    /// Runs on a thread of the pool.
    fn hash(&self, tensor: &TensorInfo, told: &dyn Fn(u64)) -> Result<Hash, HashError> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; tensor.nbytes.min(PIECE_BYTES) as usize];
        let mut at = 0;
        while at < tensor.nbytes {
            if self.given_up.is_cancelled() {
                return Err(HashError::GivenUp);
            }
            let len = (tensor.nbytes - at).min(PIECE_BYTES);
            let piece = &mut buffer[..len as usize];
            if tensor.nbytes >= SPLIT_BYTES {
                let parts = piece.par_chunks_mut(READ_BYTES).enumerate();
                parts.try_for_each(|(i, part)| {
                    self.files.read(tensor, at + (i * READ_BYTES) as u64, part)
                })?;
                hasher.update_rayon(piece);
            } else {
                self.files.read(tensor, at, piece)?;
                hasher.update(piece);
            }
            at += len;
            told(len);
        }
        Ok(hasher.finalize())
    }
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
