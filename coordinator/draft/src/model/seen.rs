//! The accuracy of the block's drafts, by the block's own probability and by depth.

/// The greatest odds of each group of drafts but the last.
const ODDS_ENDS: [f32; N_ODDS - 1] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97];
const N_ODDS: usize = 11;

/// Distances from the drawn token that are told apart; all that are farther are one.
const N_DEPTHS: usize = 16;

/// The prior: the share of right drafts at each depth, and the number of drafts for which that counts.
const HOPE: f32 = 0.75;
const WEIGHT_AT_FIRST: f32 = 8.0;

/// The weight of an owner's record for a new stream, in drafts: with fewer drafts of its own the stream cannot be
/// told from its owner's others.
const WEIGHT_OF_OWNER: f32 = 32.0;

/// Drafts that an average reaches back to.
const MEMORY: f32 = 128.0;

/// The least estimate: nothing is certain, and nothing impossible.
const LEAST: f32 = 0.01;
const MOST: f32 = 0.999;

/// A mean that can go on.
#[derive(Clone, Copy, Debug)]
struct Mean {
    mean: f32,
    /// How many are in it.
    n: f32,
}

impl Mean {
    fn at_first(mean: f32) -> Self {
        Self { mean, n: WEIGHT_AT_FIRST }
    }

    fn learn(&mut self, seen: f32) {
        self.n = (self.n + 1.0).min(MEMORY);
        self.mean += (seen - self.mean) / self.n;
    }
}

/// Running averages of accuracy.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Share of right drafts, by the probability that the block gave them.
    by_odds: [Mean; N_ODDS],
    /// By depth: the share of right drafts, and the share that the block expected.
    by_depth: [[Mean; 2]; N_DEPTHS],
    /// The number of first drafts that were judged.
    n_first: f32,
}

impl Default for Seen {
    fn default() -> Self {
        let mut by_odds = [Mean::at_first(0.0); N_ODDS];
        let ends = [0.0].into_iter().chain(ODDS_ENDS).zip(ODDS_ENDS.into_iter().chain([1.0]));
        for (cell, (from, to)) in by_odds.iter_mut().zip(ends) {
            cell.mean = (from + to) / 2.0;
        }
        let by_depth = [[Mean::at_first(HOPE); 2]; N_DEPTHS];
        Self { by_odds, by_depth, n_first: 0.0 }
    }
}

impl Seen {
    /// The same, which learns more quickly.
    pub fn for_a_stream(&self) -> Self {
        let weigh = |Mean { mean, n }: Mean| Mean { mean, n: n.min(WEIGHT_OF_OWNER) };
        Self {
            by_odds: self.by_odds.map(weigh),
            by_depth: self.by_depth.map(|cells| cells.map(weigh)),
            n_first: 0.0,
        }
    }

    /// The probability that a draft is right so far behind the drawn token, of which the block thinks `odds`.
    pub fn odds(&self, depth: usize, odds: f32) -> f32 {
        let [right, thought] = self.by_depth[depth.min(N_DEPTHS - 1)];
        (self.by_odds[group(odds)].mean * right.mean / thought.mean.max(LEAST)).clamp(LEAST, MOST)
    }

    /// The share of drafts that were right at a depth, for any probability of the block.
    pub fn share(&self, depth: usize) -> f32 {
        self.by_depth[depth.min(N_DEPTHS - 1)][0].mean
    }

    /// The same of the first `most` distances.
    pub fn shares(&self, most: usize) -> Vec<f32> {
        (0..most).map(|depth| self.share(depth)).collect()
    }

    /// How many first drafts were seen, as far as is remembered.
    pub fn n_first(&self) -> f32 {
        self.n_first
    }

    /// A draft was right, or not.
    pub fn judged(&mut self, depth: usize, odds: f32, right: bool) {
        let was = if right { 1.0 } else { 0.0 };
        let by_odds = &mut self.by_odds[group(odds)];
        let thought = by_odds.mean;
        by_odds.learn(was);
        let [share, expected] = &mut self.by_depth[depth.min(N_DEPTHS - 1)];
        share.learn(was);
        expected.learn(thought);
        if depth == 0 {
            self.n_first = (self.n_first + 1.0).min(MEMORY);
        }
    }
}

fn group(odds: f32) -> usize {
    ODDS_ENDS.iter().position(|end| odds <= *end).unwrap_or(N_ODDS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odds_become_the_share_that_was_right() {
        let mut seen = Seen::default();
        // A block that thinks too well of itself, and better than it is the farther it goes.
        for i in 0..1200 {
            seen.judged(0, 0.95, i % 2 == 0);
            seen.judged(0, 0.35, i % 4 == 0);
            seen.judged(1, 0.95, i % 4 == 0);
        }
        let near =
            |odds: f32, wanted: f32| assert!((odds - wanted).abs() < 0.12, "{odds} {wanted}");
        near(seen.odds(0, 0.95), 0.45);
        near(seen.odds(0, 0.35), 0.25);
        near(seen.odds(1, 0.95), 0.25);
        near(seen.share(0), 0.375);
        near(seen.share(1), 0.25);
        near(seen.share(2), HOPE);
        assert_eq!(seen.n_first(), MEMORY);
        assert_eq!(seen.for_a_stream().n_first(), 0.0);
        assert_eq!(seen.for_a_stream().odds(1, 0.95), seen.odds(1, 0.95));
    }

    #[test]
    fn odds_are_probabilities_at_any_distance_and_for_any_thought() {
        let mut seen = Seen::default();
        for depth in [0, 15, 16, 1000] {
            for odds in [0.0, 0.5, 1.0] {
                (0..200).for_each(|i| seen.judged(depth, odds, i % 2 == 0));
                let odds = seen.odds(depth, odds);
                assert!((LEAST..=MOST).contains(&odds), "{odds}");
            }
        }
    }
}
