//! How far a sequence runs ahead: rows of a window, and windows behind each other.
//!
//! Let a drafted token be right with probability `a` where those before it are. Let `L(w)` be the trip of a window of
//! `w` rows, and `t(w)` the slowest stage's time for it. Between two wrong drafts come `1 / (1 - a)` tokens. They
//! take the first window's whole trip, and a step of the line for each further window that is right. With `w` rows at
//! once, `a^w / (1 - a^w)` windows are right. A step takes `t(w)`, or `L(w) / D` where only `D` windows are in
//! flight. Windows in flight behind a wrong draft delay its correction by `D * t(w) - L(w)`. A simulation of lines of
//! two to eight stages agrees within 5 %. With more than one ubatch on the line, `t` includes the time of each
//! outside the stages (`pace`). Where a sequence has a state at its end only, a window that is wrong behind its first
//! row costs one more step.
//!
//! Drafts of the model's own block are made by the last stage, which takes `C(n)` for `n` of them, with each window.
//! So `L` and `t` of that stage are longer by `C(n)`. Windows have room for these drafts, each of which is less
//! likely than the one before it.
//!
//! Windows keep stages busy that would otherwise be idle when another owner's prompt arrives. So where such a prompt
//! may come, windows are few and short enough not to delay it.

use brigade_spec::Prefixes;

use crate::drafts::chains::Drafted;
use crate::times::few::HOPE_OF_FEW;
use crate::ubatches::sizing::Sizing;

/// Most rows of a window.
pub(crate) const MAX_WINDOW_ROWS: u32 = 16;

/// Most windows of a sequence in flight.
pub(crate) const MAX_WINDOWS: u32 = 64;

/// Most rows of all sequences in flight that run ahead, where a ubatch may have as many: layers with windows have pages for a
/// ubatch's rows beside those that rows see. A trip of 30 windows holds as many.
const MAX_ROWS_AHEAD: u32 = 512;

/// Rows that each sequence may have in flight in any case. Layers with windows keep one page more for them.
pub(crate) const ROWS_AHEAD_OF_EACH: u32 = 64;

/// Drafts as sure as this are all the same: the formula has no value at 1.
pub(crate) const SUREST: f64 = 0.98;

/// Running ahead must make tokens come so much faster to be worth it, ...
const LEAST_GAIN: f64 = 1.1;

/// ... and more windows so much: each is a ubatch, which costs more than the stages' time.
const LEAST_GAIN_OF_MORE: f64 = 1.03;

/// Where another owner's prompt may come, windows may delay it by this share of its own time.
const HOLDS_UP: f64 = 0.02;

/// Rows of such a prompt: a short one notices most.
const SHORT_PROMPT: u32 = 32;

/// Drafts that are less likely are not sent.
pub(crate) const LEAST_ODDS: f32 = 0.5;

/// A draft ends where all of it would be right with less than this probability.
pub(crate) const LEAST_CHANCE: f32 = 0.1;

/// A choice of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Rows of each window.
    pub rows: u32,
    /// The number of windows in flight at once.
    pub count: u32,
}

impl Windows {
    /// One window of two rows, to try whether drafts of a stream are right. The second row costs next to nothing.
    pub const TRY: Self = Self { rows: 2, count: 1 };

    /// One row at a time, without drafts.
    pub const NONE: Self = Self { rows: 1, count: 1 };

    /// Rows on the line that are drafts.
    pub fn n_drafts(self) -> u32 {
        (self.rows * self.count).saturating_sub(1)
    }

    /// Whether there are any.
    pub fn any(self) -> bool {
        self != Self::NONE
    }
}

/// The drafts for which windows are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drafts<'a> {
    /// Drafts that are there, and as many behind them as one likes: each is right with this probability.
    Had(f64),
    /// Drafts that the model's own block is to make: [`even_odds`] of the first, the first two, and so on. There are
    /// no more.
    ToMake(&'a [f64]),
}

impl Drafts<'_> {
    /// Rows of a window with the sure tokens, and all drafts that are likely enough to be right together.
    fn most_rows(self) -> u32 {
        match self {
            Self::Had(odds) if odds > 0.0 => {
                let n = f64::from(LEAST_CHANCE).ln() / odds.min(SUREST).ln();
                n as u32 + 1
            }
            Self::Had(_) => 1,
            Self::ToMake(odds) => odds.len() as u32 + 1,
        }
    }

    /// How likely each of the first `n` is right, as if all were as likely; `None` where there are not so many.
    fn odds(self, n: u32) -> Option<f64> {
        let odds = match (self, n) {
            (Self::Had(odds), _) => odds,
            (Self::ToMake(_), 0) => 0.0,
            (Self::ToMake(odds), _) => *odds.get(n as usize - 1)?,
        };
        Some(odds.clamp(0.0, SUREST))
    }
}

/// Halvings of what an even probability may be.
const HALVINGS: u32 = 16;

/// For each prefix of the drafts, the equal probability per draft that gives the same chance that all are right.
/// `odds`: of each draft where those before it are right.
pub(crate) fn even_odds(odds: &[f32]) -> Vec<f64> {
    let (mut all_right, mut right) = (1.0, 0.0);
    let each = (1..).zip(odds).map(|(n, odds)| {
        all_right *= f64::from(*odds);
        right += all_right;
        let (mut least, mut most) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let even = (least + most) / 2.0;
            let sum = (0..n).fold(0.0, |sum, _| (sum + 1.0) * even);
            if sum < right { least = even } else { most = even }
        }
        (least + most) / 2.0
    });
    each.collect()
}

/// How far a sequence may run ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leave {
    /// Windows in flight, at most.
    pub most: u32,
    /// Another owner's prompt may come, and should find little in flight before it.
    pub another_may_come: bool,
    /// Ubatches have sizes that were measured lately.
    pub only_known: bool,
}

impl Sizing<'_> {
    /// The windows with which a sequence gets its tokens soonest with such drafts, where `n_streams` share the line.
    pub fn windows(&self, drafts: Drafts<'_>, n_streams: usize, leave: Leave) -> Windows {
        if !self.times.measured() || drafts.odds(1).is_none_or(|odds| odds <= 0.0) {
            return Windows::NONE;
        }
        let n_streams = n_streams.max(1) as u32;
        let longest = if leave.another_may_come {
            self.before_newcomer(Windows::NONE, Drafts::Had(0.0), n_streams)
                + HOLDS_UP * self.times.of(SHORT_PROMPT)[1]
        } else {
            f64::INFINITY
        };
        let most_rows = MAX_WINDOW_ROWS.min(self.spec.max_rows / n_streams).min(drafts.most_rows());
        let mut best = (Windows::NONE, self.rate(Windows::NONE, Drafts::Had(0.0), 1));
        let most_of_use = self.most_of_use(n_streams, most_rows);
        let rows_ahead = self.rows_ahead(n_streams);
        for count in 1..=leave.most.min(MAX_WINDOWS).min(most_of_use) {
            let of_rows = (1..=most_rows.min(rows_ahead / count))
                .map(|rows| Windows { rows, count })
                .filter(|windows| !leave.only_known || self.knows(*windows, n_streams))
                .take_while(|windows| drafts.odds(windows.n_drafts()).is_some())
                .filter(|windows| {
                    let fits = || self.before_newcomer(*windows, drafts, n_streams) <= longest;
                    windows.any() && (longest.is_infinite() || fits())
                })
                .map(|windows| (windows, self.rate(windows, drafts, n_streams)));
            let best_of_count = of_rows.max_by(|a, b| a.1.total_cmp(&b.1));
            let gain = if best.0.any() { LEAST_GAIN_OF_MORE } else { LEAST_GAIN };
            best = best_of_count.filter(|(_, rate)| *rate > gain * best.1).unwrap_or(best);
        }
        best.0
    }

    /// Most rows that each of so many sequences may have in flight.
    fn rows_ahead(&self, n_streams: u32) -> u32 {
        (MAX_ROWS_AHEAD.min(self.spec.max_rows) / n_streams).max(ROWS_AHEAD_OF_EACH)
    }

    /// Whether ubatches of such windows were measured lately.
    pub fn knows(&self, windows: Windows, n_streams: u32) -> bool {
        let n_groups = n_streams.min(self.spec.n_stages as u32).max(1);
        self.times.knows(n_streams.div_ceil(n_groups) * windows.rows)
    }

    /// Windows of at most `most_rows` rows that a trip has room for: of more, the last ones only stand behind the others. All
    /// stages take no longer than as many slowest ones.
    fn most_of_use(&self, n_streams: u32, most_rows: u32) -> u32 {
        let n_stages = self.spec.n_stages as u32;
        let n_groups = n_streams.min(n_stages);
        let sequences = n_streams.div_ceil(n_groups);
        let slowest = (1..=most_rows.max(1)).map(|rows| self.times.of(sequences * rows)[0]);
        let least = slowest.fold(f64::INFINITY, f64::min) + self.times.beside_stages();
        let outside = self.times.overhead_alone() / (f64::from(n_groups) * least);
        (f64::from(n_stages.div_ceil(n_groups)) + outside).ceil() as u32 + 1
    }

    /// Whether a stream that is alone gets its tokens sooner with drafts of the model's own block that are as likely
    /// as `even`.
    pub fn own_drafts_pay(&self, even: &[f64]) -> bool {
        let drafts = Drafts::ToMake(even);
        let rate = |rows| self.rate(Windows { rows, count: 1 }, drafts, 1);
        let without = self.rate(Windows::NONE, Drafts::Had(0.0), 1);
        !self.times.measured() || (2..=MAX_WINDOW_ROWS).any(|rows| rate(rows) > without)
    }

    /// Whether one row more in a group's ubatch is worth it, which gives a token with probability `odds`.
    pub fn is_worth_trying(&self, odds: f64, n_streams: usize) -> bool {
        let n_streams = n_streams.max(1) as u32;
        let rows = n_streams.div_ceil(n_streams.min(self.spec.n_stages as u32));
        let [without, with] = [rows, rows + 1].map(|rows| self.times.of(rows)[0]);
        let tokens = (f64::from(rows) + odds) / f64::from(rows);
        self.times.measured() && with <= tokens * without
    }

    /// The times of the slowest stage and of all stages together for a ubatch of a group's windows. They include the
    /// drafts that are made behind them.
    fn of_windows(&self, windows: Windows, drafts: Drafts<'_>, n_streams: u32) -> [f64; 2] {
        let n_groups = n_streams.min(self.spec.n_stages as u32);
        let sequences = n_streams.div_ceil(n_groups);
        let drafting = match drafts {
            Drafts::Had(_) => 0.0,
            Drafts::ToMake(_) => {
                self.times.drafting(Drafted { sequences, most: windows.n_drafts() })
            }
        };
        self.times.of_with(sequences * windows.rows, drafting)
    }

    /// Microseconds that a ubatch which comes at any time waits for the slowest stage, while each of so many sequences has
    /// such windows.
    fn before_newcomer(&self, windows: Windows, drafts: Drafts<'_>, n_streams: u32) -> f64 {
        let n_groups = n_streams.min(self.spec.n_stages as u32);
        // A size that is hoped to be quick may be none: a newcomer does not wait for hopes.
        let sure = if self.knows(windows, n_streams) { 1.0 } else { 1.0 - HOPE_OF_FEW };
        let [slowest, through] = self.of_windows(windows, drafts, n_streams).map(|us| us / sure);
        let count = windows.count;
        let (in_flight, trip) =
            (f64::from(n_groups * count) * slowest, through + self.times.overhead());
        // Half of the ubatch that a stage is at, and all that queue.
        slowest / 2.0 * (in_flight / trip).min(1.0) + (in_flight - trip).max(0.0)
    }

    /// Tokens of one of so many sequences in a microsecond; 0 where there are not so many drafts. Streams beside it
    /// have a window each wherever it has one; streams of a group share a ubatch.
    pub(crate) fn rate(&self, windows: Windows, drafts: Drafts<'_>, n_streams: u32) -> f64 {
        let Some(odds) = drafts.odds(windows.n_drafts()) else { return 0.0 };
        let d = f64::from(windows.count);
        let n_groups = n_streams.min(self.spec.n_stages as u32);
        let [slowest, through] = self.of_windows(windows, drafts, n_streams);
        // If a ubatch is alone on the line, its trip already includes the time beside the stages.
        let beside = if d * f64::from(n_groups) > 1.0 { self.times.beside_stages() } else { 0.0 };
        let step = f64::from(n_groups) * (slowest + beside);
        let trip = (through + self.times.overhead_alone()).max(step);
        let right = odds.powi(windows.rows as i32);
        let stale = (d * step - trip).max(0.0);
        let further = step.max(trip / d) * right / (1.0 - right);
        // Rows that are read again come in a part of their own, where a window is wrong behind its first row.
        let again = match self.spec.prefixes {
            Prefixes::Whole if right < 1.0 => step * (1.0 - (1.0 - odds) / (1.0 - right)),
            Prefixes::All | Prefixes::Whole | Prefixes::None => 0.0,
        };
        1.0 / ((1.0 - odds) * (trip + stale + further + again))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Rng, roomy};
    use crate::times::timing::LineTimes;
    use crate::{SchedConfig, StageTime};

    /// Windows of each length that are longer than a trip has room for bring nothing.
    #[test]
    fn what_is_not_tried_is_no_better() {
        let mut random = Rng::new(7);
        let spec = [1, 2, 3, 8].map(roomy);
        for case in 0..300 {
            let spec = &spec[case % 4];
            let mut times = LineTimes::new(spec.n_stages);
            let outside = random.between(0, 20_000);
            let costs: Vec<[u64; 2]> = (0..spec.n_stages)
                .map(|_| [random.between(0, 9_000), random.between(0, 900)])
                .collect();
            for rows in (1..=16).cycle().take(64) {
                let compute = costs.iter().map(|[fixed, row]| 1 + fixed + row * u64::from(rows));
                let of = |compute_us| StageTime { compute_us, ..StageTime::default() };
                let each: Vec<StageTime> = compute.map(of).collect();
                let through: u64 = each.iter().map(|time| time.compute_us).sum();
                times.observe(rows, through + outside, &each);
            }
            let config = SchedConfig::default();
            let sizing = Sizing { times: &times, spec, config: &config };
            let n_streams = random.between(1, 4) as u32;
            let drafts = Drafts::Had(0.1 + 0.08 * random.between(0, 11) as f64);
            let most = sizing.most_of_use(n_streams, MAX_WINDOW_ROWS);
            for rows in 1..=MAX_WINDOW_ROWS {
                let rate = |count| sizing.rate(Windows { rows, count }, drafts, n_streams);
                let best = (1..=most).map(rate).fold(0.0, f64::max);
                let beyond = (most + 1..=MAX_WINDOWS).map(rate).fold(0.0, f64::max);
                assert!(beyond <= best * (1.0 + 1e-9), "case {case}, {rows} rows, {most} windows");
            }
        }
    }

    /// The choice on a line whose stages take `us` for so many rows, with so much time outside them.
    fn choose(stages: &[fn(f64) -> f64], outside: f64, odds: f64, n_streams: usize) -> Windows {
        choose_beside(stages, outside, odds, n_streams, false)
    }

    /// The same where another owner's prompt may come.
    fn choose_beside(
        stages: &[fn(f64) -> f64],
        outside: f64,
        odds: f64,
        n_streams: usize,
        another_may_come: bool,
    ) -> Windows {
        let mut times = LineTimes::new(stages.len());
        for rows in (1..=16).cycle().take(400) {
            let of = |us: &fn(f64) -> f64| StageTime {
                compute_us: us(f64::from(rows)) as u64,
                ..StageTime::default()
            };
            let each: Vec<StageTime> = stages.iter().map(of).collect();
            let through: u64 = each.iter().map(|time| time.compute_us).sum();
            times.observe(rows, through + outside as u64, &each);
        }
        let spec = roomy(stages.len());
        let config = SchedConfig::default();
        let sizing = Sizing { times: &times, spec: &spec, config: &config };
        let leave = Leave { most: MAX_WINDOWS, another_may_come, only_known: false };
        sizing.windows(Drafts::Had(odds), n_streams, leave)
    }

    /// Two rows wait for memory, more cost arithmetic by tiles of four.
    fn tiles(rows: f64) -> f64 {
        if rows <= 2.0 { 11_000.0 } else { 5_000.0 * (rows / 4.0).ceil() * 4.0 }
    }

    /// Further rows cost little.
    fn cheap(rows: f64) -> f64 {
        10_100.0 + 1_410.0 * rows
    }

    #[test]
    fn windows_fill_the_line_and_rows_are_those_that_cost_nothing() {
        assert_eq!(choose(&[tiles, tiles], 500.0, 0.9, 1).rows, 2);
        let two = choose(&[cheap, cheap], 500.0, 0.9, 1);
        assert!((4..=8).contains(&two.rows) && (2..=3).contains(&two.count), "{two:?}");
        // Long ways are filled as well.
        let far = choose(&[tiles, tiles], 300_000.0, 0.9, 1);
        assert!(far.count * far.rows >= 20, "{far:?}");
        // Of sure ones, by as many rows as a trip holds, ...
        let sure = choose(&[cheap, cheap], 300_000.0, SUREST, 1);
        assert!(sure.count * sure.rows > 2 * ROWS_AHEAD_OF_EACH, "{sure:?}");
        // ... which several streams share.
        let shared = choose(&[cheap, cheap], 300_000.0, SUREST, 4);
        assert!(shared.count * shared.rows <= MAX_ROWS_AHEAD / 4, "{shared:?}");
        // One stage has nothing to fill but the time outside it.
        let one = choose(&[cheap], 100.0, 0.9, 1);
        assert!(one.rows > 4 && one.count <= 2, "{one:?}");
    }

    #[test]
    fn even_odds_give_as_many_right_tokens() {
        let near = |odds: &[f32], wanted: &[f64]| {
            let found = even_odds(odds);
            let are_near = found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(found.len() == wanted.len() && are_near, "{found:?} {wanted:?}");
        };
        near(&[0.7, 0.7, 0.7], &[0.7; 3]);
        // 0.3 + 0.27 is 0.405 + 0.405 squared.
        near(&[0.3, 0.9], &[0.3, 0.405]);
        near(&[0.0, 1.0], &[0.0, 0.0]);
        near(&[], &[]);
    }

    #[test]
    fn what_is_hardly_ever_right_is_not_sent() {
        fn dear(rows: f64) -> f64 {
            10_000.0 * rows
        }
        assert_eq!(choose(&[dear], 0.0, 0.3, 1), Windows::NONE);
        assert_eq!(choose(&[tiles, tiles], 500.0, 0.0, 1), Windows::NONE);
    }

    #[test]
    fn where_another_may_come_stages_stay_as_idle_as_they_were() {
        let [alone, beside] =
            [false, true].map(|beside| choose_beside(&[cheap, cheap], 500.0, 0.9, 1, beside));
        assert!(alone.count > 1 && beside.count == 1 && beside.rows > 1, "{alone:?} {beside:?}");
        // Nor are the ubatches of two streams much longer.
        let [alone, beside] =
            [false, true].map(|beside| choose_beside(&[cheap, cheap], 500.0, 0.9, 2, beside));
        assert!(beside.rows < alone.rows, "{alone:?} {beside:?}");
    }

    #[test]
    fn streams_that_fill_the_line_get_no_second_window() {
        assert_eq!(choose(&[tiles, tiles], 100.0, 0.9, 8).count, 1);
    }
}
