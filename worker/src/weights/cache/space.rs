//! Makes room in the cache: under its own limit, and on the disk.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use blake3::Hash;

use super::pins::total;
use super::{BLOBS, Cache, CacheError, PARTS, at, hash_of_name, remove_if_there};

/// A blob or part that may have to go.
struct Entry {
    used: SystemTime,
    nbytes: u64,
    path: PathBuf,
    note: Option<PathBuf>,
}

/// What is in the folder.
struct Contents {
    /// Bytes of pinned blobs and parts.
    pinned_bytes: u64,
    /// All others.
    others: Vec<Entry>,
}

impl Cache {
    /// Makes room for what is still to come of all `pinned` blobs, `own_bytes` of it for the caller, by deleting the blobs and
    /// parts longest unused that are not pinned.
    ///
    /// # Errors
    /// [`CacheError::NoSpace`] where the disk has no room even so. [`CacheError::Io`].
    pub(super) fn evict_for(
        &self,
        own_bytes: u64,
        pinned: &HashMap<Hash, u64>,
    ) -> Result<(), CacheError> {
        let Contents { pinned_bytes, mut others } = self.contents(pinned)?;
        let other_bytes: u64 = others.iter().map(|entry| entry.nbytes).sum();
        let pinned_total = total(pinned);
        // What other stages have pinned and not received yet takes of the disk as well.
        let theirs = pinned_total.saturating_sub(pinned_bytes).saturating_sub(own_bytes);
        let free_bytes = free_bytes(&self.dir).map_err(at(&self.dir))?;
        let mut free_bytes = free_bytes.saturating_sub(theirs);
        let no_space = |free_bytes| CacheError::NoSpace {
            dir: self.dir.clone(),
            needed_bytes: own_bytes,
            free_bytes,
        };
        if own_bytes > free_bytes.saturating_add(other_bytes) {
            return Err(no_space(free_bytes));
        }
        let mut total_bytes = pinned_total.saturating_add(other_bytes);
        others.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        for Entry { nbytes, path, note, .. } in others {
            if total_bytes <= self.limit_bytes && own_bytes <= free_bytes {
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
        if own_bytes > free_bytes {
            return Err(no_space(free_bytes));
        }
        Ok(())
    }

    /// Looks through the folder. Anything that is not a file is ignored.
    fn contents(&self, pinned: &HashMap<Hash, u64>) -> Result<Contents, CacheError> {
        let mut contents = Contents { pinned_bytes: 0, others: Vec::new() };
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
                if hash.is_some_and(|hash| pinned.contains_key(&hash)) {
                    contents.pinned_bytes += meta.len();
                    continue;
                }
                let note = hash.filter(|_| sub == BLOBS).map(|hash| self.note(&hash));
                let noted = note.as_deref().and_then(|note| fs::metadata(note).ok());
                let used = noted.unwrap_or(meta.clone()).accessed();
                let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
                contents.others.push(Entry { used, nbytes: meta.len(), path, note });
            }
        }
        Ok(contents)
    }
}

/// Bytes that this process may still write to the file system of `dir`.
pub(super) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
