//! The choice of experts in the host's memory that get a copy on the GPU: those that are used most of late. The code
//! here knows neither memory nor devices.
//!
//! Each ubatch that uses an expert counts one for it, however many rows it has: with a copy, the host need not read
//! its weights. Counts fade. An expert is let in when it was used more than once of late, and never for one token
//! alone. Where there is no room, it must be used clearly more than the one that is used least.

use std::collections::HashMap;

/// Share of a count that remains after a ubatch: half of it is left after some hundred.
const FADING: f32 = 0.995;
/// A count from which on an expert is let in.
const LEAST: f32 = 1.5;
/// Factor, and number of uses, by which a new count must exceed that of the expert that leaves.
const TIMES: f32 = 1.25;
const MORE: f32 = 1.0;
/// A unit of counting beyond which all counts are scaled down.
const LARGE: f32 = 1e20;

/// An expert: its layer and its number.
pub type Expert = (u64, usize);

/// Recent uses of experts, by layer.
#[derive(Debug, Default)]
pub struct Counts(HashMap<u64, Layer>);

#[derive(Debug, Default)]
struct Layer {
    counts: Vec<f32>,
    /// Weight of a use now. It grows, so that earlier counts fade.
    unit: f32,
}

impl Counts {
    /// A ubatch uses these experts, of so many of a layer.
    pub fn used(&mut self, layer: u64, n_expert: usize, experts: impl IntoIterator<Item = usize>) {
        let layer = self.0.entry(layer).or_insert_with(|| Layer { counts: Vec::new(), unit: 1.0 });
        layer.counts.resize(n_expert, 0.0);
        layer.unit /= FADING;
        if layer.unit > LARGE {
            layer.counts.iter_mut().for_each(|count| *count /= LARGE);
            layer.unit /= LARGE;
        }
        experts.into_iter().for_each(|expert| layer.counts[expert] += layer.unit);
    }

    /// Uses of an expert of late.
    pub fn of(&self, expert: Expert) -> f32 {
        let (layer, expert) = expert;
        let of = |layer: &Layer| layer.counts.get(expert).map_or(0.0, |count| count / layer.unit);
        self.0.get(&layer).map_or(0.0, of)
    }

    /// The most used of some experts that have no copy, if it is worth one where there is room.
    pub fn to_let_in(&self, without: impl Iterator<Item = Expert>) -> Option<Expert> {
        let counted = without.map(|expert| (self.of(expert), expert));
        let best = counted.max_by(|(one, a), (other, b)| one.total_cmp(other).then(b.cmp(a)));
        best.filter(|(count, _)| *count >= LEAST).map(|(_, expert)| expert)
    }

    /// The least used of those with a copy, if it is to leave for `instead`.
    pub fn to_leave(&self, instead: Expert, with: impl Iterator<Item = Expert>) -> Option<Expert> {
        let counted = with.map(|expert| (self.of(expert), expert));
        let least = counted.min_by(|(one, a), (other, b)| one.total_cmp(other).then(a.cmp(b)));
        let is_less = |(count, _): &(f32, Expert)| self.of(instead) > count * TIMES + MORE;
        least.filter(is_less).map(|(_, expert)| expert)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A copy of each of so many experts of one layer, which are let in and leave.
    struct Copies {
        counts: Counts,
        room: usize,
        with: BTreeSet<Expert>,
        exchanges: usize,
    }

    impl Copies {
        fn of(room: usize) -> Self {
            let (counts, with) = (Counts::default(), BTreeSet::new());
            Self { counts, room, with, exchanges: 0 }
        }

        /// A ubatch that uses these; how many had a copy.
        fn step(&mut self, n_expert: usize, experts: &[usize]) -> usize {
            let hits = experts.iter().filter(|e| self.with.contains(&(0, **e))).count();
            self.counts.used(0, n_expert, experts.iter().copied());
            let without = experts.iter().map(|e| (0, *e)).filter(|e| !self.with.contains(e));
            let Some(new) = self.counts.to_let_in(without) else { return hits };
            if self.with.len() < self.room {
                self.with.insert(new);
            } else if let Some(old) = self.counts.to_leave(new, self.with.iter().copied()) {
                self.with.remove(&old);
                self.with.insert(new);
                self.exchanges += 1;
            }
            hits
        }
    }

    #[test]
    fn one_use_lets_nobody_in_and_moves_nobody_out() {
        let mut copies = Copies::of(2);
        copies.step(8, &[1]);
        assert!(copies.with.is_empty());
        (0..4).for_each(|_| _ = copies.step(8, &[1, 2]));
        assert_eq!(copies.with, BTreeSet::from([(0, 1), (0, 2)]));
        (3..8).for_each(|e| _ = copies.step(8, &[e]));
        assert_eq!((copies.with.len(), copies.exchanges), (2, 0));
        (0..9).for_each(|_| _ = copies.step(8, &[7]));
        assert!(copies.with.contains(&(0, 7)) && copies.exchanges == 1, "{:?}", copies.with);
    }

    #[test]
    fn counts_fade_and_stay_numbers() {
        let mut counts = Counts::default();
        counts.used(3, 4, [2]);
        assert!((counts.of((3, 2)) - 1.0).abs() < 1e-6);
        (0..20_000).for_each(|_| counts.used(3, 4, [1]));
        assert!(counts.of((3, 2)) < 1e-6);
        let steady = 1.0 / (1.0 - FADING);
        assert!((counts.of((3, 1)) - steady).abs() < 0.01 * steady, "{}", counts.of((3, 1)));
        assert_eq!(counts.of((4, 0)), 0.0);
    }

    /// Eight of 64 experts a token, some used more than others, and which these are changes halfway: hits beside those of the best
    /// choice that never changes within a half.
    #[test]
    fn what_is_used_most_gets_the_copies() {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let (room, n_expert, n_used, n_tokens) = (24, 64, 8, 3000);
        let mut copies = Copies::of(room);
        let (mut hits, mut best, mut all) = (0, 0, 0);
        for half in 0..2 {
            let mut uses = vec![0usize; n_expert];
            for _ in 0..n_tokens {
                let mut token = BTreeSet::new();
                while token.len() < n_used {
                    // Rank r is drawn as often as 1 / (r + 1) says, nearly.
                    let rank = ((n_expert as f64 + 1.0).powf(next()) - 1.0) as usize;
                    token.insert((rank.min(n_expert - 1) * 5 + half * 31) % n_expert);
                }
                let token: Vec<usize> = token.into_iter().collect();
                token.iter().for_each(|e| uses[*e] += 1);
                hits += copies.step(n_expert, &token);
                all += n_used;
            }
            uses.sort_unstable_by(|a, b| b.cmp(a));
            best += uses[..room].iter().sum::<usize>();
        }
        let [share, of_best] = [hits, best].map(|n| n as f64 / all as f64);
        println!(
            "{:.1} % hits, the best that stays: {:.1} %, {} exchanges",
            share * 100.0,
            of_best * 100.0,
            copies.exchanges
        );
        assert!(share > 0.93 * of_best, "{share} beside {of_best}");
        assert!(copies.exchanges < all / 100, "{} exchanges", copies.exchanges);
    }
}
