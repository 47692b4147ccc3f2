//! A key's account: its quotas, and its requests that run. An account lives as long as its key is in force, also when
//! its limits change.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::bucket::Bucket;
use super::record::{KeyHash, KeyRecord};

/// A key in force, and its counts.
#[derive(Clone, Debug)]
pub struct Account {
    record: Arc<KeyRecord>,
    number: u64,
    usage: Arc<Mutex<Usage>>,
    force: Force,
}

/// Why a key is not in force any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyEnd {
    /// The key was removed from the file.
    Revoked,
    /// The key's time is over.
    Expired,
}

impl fmt::Display for KeyEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Revoked => "was revoked",
            Self::Expired => "has expired",
        })
    }
}

/// A flag that says whether a key is still in force, for the work that is done for it. Clones share it. The default
/// never ends: it belongs to requests without a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Force(Arc<OnceLock<KeyEnd>>);

impl Force {
    /// Why it is over, if it is.
    pub fn end(&self) -> Option<KeyEnd> {
        self.0.get().copied()
    }

    /// Ends it, unless it has ended before; whether this was it.
    pub(super) fn end_as(&self, end: KeyEnd) -> bool {
        self.0.set(end).is_ok()
    }
}

#[derive(Debug)]
struct Usage {
    tokens: Bucket,
    requests: Bucket,
    running: u64,
}

/// Why a request of a valid key is not taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Too many requests in the last minute.
    #[error("the key's limit of {limit} requests per minute is reached")]
    Requests {
        /// Requests per minute.
        limit: u64,
        /// Time until the next one is allowed.
        retry: Duration,
    },
    /// Too many tokens lately.
    #[error("the key's limit of {limit} tokens per minute is reached")]
    Tokens {
        /// Tokens per minute.
        limit: u64,
        /// Time until the debt is paid.
        retry: Duration,
    },
    /// Too many at once.
    #[error("{limit} requests of the key are running, its limit at once")]
    Concurrent {
        /// Requests at once.
        limit: u64,
    },
}

impl Refusal {
    /// When to come back, if that can be said.
    pub fn retry(&self) -> Duration {
        match self {
            Self::Requests { retry, .. } | Self::Tokens { retry, .. } => *retry,
            // A place is free as soon as a request ends; that time is unknown.
            Self::Concurrent { .. } => Duration::from_secs(1),
        }
    }
}

/// One quota and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The quota per minute.
    pub limit: u64,
    /// The part of it that is left now.
    pub remaining: u64,
    /// Time until the whole quota is available again.
    pub reset: Duration,
}

/// A key's quotas now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Requests, if they are limited.
    pub requests: Option<Left>,
    /// Tokens, if they are limited.
    pub tokens: Option<Left>,
    /// Requests that run now.
    pub running: u64,
}

/// A request that runs; its end makes room for another one.
#[derive(Debug)]
pub struct Ticket {
    account: Account,
    has_ended: AtomicBool,
}

impl Ticket {
    fn new(account: Account) -> Self {
        Self { account, has_ended: AtomicBool::new(false) }
    }

    /// The request has ended, although this value may still be held.
    pub fn end(&self) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            let mut usage = self.account.lock();
            usage.running = usage.running.saturating_sub(1);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}

impl Account {
    /// A new account of a key.
    pub fn new(record: KeyRecord, hash: KeyHash, now: Instant) -> Self {
        let usage = Usage { tokens: Bucket::new(now), requests: Bucket::new(now), running: 0 };
        let usage = Arc::new(Mutex::new(usage));
        Self { record: Arc::new(record), number: hash.number(), usage, force: Force::default() }
    }

    /// The same account after its key's record was changed.
    pub fn with_record(&self, record: KeyRecord) -> Self {
        Self { record: Arc::new(record), ..self.clone() }
    }

    /// The key's record.
    pub fn record(&self) -> &KeyRecord {
        &self.record
    }

    /// The flag that says whether the key is still in force.
    pub fn force(&self) -> &Force {
        &self.force
    }

    /// The key's number, as the scheduler and the journal know it.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        // A panic elsewhere leaves whole counts behind.
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request, or returns the limit that forbids it; refused requests are not counted.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn begin(&self, now: Instant) -> Result<Ticket, Refusal> {
        let mut usage = self.lock();
        self.allow(&usage, now)?;
        if let Some(limit) = self.record.requests_per_minute {
            usage.requests.take(1, limit, now);
        }
        usage.running += 1;
        Ok(Ticket::new(self.clone()))
    }

    /// Checks that a request could begin now, without counting one.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check(&self, now: Instant) -> Result<(), Refusal> {
        self.allow(&self.lock(), now)
    }

    fn allow(&self, usage: &Usage, now: Instant) -> Result<(), Refusal> {
        if let Some(limit) = self.record.concurrent.filter(|limit| usage.running >= *limit) {
            return Err(Refusal::Concurrent { limit });
        }
        if let Some(limit) = self.record.tokens_per_minute
            && usage.tokens.level(limit, now) < 1.0
        {
            return Err(Refusal::Tokens { limit, retry: usage.tokens.until(1.0, limit, now) });
        }
        if let Some(limit) = self.record.requests_per_minute
            && usage.requests.level(limit, now) < 1.0
        {
            let retry = usage.requests.until(1.0, limit, now);
            return Err(Refusal::Requests { limit, retry });
        }
        Ok(())
    }

    /// Tokens were computed for it.
    pub fn charge(&self, tokens: u64, now: Instant) {
        if let Some(limit) = self.record.tokens_per_minute {
            self.lock().tokens.take(tokens, limit, now);
        }
    }

    /// The key's quotas now, for headers of answers.
    pub fn standing(&self, now: Instant) -> Standing {
        let usage = self.lock();
        let left = |limit: u64, bucket: &Bucket| Left {
            limit,
            remaining: bucket.level(limit, now).max(0.0) as u64,
            reset: bucket.until(limit as f64, limit, now),
        };
        Standing {
            requests: self.record.requests_per_minute.map(|limit| left(limit, &usage.requests)),
            tokens: self.record.tokens_per_minute.map(|limit| left(limit, &usage.tokens)),
            running: usage.running,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::record::Secret;

    fn account(change: impl FnOnce(&mut KeyRecord), now: Instant) -> Account {
        let secret = Secret::new().unwrap();
        let mut record = KeyRecord::new("a", &secret, 0).unwrap();
        change(&mut record);
        let hash = record.key_hash().unwrap();
        Account::new(record, hash, now)
    }

    #[test]
    fn requests_are_counted_over_a_minute() {
        let now = Instant::now();
        let account = account(|record| record.requests_per_minute = Some(2), now);
        for _ in 0..2 {
            drop(account.begin(now).unwrap());
        }
        let refused = account.begin(now).unwrap_err();
        assert_eq!(refused, Refusal::Requests { limit: 2, retry: Duration::from_secs(30) });
        assert_eq!(account.standing(now).requests.unwrap().remaining, 0);
        assert!(account.begin(now + Duration::from_secs(31)).is_ok());
    }

    #[test]
    fn tokens_are_charged_when_they_are_computed_and_debts_are_paid() {
        let now = Instant::now();
        let account = account(|record| record.tokens_per_minute = Some(60), now);
        let running = account.begin(now).unwrap();
        account.charge(90, now);
        let refused = account.begin(now).unwrap_err();
        assert_eq!(refused, Refusal::Tokens { limit: 60, retry: Duration::from_secs(31) });
        drop(running);
        assert!(account.begin(now + Duration::from_secs(32)).is_ok());
    }

    #[test]
    fn a_place_is_free_when_a_request_ends_and_counts_outlive_a_change() {
        let now = Instant::now();
        let account = account(|record| record.concurrent = Some(1), now);
        let first = account.begin(now).unwrap();
        assert_eq!(account.begin(now).unwrap_err(), Refusal::Concurrent { limit: 1 });
        let wider = KeyRecord { concurrent: Some(2), ..account.record().clone() };
        let account = account.with_record(wider);
        let second = account.begin(now).unwrap();
        assert!(account.begin(now).is_err());
        drop((first, second));
        assert_eq!(account.standing(now).running, 0);
    }
}
