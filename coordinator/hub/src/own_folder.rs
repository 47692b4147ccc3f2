//! Brigade's own folder of models: its layout, locks of files in use, and the only place where files are deleted.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

use super::error::HubError;
use super::hash::of_text;
use super::huggingface::Resolved;
use super::name::{ModelName, check_word, without_query};

/// The folder of lock files, which say which processes use which model. They are empty.
const LOCKS: &str = ".locks";

/// The file, among them, of the folders whose locks name files of this one.
const OWNERS: &str = "owners";

/// Folders inside of the own one that brigade fills. Other entries belong to the user.
pub const FOLDERS: [&str; 5] = ["hf", "ollama", "address", "heads", "relay"];

/// Hex digits of a hash in names of files and folders.
const DIGITS: usize = 16;

/// Folders below the own one, at most.
const MAX_DEPTH: usize = 32;

/// The own folder, whose path is resolved.
#[derive(Clone, Debug)]
pub struct Own {
    folder: PathBuf,
}

impl Own {
    /// The one at `folder`, which need not exist.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// The folder's path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a file of it is.
    ///
    /// # Errors
    /// `relative` would lead out of it.
    pub fn path(&self, relative: &str) -> Result<PathBuf, HubError> {
        self.check(relative).map(|()| self.folder.join(relative))
    }

    fn check(&self, relative: &str) -> Result<(), HubError> {
        let outside = |why: &str| HubError::Outside {
            path: self.folder.join(relative),
            why: why.to_string(),
        };
        let words: Vec<&str> = relative.split('/').collect();
        if words.len() > MAX_DEPTH {
            return Err(outside("its path has too many folders"));
        }
        words.iter().try_for_each(|word| check_word(word).map_err(outside))
    }

    /// The path from the folder to `path`; `None` where it is outside.
    pub fn relative(&self, path: &Path) -> Option<String> {
        let (own, path) = (fs::canonicalize(&self.folder).ok()?, fs::canonicalize(path).ok()?);
        let relative = path.strip_prefix(own).ok()?.to_str()?.to_string();
        (!relative.is_empty()).then_some(relative)
    }

    /// Where the files of a resolved name belong: each commit has a folder of its own, so that two states of a repository
    /// are never mixed.
    ///
    /// # Errors
    /// A path of the repository's would lead elsewhere.
    pub fn places(&self, name: &ModelName, resolved: &Resolved) -> Result<Vec<String>, HubError> {
        let short = |text: &str| of_text(text)[..DIGITS].to_string();
        let host = |host: &str| host.replace(':', "_");
        let folder = match name {
            ModelName::Hub(name) => format!("hf/{}/{}", name.repo, resolved.commit),
            ModelName::Ollama(name) => {
                let commit = resolved.commit.get(..DIGITS).unwrap_or("none");
                format!("ollama/{}/{}/{}/{commit}", host(&name.host), name.namespace, name.model)
            }
            ModelName::Address(address) => {
                let bare = without_query(address);
                let from = host(bare.split('/').nth(2).unwrap_or("host"));
                let states = resolved.choice.files.iter().map(|f| (f.size, &f.sha256, &f.etag));
                let state = format!("{bare} {:?}", states.collect::<Vec<_>>());
                format!("address/{from}/{}", short(&state))
            }
            ModelName::Path(path) => {
                let why = "a file by its path is not fetched".to_string();
                return Err(HubError::Outside { path: path.clone(), why });
            }
        };
        let all = resolved.choice.files.iter().map(|file| format!("{folder}/{}", file.path));
        all.map(|place| self.check(&place).map(|()| place)).collect()
    }

    /// Says that this process uses what `place` is the first file of, until it ends. It never fails: a folder that
    /// cannot be written to cannot be pruned either.
    pub fn hold(&self, place: &str) {
        let held = self.lock_file(place).and_then(|file| {
            file.lock_shared().map(|()| file).map_err(HubError::io("lock", &self.folder))
        });
        match held {
            // Its lock ends with the process, however that ends.
            Ok(file) => std::mem::forget(file),
            Err(error) => {
                tracing::debug!(%error, "the model cannot be locked: `brigade prune` does not see that it is in use")
            }
        }
    }

    /// The same for as long as the returned file is open; `None`: the folder cannot be written to.
    pub fn held(&self, place: &str) -> Option<File> {
        let file = self.lock_file(place).ok()?;
        file.lock_shared().ok().map(|()| file)
    }

    /// The right to change what `place` is the first file of.
    ///
    /// # Errors
    /// The file is in use.
    pub fn claim(&self, place: &str, name: &str) -> Result<File, HubError> {
        let file = self.lock_file(place)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let by = "a brigade runs or fetches it; stop that first".to_string();
                Err(HubError::InUse { name: name.to_string(), by })
            }
            Err(TryLockError::Error(error)) => Err(HubError::io("lock", &self.folder)(error)),
        }
    }

    fn lock_file(&self, place: &str) -> Result<File, HubError> {
        let folder = self.folder.join(LOCKS);
        fs::create_dir_all(&folder).map_err(HubError::io("make", &folder))?;
        let path = folder.join(&of_text(place)[..DIGITS * 2]);
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        opened.map_err(HubError::io("open", &path))
    }

    /// Notes that the lock in `data_dir` names files of this folder: several may, where their operators have one
    /// folder for all. Where the note cannot be written, no other process can delete files either.
    pub fn add_owner(&self, data_dir: &Path) {
        let Ok(data_dir) = fs::canonicalize(data_dir) else { return };
        let mut owners = self.owners();
        if owners.contains(&data_dir) {
            return;
        }
        owners.push(data_dir);
        let noted = || -> Result<(), HubError> {
            let path = self.folder.join(LOCKS).join(OWNERS);
            let alone = self.lock_file(OWNERS)?;
            alone.lock().map_err(HubError::io("lock", &path))?;
            // Entries that another process has added since stay.
            let all: BTreeSet<PathBuf> = self.owners().into_iter().chain(owners).collect();
            let text = serde_json::to_vec(&all).unwrap_or_default();
            let new = path.with_extension(format!("{}.new", std::process::id()));
            fs::write(&new, text)
                .and_then(|()| fs::rename(&new, &path))
                .map_err(HubError::io("write", &path))
        };
        if let Err(error) = noted() {
            tracing::debug!(%error, "the names of the files' model cannot be written beside them");
        }
    }

    /// The folders of locks that name files of this one.
    pub fn owners(&self) -> Vec<PathBuf> {
        let text = fs::read(self.folder.join(LOCKS).join(OWNERS)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Deletes a file, and the folders that it leaves empty. No symbolic link is followed, so nothing outside is
    /// reached, for any text in `relative` and any contents of the folder.
    ///
    /// # Errors
    /// The path leads out of the folder, is a link or a folder, or the system refuses.
    pub fn delete(&self, relative: &str) -> Result<(), HubError> {
        self.check(relative)?;
        let path = self.folder.join(relative);
        let outside = |why: &str| HubError::Outside { path: path.clone(), why: why.to_string() };
        let (words, name) = words_of(relative);
        let error = |source: rustix::io::Errno| HubError::io("delete", &path)(source.into());
        let mut folders = vec![open_folder(CWD, &self.folder).map_err(error)?];
        for word in &words {
            let parent = folders.last().ok_or_else(|| outside("its folder is gone"))?;
            let next = open_folder(parent, Path::new(word));
            folders
                .push(next.map_err(|_| outside("a part of its path is a link or not a folder"))?);
        }
        let parent = folders.last().ok_or_else(|| outside("its folder is gone"))?;
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(outside("it is not a regular file"));
        }
        rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(error)?;
        delete_empty(words, folders);
        Ok(())
    }

    /// Deletes the folders above a file that is not there, as far as they are empty. Like [`Own::delete`] it follows no link.
    pub fn delete_empty_folders(&self, relative: &str) {
        let Ok(own) = open_folder(CWD, &self.folder) else { return };
        if self.check(relative).is_err() {
            return;
        }
        let (mut words, _) = words_of(relative);
        let mut folders = vec![own];
        for word in &words {
            let next = folders.last().and_then(|parent| open_folder(parent, Path::new(word)).ok());
            let Some(next) = next else { break };
            folders.push(next);
        }
        words.truncate(folders.len() - 1);
        delete_empty(words, folders);
    }

    /// All plain files in it, with their sizes; links are not followed.
    pub fn files(&self) -> Vec<(String, fs::Metadata)> {
        let mut found = Vec::new();
        walk(&self.folder, &self.folder, 0, &mut found);
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }
}

/// The folders of a path, and its last word.
fn words_of(relative: &str) -> (Vec<&str>, &str) {
    let mut words: Vec<&str> = relative.split('/').collect();
    let name = words.pop().unwrap_or_default();
    (words, name)
}

/// Deletes opened folders from the innermost on, as far as they are empty. `folders` has the one that holds the first of
/// `words` before all others. A folder with something in it stays, by the system's own rule.
fn delete_empty(mut words: Vec<&str>, mut folders: Vec<OwnedFd>) {
    while let (Some(word), Some(_)) = (words.pop(), folders.pop()) {
        let Some(parent) = folders.last() else { break };
        if rustix::fs::unlinkat(parent, word, AtFlags::REMOVEDIR).is_err() {
            break;
        }
    }
}

fn open_folder(at: impl std::os::fd::AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    // The folder itself may be a link: the operator has named it.
    let own = if path.components().count() > 1 || path.is_absolute() {
        OFlags::empty()
    } else {
        OFlags::NOFOLLOW
    };
    rustix::fs::openat(
        at,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | own,
        Mode::empty(),
    )
}

fn walk(root: &Path, folder: &Path, depth: usize, found: &mut Vec<(String, fs::Metadata)>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, Ok(meta)) = (entry.path(), entry.metadata()) else { continue };
        let relative = path.strip_prefix(root).ok().and_then(Path::to_str);
        match relative {
            Some(LOCKS) | None => {}
            Some(_) if meta.is_dir() && depth < MAX_DEPTH => walk(root, &path, depth + 1, found),
            Some(relative) if meta.is_file() => found.push((relative.to_string(), meta)),
            Some(_) => {}
        }
    }
}

/// Whether a path of another program's store has only plain parts.
pub fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    /// A folder of its own for a test.
    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("brigade-own-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// The contents outside, and files inside that must not be deleted.
    fn outside(dir: &Path) -> Vec<PathBuf> {
        let files = ["outside/secret.gguf", "outside/deep/secret.gguf", "secret.gguf"];
        files.iter().map(|file| dir.join(file)).collect()
    }

    fn laid_out(name: &str) -> (PathBuf, Own) {
        let dir = scratch(name);
        for file in outside(&dir) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "mine").unwrap();
        }
        let own = dir.join("own");
        fs::create_dir_all(own.join("hf/u/r")).unwrap();
        fs::write(own.join("hf/u/r/a.gguf"), "a").unwrap();
        symlink(dir.join("outside"), own.join("hf/link")).unwrap();
        symlink("../..", own.join("hf/up")).unwrap();
        symlink(dir.join("secret.gguf"), own.join("hf/u/r/link.gguf")).unwrap();
        (dir, Own::new(&own))
    }

    #[test]
    fn a_file_is_deleted_with_the_folders_it_leaves_empty() {
        let (dir, own) = laid_out("delete");
        own.delete("hf/u/r/a.gguf").unwrap();
        // The link is still in the folder.
        assert!(own.folder().join("hf/u/r/link.gguf").is_symlink());
        fs::create_dir_all(own.folder().join("x/y")).unwrap();
        fs::write(own.folder().join("x/y/b.gguf"), "b").unwrap();
        own.delete("x/y/b.gguf").unwrap();
        assert!(!own.folder().join("x").exists() && own.folder().exists());
        fs::create_dir_all(own.folder().join("x/y")).unwrap();
        own.delete_empty_folders("hf/link/x.gguf");
        own.delete_empty_folders("x/y/z/c.gguf");
        assert!(!own.folder().join("x").exists() && own.folder().join("hf/u/r").exists());
        for bad in [
            "hf/link/secret.gguf",
            "hf/up/secret.gguf",
            "hf/u/r/link.gguf",
            "hf/u",
            "../secret.gguf",
            "/etc/passwd",
            "",
        ] {
            assert!(own.delete(bad).is_err(), "{bad}");
        }
        assert!(outside(&dir).iter().all(|file| file.exists()));
        fs::remove_dir_all(dir).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn no_deletion_leaves_the_folder(words in prop::collection::vec(prop_oneof![
            Just("hf".to_string()), Just("u".to_string()), Just("r".to_string()), Just("link".to_string()),
            Just("up".to_string()), Just("..".to_string()), Just(".".to_string()), Just("".to_string()),
            Just("outside".to_string()), Just("deep".to_string()), Just("own".to_string()),
            Just("secret.gguf".to_string()), Just("link.gguf".to_string()), "[a-z./]{1,6}",
        ], 1..7)) {
            let (dir, own) = laid_out("property");
            let _ = own.delete(&words.join("/"));
            prop_assert!(outside(&dir).iter().all(|file| file.exists()), "{words:?}");
            prop_assert!(own.folder().join("hf/link").is_symlink());
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn what_is_used_is_not_claimed() {
        let (dir, own) = laid_out("claims");
        let held = own.lock_file("p").unwrap();
        held.lock_shared().unwrap();
        assert!(matches!(own.claim("p", "n"), Err(HubError::InUse { .. })));
        drop(held);
        let claimed = own.claim("p", "n").unwrap();
        assert!(own.claim("p", "n").is_err() && own.claim("q", "n").is_ok());
        drop(claimed);
        assert!(own.claim("p", "n").is_ok());
        fs::remove_dir_all(dir).unwrap();
    }
}
