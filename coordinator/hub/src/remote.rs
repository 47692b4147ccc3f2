//! A model of which only the beginnings are here: whoever needs weights is told where they are, and what came is remembered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::client::{Part, text};
use super::error::HubError;
use super::hash::is_sha256;
use super::heads;
use super::huggingface::{Resolved, refuse};
use super::lock::{Lock, LockedFile, Place};
use super::name::{ModelName, without_query};
use super::ranges::FileAt;
use super::resolver::{
    Found, HEADS, Resolver, Watch, as_resolved, client_for, own_places, source_of,
};
use super::settings::Settings;
use super::stores;

/// The folder of hashes of tensors in the own one.
pub const HASHES: &str = "tensors";

/// BLAKE3 of tensors by name, as 64 hex digits.
type Hashes = BTreeMap<String, String>;

/// Such a model.
#[derive(Debug)]
pub struct Remote {
    settings: Settings,
    name: ModelName,
    resolved: Resolved,
    record: PathBuf,
    known: Mutex<Hashes>,
}

/// Says nothing to anybody.
struct Quiet;

impl Watch for Quiet {
    fn say(&self, text: &str) {
        tracing::info!("{text}");
    }
    fn show(&self, _: &str, _: u64, _: u64) {}
}

impl Remote {
    /// The model that `name` was resolved to, whose weights together have this SHA-256.
    pub fn new(settings: &Settings, name: ModelName, resolved: Resolved, sha256: &str) -> Self {
        let record = settings.folder.join(HASHES).join(format!("{sha256}.json"));
        let known = read(&record).unwrap_or_default();
        Self { settings: settings.clone(), name, resolved, record, known: Mutex::new(known) }
    }

    /// SHA-256 of each file, as the source lists it.
    pub fn sha256(&self, file: usize) -> Option<&str> {
        self.resolved.choice.files.get(file)?.sha256.as_deref()
    }

    /// Hosts that the operator has named, as others are told.
    ///
    /// # Errors
    /// The certificates that were named cannot be read.
    pub fn named_hosts(&self) -> Result<Vec<String>, HubError> {
        Ok(client_for(&self.settings, &self.name)?.named().to_vec())
    }

    /// Where a file can be had by whoever has no token, for a while.
    ///
    /// # Errors
    /// The source does not answer, has another file now, or gives it to holders of the token only.
    pub fn address(&self, file: usize) -> Result<FileAt, HubError> {
        let (Some(wanted), Some(url)) =
            (self.resolved.choice.files.get(file), self.resolved.urls.get(file))
        else {
            return Err(HubError::NotOurs {
                name: self.name.to_string(),
                hint: format!("it has no file {file}"),
            });
        };
        if self.settings.offline {
            return Err(HubError::Offline { name: self.name.to_string() });
        }
        let client = client_for(&self.settings, &self.name)?;
        let mut answer = client.get(url, Part { from: 0, until: Some(1), etag: None })?;
        refuse(&mut answer, &self.settings.endpoint, &self.name.to_string())?;
        if client.is_ours(&answer.at) {
            let why = "it is sent to holders of the token alone".to_string();
            return Err(HubError::Broken { url: answer.url, why });
        }
        let etag =
            text(&answer.head, "etag").filter(|etag| etag.starts_with('"')).map(str::to_string);
        Ok(FileAt { url: answer.at, size: wanted.size, etag })
    }

    /// The hash of a tensor, as it was when it was first seen.
    pub fn hash(&self, tensor: &str) -> Option<String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(tensor).cloned()
    }

    /// Remembers hashes of tensors. One that differs from what was seen before is refused, with the tensor's name.
    ///
    /// # Errors
    /// Such a hash. That they cannot be written down is told in the log: they are computed again.
    pub fn record(&self, found: &[(String, String)]) -> Result<(), HubError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let differs =
            |(tensor, got): &&(String, String)| known.get(tensor).is_some_and(|known| known != got);
        if let Some((tensor, got)) = found.iter().find(differs) {
            let (what, got) = (format!("{}: {tensor}", self.name), got.clone());
            let expected = known.get(tensor).cloned().unwrap_or_default();
            // Nobody knows which of the two is right: from now on neither is believed.
            known.clear();
            let _ = fs::remove_file(&self.record);
            return Err(HubError::Hash { what, got, expected });
        }
        known.extend(found.iter().cloned());
        if let Err(error) = write(&self.record, &known) {
            tracing::warn!(path = %self.record.display(), %error, "hashes of tensors cannot be kept");
        }
        Ok(())
    }

    /// All of its files, fetched here; the first one.
    ///
    /// # Errors
    /// As [`Resolver::find`].
    pub fn pull(&self) -> Result<PathBuf, HubError> {
        Resolver::new(&self.settings, &Quiet).fetch_resolved(&self.name, &self.resolved)
    }
}

impl Resolver<'_> {
    /// A model whose weights others fetch: its beginnings, and what tells where the rest is. `None`: `text` is a path, or all of
    /// it is here, or its source lists no hashes; then [`Resolver::find`] finds it.
    ///
    /// # Errors
    /// As [`Resolver::describe`].
    pub fn remote(
        &self,
        text: &Path,
        is_enough: &dyn Fn(&Path) -> bool,
    ) -> Result<Option<(Found, Remote)>, HubError> {
        let name = ModelName::parse(text)?;
        if matches!(name, ModelName::Path(_)) {
            return Ok(None);
        }
        let known = Lock::read(&self.settings.data_dir)?.find(&name).cloned();
        let (resolved, places) = match &known {
            Some(entry)
                if entry.files.iter().all(|file| self.is_there(file))
                    || entry.own_place().is_none() =>
            {
                return Ok(None);
            }
            // The same state again, and no newer one.
            Some(entry) => (as_resolved(&name, entry), own_places(entry)),
            None if self.settings.offline => return Ok(None),
            None => {
                let resolved = self.asked(&name)?;
                let is_here = stores::lookup(self.settings, &name, &resolved).is_some();
                if is_here || resolved.choice.files.iter().any(|file| file.sha256.is_none()) {
                    return Ok(None);
                }
                let places = self.own.places(&name, &resolved)?;
                (resolved, places)
            }
        };
        let head = |place: &String| self.own.path(&format!("{HEADS}/{place}"));
        let targets: Vec<PathBuf> = places.iter().map(head).collect::<Result<_, _>>()?;
        let begins_here = targets.iter().all(|target| target.is_file())
            && targets.first().is_some_and(|first| is_enough(first));
        if self.settings.offline && !begins_here {
            return Ok(None);
        }
        let client = client_for(self.settings, &name)?;
        let path = heads::fetch(&client, &source_of(&name), &resolved, &targets, is_enough)?.path;
        let entry = match known {
            Some(entry) => entry,
            None => {
                let files = resolved.choice.files.iter().zip(&resolved.urls).zip(&places);
                let locked = files.map(|((file, url), place)| LockedFile {
                    url: without_query(url).to_string(),
                    size: file.size,
                    sha256: file.sha256.clone().unwrap_or_default(),
                    place: Place::Own(place.clone()),
                });
                self.noted(&name, &resolved, locked.collect(), true)?
            }
        };
        Lock::touch(&self.settings.data_dir, &entry);
        let remote = Remote::new(self.settings, name, resolved, &entry.sha256());
        Ok(Some((Found { path, entry, served_as: None }, remote)))
    }
}

fn read(path: &Path) -> Option<Hashes> {
    let hashes: Hashes = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    hashes.values().all(|hash| is_sha256(hash)).then_some(hashes)
}

fn write(path: &Path, hashes: &Hashes) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&new, serde_json::to_vec(hashes)?)?;
    fs::rename(&new, path)
}
