//! A model of which only the beginnings are here. Workers get the addresses of its weights, and learned hashes are
//! remembered.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::client::{Client, Part, text};
use super::error::HubError;
use super::heads;
use super::huggingface::{Resolved, refuse};
use super::lock::{Hashes, Lock, LockedFile, Place};
use super::name::{ModelName, without_query};
use super::own_folder::Own;
use super::part::free_in;
use super::ranges::FileAt;
use super::resolver::{
    Found, HEADS, Resolver, SPARE_ROOM, as_resolved, client_for, own_places, source_of,
};
use super::settings::Settings;
use super::stores;

/// Name of the folder, in brigade's own one, for bytes on their way to workers that cannot fetch.
pub const RELAY: &str = "relay";

/// A model whose weights are at its source.
#[derive(Debug)]
pub struct Remote {
    settings: Settings,
    name: ModelName,
    resolved: Resolved,
    /// SHA-256 of its weights.
    weights: String,
    known: Mutex<Hashes>,
    is_pushed: bool,
}

impl Remote {
    /// The model that `name` was resolved to, whose weights together have this SHA-256. `is_pushed`: no worker fetches for
    /// itself.
    ///
    /// # Errors
    /// The lock cannot be read.
    pub fn new(
        settings: &Settings,
        name: ModelName,
        resolved: Resolved,
        weights: String,
        is_pushed: bool,
    ) -> Result<Self, HubError> {
        let known = Lock::read(&settings.data_dir)?.tensors.remove(&weights).unwrap_or_default();
        let (settings, known) = (settings.clone(), Mutex::new(known));
        Ok(Self { settings, name, resolved, weights, known, is_pushed })
    }

    /// Whether workers are sent what they need, and do not fetch it.
    pub fn is_pushed(&self) -> bool {
        self.is_pushed
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

    /// A temporary address of a file that needs no token.
    ///
    /// # Errors
    /// The source does not answer, has another file now, or gives it to holders of the token only.
    pub fn address(&self, file: usize) -> Result<FileAt, HubError> {
        let (client, at, found) = self.asked(file)?;
        if client.is_ours(&found.url) {
            let why = "it is sent to holders of the token alone".to_string();
            return Err(HubError::Broken { url: without_query(&at).to_string(), why });
        }
        Ok(found)
    }

    /// A file for this process, and who reads it: with the token, where the source wants it.
    ///
    /// # Errors
    /// The source does not answer, or has another file now.
    pub fn file(&self, file: usize) -> Result<(Client, FileAt), HubError> {
        let (client, url, found) = self.asked(file)?;
        Ok((client, FileAt { url, ..found }))
    }

    /// The client for a file, its own address, and the address to which it redirects for now.
    fn asked(&self, file: usize) -> Result<(Client, String, FileAt), HubError> {
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
        let etag =
            text(&answer.head, "etag").filter(|etag| etag.starts_with('"')).map(str::to_string);
        Ok((client, url.clone(), FileAt { url: answer.at, size: wanted.size, etag }))
    }

    /// The folder for bytes on their way to a worker, if it has room for `needed` bytes more. In use until this
    /// process ends.
    ///
    /// # Errors
    /// There is no such room.
    pub fn relay(&self, needed: u64) -> Result<PathBuf, HubError> {
        let own = Own::new(&self.settings.folder);
        let place = format!("{RELAY}/{}", self.weights);
        let folder = own.path(&place)?;
        match free_in(&folder) {
            Some(free) if free < needed.saturating_add(SPARE_ROOM) => {
                let name =
                    format!("tensors of {} for a worker that cannot fetch them itself", self.name);
                Err(HubError::NoRoom { folder: self.settings.folder.clone(), name, free, needed })
            }
            _ => {
                own.hold(&place);
                Ok(folder)
            }
        }
    }

    /// The hash of a tensor, as it was when it was first seen.
    pub fn hash(&self, tensor: &str) -> Option<String> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(tensor).cloned()
    }

    /// Remembers hashes of tensors, in the lock too. A hash that differs from an earlier one is refused, with the
    /// tensor's name, whichever process or machine saw the earlier one.
    ///
    /// # Errors A hash differs from an earlier one. The log says where hashes cannot be written down: they are then
    /// computed anew.
    pub fn record(&self, found: &[(String, String)]) -> Result<(), HubError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = |(tensor, got): &(String, String)| known.get(tensor) != Some(got);
        if !found.iter().any(is_news) {
            return Ok(());
        }
        let mut seen = Ok(());
        let noted = Lock::update(&self.settings.data_dir, |lock| {
            // Hashes that this process has learned are kept, even if the lock file was moved away since.
            let ours: Vec<_> = known.iter().map(|(a, b)| (a.clone(), b.clone())).collect();
            seen = lock.see(&self.weights, &ours).and_then(|()| lock.see(&self.weights, found));
        });
        if let Err(error) = noted {
            tracing::warn!(%error, "hashes of tensors cannot be kept");
            let mut here = Lock::default();
            here.tensors.insert(self.weights.clone(), known.clone());
            seen = here.see(&self.weights, found);
        }
        if let Err((tensor, expected)) = seen {
            let got = found.iter().find(|(name, _)| *name == tensor).or(found.first());
            let got = got.map(|(_, hash)| hash.clone()).unwrap_or_default();
            return Err(HubError::Hash { what: format!("{}: {tensor}", self.name), got, expected });
        }
        known.extend(found.iter().cloned());
        Ok(())
    }
}

impl Resolver<'_> {
    /// A model whose weights others fetch, or are sent (`is_pushed`): its beginnings, and what tells where the rest is. `None`:
    /// `text` is a path, or all of it is here, or its source lists no hashes; then [`Resolver::find`] finds it.
    ///
    /// # Errors
    /// As [`Resolver::describe`].
    pub fn remote(
        &self,
        text: &Path,
        is_pushed: bool,
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
        let remote = Remote::new(self.settings, name, resolved, entry.sha256(), is_pushed)?;
        Ok(Some((Found { path, entry, served_as: None }, remote)))
    }
}
