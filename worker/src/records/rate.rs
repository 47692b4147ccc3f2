//! A rate limit for tasks that send or write beside the hot path.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How far ahead of its rate a sender may be: shorter pauses cost more than they are worth.
const AHEAD: Duration = Duration::from_millis(5);

/// Keeps to a rate, which several senders may have together.
#[derive(Debug)]
pub struct Rate {
    per_second: u64,
    free_at: Mutex<Instant>,
}

impl Rate {
    /// A limit of so many bytes a second, of which nothing was sent yet.
    pub fn new(per_second: u64) -> Self {
        Self { per_second, free_at: Mutex::new(Instant::now()) }
    }

    /// Counts `nbytes` as sent. Returns when the next bytes may be sent, if that is not about now.
    pub fn sent(&self, nbytes: usize) -> Option<Instant> {
        let now = Instant::now();
        let took = Duration::from_secs_f64(nbytes as f64 / self.per_second as f64);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = (*free_at).max(now) + took;
        (*free_at > now + AHEAD).then_some(*free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_that_share_a_rate_have_it_together() {
        let rate = Rate::new(1 << 20);
        assert_eq!(rate.sent(1), None);
        let minute = 60 << 20;
        let [first, second] = [0; 2].map(|_| rate.sent(minute).unwrap());
        assert_eq!(second - first, Duration::from_secs(60));
    }
}
