//! Resolves a name to a file that can be opened: by the lock, else from files that other programs have downloaded,
//! else from the network.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::choice::{Choice, RemoteFile};
use super::client::Client;
use super::download::{Progress, Wanted, fetch};
use super::error::HubError;
use super::hash::of_file;
use super::heads::{self, Beginning};
use super::huggingface::{self, Resolved};
use super::lock::{Entry, Lock, LockedFile, Place, mtime_ns, unix_now};
use super::name::{HubName, ModelName, without_query};
use super::own_folder::Own;
use super::part::{bytes_of, free_in};
use super::settings::Settings;
use super::{address, folder, registry, stores};

/// Bytes that stay free on the disk.
pub const SPARE_ROOM: u64 = 16 << 20;

/// How often it is looked whether another process has fetched a model.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The folder of beginnings of files in the own one.
pub const HEADS: &str = "heads";

/// Receives the progress of downloads.
pub trait Watch {
    /// Something that is worth a line.
    fn say(&self, text: &str);
    /// Shows that `done` of `total` bytes of a model are there.
    fn show(&self, what: &str, done: u64, total: u64);
    /// Whether a download is to end: nobody waits for it any more.
    fn stops(&self) -> bool {
        false
    }
}

/// A model that lies on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Path of the first file.
    pub path: PathBuf,
    /// The lock's entry.
    pub entry: Entry,
    /// A name for requests, where the file's says nothing.
    pub served_as: Option<String>,
}

/// A model to plan or inspect, without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Described {
    /// The first of its files, which are here.
    Whole(PathBuf),
    /// The beginnings of its files.
    Beginning(Beginning),
}

impl Described {
    /// Path of the first file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Whole(path) => path,
            Self::Beginning(beginning) => &beginning.path,
        }
    }
}

/// Resolves names with the operator's settings.
pub struct Resolver<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) own: Own,
    watch: &'a dyn Watch,
    /// Whether models are fetched for requests, and not for the operator.
    on_request: bool,
}

impl<'a> Resolver<'a> {
    /// A resolver with these settings.
    pub fn new(settings: &'a Settings, watch: &'a dyn Watch) -> Self {
        Self { settings, own: Own::new(&settings.folder), watch, on_request: false }
    }

    /// The same for models that requests have fetched.
    pub(crate) fn on_request(settings: &'a Settings, watch: &'a dyn Watch) -> Self {
        Self { on_request: true, ..Self::new(settings, watch) }
    }

    /// The file that `text` names, fetched if need be; in use until this process ends. `None`: it is a path, and means itself.
    ///
    /// # Errors
    /// There is no such model, or it cannot be fetched.
    pub fn find(&self, text: &Path) -> Result<Option<Found>, HubError> {
        let name = ModelName::parse(text)?;
        if let ModelName::Path(path) = &name {
            if let Some(place) = self.own.relative(path) {
                self.own.hold(&place);
            }
            return Ok(None);
        }
        let lock = Lock::read(&self.settings.data_dir)?;
        let entry = match lock.find(&name).map(|entry| self.made_ready(&name, entry)) {
            Some(Ok(Some(entry))) => entry,
            Some(Err(error)) => return Err(error),
            Some(Ok(None)) | None => self.anew(&name)?,
        };
        if let Some(place) = entry.own_place() {
            self.own.hold(place);
        }
        Lock::touch(&self.settings.data_dir, &entry);
        self.found(&name, entry).map(Some)
    }

    /// The file of `--models-dir` that `text` means, where it is no name of another kind and no path that exists.
    ///
    /// # Errors
    /// There is no such model in the folder, or it cannot be used.
    pub fn filed(&self, text: &Path) -> Result<Option<PathBuf>, HubError> {
        let Some(dir) = &self.settings.models_dir else { return Ok(None) };
        let is_path = matches!(ModelName::parse(text)?, ModelName::Path(_));
        let Some(name) = folder::may_be_name(text).filter(|_| is_path && !text.exists()) else {
            return Ok(None);
        };
        let nothing = || HubError::Filed {
            name: name.to_string(),
            folder: dir.clone(),
            why: "there is no model of that name, and no such file elsewhere".to_string(),
        };
        let found = folder::find(dir, &self.settings.folder, name)?;
        found.map(Some).ok_or_else(nothing)
    }

    /// Asks the source what the name is now, and fetches that. Whether it is another state than before.
    ///
    /// # Errors
    /// As [`Resolver::find`]; or it is a path.
    pub fn pull(&self, text: &Path) -> Result<(Found, bool), HubError> {
        let name = ModelName::parse(text)?;
        let given = || text.display().to_string();
        if matches!(name, ModelName::Path(_)) {
            let why = "a path must exist; a name begins with hf:, ollama: or https://".to_string();
            return Err(HubError::Name { name: given(), why });
        }
        if self.settings.offline {
            return Err(HubError::Offline { name: name.to_string() });
        }
        let before = Lock::read(&self.settings.data_dir)?.find(&name).map(Entry::sha256);
        let resolved = self.asked(&name)?;
        let entry = self.obtained(&name, &resolved, true)?;
        let is_news = before != Some(entry.sha256());
        // The whole file was checked, so the hashes of its single tensors are not needed any more.
        if Lock::read(&self.settings.data_dir)?.tensors.contains_key(&entry.sha256()) {
            let forget = |lock: &mut Lock| drop(lock.tensors.remove(&entry.sha256()));
            Lock::update(&self.settings.data_dir, forget)?;
        }
        Ok((self.found(&name, entry)?, is_news))
    }

    /// A model for its metadata and list of tensors: what lies here, else the beginnings of its files. `is_enough`: whether
    /// the first file's path leads to all of that. `None`: `text` is a path, and means itself.
    ///
    /// # Errors
    /// As [`Resolver::find`].
    pub fn describe(
        &self,
        text: &Path,
        is_enough: &dyn Fn(&Path) -> bool,
    ) -> Result<Option<Described>, HubError> {
        let name = ModelName::parse(text)?;
        if matches!(name, ModelName::Path(_)) {
            return Ok(None);
        }
        let lock = Lock::read(&self.settings.data_dir)?;
        if let Some(entry) =
            lock.find(&name).filter(|entry| entry.files.iter().all(|file| self.is_there(file)))
        {
            return self
                .found(&name, entry.clone())
                .map(|found| Some(Described::Whole(found.path)));
        }
        let is_of_store = matches!(name, ModelName::Ollama(_));
        if (is_of_store || self.settings.offline)
            && let Some((_, paths)) = stores::resolve(self.settings, &name)?
        {
            return Ok(paths.into_iter().next().map(Described::Whole));
        }
        if self.settings.offline {
            return Err(HubError::Offline { name: name.to_string() });
        }
        let resolved = self.asked(&name)?;
        if let Some(path) = stores::lookup(self.settings, &name, &resolved)
            .and_then(|paths| paths.into_iter().next())
        {
            return Ok(Some(Described::Whole(path)));
        }
        let places = self.own.places(&name, &resolved)?;
        let head = |place: &String| self.own.path(&format!("{HEADS}/{place}"));
        let targets: Vec<PathBuf> = places.iter().map(head).collect::<Result<_, _>>()?;
        let source = source_of(&name);
        let beginning =
            heads::fetch(&self.client(&name)?, &source, &resolved, &targets, is_enough)?;
        Ok(Some(Described::Beginning(beginning)))
    }

    pub(crate) fn found(&self, name: &ModelName, entry: Entry) -> Result<Found, HubError> {
        let path = match entry.files.first().map(|file| &file.place) {
            Some(Place::Own(place)) => self.own.path(place)?,
            Some(Place::Elsewhere { path, .. }) => path.clone(),
            None => {
                return Err(HubError::NotOurs {
                    name: name.to_string(),
                    hint: "it has no files".to_string(),
                });
            }
        };
        let served_as = match name {
            ModelName::Ollama(_) => name.to_string().strip_prefix("ollama:").map(str::to_string),
            _ => None,
        };
        Ok(Found { path, entry, served_as })
    }

    /// The entry, if its files are there or can be fetched again as they were; `None`: they have changed where they lie.
    fn made_ready(&self, name: &ModelName, entry: &Entry) -> Result<Option<Entry>, HubError> {
        if entry.files.iter().all(|file| self.is_there(file)) {
            return Ok(Some(entry.clone()));
        }
        if entry.own_place().is_none() {
            self.watch.say(&format!("{} has changed where it lay; resolving it anew", entry.name));
            return Ok(None);
        }
        if self.settings.offline {
            return Err(HubError::Offline { name: entry.name.clone() });
        }
        let (resolved, places) = (as_resolved(name, entry), own_places(entry));
        self.fetched(name, &resolved, &places).map(|files| Some(Entry { files, ..entry.clone() }))
    }

    pub(crate) fn is_there(&self, file: &LockedFile) -> bool {
        let meta = |path: &Path| {
            std::fs::metadata(path).ok().filter(|meta| meta.is_file() && meta.len() == file.size)
        };
        match &file.place {
            Place::Own(place) => self.own.path(place).is_ok_and(|path| meta(&path).is_some()),
            Place::Elsewhere { path, mtime_ns: known } => {
                meta(path).is_some_and(|meta| mtime_ns(&meta) == *known)
            }
        }
    }

    /// A name that the lock does not have.
    fn anew(&self, name: &ModelName) -> Result<Entry, HubError> {
        let here = || stores::resolve(self.settings, name);
        // If the model is in Ollama's store, that one is meant.
        let prefers_here = self.settings.offline || matches!(name, ModelName::Ollama(_));
        if prefers_here && let Some((resolved, paths)) = here()? {
            return self.adopted(name, &resolved, paths, false);
        }
        if self.settings.offline {
            return Err(HubError::Offline { name: name.to_string() });
        }
        match self.asked(name) {
            Ok(resolved) => self.obtained(name, &resolved, true),
            Err(error @ HubError::Broken { .. }) => match here()? {
                Some((resolved, paths)) => {
                    self.watch.say(&format!("{error}: taking what is on this machine"));
                    self.adopted(name, &resolved, paths, false)
                }
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn client(&self, name: &ModelName) -> Result<Client, HubError> {
        client_for(self.settings, name)
    }

    pub(crate) fn asked(&self, name: &ModelName) -> Result<Resolved, HubError> {
        let client = self.client(name)?;
        match name {
            ModelName::Hub(name) => huggingface::resolve(&client, &self.settings.endpoint, name),
            ModelName::Ollama(name) => registry::resolve(&client, name),
            ModelName::Address(address) => address::resolve(&client, address),
            ModelName::Path(path) => {
                let why = "it is a path".to_string();
                Err(HubError::Name { name: path.display().to_string(), why })
            }
        }
    }

    /// The files of a resolved name, from the cheapest place. `usual`: the source itself chose the quantisation.
    pub(crate) fn obtained(
        &self,
        name: &ModelName,
        resolved: &Resolved,
        usual: bool,
    ) -> Result<Entry, HubError> {
        let places = self.own.places(name, resolved)?;
        let own: Vec<PathBuf> =
            places.iter().map(|place| self.own.path(place)).collect::<Result<_, _>>()?;
        let begun = own.iter().any(|path| bytes_of(path) > 0);
        let elsewhere = if begun { None } else { stores::lookup(self.settings, name, resolved) };
        if let Some(paths) = elsewhere {
            match self.adopted(name, resolved, paths, usual) {
                Err(HubError::Hash { what, .. }) => {
                    self.watch
                        .say(&format!("{what} is another file than the source's; fetching that"));
                }
                other => return other,
            }
        }
        let files = self.fetched(name, resolved, &places)?;
        self.noted(name, resolved, files, usual)
    }

    /// Uses files where they lie. Each is read once, to check it against the hash of its source.
    fn adopted(
        &self,
        name: &ModelName,
        resolved: &Resolved,
        paths: Vec<PathBuf>,
        usual: bool,
    ) -> Result<Entry, HubError> {
        let mut files = Vec::new();
        for ((file, path), i) in resolved.choice.files.iter().zip(paths).zip(0..) {
            self.watch.say(&format!("checking {}", path.display()));
            let meta = std::fs::metadata(&path).map_err(HubError::io("read", &path))?;
            let sha256 = of_file(&path).map_err(HubError::io("read", &path))?;
            if let Some(expected) = file.sha256.as_ref().filter(|expected| **expected != sha256) {
                let (what, expected) = (path.display().to_string(), expected.clone());
                return Err(HubError::Hash { what, got: sha256, expected });
            }
            let url =
                resolved.urls.get(i).map_or(String::new(), |url| without_query(url).to_string());
            let place = Place::Elsewhere { mtime_ns: mtime_ns(&meta), path };
            files.push(LockedFile { url, size: file.size, sha256, place });
        }
        self.noted(name, resolved, files, usual)
    }

    /// The files in the own folder; missing ones are fetched. If another process fetches them, waits for it.
    pub(crate) fn fetched(
        &self,
        name: &ModelName,
        resolved: &Resolved,
        places: &[String],
    ) -> Result<Vec<LockedFile>, HubError> {
        let shown = name.to_string();
        let first = places.first().map_or("", String::as_str);
        let targets: Vec<PathBuf> =
            places.iter().map(|place| self.own.path(place)).collect::<Result<_, _>>()?;
        let files = &resolved.choice.files;
        let is_whole = |(target, file): (&PathBuf, &RemoteFile)| {
            std::fs::metadata(target).is_ok_and(|m| m.len() == file.size)
        };
        let is_here = || targets.iter().zip(files).all(is_whole);
        let claim = self.claimed(first, &shown, &is_here)?;
        let total: u64 = files.iter().map(|file| file.size).sum();
        self.check_room(&shown, total, &targets)?;
        let (client, source) = (self.client(name)?, &source_of(name));
        let (mut done, mut locked) = (0, Vec::new());
        for (((file, url), target), place) in
            files.iter().zip(&resolved.urls).zip(&targets).zip(places)
        {
            let mut progress = |here: u64| {
                self.watch.show(&shown, done + here, total);
                if self.watch.stops() {
                    return Err(HubError::Stopped { name: shown.clone() });
                }
                Ok(())
            };
            let sha256 =
                self.one(&client, Wanted { url, file, target, source }, place, &mut progress)?;
            done += file.size;
            let url = without_query(url).to_string();
            locked.push(LockedFile {
                url,
                size: file.size,
                sha256,
                place: Place::Own(place.clone()),
            });
        }
        drop(claim);
        Ok(locked)
    }

    /// The right to fetch a model, or `None` if it is here. Who else fetches it now uses it afterwards, so the right may never
    /// come.
    fn claimed(
        &self,
        place: &str,
        name: &str,
        is_here: &dyn Fn() -> bool,
    ) -> Result<Option<File>, HubError> {
        let mut has_told = false;
        while !is_here() {
            match self.own.claim(place, name) {
                Err(HubError::InUse { .. }) => {}
                claimed => return claimed.map(Some),
            }
            if self.watch.stops() {
                return Err(HubError::Stopped { name: name.to_string() });
            }
            if !has_told {
                self.watch.say(&format!("{name}: another brigade fetches or uses it; waiting"));
            }
            has_told = true;
            thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }

    /// Fetches one file. One that is there under its name is whole; whether it is the right one, the lock or its hash
    /// tells.
    fn one(
        &self,
        client: &Client,
        wanted: Wanted<'_>,
        place: &str,
        progress: Progress<'_>,
    ) -> Result<String, HubError> {
        let RemoteFile { size, sha256: expected, .. } = wanted.file;
        if std::fs::metadata(wanted.target).is_ok_and(|meta| meta.len() == *size) {
            let known = self.known_hash(place);
            let got = match known {
                Some(known) => known,
                None => {
                    self.watch.say(&format!("checking {}", wanted.target.display()));
                    of_file(wanted.target).map_err(HubError::io("read", wanted.target))?
                }
            };
            if expected.as_ref().is_none_or(|expected| *expected == got) {
                return Ok(got);
            }
            self.own.delete(place)?;
        }
        fetch(client, wanted, progress)
    }

    fn known_hash(&self, place: &str) -> Option<String> {
        let lock = Lock::read(&self.settings.data_dir).ok()?;
        let mut files = lock.models.into_iter().flat_map(|entry| entry.files);
        files.find(|file| file.place == Place::Own(place.to_string())).map(|file| file.sha256)
    }

    fn check_room(&self, name: &str, total: u64, targets: &[PathBuf]) -> Result<(), HubError> {
        let here: u64 = targets.iter().map(|target| bytes_of(target)).sum();
        let needed = total.saturating_sub(here);
        match free_in(self.own.folder()) {
            Some(free) if needed > 0 && free < needed.saturating_add(SPARE_ROOM) => {
                let (folder, name) = (self.own.folder().to_path_buf(), name.to_string());
                Err(HubError::NoRoom { folder, name, free, needed })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn noted(
        &self,
        name: &ModelName,
        resolved: &Resolved,
        files: Vec<LockedFile>,
        usual: bool,
    ) -> Result<Entry, HubError> {
        let quant = resolved.choice.quant.clone();
        let usual = usual && matches!(name, ModelName::Hub(HubName { quant: None, .. }));
        let name = entry_name(name, resolved);
        let (commit, licence) = (resolved.commit.clone(), resolved.licence.clone());
        let (last_used, on_request) = (unix_now(), self.on_request);
        let entry = Entry { name, usual, commit, licence, quant, last_used, on_request, files };
        if entry.own_place().is_some() {
            std::fs::create_dir_all(&self.settings.data_dir)
                .map_err(HubError::io("make", &self.settings.data_dir))?;
            self.own.add_owner(&self.settings.data_dir);
        }
        Lock::update(&self.settings.data_dir, |lock| lock.put(entry.clone()))?;
        Ok(entry)
    }
}

/// What the lock calls a model.
pub(crate) fn entry_name(name: &ModelName, resolved: &Resolved) -> String {
    match name {
        ModelName::Hub(HubName { repo, quant })
            if quant.as_ref().is_none_or(|said| !said.ends_with(".gguf")) =>
        {
            format!("hf:{repo}:{}", resolved.choice.quant)
        }
        name => name.to_string(),
    }
}

/// The name of a model's source in messages.
pub(crate) fn source_of(name: &ModelName) -> String {
    match name {
        ModelName::Hub(name) => name.repo.clone(),
        name => name.to_string(),
    }
}

/// The resolved form of a lock's entry.
pub(crate) fn as_resolved(name: &ModelName, entry: &Entry) -> Resolved {
    let query = match name {
        ModelName::Address(address) => &address[without_query(address).len()..],
        _ => "",
    };
    let file = |file: &LockedFile| {
        let path = file.url.rsplit('/').next().unwrap_or_default().to_string();
        RemoteFile { path, size: file.size, sha256: Some(file.sha256.clone()), etag: None }
    };
    let choice =
        Choice { quant: entry.quant.clone(), files: entry.files.iter().map(file).collect() };
    let urls = entry.files.iter().map(|file| format!("{}{query}", file.url)).collect();
    Resolved { commit: entry.commit.clone(), licence: entry.licence.clone(), choice, urls }
}

/// Where an entry's own files are.
pub(crate) fn own_places(entry: &Entry) -> Vec<String> {
    let own = |file: &LockedFile| match &file.place {
        Place::Own(place) => Some(place.clone()),
        Place::Elsewhere { .. } => None,
    };
    entry.files.iter().filter_map(own).collect()
}

/// The client for a name. The host in a name counts as named by the operator.
pub(crate) fn client_for(settings: &Settings, name: &ModelName) -> Result<Client, HubError> {
    let named = match name {
        ModelName::Address(address) => address.clone(),
        ModelName::Ollama(name) => format!("{}://{}", name.scheme, name.host),
        ModelName::Hub(_) | ModelName::Path(_) => String::new(),
    };
    Client::new(settings, &[&named])
}
