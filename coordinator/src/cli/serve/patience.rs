//! Whether a load gets on, by the bytes that it has read, without a clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Steps of a load that count as progress by themselves. A load that is tried again and again may call its steps by ever
/// other words.
const MAX_STEPS: usize = 32;

/// A load's progress.
#[derive(Debug)]
pub struct Patience {
    /// The most bytes that were done in each step.
    most: BTreeMap<String, u64>,
    /// When there was more than ever before.
    since: Instant,
}

impl Patience {
    /// That of a load that begins now.
    pub fn new(now: Instant) -> Self {
        Self { most: BTreeMap::new(), since: now }
    }

    /// Notes that `done` bytes of the step `what` are done. One that begins anew is no progress until it has more than
    /// before.
    pub fn see(&mut self, now: Instant, what: &str, done: u64) {
        let is_more = match self.most.get(what) {
            Some(most) => done > *most,
            None => self.most.len() < MAX_STEPS,
        };
        if is_more {
            self.most.insert(what.to_owned(), done);
            self.since = now;
        }
    }

    /// Whether it has stood still for this time.
    pub fn is_over(&self, now: Instant, patience: Duration) -> bool {
        now.saturating_duration_since(self.since) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn at(begin: Instant, seconds: u64) -> Instant {
        begin + Duration::from_secs(seconds)
    }

    #[test]
    fn a_slow_load_goes_on_for_hours_and_one_that_stands_still_does_not() {
        let begin = Instant::now();
        let mut load = Patience::new(begin);
        for minute in 0..600 {
            let now = at(begin, 60 * minute);
            load.see(now, "loading", minute);
            assert!(!load.is_over(now, PATIENCE), "minute {minute}");
        }
        let last = 60 * 599;
        load.see(at(begin, last + 299), "loading", 599);
        assert!(!load.is_over(at(begin, last + 299), PATIENCE));
        assert!(load.is_over(at(begin, last + 300), PATIENCE));
        // Nothing at all is no progress.
        assert!(Patience::new(begin).is_over(at(begin, 300), PATIENCE));
    }

    #[test]
    fn a_load_that_is_tried_again_and_again_is_no_progress() {
        let begin = Instant::now();
        let mut load = Patience::new(begin);
        for second in 0..300 {
            // It breaks at the same byte each time.
            load.see(at(begin, second), "loading", second % 10);
        }
        assert!(!load.is_over(at(begin, 308), PATIENCE) && load.is_over(at(begin, 309), PATIENCE));
        for second in 0..1000 {
            load.see(at(begin, second), &format!("waits for worker {second}"), 0);
        }
        assert!(load.is_over(at(begin, 1000), PATIENCE), "it has ever other words");
    }
}
