//! Decides in how many groups the decoding sequences go round the line.
//!
//! A round is the time in which every sequence gets one token. It cannot be shorter than one ubatch's trip
//! down the line, nor than the sum of the slowest stage's times for all groups. So the choice is between two
//! costs. Few groups leave stages idle. Many groups are small, and each pays the fixed cost of a ubatch
//! (reading the weights) for fewer rows.
//!
//! Three more things count:
//!
//! - Stages whose times vary wait for each other ([`waiting`]). They wait less if there are more groups than
//!   stages.
//! - Where several numbers do about as well, one is taken whose groups fill the kernels' tiles.
//! - A choice stays until another is clearly better. A change leaves some stages without work until the new
//!   groups have spread over the line.

use crate::ubatches::sizing::Sizing;

/// Matrix kernels compute so many rows together: other numbers than multiples of it cost more a row, which
/// the measured times of nearby numbers do not show.
const ROW_TILE: u32 = 4;

/// More groups than stages must shorten the round by this share to be worth smaller groups.
const MORE_GROUPS_GAIN: f64 = 0.02;

/// Fewer groups than stages must shorten it by this share to be worth idle stages.
const FEWER_GROUPS_GAIN: f64 = 0.10;

/// Other groups must shorten the round by this share to replace those that go round: measured times change that
/// much from one ubatch to the next.
const CHANGE_GAIN: f64 = 0.02;

/// Sequences per decode ubatch, and how many such ubatches are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    pub count: usize,
    /// Largest group; `count * rows` is at least the number of decoding sequences, unless the
    /// line's limits forbid it.
    pub rows: u32,
}

/// Groups that go round, and for how many sequences they were chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub n_decoding: usize,
    pub groups: Groups,
}

/// A possible choice and the time in which every sequence gets one token.
#[derive(Clone, Copy, Debug)]
struct Round {
    groups: Groups,
    us: f64,
    /// The same by the line through all measurements alone.
    line_us: f64,
}

impl Sizing<'_> {
    /// Splits `n_decoding` sequences into groups: as `last` if that was for as many and no other choice is clearly
    /// better now. Fewer groups than stages stay only as long as they are the best.
    pub fn decode_groups(&self, n_decoding: usize, last: Option<Chosen>) -> Groups {
        let best = self.best_groups(n_decoding);
        let enough = self.spec.n_stages.min(n_decoding);
        let stays = |last: &Chosen| {
            last.n_decoding == n_decoding && last.groups.count >= enough && last.groups != best
        };
        let Some(last) = last.filter(stays) else { return best };
        let us = |groups| self.round(n_decoding, groups, self.times.variation()).us;
        let is_better = us(best) < us(last.groups) * (1.0 - CHANGE_GAIN);
        if is_better { best } else { last.groups }
    }

    /// The best number of groups by the measurements up to now.
    fn best_groups(&self, n_decoding: usize) -> Groups {
        if n_decoding == 0 {
            return Groups { count: 1, rows: 0 };
        }
        let most = self.hard_limit().min(n_decoding);
        let full = self.spec.n_stages.min(most);
        let rounds = self.rounds(n_decoding, most, full);
        // Of `from` to `to` groups: the fewest of whole tiles whose round is within `gain` of the shortest, or
        // else the fewest.
        let pick = |from: usize, to: usize, gain: f64| {
            let within = |r: &&Round| (from..=to).contains(&r.groups.count);
            let best = rounds.iter().filter(within).map(|r| r.us).fold(f64::INFINITY, f64::min);
            let good = |r: &&Round| within(r) && r.us * (1.0 - gain) <= best;
            let whole = |r: &&Round| r.groups.rows.is_multiple_of(ROW_TILE);
            let mut found = rounds.iter().filter(good);
            found.clone().find(whole).or_else(|| found.next()).copied()
        };
        let enough = pick(full, most, MORE_GROUPS_GAIN);
        let fewer = if full > 2 { pick(2, full - 1, 0.0) } else { None };
        let worth = |fewer: &Round| {
            enough.is_none_or(|all| fewer.line_us <= all.line_us * (1.0 - FEWER_GROUPS_GAIN))
        };
        let chosen = fewer.filter(worth).or(enough).map(|round| round.groups);
        chosen.unwrap_or(Groups { count: full, rows: self.even(n_decoding, full) })
    }

    /// Largest of `count` equal groups.
    fn even(&self, n_decoding: usize, count: usize) -> u32 {
        (n_decoding.div_ceil(count) as u32).min(self.spec.max_rows)
    }

    /// Even groups of every number up to `most`, and beside those of more than `full` groups as many of whole
    /// tiles; fewest first.
    fn rounds(&self, n_decoding: usize, most: usize, full: usize) -> Vec<Round> {
        let variation = self.times.variation();
        let mut rounds: Vec<Round> = Vec::new();
        let mut add = |count: usize, rows: u32| {
            let groups = Groups { count, rows };
            rounds.push(self.round(n_decoding, groups, variation));
        };
        let mut smaller = u32::MAX;
        for count in 1..=most {
            let even = self.even(n_decoding, count);
            // Many numbers of groups give groups of the same size: the fewest do.
            if even < smaller || count <= full {
                add(count, even);
            }
            smaller = even;
            let tiles = even.next_multiple_of(ROW_TILE).min(self.spec.max_rows);
            if tiles > even && count > full && n_decoding.div_ceil(tiles as usize) == count {
                add(count, tiles);
            }
        }
        rounds
    }

    /// Time in which every sequence gets one token: all groups but the last are full.
    fn round(&self, n_decoding: usize, groups: Groups, variation: f64) -> Round {
        let Groups { count, rows } = groups;
        let [slowest, through] = self.times.hoped(rows, variation);
        let others = count.saturating_sub(1);
        let last = n_decoding.saturating_sub(others * rows as usize).clamp(1, rows as usize) as u32;
        // With no more groups than stages the others wait for the largest.
        let busy = if count <= self.spec.n_stages || last == rows {
            slowest * count as f64
        } else {
            slowest * others as f64 + self.times.hoped(last, variation)[0]
        };
        // Even groups differ by a row at most; one that is cut short is like a time that varies.
        let mean = n_decoding as f64 / count as f64;
        let uneven = if rows > self.even(n_decoding, count) {
            let off = |rows: u32| (f64::from(rows) - mean).powi(2);
            (others as f64 * off(rows) + off(last)) / count as f64
        } else {
            0.0
        };
        let trip = through + self.times.overhead();
        let slack = (busy - trip).abs() / slowest;
        let variation = (variation.powi(2) + uneven / mean.powi(2)).sqrt();
        let us = busy.max(trip) * (1.0 + waiting(self.spec.n_stages, variation, slack));
        let line_us = self.trip(rows).max(count as f64 * self.times.slowest(rows));
        Round { groups, us, line_us }
    }
}

/// Share of a round that stages wait for each other because their times vary. `variation` is the standard
/// deviation over the mean. `slack` is by how many stage times the round is longer than a trip, or the trip
/// longer than the round.
///
/// Without slack each stage waits for its neighbour at every ubatch: of two equal normal times the later is
/// `1 / sqrt(pi)` deviations above the mean, and more stages wait for more. With slack, queues take up most
/// of it, as in a random walk between two walls: the rest falls as the variance over the slack. Both
/// agree with simulated lines of 2 to 8 stages within a tenth of the loss or 0.5 % of the round.
fn waiting(n_stages: usize, variation: f64, slack: f64) -> f64 {
    if n_stages < 2 || variation <= 0.0 {
        return 0.0;
    }
    let n_stages = n_stages as f64;
    let at_each = 0.88 - 0.64 / n_stages;
    at_each * variation.powi(2) / (variation + at_each * slack / (n_stages - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::roomy;
    use crate::times::timing::LineTimes;
    use crate::{SchedConfig, StageTime};

    /// A line of `n_stages` that has seen ubatches of these sizes, with times `± vary`.
    fn times(n_stages: usize, vary: f64, sizes: &[u32], us: impl Fn(u32) -> f64) -> LineTimes {
        let mut times = LineTimes::new(n_stages);
        for i in 0..400 {
            let rows = sizes[i % sizes.len()];
            let factor = 1.0 + if (i / sizes.len()).is_multiple_of(2) { vary } else { -vary };
            let compute_us = (us(rows) * factor) as u64;
            let stage = StageTime { compute_us, queued_us: 0, ..StageTime::default() };
            times.observe(rows, compute_us * n_stages as u64, &vec![stage; n_stages]);
        }
        times
    }

    fn choose_after(last: Option<Chosen>, times: &LineTimes, n_decoding: usize) -> Groups {
        let spec = roomy(times.n_stages());
        let config = SchedConfig::default();
        Sizing { times, spec: &spec, config: &config }.decode_groups(n_decoding, last)
    }

    fn choose(times: &LineTimes, n_decoding: usize) -> Groups {
        choose_after(None, times, n_decoding)
    }

    /// Two rows wait for memory, more cost arithmetic by tiles of four.
    fn by_tiles(rows: u32) -> f64 {
        if rows <= 2 { 11_000.0 } else { 5_000.0 * f64::from(rows.next_multiple_of(4)) }
    }

    #[test]
    fn stages_that_vary_get_more_groups_of_whole_tiles_where_these_cost_nothing() {
        let steady = times(2, 0.0, &[1, 2, 4, 8, 16], by_tiles);
        assert_eq!(choose(&steady, 32), Groups { count: 2, rows: 16 });
        let varying = times(2, 0.1, &[1, 2, 4, 8, 16], by_tiles);
        let chosen = choose(&varying, 32);
        assert!(chosen.count > 2 && chosen.rows.is_multiple_of(ROW_TILE), "{chosen:?}");
        assert_eq!(choose(&varying, 1), Groups { count: 1, rows: 1 });
        assert_eq!(choose(&varying, 2), Groups { count: 2, rows: 1 });
    }

    #[test]
    fn a_fixed_cost_above_the_waiting_keeps_groups_large() {
        let varying = times(2, 0.1, &[1, 2, 4, 8, 16], |rows| 20_000.0 + 100.0 * f64::from(rows));
        assert_eq!(choose(&varying, 32), Groups { count: 2, rows: 16 });
        let alone = times(1, 0.3, &[1, 8, 32], |rows| 20_000.0 + 100.0 * f64::from(rows));
        assert_eq!(choose(&alone, 32), Groups { count: 1, rows: 32 });
    }

    #[test]
    fn groups_that_go_round_stay_until_others_are_clearly_better() {
        let after = |count, rows| Some(Chosen { n_decoding: 32, groups: Groups { count, rows } });
        // Stages so far apart that four groups of 8 take about as long as two of 16.
        let mut far = LineTimes::new(2);
        for rows in [1, 2, 4, 8, 16].repeat(20) {
            let stage = StageTime {
                compute_us: 200 * u64::from(rows),
                queued_us: 0,
                ..StageTime::default()
            };
            far.observe(rows, 1_000_000, &[stage; 2]);
        }
        let four = Groups { count: 4, rows: 8 };
        assert_ne!(choose(&far, 32), four);
        assert_eq!(choose_after(after(4, 8), &far, 32), four);
        // With a cost for each ubatch besides its rows they take longer, and for 31 sequences nothing was chosen.
        let fixed = times(2, 0.0, &[1, 2, 4, 8, 16], |rows| 8_000.0 + 1_000.0 * f64::from(rows));
        let best = Groups { count: 2, rows: 16 };
        assert_eq!(choose_after(after(4, 8), &fixed, 32), best);
        assert_eq!(choose_after(after(4, 8), &far, 31), choose(&far, 31));
    }

    #[test]
    fn groups_of_whole_tiles_stand_beside_as_many_even_ones() {
        let times = times(2, 0.0, &[1, 2, 4], |rows| 1_000.0 + f64::from(rows));
        let (spec, config) = (roomy(2), SchedConfig::default());
        let rounds = Sizing { times: &times, spec: &spec, config: &config }.rounds(9, 4, 2);
        let groups: Vec<_> = rounds.iter().map(|r| (r.groups.count, r.groups.rows)).collect();
        assert_eq!(groups, [(1, 9), (2, 5), (3, 3), (3, 4)]);
    }

    #[test]
    fn waiting_is_that_of_simulated_rings() {
        // Standard deviation, groups beyond the stages, loss found by simulation of uniform times.
        let found = [
            (2, 0.1, 0.0, 0.056),
            (2, 0.2, 1.0, 0.031),
            (2, 0.4, 2.0, 0.062),
            (4, 0.1, 0.0, 0.074),
            (4, 0.1, 4.0, 0.006),
            (4, 0.4, 4.0, 0.083),
            (8, 0.2, 0.0, 0.161),
            (8, 0.1, 8.0, 0.008),
        ];
        for (n_stages, variation, slack, loss) in found {
            let model = waiting(n_stages, variation, slack);
            assert!(
                (model - loss).abs() < 0.005 + 0.1 * loss,
                "{n_stages} {slack}: {model} {loss}"
            );
        }
        assert_eq!(waiting(1, 0.5, 0.0), 0.0);
    }
}
