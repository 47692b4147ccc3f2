//! The accuracy of drafts from texts, by source and by length of the match.

use crate::Source;

/// Kinds of text that drafts come from.
const N_SOURCES: usize = 4;
/// The largest number of matched tokens of each group but the last.
const GROUPS: [usize; N_GROUPS - 1] = [1, 2, 3, 5, 8, 16, 32];
/// Groups of numbers of matched tokens.
const N_GROUPS: usize = 8;
/// The prior of each source and group: the share of right tokens, and the mean share of places that the likeliest
/// token follows. Measured on edits and free texts of a repository of code and prose.
const AT_FIRST: [[(f32, f32); N_GROUPS]; N_SOURCES] = [
    // Own.
    [
        (0.20, 0.40),
        (0.35, 0.60),
        (0.47, 0.75),
        (0.58, 0.85),
        (0.72, 0.95),
        (0.85, 1.00),
        (0.95, 1.00),
        (0.99, 1.00),
    ],
    // Recent.
    [
        (0.15, 0.40),
        (0.22, 0.60),
        (0.32, 0.75),
        (0.42, 0.85),
        (0.64, 0.95),
        (0.72, 1.00),
        (0.85, 1.00),
        (0.95, 1.00),
    ],
    // Expected: one place always.
    [
        (0.90, 1.00),
        (0.80, 1.00),
        (0.67, 1.00),
        (0.83, 1.00),
        (0.92, 1.00),
        (0.95, 1.00),
        (0.98, 1.00),
        (0.99, 1.00),
    ],
    // A grammar: the text is sure, and nearly always comes in its longest tokens.
    [(0.90, 1.00); N_GROUPS],
];
/// Tokens seen that an expectation counts for.
const WEIGHT_AT_FIRST: f32 = 8.0;
/// Tokens seen that an average reaches back to.
const MEMORY: f32 = 128.0;
/// The range of estimates: nothing is certain, and nothing impossible.
const ODDS: (f32, f32) = (0.01, 0.999);

/// Averages for one source and group.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Share of right tokens, and how many are in it.
    right: Mean,
    /// Mean share of the places that the drafted token followed, and how many are in it.
    share: Mean,
}

/// A mean that can go on.
#[derive(Clone, Copy, Debug)]
struct Mean {
    mean: f32,
    /// How many are in it.
    n: f32,
}

impl Mean {
    /// A mean that begins at a chosen value, and soon follows observations.
    fn at_first(mean: f32) -> Self {
        Self { mean, n: WEIGHT_AT_FIRST }
    }

    fn learn(&mut self, seen: f32) {
        self.n = (self.n + 1.0).min(MEMORY);
        self.mean += (seen - self.mean) / self.n;
    }
}

/// Averages for all sources and groups.
#[derive(Clone, Copy, Debug)]
pub struct Calibration([[Cell; N_GROUPS]; N_SOURCES]);

impl Default for Calibration {
    fn default() -> Self {
        Self(AT_FIRST.map(|cells| {
            cells.map(|(right, share)| Cell {
                right: Mean::at_first(right),
                share: Mean::at_first(share),
            })
        }))
    }
}

impl Calibration {
    /// A new stream's record from its owner's averages. It has the same counts, but learns quickly.
    pub fn for_a_stream(&self) -> Self {
        Self(self.0.map(|cells| {
            cells.map(|cell| Cell {
                right: Mean::at_first(cell.right.mean),
                share: Mean::at_first(cell.share.mean),
            })
        }))
    }

    /// The probability that the likeliest token is right, which follows `share` of the places.
    pub fn odds(&self, source: Source, matched: usize, share: f32) -> f32 {
        let cell = self.0[row(source)][group(matched)];
        (cell.right.mean * share / cell.share.mean).clamp(ODDS.0, ODDS.1)
    }

    /// A drafted token was right, or not.
    pub fn judged(&mut self, source: Source, matched: usize, right: bool) {
        let cell = &mut self.0[row(source)][group(matched)];
        cell.right.learn(if right { 1.0 } else { 0.0 });
    }

    /// The next token is known where one was drafted that followed `share` of the places.
    pub fn drawn(&mut self, source: Source, matched: usize, share: f32) {
        self.0[row(source)][group(matched)].share.learn(share);
    }
}

/// The row of a source. Forced drafts and the model's have odds of their own, which are not calibrated here.
fn row(source: Source) -> usize {
    match source {
        Source::Own | Source::Forced | Source::Model => 0,
        Source::Recent => 1,
        Source::Expected => 2,
        Source::Grammar => 3,
    }
}

fn group(matched: usize) -> usize {
    GROUPS.iter().position(|most| matched <= *most).unwrap_or(N_GROUPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odds_become_what_is_seen() {
        let mut seen = Calibration::default();
        for i in 0..400 {
            seen.judged(Source::Own, 4, i % 4 == 0);
            seen.drawn(Source::Own, 4, if i % 2 == 0 { 1.0 } else { 0.5 });
        }
        // A quarter is right at a mean share of 0.75.
        let near =
            |odds: f32, wanted: f32| assert!((odds - wanted).abs() < 0.01, "{odds} {wanted}");
        near(seen.odds(Source::Own, 5, 0.75), 0.25);
        near(seen.odds(Source::Own, 4, 0.375), 0.125);
        // Other lengths and other sources learn nothing from it.
        let fresh = Calibration::default();
        assert_eq!(seen.odds(Source::Own, 6, 1.0), fresh.odds(Source::Own, 6, 1.0));
        assert_eq!(seen.odds(Source::Recent, 4, 1.0), fresh.odds(Source::Recent, 4, 1.0));
    }

    #[test]
    fn a_stream_learns_faster_than_its_owner() {
        let mut owner = Calibration::default();
        for _ in 0..300 {
            owner.judged(Source::Recent, 9, false);
        }
        let mut stream = owner.for_a_stream();
        assert_eq!(stream.odds(Source::Recent, 9, 1.0), owner.odds(Source::Recent, 9, 1.0));
        for seen in [&mut owner, &mut stream] {
            (0..8).for_each(|_| seen.judged(Source::Recent, 9, true));
        }
        assert!(stream.odds(Source::Recent, 9, 1.0) > 0.45);
        assert!(owner.odds(Source::Recent, 9, 1.0) < 0.1);
    }

    #[test]
    fn odds_are_probabilities() {
        let mut seen = Calibration::default();
        for _ in 0..500 {
            seen.judged(Source::Expected, 40, true);
            seen.drawn(Source::Expected, 40, 0.1);
            seen.judged(Source::Expected, 0, false);
        }
        assert_eq!(seen.odds(Source::Expected, 40, 1.0), ODDS.1);
        assert_eq!(seen.odds(Source::Expected, 0, 1.0), ODDS.0);
    }
}
