//! `models.lock` in the data folder: the files to which each name was resolved, and where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::error::HubError;
use super::hash::{is_sha256, of_text};
use super::name::{HubName, ModelName};

/// Name of the file in the data folder.
pub const FILE_NAME: &str = "models.lock";

/// The form of the file.
const VERSION: u64 = 1;

/// Most bytes of it.
const MAX_LOCK_BYTES: u64 = 64 << 20;

/// How old a time of last use gets before it is written anew.
const USE_PRECISION_S: u64 = 3600;

/// The contents of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lock {
    version: u64,
    /// The models, the newest state of each name last.
    pub models: Vec<Entry>,
    /// BLAKE3 of tensors by name, as they were when they were first seen, of models whose whole files are not here: by
    /// [`Entry::sha256`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensors: BTreeMap<String, Hashes>,
}

/// BLAKE3 of tensors by name, as 64 hex digits.
pub type Hashes = BTreeMap<String, String>;

/// The model of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The name, with its quantisation.
    pub name: String,
    /// Whether the name without a quantisation means this model.
    #[serde(default)]
    pub usual: bool,
    /// The source's commit; empty where it has none.
    #[serde(default)]
    pub commit: String,
    /// The licence by its card.
    #[serde(default)]
    pub licence: Option<String>,
    /// The name of its quantisation.
    pub quant: String,
    /// When it was last run, or fetched: seconds since 1970.
    pub last_used: u64,
    /// Whether a request had it fetched, and no operator: it may go for another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_request: bool,
    /// The model's files, the first one first.
    pub files: Vec<LockedFile>,
}

/// A file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedFile {
    /// The file's address, without a query.
    #[serde(default)]
    pub url: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256, 64 hex digits.
    pub sha256: String,
    /// The place of the file on this machine.
    #[serde(flatten)]
    pub place: Place,
}

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In brigade's own folder, into which it was fetched: the path within the folder.
    Own(String),
    /// Where another program has put it: its path, and the time stamp it had when its hash was computed.
    Elsewhere {
        /// The absolute path.
        path: PathBuf,
        /// The modification time, in nanoseconds since 1970.
        mtime_ns: u64,
    },
}

impl Default for Lock {
    fn default() -> Self {
        Self { version: VERSION, models: Vec::new(), tensors: BTreeMap::new() }
    }
}

impl Entry {
    /// Tells the weights from all others: the hash of its file, or of the list of those of its files.
    pub fn sha256(&self) -> String {
        match &self.files[..] {
            [one] => one.sha256.clone(),
            several => of_text(
                &several.iter().map(|file| file.sha256.as_str()).collect::<Vec<_>>().join("\n"),
            ),
        }
    }

    /// The place of its first file, under which processes lock it. `None`: another program owns the file.
    pub fn own_place(&self) -> Option<&str> {
        match &self.files.first()?.place {
            Place::Own(place) => Some(place),
            Place::Elsewhere { .. } => None,
        }
    }

    /// Bytes of its files.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

impl Lock {
    /// A lock of these models.
    pub fn of(models: &[Entry]) -> Self {
        Self { models: models.to_vec(), ..Self::default() }
    }

    /// Reads the file. A missing file is an empty lock.
    ///
    /// # Errors
    /// The file is damaged, or of a newer program.
    pub fn read(data_dir: &Path) -> Result<Self, HubError> {
        let path = data_dir.join(FILE_NAME);
        let wrong = |why: String| HubError::Lock { path: path.clone(), why };
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(HubError::io("read", &path)(error)),
        };
        if meta.len() > MAX_LOCK_BYTES {
            return Err(wrong(format!("it is longer than {MAX_LOCK_BYTES} bytes: {MOVE_AWAY}")));
        }
        let text = fs::read(&path).map_err(HubError::io("read", &path))?;
        Self::parse(&text, &path)
    }

    /// The lock that `text` is, which came from `path`.
    ///
    /// # Errors
    /// As [`Lock::read`].
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, HubError> {
        let wrong = |why: String| HubError::Lock { path: path.to_path_buf(), why };
        let damaged =
            |error: serde_json::Error| wrong(format!("it is damaged ({error}): {MOVE_AWAY}"));
        let value: serde_json::Value = serde_json::from_slice(text).map_err(damaged)?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(VERSION) => {}
            Some(other) => {
                let why = format!(
                    "it is of version {other}, and this brigade knows version {VERSION}: use the brigade that wrote it, or {MOVE_AWAY}"
                );
                return Err(wrong(why));
            }
            None => return Err(wrong(format!("it has no version: {MOVE_AWAY}"))),
        }
        let lock: Self = serde_json::from_value(value).map_err(damaged)?;
        let no_sense = |of: &str| wrong(format!("its entry for {of:?} is not valid: {MOVE_AWAY}"));
        if let Some(entry) = lock.models.iter().find(|entry| !is_sound(entry)) {
            return Err(no_sense(&entry.name));
        }
        let are_hashes = |hashes: &Hashes| hashes.values().all(|hash| is_sha256(hash));
        match lock.tensors.iter().find(|(_, hashes)| !are_hashes(hashes)) {
            Some((sha256, _)) => Err(no_sense(sha256)),
            None => Ok(lock),
        }
    }

    /// Remembers hashes of tensors of the weights `sha256`. A hash that differs from the first one of its tensor is
    /// refused, and the first one stays.
    ///
    /// # Errors
    /// Such a tensor, and the hash that it had.
    pub fn see(
        &mut self,
        sha256: &str,
        found: &[(String, String)],
    ) -> Result<(), (String, String)> {
        let known = self.tensors.entry(sha256.to_string()).or_default();
        for (tensor, got) in found {
            match known.get(tensor) {
                Some(before) if before != got => return Err((tensor.clone(), before.clone())),
                Some(_) => {}
                None => drop(known.insert(tensor.clone(), got.clone())),
            }
        }
        Ok(())
    }

    /// Forgets the tensors of weights that no name means any more.
    pub fn forget_tensors(&mut self) {
        let named: BTreeSet<String> = self.models.iter().map(Entry::sha256).collect();
        self.tensors.retain(|sha256, _| named.contains(sha256));
    }

    /// The newest state of `name`.
    pub fn find(&self, name: &ModelName) -> Option<&Entry> {
        let newest = |is: &dyn Fn(&Entry) -> bool| self.models.iter().rev().find(|entry| is(entry));
        match name {
            ModelName::Hub(hub) if hub.quant.is_none() => {
                let start = format!("{hub}:");
                newest(&|entry| entry.usual && entry.name.starts_with(&start))
            }
            name => {
                let text = name.to_string();
                let kin = match name {
                    ModelName::Hub(HubName { repo, quant: Some(quant) }) => {
                        format!("hf:{repo}:UD-{quant}")
                    }
                    _ => text.clone(),
                };
                let is = |wanted: &str| newest(&|entry| entry.name.eq_ignore_ascii_case(wanted));
                is(&text).or_else(|| is(&kin))
            }
        }
    }

    /// Puts `entry` in the place of the same state of the same name, or at the end.
    pub fn put(&mut self, entry: Entry) {
        let same = |old: &Entry| {
            old.name == entry.name && old.commit == entry.commit && old.sha256() == entry.sha256()
        };
        let olds: Vec<&Entry> = self.models.iter().filter(|old| same(old)).collect();
        let usual = entry.usual || olds.iter().any(|old| old.usual);
        // What an operator has fetched stays.
        let on_request = entry.on_request && olds.iter().all(|old| old.on_request);
        self.models.retain(|old| !same(old));
        self.models.push(Entry { usual, on_request, ..entry });
    }

    /// Changes the file, alone: others wait.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn update(data_dir: &Path, change: impl FnOnce(&mut Self)) -> Result<(), HubError> {
        fs::create_dir_all(data_dir).map_err(HubError::io("make", data_dir))?;
        let guard = data_dir.join(format!("{FILE_NAME}.guard"));
        let opened = File::options().create(true).truncate(false).write(true).open(&guard);
        let alone = opened.map_err(HubError::io("open", &guard))?;
        alone.lock().map_err(HubError::io("lock", &guard))?;
        let mut lock = Self::read(data_dir)?;
        change(&mut lock);
        let (path, new) = (data_dir.join(FILE_NAME), data_dir.join(format!("{FILE_NAME}.new")));
        let text = serde_json::to_vec_pretty(&lock).unwrap_or_default();
        if text.len() as u64 > MAX_LOCK_BYTES {
            let why = format!(
                "it would be longer than {MAX_LOCK_BYTES} bytes: brigade prune forgets models that nobody uses"
            );
            return Err(HubError::Lock { path, why });
        }
        let written = || -> std::io::Result<()> {
            fs::write(&new, text)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &path)
        };
        written().map_err(HubError::io("write", &path))
    }

    /// Notes that `entry` was used now, where that is news.
    pub fn touch(data_dir: &Path, entry: &Entry) {
        let now = unix_now();
        if now.saturating_sub(entry.last_used) < USE_PRECISION_S {
            return;
        }
        let noted = Self::update(data_dir, |lock| {
            let same = |old: &&mut Entry| old.name == entry.name && old.commit == entry.commit;
            lock.models.iter_mut().filter(same).for_each(|old| old.last_used = now);
        });
        if let Err(error) = noted {
            tracing::debug!(%error, "the time of last use is not noted");
        }
    }
}

const MOVE_AWAY: &str =
    "move it away, and names are resolved anew; files that are there are not fetched again";

fn is_sound(entry: &Entry) -> bool {
    !entry.files.is_empty() && entry.files.iter().all(|file| is_sha256(&file.sha256))
}

/// The time now, in seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// When a file was last written: nanoseconds since 1970.
pub fn mtime_ns(meta: &fs::Metadata) -> u64 {
    let since = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    fn entry(name: &str, commit: &str, usual: bool) -> Entry {
        let place = Place::Own("hf/u/r/c/x.gguf".to_string());
        let file = LockedFile { url: String::new(), size: 1, sha256: of_text(commit), place };
        let (name, commit, quant) = (name.to_string(), commit.to_string(), "Q8_0".to_string());
        let (licence, on_request) = (None, false);
        Entry { name, usual, commit, licence, quant, last_used: 0, on_request, files: vec![file] }
    }

    #[test]
    fn the_newest_state_of_a_name_is_found_and_kept() {
        let dir = std::env::temp_dir().join(format!("brigade-lock-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        assert!(Lock::read(&dir).unwrap().models.is_empty());
        for (name, commit, usual) in
            [("hf:u/r:Q8_0", "1", true), ("hf:u/r:Q8_0", "2", true), ("hf:u/r:F16", "2", false)]
        {
            Lock::update(&dir, |lock| lock.put(entry(name, commit, usual))).unwrap();
        }
        Lock::update(&dir, |lock| lock.put(entry("hf:u/r:Q8_0", "2", false))).unwrap();
        let lock = Lock::read(&dir).unwrap();
        let find = |text: &str| {
            let name = ModelName::parse(Path::new(text)).unwrap();
            lock.find(&name).map(|entry| (entry.name.as_str(), entry.commit.as_str()))
        };
        assert_eq!(find("hf:u/r"), Some(("hf:u/r:Q8_0", "2")));
        assert_eq!(find("hf:u/r:q8_0"), Some(("hf:u/r:Q8_0", "2")));
        assert_eq!((find("hf:u/r:F16"), find("hf:u/r2")), (Some(("hf:u/r:F16", "2")), None));
        assert_eq!(lock.models.len(), 3);
        // What an operator has fetched is not a request's, whoever of them comes first.
        for (of_request, is_requests) in [(true, true), (false, false), (true, false)] {
            let again = Entry { on_request: of_request, ..entry("hf:u/r:IQ4_XS", "3", false) };
            Lock::update(&dir, |lock| lock.put(again)).unwrap();
            let lock = Lock::read(&dir).unwrap();
            assert_eq!(lock.models.last().unwrap().on_request, is_requests);
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_tensor_has_the_hash_that_it_had_when_it_was_first_seen() {
        let mut lock = Lock::of(&[entry("hf:u/r:Q8_0", "1", true)]);
        let weights = lock.models[0].sha256();
        let seen = |name: &str, of: &str| (name.to_string(), of_text(of));
        lock.see(&weights, &[seen("a", "1"), seen("b", "2")]).unwrap();
        lock.see(&weights, &[seen("b", "2"), seen("c", "3")]).unwrap();
        let refused = lock.see(&weights, &[seen("d", "4"), seen("a", "x")]).unwrap_err();
        assert_eq!(refused, ("a".to_string(), of_text("1")));
        // It stays so, and another machine that has the file knows it.
        let text = serde_json::to_string(&lock).unwrap();
        let mut other: Lock = serde_json::from_str(&text).unwrap();
        assert!(other.see(&weights, &[seen("a", "x")]).is_err());
        assert!(other.see(&of_text("other weights"), &[seen("a", "x")]).is_ok());
        other.forget_tensors();
        assert_eq!(other.tensors.keys().collect::<Vec<_>>(), [&weights]);
    }

    #[test]
    fn files_of_others_and_halves_of_files_are_refused_by_name() {
        let dir = std::env::temp_dir().join(format!("brigade-lock-bad-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Lock::update(&dir, |lock| lock.put(entry("hf:u/r:Q8_0", "1", true))).unwrap();
        let good = fs::read_to_string(dir.join(FILE_NAME)).unwrap();
        let newer = good.replacen("\"version\": 1", "\"version\": 2", 1);
        let shorter = good.replace(&of_text("1"), "12");
        for (text, expected) in [
            (&good[..good.len() / 2], "is damaged"),
            (newer.as_str(), "version 2, and this brigade knows version 1"),
            ("{}", "no version"),
            (shorter.as_str(), "is not valid"),
        ] {
            fs::write(dir.join(FILE_NAME), text).unwrap();
            let error = Lock::read(&dir).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("move it away"), "{error}");
            assert!(Lock::update(&dir, |_| ()).is_err(), "{text} is not written over");
            assert_eq!(fs::read_to_string(dir.join(FILE_NAME)).unwrap(), text);
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
