//! The supervisor's part about workers that compute slower than planned, such as those whose machine has another job.
//!
//! All stages of a line compute the same ubatches. Each worker's computing time in a window, divided by the plan's
//! time for its layers, gives the workers' relative speeds for any load. Stale drafts are left out, since the last
//! stage computes less of them. A worker that was slower throughout a window is planned as slower, until a window
//! shows otherwise.

use std::time::{Duration, Instant};

use super::{Line, Supervisor};
use crate::reconcile::MemberId;

/// Share of a window that a stage must have computed on average, or the window says nothing.
const LEAST_BUSY: f64 = 0.1;

/// A worker must be this many times slower than planned, relative to the others, to be planned as slower:
/// measurements at start are not more exact.
const SLOWER: f64 = 1.3;

/// Most slowness that is believed from one window.
const MOST: f64 = 16.0;

/// Computing times of a line at the beginning of a window.
#[derive(Debug)]
pub(super) struct Window {
    epoch: u64,
    began: Instant,
    /// Microseconds computed in the epoch, by stage.
    busy_us: Vec<u64>,
}

impl Supervisor {
    /// Evaluates a window that is over. Returns whether a worker's speed now differs from the one that the line was
    /// planned with.
    pub(super) fn speeds_changed(&mut self) -> bool {
        let now = Instant::now();
        let Line::Up { stages, paces, stale, .. } = &self.line else {
            self.window = None;
            return false;
        };
        let busy = |(stage, id): (usize, &MemberId)| {
            Some(self.heartbeats.busy_us(*id, self.epoch)?.saturating_sub(stale.of(stage)))
        };
        let Some(busy_us) = stages.iter().enumerate().map(busy).collect::<Option<Vec<u64>>>()
        else {
            return false;
        };
        let epoch = self.epoch;
        let next = Window { epoch, began: now, busy_us };
        let Some(window) = self.window.as_ref().filter(|window| window.epoch == epoch) else {
            self.window = Some(next);
            return false;
        };
        let time = now.saturating_duration_since(window.began);
        if time < self.ends.config.slow_after {
            return false;
        }
        let computed: Vec<f64> = next
            .busy_us
            .iter()
            .zip(&window.busy_us)
            .map(|(now, then)| now.saturating_sub(*then) as f64)
            .collect();
        let conns = stages.iter().filter_map(|id| self.members.get(id)?.conn());
        let conns: Vec<_> = conns.cloned().collect();
        let before: Vec<f64> = paces.iter().map(|pace| pace.slowdown).collect();
        let planned: Vec<f64> = paces.iter().map(|pace| pace.computing_us).collect();
        self.window = Some(next);
        if conns.len() != computed.len() {
            return false;
        }
        let Some(after) = slowdowns(&computed, &planned, &before, time) else { return false };
        let mut changed = false;
        for (conn, after) in conns.iter().zip(after) {
            let before = conn.slowdown();
            if before != after {
                changed = true;
                tracing::info!(
                    worker = conn.name(),
                    before,
                    after,
                    "a worker's slowdown against the plan has changed"
                );
                conn.set_slowdown(after);
            }
        }
        changed
    }
}

/// How many times slower than it said each worker is, beside the fastest; `None`: the line did too little in `time` to
/// tell, or nothing has changed. `computed` and `planned`: microseconds, of stages; `planned` was reckoned with
/// `before`.
fn slowdowns(
    computed: &[f64],
    planned: &[f64],
    before: &[f64],
    time: Duration,
) -> Option<Vec<f64>> {
    let wall_us = time.as_secs_f64() * 1e6 * computed.len() as f64;
    if computed.iter().sum::<f64>() < LEAST_BUSY * wall_us {
        return None;
    }
    let share = |(computed, planned): (&f64, &f64)| computed / planned.max(f64::MIN_POSITIVE);
    let ratios: Vec<f64> = computed.iter().zip(planned).map(share).collect();
    let most = ratios.iter().copied().fold(0.0, f64::max);
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    if least <= 0.0 || most / least < SLOWER {
        return None;
    }
    let found: Vec<f64> = ratios.iter().zip(before).map(|(ratio, before)| ratio * before).collect();
    let fastest = found.iter().copied().fold(f64::INFINITY, f64::min);
    let rounded = |slower: f64| if slower < SLOWER { 1.0 } else { slower.min(MOST) };
    Some(found.into_iter().map(|found| rounded(found / fastest)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(1);

    fn found(computed: [f64; 3], planned: [f64; 3], before: [f64; 3]) -> Option<Vec<f64>> {
        slowdowns(&computed.map(|ms| ms * 1e3), &planned, &before, TIME)
    }

    #[test]
    fn who_computes_longer_than_planned_is_slower() {
        let even = [1.0; 3];
        assert_eq!(found([300.0, 310.0, 290.0], [5.0, 5.0, 5.0], even), None, "as planned");
        assert_eq!(found([300.0, 600.0, 300.0], [5.0, 5.0, 5.0], even), Some(vec![1.0, 2.0, 1.0]));
        // Twice the layers take twice as long.
        assert_eq!(found([300.0, 600.0, 300.0], [5.0, 10.0, 5.0], even), None);
        assert_eq!(found([30.0, 60.0, 30.0], [5.0, 5.0, 5.0], even), None, "too little was done");
        assert_eq!(found([900.0, 1.0, 900.0], [5.0, 5.0, 5.0], even), Some(vec![16.0, 1.0, 16.0]));
    }

    #[test]
    fn what_was_slow_and_is_not_any_more_is_taken_back() {
        // The plan takes it to be twice as slow, and it needs half of the planned time.
        let before = [1.0, 2.0, 1.0];
        assert_eq!(found([300.0, 150.0, 300.0], [5.0, 5.0, 5.0], before), Some(vec![1.0; 3]));
        // As slow as before.
        assert_eq!(found([300.0, 300.0, 300.0], [5.0, 5.0, 5.0], before), None);
        // Slower still.
        let found = found([300.0, 600.0, 300.0], [5.0, 5.0, 5.0], before);
        assert_eq!(found, Some(vec![1.0, 4.0, 1.0]));
    }
}
