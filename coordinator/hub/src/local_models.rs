//! Lists the models on this machine, and removes those that brigade itself has fetched. It never deletes files of
//! other programs, files in use, or files that another name needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::HubError;
use super::folder::{self, Filed};
use super::lock::{Entry, Lock, Place, mtime_ns, unix_now};
use super::name::ModelName;
use super::own_folder::{FOLDERS, Own};
use super::part::{NOTE, PART};
use super::remote::RELAY;
use super::resolver::HEADS;
use super::settings::Settings;
use super::stores;

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name by which it is run.
    pub name: String,
    /// The name of its quantisation.
    pub quant: String,
    /// Bytes of all files.
    pub size: u64,
    /// The licence by its source.
    pub licence: Option<String>,
    /// Seconds since 1970; `None`: never by brigade.
    pub last_used: Option<u64>,
    /// The store that it is in: `brigade`, or another program's.
    pub store: &'static str,
    /// Path of the first file.
    pub path: PathBuf,
    /// Whether a request has had it fetched, so that it counts in `--pull-budget`.
    pub on_request: bool,
    /// Why it cannot be used.
    pub wrong: Option<String>,
}

/// The result of a removal, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Names, or what a file is.
    pub what: Vec<String>,
    /// Files, by what leads to them from the own folder.
    pub files: Vec<String>,
    /// Bytes of these files.
    pub bytes: u64,
    /// Models that stay although they were named, with the reasons.
    pub kept: Vec<String>,
}

/// The store's name for models of the operator's folder.
const FILED: &str = "models-dir";

/// All models: those that the lock has, those of the operator's folder, then those of other programs. `check` reads the header
/// of a file of the operator's, and says what is wrong with it.
///
/// # Errors
/// The lock or the operator's folder cannot be read.
pub fn list(
    settings: &Settings,
    check: &dyn Fn(&Path) -> Result<(), String>,
) -> Result<Vec<Row>, HubError> {
    let (lock, own) = (Lock::read(&settings.data_dir)?, Own::new(&settings.folder));
    let mut rows: Vec<Row> =
        lock.models.iter().rev().filter_map(|entry| row(&own, entry)).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(dir) = &settings.models_dir {
        rows.extend(
            folder::list(dir, &settings.folder)?.into_iter().map(|model| of_dir(model, check)),
        );
    }
    let seen: BTreeSet<PathBuf> = rows.iter().map(|row| row.path.clone()).collect();
    for stored in stores::all(settings) {
        let Some(path) = stored.paths.first().filter(|path| !seen.contains(*path)).cloned() else {
            continue;
        };
        let size = stored
            .paths
            .iter()
            .filter_map(|path| std::fs::metadata(path).ok())
            .map(|meta| meta.len())
            .sum();
        let (name, quant, store) = (stored.name, stored.quant, stored.store);
        let (licence, last_used, wrong) = (None, None, None);
        let on_request = false;
        rows.push(Row { name, quant, size, licence, last_used, store, path, on_request, wrong });
    }
    Ok(rows)
}

fn of_dir(model: Filed, check: &dyn Fn(&Path) -> Result<(), String>) -> Row {
    let Filed { name, quant, paths, size, wrong } = model;
    let path = paths.into_iter().next().unwrap_or_default();
    let wrong = wrong.or_else(|| check(&path).err());
    let on_request = false;
    Row { name, quant, size, licence: None, last_used: None, store: FILED, path, on_request, wrong }
}

fn row(own: &Own, entry: &Entry) -> Option<Row> {
    let (path, store) = match &entry.files.first()?.place {
        Place::Own(place) => (own.path(place).ok()?, "brigade"),
        Place::Elsewhere { path, .. } => (path.clone(), "another program"),
    };
    path.is_file().then(|| Row {
        name: entry.name.clone(),
        quant: entry.quant.clone(),
        size: entry.size(),
        licence: entry.licence.clone(),
        last_used: Some(entry.last_used),
        store,
        path,
        on_request: entry.on_request && entry.own_place().is_some(),
        wrong: None,
    })
}

/// Takes away all states of one model. `kept`: names that the configuration has.
///
/// # Errors
/// The model is not ours, is in use, or is configured.
pub fn remove(settings: &Settings, text: &Path, kept: &[String]) -> Result<Taken, HubError> {
    let name = ModelName::parse(text)?;
    let (lock, own) = (Lock::read(&settings.data_dir)?, Own::new(&settings.folder));
    let shown = lock.find(&name).map_or_else(|| name.to_string(), |entry| entry.name.clone());
    let not_ours = |hint: String| HubError::NotOurs { name: shown.clone(), hint };
    let filed = || {
        let dir = settings.models_dir.as_ref()?;
        let found = folder::find(dir, &settings.folder, folder::may_be_name(text)?).ok()??;
        Some(format!("{} is yours, in --models-dir, and stays there", found.display()))
    };
    let Some(newest) = lock.find(&name) else {
        if let Some(hint) = filed() {
            return Err(not_ours(hint));
        }
        if is_begun(&own, &name) {
            let by = "it is not whole yet: wait until its download ends, or end it; brigade prune deletes what stays of one"
                .to_string();
            return Err(HubError::InUse { name: shown, by });
        }
        return Err(not_ours("brigade models lists what is here; it deletes no files given by path and none of other programs".to_string()));
    };
    if let Some(Place::Elsewhere { path, .. }) = newest.files.first().map(|file| &file.place) {
        let hint =
            format!("it lies in another program's store, {}, and stays there", path.display());
        return Err(not_ours(hint));
    }
    if let Some(by) = configured(newest, kept) {
        return Err(HubError::InUse { name: shown, by });
    }
    let states: Vec<Entry> =
        lock.models.iter().filter(|entry| entry.name == newest.name).cloned().collect();
    let mut claims = Vec::new();
    for place in states.iter().filter_map(Entry::own_place) {
        claims.push(own.claim(place, &shown)?);
    }
    take_entries(settings, &own, &states, &of_others(settings, &own)?)
}

/// Whether a part of a file of this name's repository is on the disk.
fn is_begun(own: &Own, name: &ModelName) -> bool {
    let ModelName::Hub(name) = name else { return false };
    let of_repo = format!("hf/{}/", name.repo);
    own.files().iter().any(|(place, _)| place.starts_with(&of_repo) && place.ends_with(PART))
}

/// Deletes models that were not used for `unused_s` seconds, and files of unfinished downloads. Without `yes` it only
/// reports them.
///
/// # Errors
/// The lock cannot be read or written, or a file not be deleted.
pub fn prune(
    settings: &Settings,
    unused_s: u64,
    kept: &[String],
    yes: bool,
) -> Result<Taken, HubError> {
    let (lock, own) = (Lock::read(&settings.data_dir)?, Own::new(&settings.folder));
    let before = unix_now().saturating_sub(unused_s);
    let (mut states, mut claims, mut stay) = (Vec::new(), Vec::new(), Vec::new());
    for entry in lock.models.iter().filter(|entry| entry.last_used <= before) {
        let Some(place) = entry.own_place() else { continue };
        let is_newest =
            lock.models.iter().rev().find(|other| other.name == entry.name) == Some(entry);
        match (configured(entry, kept).filter(|_| is_newest), own.claim(place, &entry.name)) {
            (Some(by), _) => stay.push(format!("{}: {by}", entry.name)),
            (None, Err(error)) => stay.push(error.to_string()),
            (None, Ok(claim)) => {
                claims.push(claim);
                states.push(entry.clone());
            }
        }
    }
    let others = of_others(settings, &own)?;
    let left = leftovers(&own, lock.models.iter().chain(&others), before);
    let mut taken = if yes {
        take_entries(settings, &own, &states, &others)?
    } else {
        would_take(&lock, &states, &others)
    };
    taken.kept = stay;
    for (place, bytes) in left {
        if yes {
            own.delete(&place)?;
        }
        taken.what.push(format!("left over: {place}"));
        taken.bytes += bytes;
        taken.files.push(place);
    }
    Ok(taken)
}

/// Deletes the model of this name that a request had fetched, with all its states. Returns the bytes that are free then.
///
/// # Errors
/// Another process uses it, or it cannot be deleted.
pub fn let_go(settings: &Settings, name: &str) -> Result<u64, HubError> {
    let (lock, own) = (Lock::read(&settings.data_dir)?, Own::new(&settings.folder));
    let is_it = |entry: &&Entry| entry.name == name && entry.on_request;
    let states: Vec<Entry> = lock.models.iter().filter(is_it).cloned().collect();
    let mut claims = Vec::new();
    for place in states.iter().filter_map(Entry::own_place) {
        claims.push(own.claim(place, name)?);
    }
    Ok(take_entries(settings, &own, &states, &of_others(settings, &own)?)?.bytes)
}

/// Why the configuration keeps a model.
fn configured(entry: &Entry, kept: &[String]) -> Option<String> {
    let is = |name: &&String| {
        let parsed = ModelName::parse(Path::new(name.as_str())).ok();
        let lock = Lock::of(std::slice::from_ref(entry));
        parsed.is_some_and(|parsed| lock.find(&parsed).is_some())
    };
    kept.iter().find(is).map(|name| format!("the configuration names it ({name})"))
}

/// Entries of locks in other data folders that use this folder of models.
///
/// # Errors
/// A lock cannot be read, so the files that it uses are unknown.
fn of_others(settings: &Settings, own: &Own) -> Result<Vec<Entry>, HubError> {
    let here = std::fs::canonicalize(&settings.data_dir).ok();
    let others = own.owners().into_iter().filter(|data_dir| Some(data_dir) != here.as_ref());
    let mut found = Vec::new();
    for data_dir in others {
        found.extend(Lock::read(&data_dir)?.models);
    }
    Ok(found)
}

/// The files that only `states` need. `foreign`: what other locks name.
fn would_take(lock: &Lock, states: &[Entry], foreign: &[Entry]) -> Taken {
    let stay = lock.models.iter().filter(|entry| !states.contains(entry)).chain(foreign);
    let others: BTreeSet<&Place> = stay.flat_map(|e| &e.files).map(|f| &f.place).collect();
    let mut taken = Taken::default();
    for entry in states {
        taken.what.push(match entry.commit.get(..8) {
            Some(commit) => format!("{} ({commit})", entry.name),
            None => entry.name.clone(),
        });
        for file in entry.files.iter().filter(|file| !others.contains(&file.place)) {
            if let Place::Own(place) = &file.place {
                taken.files.push(place.clone());
                taken.bytes += file.size;
            }
        }
    }
    taken
}

/// The lock forgets them first: a file that stays by a fault is a leftover, and never a model with a hole.
fn take_entries(
    settings: &Settings,
    own: &Own,
    states: &[Entry],
    foreign: &[Entry],
) -> Result<Taken, HubError> {
    let mut taken = Taken::default();
    Lock::update(&settings.data_dir, |lock| {
        taken = would_take(lock, states, foreign);
        lock.models.retain(|entry| !states.contains(entry));
        lock.forget_tensors();
    })?;
    for place in &taken.files {
        match own.delete(place) {
            Err(HubError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(taken)
}

/// The path to lock for a file that is being relayed to a worker: its model's folder.
fn relayed(place: &str) -> Option<&str> {
    let model = place.strip_prefix(RELAY)?.strip_prefix('/')?.split('/').next()?;
    place.get(..RELAY.len() + 1 + model.len())
}

/// Files of the folder that no entry names, and that were not written to since: ends of downloads, states that were
/// replaced.
fn leftovers<'e>(
    own: &Own,
    entries: impl Iterator<Item = &'e Entry>,
    before: u64,
) -> Vec<(String, u64)> {
    let mut named = BTreeSet::new();
    for entry in entries {
        for file in &entry.files {
            if let Place::Own(place) = &file.place {
                named.insert(format!("{HEADS}/{place}"));
                named.insert(place.clone());
            }
        }
    }
    let is_ours = |place: &str| {
        FOLDERS
            .iter()
            .any(|folder| place.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
    };
    let is_old = |meta: &std::fs::Metadata| mtime_ns(meta) / 1_000_000_000 <= before;
    let is_free = |place: &str| {
        let target = place.strip_suffix(NOTE).or_else(|| place.strip_suffix(PART));
        own.claim(relayed(place).or(target).unwrap_or(place), place).is_ok()
    };
    let files = own.files().into_iter();
    files
        .filter(|(place, meta)| {
            is_ours(place) && !named.contains(place) && is_old(meta) && is_free(place)
        })
        .map(|(place, meta)| (place, meta.len()))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::hash::of_text;
    use crate::lock::LockedFile;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Files that must not be deleted: those outside of the own folder, and the operator's in it.
    const KEPT: [&str; 4] = ["outside/x.gguf", "x.gguf", "own/mine.gguf", "own/mine/hf/y.gguf"];

    /// A folder with foreign files, one of ours, links that lead out, and settings whose own folder is also the
    /// operator's.
    fn laid_out(dir: &Path) -> Settings {
        let _ = fs::remove_dir_all(dir);
        for file in KEPT.iter().chain(&["own/hf/u/r/c/x.gguf"]) {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        symlink(dir.join("outside"), dir.join("own/hf/link")).unwrap();
        symlink(dir.join("x.gguf"), dir.join("own/hf/u/r/link.gguf")).unwrap();
        let own = dir.join("own");
        let settings = Settings::from_env(own.clone(), dir.join("data"), &|_| None);
        Settings { models_dir: Some(own), ..settings }
    }

    /// Texts that might be in a lock: parts of paths, among them those that leave the folder.
    fn words() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "hf",
            "u",
            "r",
            "c",
            "x.gguf",
            "link",
            "link.gguf",
            "..",
            ".",
            "",
            "outside",
            "own",
            "mine.gguf",
            "mine",
            "relay",
            "heads",
        ]);
        prop::collection::vec(word, 1..7).prop_map(|words| words.join("/"))
    }

    proptest! {
            #![proptest_config(ProptestConfig::with_cases(200))]
            #[test]
            fn whatever_a_lock_says_rm_and_prune_delete_only_what_was_fetched(
                places in prop::collection::vec(words(), 1..4), is_rm in any::<bool>(),
            ) {
                let dir = std::env::temp_dir().join(format!("brigade-shelf-{}", std::process::id()));
                let settings = laid_out(&dir);
                let file = |place: &String| LockedFile {
                    url: String::new(),
                    size: 1,
                    sha256: of_text(place),
                    place: Place::Own(place.clone()),
                };
                let entry = Entry {
                    name: "hf:u/r:Q8_0".to_string(),
                    usual: true,
                    commit: "c".to_string(),
                    licence: None,
                    quant: "Q8_0".to_string(),
                    last_used: 0,
                    on_request: false,
                    files: places.iter().map(file).collect(),
                };
                Lock::update(&settings.data_dir, |lock| lock.put(entry)).unwrap();
                let _ = if is_rm {
    remove(&settings, Path::new("hf:u/r:Q8_0"), &[])
    } else {
    prune(&settings, 0, &[], true)
    };
                for kept in ["outside/x.gguf", "x.gguf"] {
                    prop_assert!(dir.join(kept).is_file(), "{kept}: {places:?}");
                }
                // A lock is brigade's own: a file of the folder that it names was fetched. Nothing else there goes.
                for kept in ["mine.gguf", "mine/hf/y.gguf"] {
                    let is_named = places.iter().any(|place| place == kept);
                    prop_assert!(is_named || settings.folder.join(kept).is_file(), "{kept}: {places:?}");
                }
                prop_assert!(settings.folder.join("hf/link").is_symlink());
                fs::remove_dir_all(dir).unwrap();
            }
        }
}
