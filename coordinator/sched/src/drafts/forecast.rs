//! Forecasts the speed of one sequence with drafts of a given accuracy, from the line's measured times.

use brigade_spec::Prefixes;

use crate::SchedConfig;
use crate::drafts::windows::{Drafts, Leave, MAX_WINDOWS, SUREST};
use crate::events::{LineSpec, Micros, StageTime};
use crate::sim::roomy;
use crate::times::timing::LineTimes;
use crate::ubatches::sizing::Sizing;

/// Measured times of a line, and what follows from them for a sequence that runs ahead of its draws.
#[derive(Debug)]
pub struct Forecast {
    times: LineTimes,
    spec: LineSpec,
}

impl Forecast {
    /// A forecast for a line of so many stages and rows of a ubatch, without measurements.
    pub fn new(n_stages: usize, max_rows: u32, prefixes: Prefixes) -> Self {
        let spec = LineSpec { max_rows, prefixes, ..roomy(n_stages) };
        Self { times: LineTimes::new(n_stages), spec }
    }

    /// A ubatch of so many rows came back `round_trip` microseconds after it was sent.
    pub fn observe(&mut self, rows: u32, round_trip: Micros, stages: &[StageTime]) {
        self.times.observe(rows, round_trip, stages);
    }

    /// Tokens per second of one sequence at the best choice of windows. `odds`: the probability of a right draft,
    /// capped at 0.98. `most`: limit of windows in flight. 0 before anything was measured.
    pub fn tokens_per_second(&self, odds: f64, most: Option<u32>) -> f64 {
        if !self.times.measured() {
            return 0.0;
        }
        let (odds, config) = (odds.clamp(0.0, SUREST), SchedConfig::default());
        let sizing = Sizing { times: &self.times, spec: &self.spec, config: &config };
        let most = most.unwrap_or(MAX_WINDOWS);
        let leave = Leave { most, another_may_come: false, only_known: false };
        let windows = sizing.windows(Drafts::Had(odds), 1, leave);
        let odds = if windows.any() { odds } else { 0.0 };
        1e6 * sizing.rate(windows, Drafts::Had(odds), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_bring_what_the_formula_says_and_none_a_token_a_trip() {
        let mut forecast = Forecast::new(2, 64, Prefixes::All);
        assert_eq!(forecast.tokens_per_second(0.9, None), 0.0);
        // Two stages of 10 ms for any number of rows.
        for rows in (1..=16).cycle().take(400) {
            let stage = StageTime { compute_us: 10_000, queued_us: 0, ..StageTime::default() };
            forecast.observe(rows, 20_000, &[stage; 2]);
        }
        let of = |odds, most| forecast.tokens_per_second(odds, most);
        assert!((of(0.0, None) - 50.0).abs() < 1.0, "{}", of(0.0, None));
        // One window at a time: at 0.9 some eight tokens of sixteen rows come with each trip.
        let (sync, all) = (of(0.9, Some(1)), of(0.9, None));
        assert!((350.0..450.0).contains(&sync) && all > 1.05 * sync, "{sync} {all}");
        assert!(of(1.0, None).is_finite() && of(1.0, None) >= of(0.98, None));
    }
}
