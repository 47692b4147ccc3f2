//! How far the building of a line is: one count of bytes over all stages, with its rate and the time left.
//!
//! Each stage goes through hashing, sending and loading at its own pace. The reported phase is the first one that
//! some stage has not finished.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use brigade_line::handle::Status;
use brigade_line::health::Loading;
use brigade_line::stages::link::LineEvent;

/// A rate is told after this time.
const MEASURED_AFTER: Duration = Duration::from_secs(1);

/// The log says how far a long load is this often.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// A step that the bytes of a stage go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Hashing, for workers that may have the bytes in another file or in their caches.
    Hashing,
    /// Sending, to workers that lack the bytes.
    Sending,
    /// Into the workers' memory.
    Loading,
}

/// The words for the phases, in order.
const PHASES: [&str; 3] = ["hashing weights", "sending weights", "loading weights"];

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    done: u64,
    total: u64,
    begun: Option<Instant>,
}

#[derive(Debug, Default)]
struct Counts {
    phases: [Count; 3],
    logged: Option<Instant>,
}

impl Counts {
    /// More bytes to do, and more that are done.
    fn add(&mut self, phase: Phase, done: u64, total: u64, now: Instant) {
        let count = &mut self.phases[phase as usize];
        count.done = count.done.saturating_add(done);
        count.total = count.total.saturating_add(total);
        count.begun.get_or_insert(now);
    }

    fn seen(&self, now: Instant) -> Loading {
        let begun = |count: &Count| count.begun.is_some();
        let unfinished = self.phases.iter().position(|c| begun(c) && c.done < c.total);
        let at = unfinished.or(self.phases.iter().rposition(begun)).unwrap_or(0);
        let Count { done, total, begun } = self.phases[at];
        let total_bytes = total.max(done);
        let elapsed = begun.map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        let rate = (done as f64 / elapsed.as_secs_f64()) as u64;
        let bytes_per_second = (elapsed >= MEASURED_AFTER && rate > 0).then_some(rate);
        Loading {
            what: PHASES[at].to_string(),
            done_bytes: done,
            total_bytes,
            bytes_per_second,
            seconds_left: bytes_per_second.map(|rate| (total_bytes - done).div_ceil(rate)),
        }
    }

    /// Whether a log line is due.
    fn is_due(&mut self, now: Instant) -> bool {
        let last = *self.logged.get_or_insert(now);
        let due = now.saturating_duration_since(last) >= LOG_EVERY;
        if due {
            self.logged = Some(now);
        }
        due
    }
}

/// The progress of one attempt at a line. Clones share it.
#[derive(Clone, Debug)]
pub struct Progress {
    counts: Arc<Mutex<Counts>>,
    events: Option<mpsc::Sender<LineEvent>>,
}

impl Progress {
    /// No progress yet. Reports go to `events`.
    pub fn new(events: mpsc::Sender<LineEvent>) -> Self {
        Self { counts: Arc::default(), events: Some(events) }
    }

    /// No progress yet. A line is up at the same time, so only the log is told.
    pub fn beside_a_line() -> Self {
        Self { counts: Arc::default(), events: None }
    }

    /// A stage's part of a phase, with its total of bytes.
    pub fn part(&self, phase: Phase, total: u64) -> Part {
        self.add(phase, 0, total);
        Part { progress: self.clone(), phase, done: Mutex::new(0) }
    }

    fn add(&self, phase: Phase, done: u64, total: u64) {
        let now = Instant::now();
        let (loading, due) = {
            // A panic elsewhere leaves whole counts behind.
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            counts.add(phase, done, total, now);
            (counts.seen(now), counts.is_due(now))
        };
        if due {
            tracing::info!("{loading}");
        }
        // A full queue means that newer progress is on its way already.
        if let Some(events) = &self.events {
            let _ = events.try_send(LineEvent::Progress(Status::Loading(loading)));
        }
    }
}

/// One stage's part of a phase.
#[derive(Debug)]
pub struct Part {
    progress: Progress,
    phase: Phase,
    done: Mutex<u64>,
}

impl Part {
    /// Sets the bytes that are done; less than before changes nothing.
    pub fn at(&self, done: u64) {
        let more = {
            let mut before = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            let more = done.saturating_sub(*before);
            *before = done.max(*before);
            more
        };
        if more > 0 {
            self.progress.add(self.phase, more, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stages_count_together_with_rate_and_time_left() {
        let (begin, mut counts) = (Instant::now(), Counts::default());
        let at = |seconds| begin + Duration::from_secs(seconds);
        counts.add(Phase::Sending, 0, 300, begin);
        counts.add(Phase::Sending, 0, 100, begin);
        assert_eq!(counts.seen(begin).seconds_left, None);
        assert_eq!(counts.seen(at(2)).seconds_left, None, "nothing has come in that time");
        counts.add(Phase::Sending, 100, 0, at(2));
        let seen = counts.seen(at(2));
        assert_eq!((seen.done_bytes, seen.total_bytes), (100, 400));
        assert_eq!((seen.bytes_per_second, seen.seconds_left), (Some(50), Some(6)));
        // One stage hashes while another is sent its bytes: hashing comes first.
        counts.add(Phase::Hashing, 10, 20, at(3));
        assert_eq!(counts.seen(at(3)).what, "hashing weights");
        counts.add(Phase::Hashing, 10, 0, at(4));
        assert_eq!(counts.seen(at(4)).what, "sending weights");
    }

    #[test]
    fn the_log_hears_of_long_loads_now_and_then() {
        let (begin, mut counts) = (Instant::now(), Counts::default());
        assert!(!counts.is_due(begin) && !counts.is_due(begin + LOG_EVERY / 2));
        assert!(counts.is_due(begin + LOG_EVERY) && !counts.is_due(begin + LOG_EVERY));
    }

    #[test]
    fn a_part_never_goes_back() {
        let (events, mut told) = mpsc::channel(8);
        let part = Progress::new(events).part(Phase::Loading, 100);
        for done in [40, 30, 60] {
            part.at(done);
        }
        let mut last = None;
        while let Ok(LineEvent::Progress(Status::Loading(loading))) = told.try_recv() {
            last = Some((loading.done_bytes, loading.total_bytes));
        }
        assert_eq!(last, Some((60, 100)));
    }
}
