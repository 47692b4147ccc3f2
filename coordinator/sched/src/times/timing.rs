//! Learns the cost of ubatches from measured times.
//!
//! Each stage is modelled as `fixed + per_row * rows` microseconds. `fixed` does not shrink with the ubatch:
//! it is the reading of weights and the hand-over. `per_row` is what each row adds.
//!
//! Measurements are averaged in buckets by number of rows, so that a long spell of decoding does not erase the
//! measurements of prefill. The line through the buckets is fitted by relative error, so that small ubatches count as
//! much as large ones. Large ubatches have a line of their own: a few rows wait for memory, many rows for arithmetic,
//! and one line through both would fit neither. The kind of the rows does not matter here.

use crate::drafts::chains::{Chains, Drafted};
use crate::events::{Micros, StageTime};
use crate::times::cost::{Bucket, Cost, HALF_LIFE, RECENT};
use crate::times::few::Few;
use crate::times::pace::{Pace, Returned};

/// Cost of a ubatch before anything was measured: that of a mid-sized model on a few CPU cores.
/// Only the ratio matters much, and only for the first ubatches.
const DEFAULT_COST: Cost = Cost { fixed: 8_000.0, per_row: 1_000.0 };

/// `fixed / per_row` that the fit leans to as long as all measurements have the same size.
const PRIOR_FIXED_ROWS: f64 = DEFAULT_COST.fixed / DEFAULT_COST.per_row;

/// Strength of that leaning beside a well-filled bucket's weight of 1.
const PRIOR_WEIGHT: f64 = 0.01;

/// Buckets: sizes 1, 2, 3..4, 5..8, ... up to 2^20 rows.
const N_BUCKETS: usize = 21;

/// Ubatches of this many rows and more are large.
const LARGE_ROWS: u32 = 17;

/// Rows of a ubatch of prompts as they are made beside streams: by it time is counted as rows.
const USUAL_ROWS: u32 = 128;

/// Ubatches of more rows than this are not on the line through those of fewer: one row or two wait for
/// memory.
const FEW_ROWS: u32 = 2;

/// Measurements of about a size that count as much as the line.
const AS_THE_LINE: f64 = 4.0;

/// Share by which a size that was not measured lately may be quicker than the line says, at most: it is
/// tried if that would make it the best.
const MOST_HOPE: f64 = 0.2;

/// Where times vary by less than this the line is right ...
const STEADY: f64 = 0.05;

/// ... and where they vary by more, it may be wrong by this many times the excess.
const HOPE_OF_VARIATION: f64 = 3.0;

/// Standard deviation over mean deviation, of normal times.
const SD_OF_DEVIATION: f64 = 1.25;

/// Weight of a new, smaller overhead; larger ones count a tenth of it: the overhead that matters is
/// the one of an undisturbed trip.
const OVERHEAD_RECENT: f64 = 0.5;

/// Share of the other that a cost gets when measurements leave nothing for it.
const TINY: f64 = 1e-4;

/// One stage's measurements and the lines through them.
#[derive(Clone, Debug)]
struct StageFit {
    buckets: [Bucket; N_BUCKETS],
    /// The line through all buckets.
    all: Cost,
    /// A line through the times of more than a few rows, once there are some.
    many: Option<Cost>,
    /// A line through the times of large ubatches, once there are any.
    large: Option<Cost>,
    /// Times of exactly 1, 2, .. rows.
    few: Few,
    /// Number of ubatches measured.
    n_seen: u64,
}

impl StageFit {
    fn new() -> Self {
        let (buckets, all) = ([Bucket::default(); N_BUCKETS], DEFAULT_COST);
        Self { buckets, all, many: None, large: None, few: Few::new(), n_seen: 0 }
    }

    fn add(&mut self, rows: u32, us: f64) {
        let per_row = self.at(rows).per_row;
        self.n_seen += 1;
        let bucket = &mut self.buckets[bucket_of(rows)];
        bucket.add(f64::from(rows), us.max(1.0), per_row);
        bucket.last = self.n_seen;
        self.few.add(rows, us.max(1.0), self.n_seen);
        self.all = fit(&self.buckets).unwrap_or(self.all);
        // Through one bucket alone the line would be the prior's.
        let many = &self.buckets[bucket_of(FEW_ROWS) + 1..];
        self.many = if many.iter().filter(|b| b.n > 0.0).count() > 1 { fit(many) } else { None };
        self.large = fit(&self.buckets[bucket_of(LARGE_ROWS)..]);
        self.few.settle(self.n_seen, self.all);
    }

    /// The line that `rows` rows are on.
    fn at(&self, rows: u32) -> Cost {
        self.large.filter(|_| rows >= LARGE_ROWS).unwrap_or(self.all)
    }

    /// A time that `rows` rows surely do not take much more than. It is the line's. Far beyond the measured sizes,
    /// the whole time of the largest measured ubatch is assumed to grow with its rows.
    fn surely(&self, rows: u32) -> f64 {
        let by_line = self.at(rows).of(rows);
        let Some(largest) = self.buckets.iter().rfind(|b| b.n > 0.0) else { return by_line };
        by_line.max(largest.us * f64::from(rows) / largest.rows)
    }

    /// An optimistic estimate for `rows` rows. It lies between the line, less its possible error, and recent
    /// measurements at about that size, moved along the line to `rows`.
    fn hoped(&self, rows: u32, hope: f64) -> f64 {
        if hope <= 0.0 {
            return self.at(rows).of(rows);
        }
        let many = self.many.filter(|_| (FEW_ROWS + 1..LARGE_ROWS).contains(&rows));
        let (line, bucket) = (many.unwrap_or(self.at(rows)), &self.buckets[bucket_of(rows)]);
        let age = (self.n_seen - bucket.last) as f64;
        let n = bucket.n.min(1.0 / RECENT) * (-age / HALF_LIFE).exp2();
        let near = bucket.us + line.per_row * (f64::from(rows) - bucket.rows);
        let far = (1.0 - hope) * line.of(rows);
        (near.max(0.0) * n + far * AS_THE_LINE) / (n + AS_THE_LINE)
    }

    /// The time of `rows` rows; small numbers as measured for exactly that size.
    fn of_few(&self, rows: u32) -> f64 {
        let few = self.few.of(rows).filter(|_| self.n_seen > 0);
        few.unwrap_or_else(|| self.at(rows).of(rows))
    }

    /// Most rows that take no longer than `us`.
    fn rows_within(&self, us: f64) -> f64 {
        let large = self.large.map_or(0.0, |large| large.rows_within(us));
        if large >= f64::from(LARGE_ROWS) { large } else { self.all.rows_within(us) }
    }

    /// Mean relative deviation over the buckets, weighted by how full they are.
    fn deviation(&self) -> f64 {
        let (sum, n) = self
            .buckets
            .iter()
            .map(|b| b.n.min(1.0 / RECENT))
            .zip(&self.buckets)
            .fold((0.0, 0.0), |(sum, n), (weight, b)| (sum + weight * b.deviation, n + weight));
        if n > 0.0 { sum / n } else { 0.0 }
    }
}

fn bucket_of(rows: u32) -> usize {
    let log2_up = u32::BITS - rows.saturating_sub(1).leading_zeros();
    (log2_up as usize).min(N_BUCKETS - 1)
}

/// Least squares of `(fixed + per_row * rows) / us - 1` over the buckets, plus a weak pull of
/// `fixed / per_row` to [`PRIOR_FIXED_ROWS`]; both results positive. `None` if all are empty.
fn fit(buckets: &[Bucket]) -> Option<Cost> {
    let (mut a11, mut a12, mut a22, mut r1, mut r2) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for b in buckets.iter().filter(|b| b.n > 0.0) {
        let weight = (b.n * RECENT).min(1.0);
        let (one, x) = (1.0 / b.us, b.rows / b.us);
        a11 += weight * one * one;
        a12 += weight * one * x;
        a22 += weight * x * x;
        r1 += weight * one;
        r2 += weight * x;
    }
    if a11 == 0.0 {
        return None;
    }
    let pull = PRIOR_WEIGHT * a11;
    let (p11, p12) = (a11 + pull, a12 - pull * PRIOR_FIXED_ROWS);
    let p22 = a22 + pull * PRIOR_FIXED_ROWS * PRIOR_FIXED_ROWS;
    let det = p11 * p22 - p12 * p12;
    let fixed = (r1 * p22 - r2 * p12) / det;
    let per_row = (p11 * r2 - p12 * r1) / det;
    // A negative one means that the other explains all; keep it tiny, so that ratios stay finite.
    Some(if fixed <= 0.0 {
        let per_row = r2 / a22;
        Cost { fixed: per_row * TINY, per_row }
    } else if per_row <= 0.0 {
        let fixed = r1 / a11;
        Cost { fixed, per_row: fixed * TINY }
    } else {
        Cost { fixed, per_row }
    })
}

/// All stages of a line.
#[derive(Clone, Debug)]
pub(crate) struct LineTimes {
    stages: Vec<StageFit>,
    measured: bool,
    overhead: Option<f64>,
    chains: Chains,
    pace: Pace,
}

impl LineTimes {
    pub fn new(n_stages: usize) -> Self {
        let stages = vec![StageFit::new(); n_stages];
        let (chains, pace) = (Chains::default(), Pace::default());
        Self { stages, measured: false, overhead: None, chains, pace }
    }

    pub fn n_stages(&self) -> usize {
        self.stages.len()
    }

    /// Learns from a ubatch of `rows` rows that came back `round_trip` after it was sent.
    pub fn observe(&mut self, rows: u32, round_trip: Micros, stages: &[StageTime]) {
        if rows == 0 {
            return;
        }
        for (fit, time) in self.stages.iter_mut().zip(stages) {
            fit.add(rows, time.compute_us.saturating_sub(time.drafting_us) as f64);
        }
        self.measured = true;
        let at_stages: Micros = stages.iter().map(|t| t.compute_us + t.queued_us).sum();
        let outside = round_trip.saturating_sub(at_stages) as f64;
        self.overhead = Some(match self.overhead {
            None => outside,
            Some(old) => {
                let weight = if outside < old { OVERHEAD_RECENT } else { OVERHEAD_RECENT / 10.0 };
                old + weight * (outside - old)
            }
        });
    }

    /// The last stage took so long for the drafts that a ubatch brought.
    pub fn observe_drafts(&mut self, drafted: Drafted, us: Micros) {
        self.chains.observe(drafted, us);
    }

    /// A ubatch is back; `None`: one of which the last stage left something out.
    pub fn observe_return(&mut self, returned: Option<Returned>) {
        self.pace.observe(returned);
    }

    /// The time by which several ubatches on the line are slower, each, than the slowest stage's computing.
    pub fn beside_stages(&self) -> f64 {
        self.pace.beside_stages()
    }

    /// Time from one ubatch to the next outside the stages, where one is on the line at a time.
    pub fn overhead_alone(&self) -> f64 {
        self.pace.outside_alone().max(self.overhead())
    }

    /// The time of these drafts on the last stage.
    pub fn drafting(&self, drafted: Drafted) -> f64 {
        self.chains.of(drafted)
    }

    /// Rows that the slowest stage computes in so many microseconds, in ubatches of usual size.
    pub fn rows_in(&self, us: Micros) -> u64 {
        let rows = us as f64 / self.slowest(USUAL_ROWS) * f64::from(USUAL_ROWS);
        rows.ceil() as u64
    }

    /// Whether anything was measured yet.
    pub fn measured(&self) -> bool {
        self.measured
    }

    /// Each stage's cost; `None` before any measurement.
    pub fn costs(&self) -> Option<Vec<Cost>> {
        self.measured.then(|| self.stages.iter().map(|s| s.all).collect())
    }

    /// The slowest stage's time for `rows` rows: the line's pace.
    pub fn slowest(&self, rows: u32) -> f64 {
        self.stages.iter().map(|s| s.at(rows).of(rows)).fold(0.0, f64::max)
    }

    /// Cost of the stage that is slowest for `rows` rows.
    pub fn slowest_cost(&self, rows: u32) -> Cost {
        self.stages
            .iter()
            .map(|s| s.at(rows))
            .max_by(|a, b| a.of(rows).total_cmp(&b.of(rows)))
            .unwrap_or(DEFAULT_COST)
    }

    /// The sum of all stages' times for `rows` rows.
    pub fn through(&self, rows: u32) -> f64 {
        self.stages.iter().map(|s| s.at(rows).of(rows)).sum()
    }

    /// An upper estimate of the sum of all stages' times, for deadlines.
    pub fn surely_through(&self, rows: u32) -> f64 {
        self.stages.iter().map(|s| s.surely(rows)).sum()
    }

    /// The same of the slowest stage.
    pub fn surely_slowest(&self, rows: u32) -> f64 {
        self.stages.iter().map(|s| s.surely(rows)).fold(0.0, f64::max)
    }

    /// Most rows that no stage computes on for longer than `us`.
    pub fn rows_within(&self, us: f64) -> f64 {
        self.stages.iter().map(|s| s.rows_within(us)).fold(f64::INFINITY, f64::min)
    }

    /// Time of a round trip outside the stages: network, encoding, the coordinator itself.
    pub fn overhead(&self) -> f64 {
        self.overhead.unwrap_or(0.0)
    }

    /// By how much a trip of `rows` rows varies: mean deviation of the stages' times.
    pub fn jitter(&self, rows: u32) -> f64 {
        self.stages.iter().map(|s| s.deviation() * s.at(rows).of(rows)).sum()
    }

    /// Optimistic times of the slowest stage and of all stages together for `rows` rows. They come from measurements
    /// at about that size, or else from the lines, lowered by the [`variation`](Self::variation) of times.
    pub fn hoped(&self, rows: u32, variation: f64) -> [f64; 2] {
        let hope = (HOPE_OF_VARIATION * (variation - STEADY)).clamp(0.0, MOST_HOPE);
        let each = self.stages.iter().map(|s| s.hoped(rows, hope));
        each.fold([0.0, 0.0], |[slowest, sum], us| [us.max(slowest), sum + us])
    }

    /// Times of the slowest stage and of all stages together; small numbers of rows as measured for exactly that
    /// size.
    pub fn of(&self, rows: u32) -> [f64; 2] {
        self.of_with(rows, 0.0)
    }

    /// The same where the last stage takes `last_us` more.
    pub fn of_with(&self, rows: u32, last_us: f64) -> [f64; 2] {
        let last = self.stages.len().saturating_sub(1);
        let each = self.stages.iter().enumerate().map(|(at, stage)| {
            let us = stage.of_few(rows);
            if at == last { us + last_us } else { us }
        });
        each.fold([0.0, 0.0], |[slowest, sum], us| [us.max(slowest), sum + us])
    }

    /// Whether so many rows were measured lately; of more than few the line knows.
    pub fn knows(&self, rows: u32) -> bool {
        self.stages.iter().all(|stage| stage.few.knows(rows))
    }

    /// Share of the time of a ubatch of `n_rows` rows that its last `rows` rows take of all stages together, 0 to 1.
    pub fn share_of_last(&self, rows: u32, n_rows: u32) -> f64 {
        let of = |rows: u32| if rows == 0 { 0.0 } else { self.of(rows)[1] };
        let all = of(n_rows);
        if all <= 0.0 {
            return 0.0;
        }
        (1.0 - of(n_rows.saturating_sub(rows)) / all).clamp(0.0, 1.0)
    }

    /// Standard deviation of a stage's times over their mean, for ubatches of equal size: the mean of
    /// all stages.
    pub fn variation(&self) -> f64 {
        let sum: f64 = self.stages.iter().map(StageFit::deviation).sum();
        SD_OF_DEVIATION * sum / self.stages.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(compute: &[f64]) -> Vec<StageTime> {
        compute
            .iter()
            .map(|&us| StageTime { compute_us: us as u64, queued_us: 0, ..StageTime::default() })
            .collect()
    }

    #[test]
    fn finds_the_line_through_some_sizes() {
        let mut line = LineTimes::new(2);
        let (slow, fast) = (|r: f64| 9_000.0 + 400.0 * r, |r: f64| 5_000.0 + 100.0 * r);
        for _ in 0..20 {
            for rows in [4u32, 16, 32, 128] {
                let r = f64::from(rows);
                line.observe(rows, 1_000_000, &times(&[slow(r), fast(r)]));
            }
        }
        let costs = line.costs().unwrap();
        assert!((costs[0].fixed / 9_000.0 - 1.0).abs() < 0.05, "{costs:?}");
        assert!((costs[0].per_row / 400.0 - 1.0).abs() < 0.05, "{costs:?}");
        assert!((costs[1].fixed / 5_000.0 - 1.0).abs() < 0.05, "{costs:?}");
        assert!((line.slowest(64) / slow(64.0) - 1.0).abs() < 0.05);
        assert!((line.rows_within(slow(64.0)) / 64.0 - 1.0).abs() < 0.05);
        assert_eq!(line.rows_within(8_000.0), 0.0, "no row is as short as that");
        assert!((line.through(64) / (slow(64.0) + fast(64.0)) - 1.0).abs() < 0.05);
    }

    #[test]
    fn one_size_only_is_met_exactly_and_split_by_the_prior() {
        let mut line = LineTimes::new(1);
        line.observe(16, 40_000, &times(&[32_000.0]));
        let cost = line.costs().unwrap()[0];
        assert!((cost.of(16) - 32_000.0).abs() < 1.0, "{cost:?}");
        assert!((cost.fixed / cost.per_row / PRIOR_FIXED_ROWS - 1.0).abs() < 1e-6, "{cost:?}");
        assert_eq!(line.overhead(), 8_000.0);
    }

    #[test]
    fn prefill_is_remembered_through_a_long_decode() {
        let mut line = LineTimes::new(1);
        for _ in 0..5 {
            line.observe(256, 0, &times(&[266_000.0]));
        }
        for _ in 0..5_000 {
            line.observe(1, 0, &times(&[11_000.0]));
        }
        assert!((line.slowest(256) / 266_000.0 - 1.0).abs() < 0.1, "{}", line.slowest(256));
        assert!((line.slowest(1) / 11_000.0 - 1.0).abs() < 0.1, "{}", line.slowest(1));
    }

    #[test]
    fn a_bend_between_few_and_many_rows_is_followed() {
        // One row waits for memory; many cost 10 ms each and 50 ms together.
        let mut line = LineTimes::new(1);
        for _ in 0..10 {
            line.observe(1, 0, &times(&[22_000.0]));
            line.observe(32, 0, &times(&[370_000.0]));
            line.observe(128, 0, &times(&[1_330_000.0]));
        }
        let large = line.slowest_cost(128);
        assert!((large.fixed / large.per_row - 5.0).abs() < 0.5, "{large:?}");
        assert!((line.slowest(1) / 22_000.0 - 1.0).abs() < 0.2, "{}", line.slowest(1));
    }

    #[test]
    fn sizes_that_lie_off_the_line_are_believed_once_measured() {
        let us = |rows: u32| if rows <= 2 { 11_000.0 } else { 5_000.0 * f64::from(rows) };
        let mut line = LineTimes::new(1);
        for _ in 0..10 {
            for rows in [1, 2, 4, 8, 16] {
                line.observe(rows, 0, &times(&[us(rows)]));
            }
        }
        for rows in [1, 2, 4, 8, 16] {
            let [found, _] = line.hoped(rows, 0.2);
            assert!((found / us(rows) - 1.0).abs() < 0.15, "{rows}: {found}");
        }
        // A size that was not measured for long is tried again.
        let [before, _] = line.hoped(16, 0.2);
        for _ in 0..10_000 {
            line.observe(8, 0, &times(&[us(8)]));
        }
        assert!(line.hoped(16, 0.2)[0] < 0.9 * before, "{} {before}", line.hoped(16, 0.2)[0]);
    }

    #[test]
    fn falling_and_flat_times_stay_positive() {
        for sizes in [[(1, 50_000.0), (64, 10_000.0)], [(1, 1.0), (64, 64_000_000.0)]] {
            let mut line = LineTimes::new(1);
            for (rows, us) in sizes {
                line.observe(rows, 0, &times(&[us]));
            }
            let cost = line.costs().unwrap()[0];
            assert!(cost.fixed > 0.0 && cost.per_row > 0.0, "{cost:?}");
            let [(few, a), (many, b)] = sizes;
            for rows in [few, many] {
                assert!((a.min(b)..=a.max(b)).contains(&cost.of(rows)), "{cost:?}");
            }
        }
    }

    #[test]
    fn jitter_is_seen() {
        let mut line = LineTimes::new(1);
        for i in 0..200 {
            line.observe(8, 0, &times(&[if i % 2 == 0 { 9_000.0 } else { 11_000.0 }]));
        }
        let share = line.jitter(8) / line.slowest(8);
        assert!((0.05..0.2).contains(&share), "{share}");
    }
}
