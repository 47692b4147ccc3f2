//! Makes room in the cache: under its own limit, and on the disk.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use blake3::Hash;

use super::{BLOBS, Cache, CacheError, PARTS, at, hash_of_name, remove_if_there};

/// A blob or part that may have to go.
struct Entry {
    used: SystemTime,
    nbytes: u64,
    path: PathBuf,
    note: Option<PathBuf>,
}

/// Room that a call has reserved for the bytes it fetches, until it is dropped.
#[derive(Debug)]
pub struct Reserved {
    of: Arc<AtomicU64>,
    nbytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.of.fetch_sub(self.nbytes, Relaxed);
    }
}

impl Cache {
    /// Makes room for `nbytes` more beside other reservations. None of `keep` is deleted. All calls together reserve
    /// no more than the bound.
    ///
    /// # Errors
    /// As [`Cache::make_room`].
    pub fn reserve(&self, nbytes: u64, keep: &HashSet<Hash>) -> Result<Reserved, CacheError> {
        let before = self.reserved.fetch_add(nbytes, Relaxed);
        let reserved = Reserved { of: self.reserved.clone(), nbytes };
        self.make_room(before.saturating_add(nbytes), keep)?;
        Ok(reserved)
    }

    /// Makes room for `incoming_bytes` more by deleting the blobs and parts longest unused, but
    /// none of `keep`.
    ///
    /// # Errors
    /// [`CacheError::TooLarge`] where `keep` and `incoming_bytes` alone exceed the bound: nothing is
    /// deleted then. [`CacheError::NoSpace`] where the disk has no room even so.
    /// [`CacheError::Unwritable`], [`CacheError::Io`].
    pub fn make_room(&self, incoming_bytes: u64, keep: &HashSet<Hash>) -> Result<(), CacheError> {
        if incoming_bytes == 0 {
            return Ok(());
        }
        self.check_writable()?;
        let (kept_bytes, mut others) = self.entries(keep)?;
        let other_bytes: u64 = others.iter().map(|entry| entry.nbytes).sum();
        let (dir, needed_bytes) = (self.dir.clone(), kept_bytes.saturating_add(incoming_bytes));
        if needed_bytes > self.limit_bytes {
            return Err(CacheError::TooLarge { dir, needed_bytes, limit_bytes: self.limit_bytes });
        }
        let mut free_bytes = free_bytes(&self.dir).map_err(at(&self.dir))?;
        if incoming_bytes > free_bytes.saturating_add(other_bytes) {
            return Err(CacheError::NoSpace { dir, needed_bytes: incoming_bytes, free_bytes });
        }
        let mut total_bytes = kept_bytes + other_bytes;
        others.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        for Entry { nbytes, path, note, .. } in others {
            if total_bytes + incoming_bytes <= self.limit_bytes && incoming_bytes <= free_bytes {
                break;
            }
            // A part that another worker is receiving right now is locked, and stays.
            let in_use = File::open(&path).is_ok_and(|f| f.try_lock().is_err());
            if !in_use {
                remove_if_there(&path)?;
                note.as_deref().map_or(Ok(()), remove_if_there)?;
                total_bytes -= nbytes;
                free_bytes = free_bytes.saturating_add(nbytes);
            }
        }
        if incoming_bytes > free_bytes {
            return Err(CacheError::NoSpace { dir, needed_bytes: incoming_bytes, free_bytes });
        }
        Ok(())
    }

    /// Bytes of blobs and parts in `keep`, and all other entries. Anything that is not a file is ignored.
    fn entries(&self, keep: &HashSet<Hash>) -> Result<(u64, Vec<Entry>), CacheError> {
        let (mut kept_bytes, mut others) = (0, Vec::new());
        for sub in [BLOBS, PARTS] {
            let dir = self.dir.join(sub);
            for entry in fs::read_dir(&dir).map_err(at(&dir))? {
                let path = entry.map_err(at(&dir))?.path();
                // Another worker may have deleted or renamed it since the listing.
                let Ok(meta) = fs::metadata(&path) else { continue };
                if !meta.is_file() {
                    continue;
                }
                let hash = hash_of_name(&path);
                if hash.is_some_and(|hash| keep.contains(&hash)) {
                    kept_bytes += meta.len();
                    continue;
                }
                let note = hash.filter(|_| sub == BLOBS).map(|hash| self.note(&hash));
                let noted = note.as_deref().and_then(|note| fs::metadata(note).ok());
                let used = noted.unwrap_or(meta.clone()).accessed();
                let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
                others.push(Entry { used, nbytes: meta.len(), path, note });
            }
        }
        Ok((kept_bytes, others))
    }
}

/// Bytes that this process may still write to the file system of `dir`.
pub(super) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
