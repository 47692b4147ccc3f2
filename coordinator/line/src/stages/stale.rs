//! Computing times that must not count when a slow stage is looked for. Where all drafts of a part are stale, the
//! last stage leaves out its head and is faster than usual.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brigade_sched::{Micros, StageTime};

/// Microseconds that each stage of a line has computed in such ubatches. Clones are the same counts.
#[derive(Clone, Debug)]
pub struct StaleTimes(Arc<[AtomicU64]>);

impl StaleTimes {
    /// Counts for a line of so many stages.
    pub fn new(n_stages: usize) -> Self {
        Self((0..n_stages).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds the times of a ubatch with a stale part.
    pub fn add(&self, stages: &[StageTime]) {
        for (sum, time) in self.0.iter().zip(stages) {
            sum.fetch_add(time.compute_us, Ordering::Relaxed);
        }
    }

    /// Microseconds that the stage has spent on stale parts, as far as is known.
    pub fn of(&self, stage: usize) -> Micros {
        self.0.get(stage).map_or(0, |us| us.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_its_sum() {
        let (times, [first, second]) = (StaleTimes::new(2), [3, 50]);
        let stage = |compute_us| StageTime { compute_us, queued_us: 0, ..StageTime::default() };
        let seen = times.clone();
        times.add(&[stage(first), stage(second)]);
        times.add(&[stage(first), stage(second), stage(1)]);
        assert_eq!([0, 1, 2].map(|i| seen.of(i)), [6, 100, 0]);
    }
}
