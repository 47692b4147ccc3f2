//! Groups of keys that share kept prompts, because the operator says so. All other keys are apart.

use brigade_sched::Namespace;
use thiserror::Error;

use super::account::Account;
use super::watch::Keys;

/// Names of keys that share what their prompts begin with, as in `NAME,NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyGroup(Vec<String>);

/// Why keys cannot share.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GroupError {
    /// A group of fewer than two keys.
    #[error("two names of keys or more are needed, as in NAME,NAME")]
    Few,
    /// A key that there is not.
    #[error(
        "there is no key {name}: `brigade key list` has all, `brigade key create {name}` makes it"
    )]
    Unknown {
        /// The unknown name.
        name: String,
    },
    /// Two groups would be one.
    #[error(
        "the key {name} is named twice: name it once, together with all keys that it shares with"
    )]
    Twice {
        /// The repeated name.
        name: String,
    },
}

impl std::str::FromStr for KeyGroup {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        if names.len() < 2 { Err(GroupError::Few) } else { Ok(Self(names)) }
    }
}

/// All groups of keys that share.
#[derive(Clone, Debug, Default)]
pub struct KeyGroups(Vec<KeyGroup>);

impl KeyGroups {
    /// Groups of keys that there are.
    ///
    /// # Errors
    /// A name is no key's, or stands twice.
    pub fn new(groups: &[KeyGroup], keys: &Keys) -> Result<Self, GroupError> {
        let known = keys.accounts();
        let mut seen: Vec<&String> = Vec::new();
        for name in groups.iter().flat_map(|group| &group.0) {
            let named = || name.clone();
            if !known.iter().any(|account| account.record().name == *name) {
                return Err(GroupError::Unknown { name: named() });
            }
            if seen.contains(&name) {
                return Err(GroupError::Twice { name: named() });
            }
            seen.push(name);
        }
        Ok(Self(groups.to_vec()))
    }

    /// The namespace of a key's kept prompts.
    pub fn namespace(&self, account: &Account) -> Namespace {
        let group = self.0.iter().find(|group| group.0.contains(&account.record().name));
        match group {
            Some(group) => Namespace::of_group(&group.0),
            None => Namespace::of_owner(account.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::record::{KeyRecord, Secret};
    use super::*;

    fn accounts(names: &[&str]) -> Vec<Account> {
        let account = |name: &&str| {
            let record = KeyRecord::new(name, &Secret::new().unwrap(), 0).unwrap();
            let hash = record.key_hash().unwrap();
            Account::new(record, hash, Instant::now())
        };
        names.iter().map(account).collect()
    }

    #[test]
    fn keys_of_a_group_are_together_and_all_others_apart() {
        let all = accounts(&["ann", "bob", "eve", "dora"]);
        let keys = Keys::of(all.clone());
        let groups = KeyGroups::new(&["ann, bob".parse().unwrap()], &keys).unwrap();
        let of = |at: usize| groups.namespace(&all[at]);
        assert_eq!(of(0), of(1));
        for (one, other) in [(0, 2), (1, 2), (2, 3)] {
            assert_ne!(of(one), of(other));
        }
        assert_eq!(of(2), Namespace::of_owner(all[2].number()));
    }

    #[test]
    fn a_name_that_is_no_keys_or_stands_twice_is_refused() {
        let keys = Keys::of(accounts(&["ann", "bob"]));
        let new = |groups: &[&str]| {
            let groups: Vec<KeyGroup> = groups.iter().map(|g| g.parse().unwrap()).collect();
            KeyGroups::new(&groups, &keys).unwrap_err()
        };
        assert_eq!(new(&["ann,eve"]), GroupError::Unknown { name: "eve".into() });
        assert_eq!(new(&["ann,bob", "bob,ann"]), GroupError::Twice { name: "bob".into() });
        assert_eq!("ann,".parse::<KeyGroup>(), Err(GroupError::Few));
    }
}
