//! A quota over time as a token bucket. It fills at an even pace up to its limit, and usage is taken out.
//!
//! Usage is taken out afterwards, because the length of an answer is not known beforehand. A bucket may therefore go
//! below empty. It then stays closed until the debt is paid, so that over time no more than the limit passes.

use std::time::{Duration, Instant};

/// The time that limits are given for.
const MINUTE: Duration = Duration::from_secs(60);

/// A bucket with room for a minute's worth.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Units in the bucket at the time `at`; negative: a debt.
    level: f64,
    at: Instant,
    /// Whether anything was ever taken. An untouched bucket is full, also after its limit has changed.
    touched: bool,
}

impl Bucket {
    /// A full bucket.
    pub fn new(now: Instant) -> Self {
        Self { level: 0.0, at: now, touched: false }
    }

    /// The units in the bucket; negative: a debt.
    pub fn level(&self, limit: u64, now: Instant) -> f64 {
        let limit = limit as f64;
        if !self.touched {
            return limit;
        }
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        (self.level + since * limit / MINUTE.as_secs_f64()).min(limit)
    }

    /// Takes something out, into debt if need be.
    pub fn take(&mut self, amount: u64, limit: u64, now: Instant) {
        self.level = self.level(limit, now) - amount as f64;
        (self.at, self.touched) = (now, true);
    }

    /// How long until it holds `wanted`.
    pub fn until(&self, wanted: f64, limit: u64, now: Instant) -> Duration {
        let missing = wanted - self.level(limit, now);
        let seconds = missing.max(0.0) * MINUTE.as_secs_f64() / limit as f64;
        // A debt of more than a day is paid tomorrow.
        Duration::from_secs_f64(seconds.min(LONGEST_WAIT_S))
    }
}

/// Longest wait that is told.
const LONGEST_WAIT_S: f64 = 24.0 * 3600.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fills_at_an_even_pace_and_pays_its_debts() {
        let start = Instant::now();
        let after = |s: u64| start + Duration::from_secs(s);
        let mut bucket = Bucket::new(start);
        assert_eq!(bucket.level(60, start), 60.0);
        bucket.take(90, 60, start);
        assert_eq!(bucket.level(60, start), -30.0);
        assert_eq!(bucket.until(1.0, 60, start), Duration::from_secs(31));
        assert_eq!(bucket.level(60, after(40)), 10.0);
        assert_eq!(bucket.level(60, after(1000)), 60.0, "never above a minute's worth");
        assert_eq!(bucket.until(60.0, 60, after(1000)), Duration::ZERO);
    }
}
