//! A stage's times for small numbers of rows, each measured by itself.
//!
//! Windows of drafts have few rows. The cost of one more row is not linear: it may be nothing, or a tile. So each
//! such size is measured by itself. A size that was not measured lies between its neighbours that were, on the line
//! from one to the other. More rows never cost less, so no size is faster than the next smaller one.
//!
//! Beyond the greatest measured size times go on with the same slope. Estimates for sizes that were not measured are
//! a little optimistic, so that these sizes are tried. Otherwise the line from one row to many would hide the cost of
//! a tile between them.

use crate::times::cost::{Bucket, Cost, HALF_LIFE, RECENT};

/// Sizes up to this one are measured one by one.
pub(super) const FEW_SIZES: usize = 16;

/// The weight of the neighbours' estimate, in measurements of exactly a size.
const EXACT_AS_NEIGHBOURS: f64 = 1.0;

/// A size with fewer measurements is not known; older ones count less.
const KNOWN_BY: f64 = 0.5;

/// How many times as long as for other times it takes until measurements of exactly a size count half.
const LASTS: f64 = 4.0;

/// Share by which a size that was not measured may be quicker than is guessed, so that it is tried.
pub(crate) const HOPE_OF_FEW: f64 = 0.1;

/// The times of 1, 2, .. rows.
#[derive(Clone, Debug)]
pub(super) struct Few {
    exact: [Bucket; FEW_SIZES],
    /// Measurements of each, of which old ones count less.
    n: [f64; FEW_SIZES],
    /// The estimated time of each size, cached because windows are chosen among many.
    us: [f64; FEW_SIZES],
}

impl Few {
    pub fn new() -> Self {
        Self { exact: [Bucket::default(); FEW_SIZES], n: [0.0; FEW_SIZES], us: [0.0; FEW_SIZES] }
    }

    /// Learns from the stage's ubatch number `n_seen`.
    pub fn add(&mut self, rows: u32, us: f64, n_seen: u64) {
        if let Some(exact) = self.exact.get_mut(rows.saturating_sub(1) as usize) {
            exact.add(f64::from(rows), us, 0.0);
            exact.last = n_seen;
        }
    }

    /// Makes what [`Self::of`] says, after the stage's ubatch number `n_seen`; `line` goes through all sizes.
    pub fn settle(&mut self, n_seen: u64, line: Cost) {
        for (n, exact) in self.n.iter_mut().zip(&self.exact) {
            let age = n_seen.saturating_sub(exact.last) as f64;
            *n = exact.n.min(1.0 / RECENT);
            if *n > 0.0 {
                *n *= (-age / (LASTS * HALF_LIFE)).exp2();
            }
        }
        for at in 0..FEW_SIZES {
            let (n, guess) = (self.n[at], self.by_neighbours(at, line));
            self.us[at] =
                (self.exact[at].us * n + guess * EXACT_AS_NEIGHBOURS) / (n + EXACT_AS_NEIGHBOURS);
        }
    }

    /// The time of `rows` rows; `None`: `rows` is not small.
    pub fn of(&self, rows: u32) -> Option<f64> {
        self.us.get(rows.max(1) as usize - 1).copied()
    }

    /// Whether so many rows were measured lately, or are not few.
    pub fn knows(&self, rows: u32) -> bool {
        self.n.get(rows.max(1) as usize - 1).is_none_or(|n| *n >= KNOWN_BY)
    }

    /// Whether a place has a size that [`Self::knows`] of.
    fn is_known(&self, at: &usize) -> bool {
        self.n[*at] >= KNOWN_BY
    }

    /// The estimate for a size from its measured neighbours.
    fn by_neighbours(&self, at: usize, line: Cost) -> f64 {
        let us = |at: usize| self.exact[at].us;
        let mut below = (0..at).rev().filter(|at| self.is_known(at));
        let (smaller, before) = (below.next(), below.next());
        let greater = (at + 1..FEW_SIZES).find(|at| self.is_known(at));
        let hoped = |us: f64| (1.0 - HOPE_OF_FEW) * us;
        match (smaller, greater) {
            (Some(smaller), Some(greater)) => {
                let share = (at - smaller) as f64 / (greater - smaller) as f64;
                let between = us(smaller) + share * (us(greater) - us(smaller));
                hoped(between).max(us(smaller))
            }
            (Some(smaller), None) => {
                let of_last =
                    |before: usize| (us(smaller) - us(before)).max(0.0) / (smaller - before) as f64;
                let slope = before.map_or(line.per_row, of_last);
                hoped(us(smaller) + slope * (at - smaller) as f64).max(us(smaller))
            }
            (None, Some(greater)) => hoped(line.of(at as u32 + 1)).min(us(greater)),
            (None, None) => hoped(line.of(at as u32 + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of few rows where each of these sizes was measured so many times, on a line that says what prompts
    /// cost.
    fn measured(times: &[(u32, f64)]) -> Few {
        let (mut few, line) = (Few::new(), Cost { fixed: 7_000.0, per_row: 1_500.0 });
        for n_seen in 1..=40 {
            times.iter().for_each(|(rows, us)| few.add(*rows, *us, n_seen));
            few.settle(n_seen, line);
        }
        few
    }

    fn near(found: Option<f64>, wanted: f64) {
        assert!(found.is_some_and(|us| (us / wanted - 1.0).abs() < 1e-9), "{found:?} {wanted}");
    }

    #[test]
    fn a_size_lies_between_its_neighbours_whatever_prompts_cost() {
        let few = measured(&[(1, 8_000.0), (8, 11_500.0), (16, 23_500.0)]);
        near(few.of(4), (1.0 - HOPE_OF_FEW) * 9_500.0);
        near(few.of(12), (1.0 - HOPE_OF_FEW) * 17_500.0);
        // Those that are measured are so themselves, next to all.
        assert!(few.of(8).is_some_and(|us| (us / 11_500.0 - 1.0).abs() < 0.05), "{:?}", few.of(8));
        assert!(few.knows(8) && !few.knows(4) && few.knows(FEW_SIZES as u32 + 1));
        assert_eq!(few.of(FEW_SIZES as u32 + 1), None);
    }

    #[test]
    fn no_size_is_quicker_than_the_next_smaller_one() {
        // The machine was busy with other work when two rows were measured.
        let few = measured(&[(1, 8_000.0), (2, 12_000.0), (6, 10_000.0)]);
        near(few.of(4), 12_000.0);
        near(few.of(7), 10_000.0);
        near(few.of(16), 10_000.0);
    }

    #[test]
    fn beyond_the_greatest_times_go_on_as_they_came_there_with_some_hope() {
        let few = measured(&[(2, 8_000.0), (8, 14_000.0)]);
        near(few.of(16), (1.0 - HOPE_OF_FEW) * 22_000.0);
        // Only below is the line.
        near(few.of(1), (1.0 - HOPE_OF_FEW) * 8_500.0);
        near(measured(&[(4, 2_000.0)]).of(1), 2_000.0);
        near(measured(&[]).of(4), (1.0 - HOPE_OF_FEW) * 13_000.0);
    }

    #[test]
    fn what_was_measured_long_ago_is_tried_again() {
        let mut few = measured(&[(1, 8_000.0), (4, 40_000.0), (8, 12_000.0)]);
        assert!(few.of(4).is_some_and(|us| us > 35_000.0));
        few.settle(40 + (8.0 * LASTS * HALF_LIFE) as u64, Cost { fixed: 1.0, per_row: 1.0 });
        assert!(!few.knows(4) && few.of(4).is_some_and(|us| us < 15_000.0), "{:?}", few.of(4));
    }
}
