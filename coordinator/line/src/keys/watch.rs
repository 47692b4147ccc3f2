//! The keys in force: read at the start, and again whenever their file has changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::account::{Account, KeyEnd};
use super::record::{KeyHash, KeyRecord};
use super::store::{KeyFile, KeyFileError, Stamp};
use crate::clock;

/// How often the file is looked at. Polling, because it works on every file system, and a look costs microseconds.
pub const POLL: Duration = Duration::from_secs(1);

/// All keys at one moment.
#[derive(Debug, Default)]
pub struct Keys {
    accounts: HashMap<KeyHash, Account>,
    /// Whether a key was ever made: if so, requests need one, also when the last one was revoked.
    required: bool,
}

impl Keys {
    /// The key that a client has shown.
    pub fn find(&self, secret: &str) -> Option<&Account> {
        self.accounts.get(&KeyHash::of(secret))
    }

    /// Whether requests need a key.
    pub fn are_required(&self) -> bool {
        self.required
    }

    /// Whether one key's requests may stand in another's way.
    pub fn are_several(&self) -> bool {
        self.accounts.len() > 1
    }

    /// Keys that let requests through now.
    pub fn n_usable(&self, unix_now: u64) -> usize {
        let usable = |key: &&Account| !key.record().admin && !key.record().has_expired(unix_now);
        self.accounts.values().filter(usable).count()
    }

    /// Whether there is a key for the admin listener now.
    pub fn has_admin(&self, unix_now: u64) -> bool {
        let opens = |key: &Account| key.record().admin && !key.record().has_expired(unix_now);
        self.accounts.values().any(opens)
    }

    /// Whether there is a key that may have models fetched now.
    pub fn have_loader(&self, unix_now: u64) -> bool {
        let may = |key: &Account| key.record().may_load && !key.record().has_expired(unix_now);
        self.accounts.values().any(may)
    }

    /// All accounts, by name.
    pub fn accounts(&self) -> Vec<&Account> {
        let mut all: Vec<&Account> = self.accounts.values().collect();
        all.sort_by(|a, b| a.record().name.cmp(&b.record().name));
        all
    }

    /// The keys of these accounts.
    #[cfg(test)]
    pub(super) fn of(accounts: Vec<Account>) -> Self {
        let by_hash = |account: Account| Some((account.record().key_hash()?, account));
        Self { accounts: accounts.into_iter().filter_map(by_hash).collect(), required: true }
    }

    /// Ends those that are not among `others`.
    fn end_missing(&self, others: &Self) {
        let missing = self.accounts.iter().filter(|(hash, _)| !others.accounts.contains_key(hash));
        missing.for_each(|(_, account)| tell_end(account, KeyEnd::Revoked));
    }

    /// Ends those whose time is over.
    fn end_expired(&self, unix_now: u64) {
        let expired = self.accounts.values().filter(|key| key.record().has_expired(unix_now));
        expired.for_each(|account| tell_end(account, KeyEnd::Expired));
    }

    /// The keys of a file after these: who was there keeps its counts.
    fn followed_by(&self, records: Option<Vec<KeyRecord>>) -> Self {
        let now = Instant::now();
        // A file that vanishes takes its keys away; it does not open the door.
        let required = self.required || records.is_some();
        let account = |record: KeyRecord| {
            let hash = record.key_hash()?;
            let account = match self.accounts.get(&hash) {
                Some(account) => account.with_record(record),
                None => Account::new(record, hash, now),
            };
            Some((hash, account))
        };
        let accounts = records.into_iter().flatten().filter_map(account).collect();
        Self { accounts, required }
    }
}

/// Ends the key's [`Force`], and logs it.
fn tell_end(account: &Account, end: KeyEnd) {
    if account.force().end_as(end) {
        let key = &account.record().name;
        tracing::info!(key, "the key {end}: its running requests end");
    }
}

/// The keys in force; clones share them.
#[derive(Clone, Debug)]
pub struct KeyRing(watch::Receiver<Arc<Keys>>);

/// Keeps a [`KeyRing`] up to date.
#[derive(Debug)]
pub struct Follower {
    file: KeyFile,
    seen: Option<Stamp>,
    keys: watch::Sender<Arc<Keys>>,
    /// The last thing that went wrong: each is told once.
    told: String,
}

impl KeyRing {
    /// The keys of a file as they are now, and what follows its changes.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn open(file: KeyFile) -> Result<(Self, Follower), KeyFileError> {
        let (records, seen) = file.read()?.unzip();
        let (keys, ring) = watch::channel(Arc::new(Keys::default().followed_by(records)));
        Ok((Self(ring), Follower { file, seen, keys, told: String::new() }))
    }

    /// A snapshot of the keys in force.
    pub fn now(&self) -> Arc<Keys> {
        self.0.borrow().clone()
    }
}

impl Follower {
    /// Looks at the file until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_some() {
            let looked = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            match looked.await {
                Ok(follower) => self = follower,
                Err(error) => {
                    tracing::error!(%error, "changes of keys are not seen any more; restart the server");
                    return;
                }
            }
        }
    }

    /// Reads the file again if it has changed. One that cannot be read changes nothing: the keys read last stay
    /// in force, and the log says so.
    fn look(&mut self) {
        self.keys.borrow().end_expired(clock::unix_now());
        let outcome = self.file.stamp().and_then(|stamp| {
            if stamp == self.seen && self.told.is_empty() {
                return Ok(());
            }
            let (records, seen) = self.file.read()?.unzip();
            let keys = self.keys.borrow().followed_by(records);
            self.keys.borrow().end_missing(&keys);
            tracing::info!(keys = keys.accounts.len(), "the keys have changed");
            self.keys.send_replace(Arc::new(keys));
            self.seen = seen;
            Ok(())
        });
        let told = outcome.err().map(|error| error.to_string()).unwrap_or_default();
        if !told.is_empty() && told != self.told {
            tracing::error!(error = told, "the keys read last stay in force");
        }
        self.told = told;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::record::Secret;

    #[test]
    fn changes_are_seen_and_a_damaged_file_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("brigade-watch-{}", std::process::id()));
        // One that a killed test of the same process id has left.
        let _ = std::fs::remove_dir_all(&folder);
        let file = KeyFile::in_folder(&folder);
        let (ring, mut follower) = KeyRing::open(file.clone()).unwrap();
        assert!(!ring.now().are_required());
        let secret = Secret::new().unwrap();
        let record = KeyRecord::new("a", &secret, 0).unwrap();
        file.add(KeyRecord { concurrent: Some(1), ..record }).unwrap();
        follower.look();
        let account = ring.now().find(secret.reveal()).cloned().expect("the key is there");
        let _running = account.begin(Instant::now()).unwrap();
        file.add(KeyRecord::new("b", &Secret::new().unwrap(), 0).unwrap()).unwrap();
        follower.look();
        let same = ring.now().find(secret.reveal()).cloned().unwrap();
        assert_eq!(same.standing(Instant::now()).running, 1, "counts outlive a change");
        assert_eq!(account.force().end(), None);
        std::fs::write(file.path(), "{").unwrap();
        follower.look();
        assert_eq!(ring.now().n_usable(0), 2);
        std::fs::remove_file(file.path()).unwrap();
        follower.look();
        assert!(ring.now().are_required() && ring.now().n_usable(0) == 0, "no key opens nothing");
        assert!(ring.now().find(secret.reveal()).is_none() && ring.now().find("").is_none());
        assert_eq!(account.force().end(), Some(KeyEnd::Revoked), "what runs for it hears of it");
        let old = Secret::new().unwrap();
        let record = KeyRecord::new("old", &old, 0).unwrap();
        file.add(KeyRecord { expires: Some(1), ..record }).unwrap();
        follower.look();
        let account = ring.now().find(old.reveal()).cloned().unwrap();
        follower.look();
        assert_eq!(account.force().end(), Some(KeyEnd::Expired));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
