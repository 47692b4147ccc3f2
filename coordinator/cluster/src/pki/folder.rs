//! The files of a cluster, and the lock that every change of one takes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade_proto::tls::TlsError;
use brigade_proto::tls::files::{self, Lock};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The cluster's folder within the data folder.
const FOLDER: &str = "cluster";
const LOCK_FILE: &str = "lock";
/// Where workers join, as the server that ran last said.
const CONTROL_FILE: &str = "control";
/// How long a change waits for another one: each takes milliseconds.
const LOCK_WITHIN: Duration = Duration::from_secs(10);

/// The folder of a cluster.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder within this data folder; it need not be there.
    pub fn within(data_dir: &Path) -> Self {
        Self(data_dir.join(FOLDER))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder, and waits until no other process changes anything in it.
    ///
    /// # Errors
    /// The folder cannot be made, or another process keeps the lock.
    pub fn lock(&self) -> Result<Lock, TlsError> {
        files::make_dir(&self.0)?;
        let path = self.file(LOCK_FILE);
        let busy = || TlsError::Malformed {
            what: path.display().to_string(),
            problem: format!(
                "another process has held it for {} s: see which one hangs",
                LOCK_WITHIN.as_secs()
            ),
        };
        Lock::take(&path, LOCK_WITHIN)?.ok_or_else(busy)
    }

    /// A file's content; `None` where there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, TlsError> {
        let path = self.file(name);
        let Some(text) = files::read(&path)? else { return Ok(None) };
        let bad = |error: serde_json::Error| TlsError::Malformed {
            what: path.display().to_string(),
            problem: format!("{error}: restore it from a backup, or remove it"),
        };
        serde_json::from_str(&text).map(Some).map_err(bad)
    }

    /// Writes a file whole; only while the lock is held.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, _: &Lock, name: &str, content: &impl Serialize) -> Result<(), TlsError> {
        let path = self.file(name);
        let bad = |error: serde_json::Error| TlsError::Malformed {
            what: path.display().to_string(),
            problem: error.to_string(),
        };
        let text = serde_json::to_string_pretty(content).map_err(bad)?;
        files::write(&path, &text)
    }

    /// Remembers where workers join.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_control(&self, address: &str) -> Result<(), TlsError> {
        let _lock = self.lock()?;
        files::write(&self.file(CONTROL_FILE), address)
    }

    /// Where workers join; `None` where no server has said so yet.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn control(&self) -> Result<Option<String>, TlsError> {
        Ok(files::read(&self.file(CONTROL_FILE))?.map(|text| text.trim().to_owned()))
    }
}
