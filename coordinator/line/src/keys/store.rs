//! The file of keys: read as a whole, replaced as a whole, by one writer at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{KeyError, KeyRecord, MAX_MODELS};

/// The file's name in the data folder.
const FILE_NAME: &str = "keys.json";

/// The lock file of a process that changes the keys; it is empty.
const LOCK_NAME: &str = "keys.lock";

/// Form of the file.
const VERSION: u32 = 1;

/// Limit of the number of keys in a file.
pub const MAX_KEYS: usize = 10_000;

/// Larger files are refused: a key takes some 300 bytes without its models.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Permission bits with which other users could add keys.
const OTHERS_WRITE: u32 = 0o022;

/// Why keys cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file system's error.
    #[error("{path}: {source}")]
    Io {
        /// The file's path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file was not written by this program, or is damaged.
    #[error("{path} is not a file of keys: {reason}; restore it, or remove it and make new keys")]
    Damaged {
        /// The file's path.
        path: String,
        /// The parser's error.
        reason: String,
    },
    /// Other users could add keys.
    #[error("other users can write to {path}: run chmod 600 {path}")]
    Open {
        /// The file's path.
        path: String,
    },
    /// The change makes no sense.
    #[error(transparent)]
    Key(#[from] KeyError),
}

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    keys: Vec<KeyRecord>,
}

/// Metadata of the file; it changes when the file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// The keys of one data folder.
#[derive(Clone, Debug)]
pub struct KeyFile {
    folder: PathBuf,
}

impl KeyFile {
    /// The keys in this data folder, which need not exist.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Where the keys are.
    pub fn path(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    /// The file's present metadata; `None` where there is no file.
    ///
    /// # Errors
    /// The system's.
    pub fn stamp(&self) -> Result<Option<Stamp>, KeyFileError> {
        match fs::metadata(self.path()) {
            Ok(data) => Ok(Some(stamp(&data))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.io(error)),
        }
    }

    /// All keys, and the file's metadata; `None` where no key was ever made.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or can be written by others.
    pub fn read(&self) -> Result<Option<(Vec<KeyRecord>, Stamp)>, KeyFileError> {
        let mut file = match File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        let data = file.metadata().map_err(|e| self.io(e))?;
        if data.permissions().mode() & OTHERS_WRITE != 0 {
            return Err(KeyFileError::Open { path: self.path().display().to_string() });
        }
        if data.len() > MAX_FILE_BYTES {
            return Err(self.damaged(format!("it has {} bytes", data.len())));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|e| self.io(e))?;
        let keys = parse(&text).map_err(|reason| self.damaged(reason))?;
        Ok(Some((keys, stamp(&data))))
    }

    /// Changes the keys under the lock of the folder.
    ///
    /// # Errors
    /// `act`'s, or the file cannot be read or written.
    pub fn change<T>(
        &self,
        act: impl FnOnce(&mut Vec<KeyRecord>) -> Result<T, KeyError>,
    ) -> Result<T, KeyFileError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(|e| self.io(e))?;
        let lock = self.create(&self.folder.join(LOCK_NAME), false)?;
        lock.lock().map_err(|e| self.io(e))?;
        let mut keys = self.read()?.map(|(keys, _)| keys).unwrap_or_default();
        let result = act(&mut keys)?;
        if keys.len() > MAX_KEYS {
            return Err(KeyError::TooMany { limit: MAX_KEYS }.into());
        }
        self.write(keys)?;
        Ok(result)
    }

    /// Adds a key, and writes the file.
    ///
    /// # Errors
    /// The key's name is taken, or the errors of [`KeyFile::change`].
    pub fn add(&self, key: KeyRecord) -> Result<(), KeyFileError> {
        self.change(|keys| {
            if keys.iter().any(|other| other.name == key.name) {
                return Err(KeyError::Taken { name: key.name });
            }
            keys.push(key);
            Ok(())
        })
    }

    /// Removes a key and returns its record.
    ///
    /// # Errors
    /// There is no key of that name, or [`KeyFile::change`]'s.
    pub fn remove(&self, name: &str) -> Result<KeyRecord, KeyFileError> {
        self.change(|keys| {
            let at = keys.iter().position(|key| key.name == name);
            let unknown = || KeyError::Unknown { name: name.chars().take(200).collect() };
            at.map(|at| keys.remove(at)).ok_or_else(unknown)
        })
    }

    /// Puts a whole new file in the old one's place: a reader sees one or the other.
    fn write(&self, keys: Vec<KeyRecord>) -> Result<(), KeyFileError> {
        let part = self.folder.join(format!("{FILE_NAME}.{}.part", std::process::id()));
        let text = serde_json::to_vec_pretty(&Contents { version: VERSION, keys })
            .map_err(|e| self.io(e.into()))?;
        let mut file = self.create(&part, true)?;
        let written = file
            .write_all(&text)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&part, self.path()))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        written.map_err(|error| {
            // The unfinished draft is of no use; it may not even exist.
            let _ = fs::remove_file(&part);
            self.io(error)
        })
    }

    /// A file that only the folder's owner can read and write, also where root makes a key for a service.
    fn create(&self, path: &Path, empty: bool) -> Result<File, KeyFileError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(empty).mode(0o600);
        let file = options.open(path).map_err(|e| self.io(e))?;
        let owner = fs::metadata(&self.folder).map_err(|e| self.io(e))?;
        let made = file.metadata().map_err(|e| self.io(e))?;
        if (owner.uid(), owner.gid()) != (made.uid(), made.gid()) && made.uid() == 0 {
            fchown(&file, Some(owner.uid()), Some(owner.gid())).map_err(|e| self.io(e))?;
        }
        Ok(file)
    }

    fn io(&self, source: io::Error) -> KeyFileError {
        KeyFileError::Io { path: self.path().display().to_string(), source }
    }

    fn damaged(&self, reason: String) -> KeyFileError {
        KeyFileError::Damaged { path: self.path().display().to_string(), reason }
    }
}

fn stamp(data: &fs::Metadata) -> Stamp {
    let (inode, size) = (data.ino(), data.len());
    Stamp { inode, size, changed: (data.ctime(), data.ctime_nsec()) }
}

/// The keys in a file's text, or what is wrong with it.
///
/// # Errors
/// In words.
pub fn parse(text: &str) -> Result<Vec<KeyRecord>, String> {
    let contents: Contents = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if contents.version != VERSION {
        return Err(format!("its version is {}, this program's is {VERSION}", contents.version));
    }
    if contents.keys.len() > MAX_KEYS {
        return Err(format!(
            "it has {} keys, and at most {MAX_KEYS} are allowed",
            contents.keys.len()
        ));
    }
    for key in &contents.keys {
        if key.key_hash().is_none() {
            return Err(format!("the hash of key {:?} is not valid", key.name));
        }
        if key.models.len() > MAX_MODELS {
            return Err(format!(
                "key {:?} names {} models, which are too many",
                key.name,
                key.models.len()
            ));
        }
        key.check_limits().map_err(|e| format!("key {:?}: {e}", key.name))?;
    }
    Ok(contents.keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::record::Secret;

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("brigade-keys-{name}-{}", std::process::id()));
            // One that a killed test of the same process id has left.
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // A test that failed before it made anything has none.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn key(name: &str) -> KeyRecord {
        KeyRecord::new(name, &Secret::new().unwrap(), 1).unwrap()
    }

    #[test]
    fn keys_are_kept_where_only_their_owner_reads_them() {
        let folder = Folder::new("kept");
        let file = KeyFile::in_folder(&folder.0.join("deep"));
        assert!(file.read().unwrap().is_none() && file.stamp().unwrap().is_none());
        file.add(key("a")).unwrap();
        let first = file.stamp().unwrap();
        let mode = fs::metadata(file.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let taken = file.add(key("a")).unwrap_err().to_string();
        assert!(taken.contains("a key a already"), "{taken}");
        file.add(KeyRecord { concurrent: Some(3), ..key("b") }).unwrap();
        assert_ne!(file.stamp().unwrap(), first);
        let names = |keys: &[KeyRecord]| keys.iter().map(|k| k.name.clone()).collect::<Vec<_>>();
        let (keys, _) = file.read().unwrap().unwrap();
        assert_eq!((names(&keys), keys[1].concurrent), (vec!["a".into(), "b".into()], Some(3)));
        assert_eq!(file.remove("a").unwrap().name, "a");
        assert!(file.remove("a").unwrap_err().to_string().contains("no key a"));
        assert_eq!(names(&file.read().unwrap().unwrap().0), ["b"]);
    }

    #[test]
    fn many_writers_lose_nothing() {
        let folder = Folder::new("many");
        let file = KeyFile::in_folder(&folder.0);
        std::thread::scope(|scope| {
            for i in 0..8 {
                let file = file.clone();
                scope.spawn(move || file.add(key(&format!("k{i}"))).unwrap());
            }
        });
        assert_eq!(file.read().unwrap().unwrap().0.len(), 8);
        let files: Vec<_> = fs::read_dir(&folder.0).unwrap().collect();
        assert_eq!(files.len(), 2, "the keys and the lock: {files:?}");
    }

    #[test]
    fn what_is_damaged_or_open_to_others_is_refused_and_says_why() {
        let folder = Folder::new("damaged");
        let file = KeyFile::in_folder(&folder.0);
        file.add(key("a")).unwrap();
        let good = fs::read_to_string(file.path()).unwrap();
        for (text, word) in [
            ("{".to_string(), "EOF"),
            (good.replace("\"version\": 1", "\"version\": 2"), "version is 2"),
            (good.replace("\"hash\": \"", "\"hash\": \"x"), "the hash of key"),
            (good.replace("\"shown\"", "\"concurrent\": 0, \"shown\""), "--concurrent is 0"),
        ] {
            fs::write(file.path(), text).unwrap();
            let error = file.read().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
            assert!(file.add(key("b")).is_err(), "nothing is written over a damaged file");
        }
        fs::write(file.path(), good).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("chmod 600"));
    }
}
