//! The part of a line's pace that is not the slowest stage's computing.
//!
//! While two ubatches are on the line at once, the second comes back behind the first by the time of the slowest
//! step. That is the slowest stage with its overhead. A small model's stages are faster than the writing of a
//! message, and on one machine the coordinator and its workers share the cores. This overhead is only seen here: such
//! ubatches come back later than the slowest stage's computing explains.
//!
//! Where one ubatch is on the line at a time, a token takes the time from one departure to the next: the trip, and
//! then the coordinator's pause.

use crate::events::Micros;

/// Weight of a new time, once there are `1 / RECENT`.
const RECENT: f64 = 1.0 / 16.0;

/// Times that count as much as the hope that there is nothing beside the stages.
const AS_THE_HOPE: f64 = 1.0;

/// Ubatches after which times count half: where only one is on the line at a time, a decrease is not observed.
const HALF_LIFE: f64 = 1024.0;

/// A ubatch that came back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Returned {
    pub sent_at: Micros,
    pub at: Micros,
    /// Time of the slowest stage for it, its drafts included, ...
    pub slowest_us: Micros,
    /// ... and what all took.
    pub through_us: Micros,
}

/// Times of ubatches behind others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    n: f64,
    us: f64,
    /// How many had come back when there last was a time.
    seen_at: u64,
    n_returned: u64,
    last: Option<Returned>,
    /// Whether that one was sent when the one before it was back, so that it waited for none.
    last_was_alone: bool,
    beside_us: f64,
    alone: Alone,
}

/// Times between ubatches that had the line for themselves.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    n: f64,
    /// Mean time from one to the next beside the stages' computing.
    us: f64,
}

impl Alone {
    /// Learns from a ubatch and the next one, if that was sent soon after the first was back: a longer pause has
    /// other causes.
    fn observe(&mut self, before: Returned, after: Returned) {
        let trip = before.at.saturating_sub(before.sent_at);
        let Some(pause) = after.sent_at.checked_sub(before.at).filter(|pause| *pause < trip) else {
            return;
        };
        let outside = (trip + pause).saturating_sub(before.through_us) as f64;
        self.n = (self.n + 1.0).min(1.0 / RECENT);
        self.us += (outside - self.us) / self.n;
    }
}

impl Pace {
    /// Learns from a ubatch that came back behind the one before it; `None`: of which the last stage left something out.
    pub fn observe(&mut self, returned: Option<Returned>) {
        self.n_returned += 1;
        let before = std::mem::replace(&mut self.last, returned);
        let both = before.zip(returned);
        let is_alone = both.is_some_and(|(before, after)| after.sent_at >= before.at);
        let was_alone = std::mem::replace(&mut self.last_was_alone, is_alone);
        // A trip behind another ubatch has its waiting in it.
        if let Some((before, after)) = both.filter(|_| was_alone) {
            self.alone.observe(before, after);
        }
        if let Some(beside) = both.and_then(|(before, after)| beside(before, after)) {
            self.n = (self.n + 1.0).min(1.0 / RECENT);
            self.us += (beside - self.us) / self.n;
            self.seen_at = self.n_returned;
        }
        let age = (self.n_returned - self.seen_at) as f64;
        let n = self.n * (-age / HALF_LIFE).exp2();
        self.beside_us = (self.us * n / (n + AS_THE_HOPE)).max(0.0);
    }

    /// Microseconds from one ubatch to the next beside the stages' computing, where one is on the line at a time.
    pub fn outside_alone(&self) -> f64 {
        self.alone.us
    }

    /// Microseconds of a ubatch's step beside the slowest stage's computing, as far as is known: less where little was seen,
    /// or nothing lately.
    pub fn beside_stages(&self) -> f64 {
        self.beside_us
    }
}

/// How much later a ubatch came back behind the one before it than the slowest stage took for it. `None` where that
/// says nothing: it was sent when the other one was back, or came later for having been sent later, or for being
/// longer.
fn beside(before: Returned, after: Returned) -> Option<f64> {
    let apart = after.at.saturating_sub(before.at);
    let sent_apart = after.sent_at.saturating_sub(before.sent_at);
    let is_no_longer = after.through_us <= before.through_us;
    let says = is_no_longer && after.sent_at < before.at && sent_apart < apart;
    says.then_some(apart as f64 - after.slowest_us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn returned(sent_at: Micros, at: Micros, slowest_us: Micros) -> Option<Returned> {
        Some(Returned { sent_at, at, slowest_us, through_us: 2 * slowest_us })
    }

    #[test]
    fn it_is_seen_between_ubatches_that_were_on_the_line_at_once() {
        let mut pace = Pace::default();
        // One at a time says nothing.
        (0..100).for_each(|i| pace.observe(returned(1000 * i, 1000 * i + 700, 100)));
        assert_eq!(pace.beside_stages(), 0.0);
        // Two at a time: 300 apart, of which the slowest stage takes 100.
        for i in 200..400 {
            pace.observe(returned(1000 * i, 1000 * i + 500, 100));
            pace.observe(returned(1000 * i, 1000 * i + 800, 100));
        }
        let seen = pace.beside_stages();
        assert!((180.0..200.0).contains(&seen), "{seen}");
        // Forgotten with time.
        (500..4500).for_each(|i| pace.observe(returned(1000 * i, 1000 * i + 700, 100)));
        assert!(pace.beside_stages() < 0.7 * seen, "{}", pace.beside_stages());
    }

    #[test]
    fn alone_it_is_all_from_one_ubatch_to_the_next() {
        let mut pace = Pace::default();
        // Trips of 700 with stages of 200, then a pause of 100.
        for i in 0..100 {
            pace.observe(returned(800 * i, 800 * i + 700, 100));
        }
        assert_eq!(pace.outside_alone(), 600.0);
        // A stream that ends is no pause of the line's, and two at once are not alone.
        pace.observe(returned(200_000, 200_700, 100));
        for i in 300..400 {
            pace.observe(returned(1000 * i, 1000 * i + 500, 100));
            pace.observe(returned(1000 * i + 100, 1000 * i + 900, 100));
        }
        assert_eq!(pace.outside_alone(), 600.0);
    }

    #[test]
    fn what_was_sent_later_comes_later() {
        let mut pace = Pace::default();
        for i in 0..100 {
            // The second is sent as long behind the first as it comes back behind it.
            pace.observe(returned(2000 * i, 2000 * i + 900, 100));
            pace.observe(returned(2000 * i + 500, 2000 * i + 1400, 100));
        }
        assert_eq!(pace.beside_stages(), 0.0);
    }

    #[test]
    fn what_is_longer_comes_later() {
        let mut pace = Pace::default();
        for i in 0..100 {
            // Trips of 500 and of 900, that have nothing to do with each other.
            pace.observe(returned(2000 * i, 2000 * i + 500, 100));
            pace.observe(returned(2000 * i + 100, 2000 * i + 1000, 300));
        }
        assert_eq!(pace.beside_stages(), 0.0);
    }

    #[test]
    fn stages_that_compute_all_the_time_have_nothing_beside_them() {
        let mut pace = Pace::default();
        (0..100).for_each(|i| pace.observe(returned(500 * i, 500 * i + 1500, 500)));
        assert_eq!(pace.beside_stages(), 0.0);
    }
}
