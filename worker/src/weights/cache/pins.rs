//! Pins: blobs that loaded and loading stages need. No process evicts what any process has pinned.
//!
//! The folder `pins` has a file for each pin: the model's name, and a line with hash and bytes for each blob. Its process has
//! a lock on it, which the system gives back when the process ends, however it ends: then the pin does not count any more,
//! and the next process that looks removes its file. So pins of workers that share a folder, stages of one node or not, need
//! nobody to keep them.
//!
//! Pins are made, and blobs evicted, under the lock of one file. A pinned blob counts with all of its bytes before they have
//! come, and once, however many stages need it.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blake3::Hash;

use super::{Cache, CacheError, LOCK_WAIT, PINS, at};

/// The file by whose lock processes take turns.
const TURN: &str = "turn";

/// Ends the name of a fetch's pin.
const OF_FETCH: &str = "-fetch";

/// How often a process that waits for its turn looks: others have it for milliseconds.
const TURN_POLL: Duration = Duration::from_millis(2);

/// Numbers of this process's pins.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A blob that a stage needs.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// The blob's hash; of one that is fetched before its hash is known, the name of its part.
    pub hash: Hash,
    /// Bytes of the whole blob.
    pub nbytes: u64,
    /// Whether it is pinned only if some of it is here: the stage has its bytes in memory.
    pub may_be_absent: bool,
}

/// What a pin is for; it says which pins of the same process count beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A stage that takes the place of all that the process has: none of its pins count.
    Stage,
    /// A stage of the next line, while the one that is there computes: all count.
    Ahead,
    /// Bytes that are on their way, perhaps under other names than the stage's: of its stages that which is here counts.
    Fetch,
}

/// What is pinned in a folder, by all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Bytes of pinned blobs, each once.
    pub nbytes: u64,
    /// Stages that need them, of all workers.
    pub stages: usize,
    /// Models that they are of.
    pub models: usize,
}

/// What is pinned in a folder, and what of it one worker alone needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Bytes that all workers have pinned.
    pub nbytes: u64,
    /// The part that goes when this worker needs nothing any more.
    pub own_bytes: u64,
}

/// Blobs that stay in the cache until this is dropped, or until the process ends.
#[derive(Debug)]
pub struct Pinned {
    /// `None` in a folder that nobody can write, since nothing is evicted there, and once it was released.
    file: Mutex<Option<File>>,
    path: PathBuf,
    dir: PathBuf,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.release();
    }
}

impl Pinned {
    /// Ends it now.
    pub fn release(&self) {
        let file = self.file().take();
        if file.is_some() {
            // One that stays is not locked any more: the next process that looks removes it.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Pins a blob that was fetched under the name `part`, now that its hash is known. One that cannot be noted may be evicted
    /// until its stage is prepared.
    pub(super) fn named(&self, part: &Hash, hash: &Hash, nbytes: u64) {
        let lines = line(part, 0) + &line(hash, nbytes);
        let noted = Turn::wait_for(&self.dir).and_then(|_turn| self.write(&lines));
        if let Err(error) = noted {
            tracing::warn!(%error, "a blob that was fetched cannot be pinned");
        }
    }

    fn write(&self, text: &str) -> Result<(), CacheError> {
        let mut file = self.file();
        let mut files = file.iter_mut();
        files.try_for_each(|file| file.write_all(text.as_bytes())).map_err(at(&self.path))
    }

    fn file(&self) -> MutexGuard<'_, Option<File>> {
        // Nothing panics while it is held.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to make pins and to evict blobs, until it is dropped.
struct Turn(#[expect(dead_code, reason = "it holds the lock")] File);

impl Turn {
    /// Waits for the turn, for a while.
    fn wait_for(dir: &Path) -> Result<Self, CacheError> {
        let patience = Instant::now() + LOCK_WAIT;
        loop {
            if let Some(turn) = Self::now(dir)? {
                return Ok(turn);
            }
            if Instant::now() > patience {
                return Err(CacheError::Waits { dir: dir.to_owned() });
            }
            std::thread::sleep(TURN_POLL);
        }
    }

    /// `None`: another has it.
    fn now(dir: &Path) -> Result<Option<Self>, CacheError> {
        let path = dir.join(PINS).join(TURN);
        let options = OpenOptions::new().create(true).append(true).open(&path);
        let file = options.map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(at(&path)(error)),
        }
    }
}

/// All pins that count.
#[derive(Debug, Default)]
struct Pins {
    /// Bytes of each pinned blob.
    blobs: HashMap<Hash, u64>,
    /// The workers that have them: each has one stage.
    owners: BTreeSet<String>,
    models: BTreeSet<String>,
}

impl Pins {
    fn standing(&self) -> Standing {
        let nbytes = total(&self.blobs);
        Standing { nbytes, stages: self.owners.len(), models: self.models.len() }
    }
}

impl Cache {
    /// Pins the blobs of a stage of `model`, and makes room for those that are not here: blobs and parts that nobody has
    /// pinned are deleted, the longest unused first. Blocks.
    ///
    /// # Errors
    /// [`CacheError::TooLarge`] and [`CacheError::Pinned`] where bytes are to come, and the limit is too small for the blobs alone,
    /// or beside what is pinned: nothing is deleted then. [`CacheError::NoSpace`], [`CacheError::Unwritable`],
    /// [`CacheError::Waits`], [`CacheError::Io`].
    pub fn pin(
        &self,
        model: &str,
        needed: &[Needed],
        purpose: Purpose,
    ) -> Result<Pinned, CacheError> {
        let (mut own, mut to_come) = (HashMap::new(), 0);
        let turn = self.check_writable().and_then(|()| Turn::wait_for(&self.dir));
        let turn = turn.map_err(|error| self.unwritable(error));
        for Needed { hash, nbytes, may_be_absent } in needed {
            let here = self.bytes_here(hash);
            if here == 0 && *may_be_absent {
                continue;
            }
            if own.insert(*hash, *nbytes).is_none() {
                to_come += nbytes.saturating_sub(here);
            }
        }
        let _turn = match turn {
            Ok(turn) => turn,
            Err(CacheError::Unwritable { .. }) if to_come == 0 => return Ok(self.unpinned()),
            Err(error) => return Err(error),
        };
        let mut pins = self.pins(Some(purpose))?;
        if to_come > 0 {
            self.check_limit(&own, &pins)?;
            pins.blobs.extend(&own);
            self.evict_for(to_come, &pins.blobs)?;
        }
        match self.note_pin(model, &own, purpose) {
            // All is here, if not for sure until it is loaded.
            Err(error) if to_come == 0 => {
                tracing::warn!(%error, "a stage's weights cannot be pinned in the cache");
                Ok(self.unpinned())
            }
            noted => noted,
        }
    }

    /// The same cache for a fetch: blobs whose hashes are not known before are pinned by `pin` when they are.
    #[must_use]
    pub fn pinning(self, pin: Arc<Pinned>) -> Self {
        Self { fetched: Some(pin), ..self }
    }

    /// What all processes have pinned; `None` while one of them changes it, or where that cannot be read. Blocks.
    pub fn standing(&self) -> Option<Standing> {
        let _turn = Turn::now(&self.dir).ok()??;
        Some(self.pins(None).ok()?.standing())
    }

    /// The same in bytes, with what this cache alone has pinned; `None` as for [`Cache::standing`]. Blocks.
    pub fn shares(&self) -> Option<Shares> {
        let _turn = Turn::now(&self.dir).ok()??;
        let [all, others] = [self.pins(None).ok()?, self.pins(Some(Purpose::Stage)).ok()?];
        let [nbytes, of_others] = [all, others].map(|pins| pins.standing().nbytes);
        Some(Shares { nbytes, own_bytes: nbytes.saturating_sub(of_others) })
    }

    /// Names the folder, for all workers of this machine.
    pub fn folder(&self) -> u64 {
        let dir = fs::canonicalize(&self.dir).unwrap_or_else(|_| self.dir.clone());
        let hash = blake3::hash(dir.as_os_str().as_encoded_bytes());
        let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        // 0 is no name.
        u64::from_le_bytes(first).max(1)
    }

    /// The limit of its bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    fn check_limit(&self, own: &HashMap<Hash, u64>, others: &Pins) -> Result<(), CacheError> {
        let (dir, needed_bytes, limit_bytes) = (self.dir.clone(), total(own), self.limit_bytes);
        if needed_bytes > limit_bytes {
            return Err(CacheError::TooLarge { dir, needed_bytes, limit_bytes });
        }
        let standing = others.standing();
        let shared = own.keys().filter_map(|hash| others.blobs.get(hash)).sum();
        let new_bytes = needed_bytes.saturating_sub(shared);
        if new_bytes.saturating_add(standing.nbytes) > limit_bytes {
            return Err(CacheError::Pinned { dir, new_bytes, standing, limit_bytes });
        }
        Ok(())
    }

    /// Bytes of a blob that are on the disk.
    fn bytes_here(&self, hash: &Hash) -> u64 {
        let of = |path: PathBuf| fs::metadata(path).map_or(0, |meta| meta.len());
        of(self.blob(hash)).max(of(self.part(hash)))
    }

    fn unpinned(&self) -> Pinned {
        Pinned { file: Mutex::default(), path: PathBuf::new(), dir: self.dir.clone() }
    }

    fn note_pin(
        &self,
        model: &str,
        blobs: &HashMap<Hash, u64>,
        purpose: Purpose,
    ) -> Result<Pinned, CacheError> {
        let (owner, number) = (self.owner, NEXT.fetch_add(1, Relaxed));
        let end = if purpose == Purpose::Fetch { OF_FETCH } else { "" };
        let path = self.dir.join(PINS).join(format!("{owner:016x}-{number}{end}"));
        let opened = OpenOptions::new().create_new(true).append(true).open(&path);
        let file = opened.and_then(|file| file.lock().map(|()| file)).map_err(at(&path))?;
        // It goes again if the rest fails.
        let (file, dir) = (Mutex::new(Some(file)), self.dir.clone());
        let pinned = Pinned { file, path, dir };
        let mut text = serde_json::to_string(model).unwrap_or_default() + "\n";
        text.extend(blobs.iter().map(|(hash, nbytes)| line(hash, *nbytes)));
        pinned.write(&text)?;
        Ok(pinned)
    }

    /// The pins that count beside a new one of this cache, or all; the files of processes that have ended are removed. Only in
    /// turn.
    fn pins(&self, beside: Option<Purpose>) -> Result<Pins, CacheError> {
        let (dir, own) = (self.dir.join(PINS), format!("{:016x}", self.owner));
        let mut pins = Pins::default();
        for entry in fs::read_dir(&dir).map_err(at(&dir))? {
            let entry = entry.map_err(at(&dir))?;
            let (name, path) = (entry.file_name(), entry.path());
            let Some((owner, number)) = name.to_str().and_then(|name| name.split_once('-')) else {
                continue;
            };
            let beside = beside.filter(|_| owner == own);
            let Some(text) = in_force(&path)?.filter(|_| beside != Some(Purpose::Stage)) else {
                continue;
            };
            let (model, mut blobs) = parsed(&text);
            if beside == Some(Purpose::Fetch) && !number.ends_with(OF_FETCH) {
                blobs.retain(|hash, _| self.bytes_here(hash) > 0);
            }
            pins.owners.insert(owner.to_owned());
            pins.models.insert(model);
            pins.blobs.extend(blobs);
        }
        Ok(pins)
    }
}

/// The text of a pin, if its process has not ended: then its file is removed.
fn in_force(path: &Path) -> Result<Option<String>, CacheError> {
    // Some file systems lock for writing what was opened for writing only.
    let opened = OpenOptions::new().read(true).append(true).open(path);
    // It may have been dropped since the listing.
    let Ok(mut file) = opened.or_else(|_| File::open(path)) else { return Ok(None) };
    if file.try_lock().is_ok() {
        // One that cannot be removed does not count all the same.
        let _ = fs::remove_file(path);
        return Ok(None);
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(at(path))?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// Bytes of all blobs.
pub(super) fn total(blobs: &HashMap<Hash, u64>) -> u64 {
    blobs.values().fold(0, |sum, nbytes| sum.saturating_add(*nbytes))
}

/// A blob's line; 0 bytes: it is pinned no more.
fn line(hash: &Hash, nbytes: u64) -> String {
    format!("{} {nbytes}\n", hash.to_hex())
}

/// The model's name and the blobs of a pin. Lines of another form are left out.
fn parsed(text: &str) -> (String, HashMap<Hash, u64>) {
    let mut lines = text.lines();
    let model = lines.next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let mut blobs = HashMap::new();
    for line in lines {
        let Some((hash, nbytes)) = line.split_once(' ') else { continue };
        let (Ok(hash), Ok(nbytes)) = (Hash::from_hex(hash), nbytes.parse()) else { continue };
        match nbytes {
            0 => blobs.remove(&hash),
            nbytes => blobs.insert(hash, nbytes),
        };
    }
    (model, blobs)
}

/// A number for a cache's pins, which is hardly ever another's.
pub(super) fn owner() -> u64 {
    // Seeded by the system for every one that is made.
    RandomState::new().build_hasher().finish()
}
