//! A key: its secret, which is shown once and kept nowhere, and the record of it that is stored.

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

/// The beginning of every secret, by which people and scanners recognise one.
const PREFIX: &str = "bgd-";

/// Random bytes of a secret: 192 bits cannot be guessed, which is also why a plain hash is enough to store it.
/// (Slow hashes protect passwords that people think up.)
const SECRET_BYTES: usize = 24;

/// Characters of a secret that lists show, so that its owner recognises it: its prefix and six hex digits.
const SHOWN_CHARS: usize = PREFIX.len() + 6;

/// Longest name of a key.
pub const MAX_NAME_BYTES: usize = 64;

/// Most models that one key may name.
pub const MAX_MODELS: usize = 256;

/// Largest limit that a key may have; more is no limit.
pub const MAX_LIMIT: u64 = 1_000_000_000_000;

/// The text that clients send: its holder acts as the key's owner. It is never logged: its `Debug` hides it.
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// BLAKE3 of a secret: how a key is found. An attacker cannot choose hashes that agree with a stored one in their
/// first bytes, so the time of a look-up says nothing about any secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; blake3::OUT_LEN]);

impl KeyHash {
    /// The hash of a secret.
    pub fn of(secret: &str) -> Self {
        Self(*blake3::hash(secret.as_bytes()).as_bytes())
    }

    /// A number that stands for the key in the scheduler.
    pub fn number(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(first)
    }
}

impl Secret {
    /// A new one, from the system's randomness.
    ///
    /// # Errors
    /// The system has none.
    pub fn new() -> Result<Self, KeyError> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::NoRandomness)?;
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self(PREFIX.to_string() + &digits.collect::<String>()))
    }

    /// The text, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// How large a key's share is when several keys want the line. A share, not a rank: where high went strictly before
/// low, low would wait for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Four times the share of normal.
    High,
    /// The default share.
    #[default]
    Normal,
    /// A quarter of normal's.
    Low,
}

impl Priority {
    /// The priority's share, beside those of others.
    pub fn weight(self) -> u32 {
        match self {
            Self::High => 16,
            Self::Normal => 4,
            Self::Low => 1,
        }
    }

    /// The priority's name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// A key as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The key's name, for people and logs; it is unique.
    pub name: String,
    /// Hex digits of the secret's hash.
    pub hash: String,
    /// How the secret begins.
    pub shown: String,
    /// When it was made, seconds since the Unix epoch.
    pub created: u64,
    /// The time from which it is refused, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Tokens of prompts and answers in a minute, over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Requests in a minute, over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Requests that may run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u64>,
    /// Models it may use; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// The key's share of the line.
    #[serde(default)]
    pub priority: Priority,
    /// Whether it opens the admin listener, and nothing else.
    #[serde(default)]
    pub admin: bool,
    /// Whether its requests may have models fetched, by names that the operator opens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_load: bool,
}

/// Why a key cannot be made or found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is not a valid name.
    #[error(
        "{name:?} cannot be a key's name: give 1 to {MAX_NAME_BYTES} letters, digits and any of - _ . @"
    )]
    BadName {
        /// The refused text.
        name: String,
    },
    /// A key of that name exists already.
    #[error("there is a key {name} already: revoke it first, or take another name")]
    Taken {
        /// The name that is taken.
        name: String,
    },
    /// There is no key of that name.
    #[error("there is no key {name}; `brigade key list` shows those there are")]
    Unknown {
        /// The unknown name.
        name: String,
    },
    /// The file has no room for more keys.
    #[error("there are {limit} keys already, the limit: revoke some")]
    TooMany {
        /// The limit, [`MAX_KEYS`](super::store::MAX_KEYS).
        limit: usize,
    },
    /// A limit that makes no sense.
    #[error("{what} is {value}: a number from 1 to {MAX_LIMIT} is needed")]
    BadLimit {
        /// The option's name.
        what: &'static str,
        /// The refused value.
        value: u64,
    },
    /// The system gives no random bytes.
    #[error("the system has no randomness for a secret; try again later")]
    NoRandomness,
}

impl KeyRecord {
    /// The record of a new key, without any limit.
    ///
    /// # Errors
    /// [`KeyError::BadName`].
    pub fn new(name: &str, secret: &Secret, created: u64) -> Result<Self, KeyError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
            return Err(KeyError::BadName { name: name.chars().take(MAX_NAME_BYTES).collect() });
        }
        Ok(Self {
            name: name.to_string(),
            hash: blake3::hash(secret.reveal().as_bytes()).to_hex().to_string(),
            shown: secret.reveal()[..SHOWN_CHARS].to_string(),
            created,
            expires: None,
            tokens_per_minute: None,
            requests_per_minute: None,
            concurrent: None,
            models: Vec::new(),
            priority: Priority::default(),
            admin: false,
            may_load: false,
        })
    }

    /// Refuses limits that would let nothing through, or mean none.
    ///
    /// # Errors
    /// [`KeyError::BadLimit`].
    pub fn check_limits(&self) -> Result<(), KeyError> {
        let limits = [
            ("--tokens-per-minute", self.tokens_per_minute),
            ("--requests-per-minute", self.requests_per_minute),
            ("--concurrent", self.concurrent),
        ];
        for (what, value) in limits {
            if let Some(value) = value.filter(|n| !(1..=MAX_LIMIT).contains(n)) {
                return Err(KeyError::BadLimit { what, value });
            }
        }
        Ok(())
    }

    /// The secret's hash; `None` where the stored text is not a hash.
    pub fn key_hash(&self) -> Option<KeyHash> {
        blake3::Hash::from_hex(&self.hash).ok().map(|hash| KeyHash(*hash.as_bytes()))
    }

    /// Whether it is refused from its age alone.
    pub fn has_expired(&self, unix_now: u64) -> bool {
        self.expires.is_some_and(|at| unix_now >= at)
    }

    /// Whether it may use a model.
    pub fn may_use(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|name| name == model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_are_found_by_hash_and_are_not_in_their_record() {
        let (a, b) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_ne!(a.reveal(), b.reveal());
        assert_eq!(a.reveal().len(), PREFIX.len() + 2 * SECRET_BYTES);
        let record = KeyRecord::new("me", &a, 7).unwrap();
        assert_eq!(record.key_hash(), Some(KeyHash::of(a.reveal())));
        assert_ne!(record.key_hash(), Some(KeyHash::of(b.reveal())));
        let stored = serde_json::to_string(&record).unwrap();
        assert!(!stored.contains(a.reveal()) && !stored.contains(&a.reveal()[SHOWN_CHARS..]));
        assert!(!format!("{a:?}").contains(&a.reveal()[..SHOWN_CHARS]));
    }

    #[test]
    fn names_and_limits_are_checked() {
        let secret = Secret::new().unwrap();
        for name in ["", "a b", "a\n", "ä", &"x".repeat(MAX_NAME_BYTES + 1)] {
            let error = KeyRecord::new(name, &secret, 0).unwrap_err();
            assert!(matches!(error, KeyError::BadName { .. }), "{name:?}");
        }
        let record = KeyRecord::new("team-a@x.org", &secret, 0).unwrap();
        let with = |n| KeyRecord { tokens_per_minute: Some(n), ..record.clone() }.check_limits();
        assert_eq!(with(1), Ok(()));
        assert!(with(0).is_err() && with(MAX_LIMIT + 1).is_err());
    }

    #[test]
    fn age_and_models() {
        let secret = Secret::new().unwrap();
        let mut record = KeyRecord::new("a", &secret, 0).unwrap();
        assert!(record.may_use("anything") && !record.has_expired(u64::MAX));
        record.models = vec!["m".to_string()];
        record.expires = Some(100);
        assert!(record.may_use("m") && !record.may_use("mm"));
        // A file of an earlier release has no such right in it.
        let stored = serde_json::to_string(&record).unwrap();
        let read: KeyRecord = serde_json::from_str(&stored).unwrap();
        assert!(!stored.contains("may_load") && !read.may_load);
        assert!(!record.has_expired(99) && record.has_expired(100));
    }
}
