//! A rate limit for tasks that send or write beside the hot path.

use std::time::Duration;

use tokio::time::Instant;

use super::BYTES_PER_SECOND;

/// How far ahead of its rate a sender may be: shorter pauses cost more than they are worth.
const AHEAD: Duration = Duration::from_millis(5);

/// Keeps to a rate.
#[derive(Debug)]
pub struct Rate {
    free_at: Instant,
}

impl Default for Rate {
    fn default() -> Self {
        Self::new()
    }
}

impl Rate {
    /// A rate limit at which nothing was sent yet.
    pub fn new() -> Self {
        Self { free_at: Instant::now() }
    }

    /// Counts `nbytes` as sent. Returns when the next bytes may be sent, if that is not about now.
    pub fn sent(&mut self, nbytes: usize) -> Option<Instant> {
        let now = Instant::now();
        let took = Duration::from_secs_f64(nbytes as f64 / BYTES_PER_SECOND as f64);
        self.free_at = self.free_at.max(now) + took;
        (self.free_at > now + AHEAD).then_some(self.free_at)
    }
}
