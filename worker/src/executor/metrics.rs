//! Counters of the executor and the lane, for the Health call. Most are relaxed atomics: each figure is right by itself, and no
//! decision depends on two of them together.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use brigade_engine::device::ExpertCounts;

/// Counters of one epoch's lane.
#[derive(Debug)]
pub struct Meter {
    opened: Instant,
    busy_us: AtomicU64,
    /// Microseconds after `opened` at which the ubatch in work began, plus 1; 0: none in work.
    computing_since: AtomicU64,
    ubatches_done: AtomicU64,
    experts: Mutex<ExpertCounts>,
    queue_len: AtomicU32,
    wire_bytes_in: AtomicU64,
    wire_bytes_out: AtomicU64,
}

/// A reading of a [`Meter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Microseconds spent computing.
    pub busy_us: u64,
    /// Microseconds since the lane opened.
    pub lane_us: u64,
    /// Microseconds the ubatch in work has been computing; 0: none.
    pub computing_us: u64,
    /// Number of finished ubatches.
    pub ubatches_done: u64,
    /// Counts of the routed experts since the stage was loaded.
    pub experts: ExpertCounts,
    /// Ubatches received and not started.
    pub queue_len: u32,
    /// Bytes of frames received.
    pub wire_bytes_in: u64,
    /// Bytes of frames sent.
    pub wire_bytes_out: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            opened: Instant::now(),
            busy_us: AtomicU64::new(0),
            computing_since: AtomicU64::new(0),
            ubatches_done: AtomicU64::new(0),
            experts: Mutex::default(),
            queue_len: AtomicU32::new(0),
            wire_bytes_in: AtomicU64::new(0),
            wire_bytes_out: AtomicU64::new(0),
        }
    }
}

impl Meter {
    /// A frame arrived and waits for the executor.
    pub fn received(&self, bytes: usize) {
        self.wire_bytes_in.fetch_add(bytes as u64, Relaxed);
        self.queue_len.fetch_add(1, Relaxed);
    }

    /// The executor takes a ubatch from the queue.
    pub fn taken(&self) {
        self.queue_len.fetch_sub(1, Relaxed);
    }

    /// The stage computes a ubatch from now on.
    pub fn started(&self, now: Instant) {
        self.computing_since.store(self.us(now) + 1, Relaxed);
    }

    /// The ubatch is done after `compute_us`.
    pub fn finished(&self, compute_us: u64) {
        self.busy_us.fetch_add(compute_us, Relaxed);
        self.computing_since.store(0, Relaxed);
        self.ubatches_done.fetch_add(1, Relaxed);
    }

    /// Stores the counts of the routed experts since the stage was loaded.
    pub fn experts(&self, counts: ExpertCounts) {
        *self.experts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// The stage computes nothing more for this lane.
    pub fn stopped(&self) {
        self.computing_since.store(0, Relaxed);
    }

    /// A frame was handed to the transport.
    pub fn sent(&self, bytes: usize) {
        self.wire_bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    /// All figures at `now`; a ubatch in work counts as busy up to `now`.
    pub fn read(&self, now: Instant) -> Reading {
        let lane_us = self.us(now);
        let computing_us = match self.computing_since.load(Relaxed) {
            0 => 0,
            since => lane_us.saturating_sub(since - 1),
        };
        Reading {
            busy_us: self.busy_us.load(Relaxed) + computing_us,
            lane_us,
            computing_us,
            ubatches_done: self.ubatches_done.load(Relaxed),
            experts: *self.experts.lock().unwrap_or_else(PoisonError::into_inner),
            queue_len: self.queue_len.load(Relaxed),
            wire_bytes_in: self.wire_bytes_in.load(Relaxed),
            wire_bytes_out: self.wire_bytes_out.load(Relaxed),
        }
    }

    fn us(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.opened).as_micros() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_in_progress_counts_as_busy() {
        let meter = Meter::default();
        let start = meter.opened;
        meter.received(10);
        meter.received(20);
        meter.taken();
        meter.started(start + Duration::from_micros(100));
        let reading = meter.read(start + Duration::from_micros(150));
        assert_eq!((reading.busy_us, reading.computing_us, reading.queue_len), (50, 50, 1));
        meter.finished(60);
        let reading = meter.read(start + Duration::from_micros(200));
        assert_eq!((reading.busy_us, reading.computing_us, reading.lane_us), (60, 0, 200));
        assert_eq!((reading.ubatches_done, reading.wire_bytes_in), (1, 30));
    }
}
