//! The id of this coordinator, and the epoch of its last line.
//!
//! Both are kept in the data folder where there is one. After a restart the workers therefore know the coordinator,
//! and it takes them over at once, with their loaded stages. A lock keeps two processes from being one coordinator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use brigade_proto::net::Network;
use brigade_proto::tls::files::{self, Lock};
use brigade_proto::tls::{TlsError, party};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;

/// Name of the file in the data folder.
const FILE: &str = "coordinator.json";

/// Name of the lock beside it.
const LOCK: &str = "coordinator.lock";

/// How long a process that ends may keep the lock.
const LOCKED_WITHIN: Duration = Duration::from_secs(2);

/// Why a folder cannot be this coordinator's.
#[derive(Debug, Error)]
pub enum OwnNameError {
    /// Another process uses the folder.
    #[error("another coordinator runs with the data folder {0}: give this one another --data-dir")]
    Taken(PathBuf),
    /// The file system refuses.
    #[error(transparent)]
    File(#[from] TlsError),
}

/// The contents of the file.
#[derive(Clone, Debug, Deserialize)]
struct Name {
    id: String,
    epoch: u64,
}

/// A coordinator's name and its last epoch.
#[derive(Debug)]
pub struct OwnName {
    name: Name,
    file: Option<PathBuf>,
    /// Held as long as the process lives.
    _lock: Option<Lock>,
}

impl OwnName {
    /// A name that no other coordinator process has.
    pub fn fresh() -> Self {
        let id = format!("{}-{:016x}", std::process::id(), brigade_line::random::u64());
        Self { name: Name { id, epoch: 0 }, file: None, _lock: None }
    }

    /// The name that is kept in a folder, or a fresh one that is kept there from now on.
    ///
    /// # Errors
    /// [`OwnNameError`].
    pub fn kept_in(folder: &Path) -> Result<Self, OwnNameError> {
        files::make_dir(folder)?;
        let lock = Lock::take(&folder.join(LOCK), LOCKED_WITHIN)?;
        let lock = lock.ok_or_else(|| OwnNameError::Taken(folder.to_owned()))?;
        let file = folder.join(FILE);
        let fresh = Self::fresh().name;
        let name = match files::read(&file)? {
            Some(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), %error, "the coordinator's name cannot be read from its file: it takes a new name");
                fresh
            }),
            None => fresh,
        };
        let own = Self { name, file: Some(file), _lock: Some(lock) };
        own.save()?;
        Ok(own)
    }

    /// The coordinator's id.
    pub fn id(&self) -> &str {
        &self.name.id
    }

    /// The number of the last line, under any process of this name.
    pub fn epoch(&self) -> u64 {
        self.name.epoch
    }

    /// The number of the next line.
    pub fn next_epoch(&mut self) -> u64 {
        self.name.epoch += 1;
        if let Err(error) = self.save() {
            // Workers refuse numbers that they have seen: after a restart lines would take some attempts.
            tracing::warn!(%error, "the number of this line cannot be kept in the data folder");
        }
        self.name.epoch
    }

    fn save(&self) -> Result<(), TlsError> {
        let Some(file) = &self.file else { return Ok(()) };
        let Name { id, epoch } = &self.name;
        files::write(file, &json!({ "id": id, "epoch": epoch }).to_string())
    }
}

/// An id that is bound to the process's key: over TLS, no other process can use it.
pub fn bound_id(network: &Network, unique: &str) -> String {
    match network.credentials() {
        Some(credentials) => party::coordinator_id(&credentials.party(), unique),
        None => unique.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_coordinator_and_remembers_it() {
        let folder = std::env::temp_dir().join(format!("brigade-name-{}", std::process::id()));
        let mut own = OwnName::kept_in(&folder).unwrap();
        assert_eq!((own.epoch(), own.next_epoch()), (0, 1));
        assert!(matches!(OwnName::kept_in(&folder), Err(OwnNameError::Taken(_))));
        let id = own.id().to_owned();
        drop(own);
        let again = OwnName::kept_in(&folder).unwrap();
        assert_eq!((again.id(), again.epoch()), (id.as_str(), 1));
        assert_ne!(OwnName::fresh().id(), id);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
