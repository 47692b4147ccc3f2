//! Log lines about a request that has had no token for long. They say how much of its prompt is computed, after ten
//! seconds and then more and more rarely. Times are passed in, so that tests need not wait.

use brigade_sched::Micros;

/// When it is told first.
const FIRST_AFTER: Micros = 10_000_000;

/// Longest time between two tellings.
const AT_LEAST_EVERY: Micros = 300_000_000;

/// Tells of one request.
#[derive(Debug)]
pub(super) struct Reading {
    since: Micros,
    /// Waits double from one telling to the next.
    wait: Micros,
    due: Micros,
    /// When its prompt was first seen to be read, and how far it was.
    begun: Option<(Micros, u32)>,
}

/// A log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The request waits for its place.
    Waits {
        /// Seconds since it was submitted.
        seconds: u64,
    },
    /// The request's prompt is being computed.
    Reads {
        /// Seconds since it was submitted.
        seconds: u64,
        /// Prompt positions computed so far.
        computed: u32,
        /// Prompt positions in all.
        prompt: u32,
        /// Expected seconds at the rate so far; `None` before there is one.
        seconds_left: Option<u64>,
    },
}

impl Reading {
    pub(super) fn new(now: Micros) -> Self {
        Self { since: now, wait: FIRST_AFTER, due: now + FIRST_AFTER, begun: None }
    }

    /// The log line that is due now, if any. `read`: computed positions and all positions of the prompt; `None`: it
    /// waits.
    pub(super) fn look(&mut self, now: Micros, read: Option<(u32, u32)>) -> Option<Told> {
        if let Some((computed, _)) = read {
            self.begun.get_or_insert((now, computed));
        }
        if now < self.due {
            return None;
        }
        self.wait = (self.wait * 2).min(AT_LEAST_EVERY);
        self.due = now + self.wait;
        let seconds = (now - self.since) / 1_000_000;
        let Some((computed, prompt)) = read else { return Some(Told::Waits { seconds }) };
        let seconds_left = self.begun.and_then(|(begun, from)| {
            let done = u64::from(computed.checked_sub(from).filter(|done| *done > 0)?);
            let left = u64::from(prompt.saturating_sub(computed));
            Some((now - begun) * left / done / 1_000_000)
        });
        Some(Told::Reads { seconds, computed, prompt, seconds_left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    /// When something is told in the first 20 minutes, of a prompt that is never done.
    fn told_at() -> Vec<u64> {
        let mut reading = Reading::new(7 * SECOND);
        let look = |s: u64| reading.look((7 + s) * SECOND, Some((s as u32, 100_000))).map(|_| s);
        (0..1200).filter_map(look).collect()
    }

    #[test]
    fn it_is_told_after_ten_seconds_and_then_more_and_more_rarely() {
        assert_eq!(told_at(), [10, 30, 70, 150, 310, 610, 910]);
    }

    #[test]
    fn it_says_how_far_it_is_and_how_long_it_will_take() {
        let mut reading = Reading::new(0);
        assert_eq!(reading.look(2 * SECOND, None), None);
        assert_eq!(reading.look(10 * SECOND, None), Some(Told::Waits { seconds: 10 }));
        // It has a place, and a kept sequence stood for the first thousand.
        assert_eq!(reading.look(20 * SECOND, Some((1000, 5000))), None);
        let told = reading.look(30 * SECOND, Some((2000, 5000)));
        let (computed, prompt, seconds_left) = (2000, 5000, Some(30));
        assert_eq!(told, Some(Told::Reads { seconds: 30, computed, prompt, seconds_left }));
    }
}
