//! Room for records of kept prefixes, in memory or on the disk, which the stages of a node share by need.
//!
//! A stage takes what it uses, as far as the others leave it, and gives back what it has freed. So one busy stage may have all
//! of it. Nobody drops another's records, and they stay for days: the first stage to fill the room would have it for good.
//! Therefore each is sure of an equal part. A stage that lacks room below its part says so in the table, and the others,
//! which look every second, give back what they have above theirs.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Ledger, Shared, lock, read, row_of, rows, told, write};

/// How long a stage that asked for more is kept its part free.
const RESERVED_FOR: Duration = Duration::from_secs(60);

/// What the room is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The host's memory.
    Ram,
    /// The disk.
    Disk,
}

impl Medium {
    /// Where in a row the bytes are that a stage has; behind it those that are kept free for it.
    fn word(self) -> usize {
        match self {
            Self::Ram => 2,
            Self::Disk => 4,
        }
    }
}

/// A stage's place in such a room.
#[derive(Debug)]
pub struct Room {
    ledger: Ledger,
    medium: Medium,
    limit: u64,
    /// When this stage last asked for room.
    asked: Mutex<Option<Instant>>,
}

/// A stage's numbers.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    has: u64,
    reserved: u64,
}

impl Ledger {
    /// Its room for records in a medium, which all stages together may have `limit` bytes of.
    pub fn room(&self, medium: Medium, limit: u64) -> Room {
        Room { ledger: self.clone(), medium, limit, asked: Mutex::default() }
    }
}

impl Room {
    /// Asks for room for `total` bytes, with all that the stage has. The answer is how much it may have; if that is less, it
    /// gets none of it.
    pub fn ask(&self, total: u64) -> u64 {
        let Some(shared) = &self.ledger.0.shared else { return self.limit };
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let Ok(_lock) = lock(&shared.file).map_err(told) else { return 0 };
        let Some((own, others)) = self.numbers(shared) else { return 0 };
        let (part, may) = (self.part(shared), self.limit.saturating_sub(others));
        let lacks = may < total.min(part);
        let reserved = if lacks { part } else { own.reserved };
        let has = if total <= may { total } else { own.has };
        self.note(shared, Numbers { has, reserved });
        // What it has of its part stays.
        may.max(own.has.min(part))
    }

    /// The most that it may have now: what is above that is to be given back.
    pub fn most(&self) -> u64 {
        let Some(shared) = &self.ledger.0.shared else { return self.limit };
        let Some((own, others)) = self.numbers(shared) else { return self.part(shared) };
        self.limit.saturating_sub(others).max(own.has.min(self.part(shared)))
    }

    /// Notes what it has, which is not more than it asked for, and gives back the rest.
    pub fn settle(&self, used: u64) {
        let Some(shared) = &self.ledger.0.shared else { return };
        let Some((own, _)) = self.numbers(shared) else { return };
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = asked.is_none_or(|at| at.elapsed() > RESERVED_FOR);
        let reserved = if is_idle || used >= self.part(shared) { 0 } else { own.reserved };
        self.note(shared, Numbers { has: used, reserved });
    }

    /// The part that it is sure of.
    fn part(&self, shared: &Shared) -> u64 {
        self.limit / shared.share.of as u64
    }

    /// This stage's numbers, and what the others have or is kept free for them.
    fn numbers(&self, shared: &Shared) -> Option<(Numbers, u64)> {
        let words = read(&shared.file).map_err(told).ok()?;
        let of = |row: usize| {
            let at = row + self.medium.word();
            Numbers { has: words[at], reserved: words[at + 1] }
        };
        let own = row_of(shared.share);
        let others = rows().filter(|row| *row != own).map(of);
        let others = others.map(|other| other.has.max(other.reserved));
        Some((of(own), others.fold(0, u64::saturating_add)))
    }

    fn note(&self, shared: &Shared, Numbers { has, reserved }: Numbers) {
        let at = row_of(shared.share) + self.medium.word();
        // It was told; the others have less then.
        let _ = write(&shared.file, at, &[has, reserved]).map_err(told);
    }
}
