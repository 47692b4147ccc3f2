//! The choice of experts in the host's memory that get a copy on the GPU: those that are used most of late. The code
//! here knows neither memory nor devices.
//!
//! Each ubatch that uses an expert counts one for it, however many rows it has: with a copy, the host need not read
//! its weights. Counts fade. An expert is let in when it was used more than once of late, and never for one token
//! alone. Where there is no room, it must be used clearly more than the one that is used least.
//!
//! What was counted may outlive the stage ([`ExpertUses`]): the next stage of the model then begins with copies of the experts that
//! were used most.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Share of a count that remains after a ubatch: half of it is left after some hundred.
const FADING: f32 = 0.995;
/// A count from which on an expert is let in.
const LEAST: f32 = 1.5;
/// Factor, and number of uses, by which a new count must exceed that of the expert that leaves.
const TIMES: f32 = 1.25;
const MORE: f32 = 1.0;
/// A unit of counting beyond which all counts are scaled down.
const LARGE: f32 = 1e20;
/// The count of an expert that every ubatch uses: none is greater.
const MOST: f32 = 1.0 / (1.0 - FADING);

/// An expert: its layer and its number.
pub type Expert = (u64, usize);

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLayer {
    /// A number that no other layer of this process has.
    pub id: u64,
    /// The name of their tensors, which no other layer of the model has.
    pub name: String,
}

/// Recent uses of a layer's experts, to be kept when the stage is gone.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUses {
    /// [`ExpertLayer::name`].
    pub layer: String,
    /// Uses of each of its experts. Those of long ago count less.
    pub counts: Vec<f32>,
}

/// Recent uses of experts, by layer.
#[derive(Debug, Default)]
pub struct Counts {
    layers: HashMap<u64, Layer>,
    /// Counts of a stage before this one, by the names of layers.
    earlier: HashMap<String, Vec<f32>>,
    /// How often something was counted.
    n_counted: u64,
}

#[derive(Debug, Default)]
struct Layer {
    name: String,
    counts: Vec<f32>,
    /// Weight of a use now. It grows, so that earlier counts fade.
    unit: f32,
}

/// The counts of a stage, which any thread may read while the stage computes, and after its end.
#[derive(Clone, Debug, Default)]
pub struct UseCounts(Arc<Mutex<Counts>>);

impl UseCounts {
    /// How often something was counted since loading.
    pub fn n_counted(&self) -> u64 {
        self.lock().n_counted
    }

    /// Uses of the experts of all layers, ordered by the layers' names.
    pub fn read(&self) -> Vec<ExpertUses> {
        self.lock().uses()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Counts that layers of these names begin with.
    pub fn begin_with(&mut self, earlier: Vec<ExpertUses>) {
        self.earlier = earlier.into_iter().map(|uses| (uses.layer, uses.counts)).collect();
    }

    /// A layer of the stage, with so many experts. Earlier counts that cannot be its own are ignored.
    pub fn know(&mut self, layer: &ExpertLayer, n_expert: usize) {
        let is_count = |count: &f32| (0.0..=f32::MAX).contains(count);
        let fits = |counts: &Vec<f32>| counts.len() == n_expert && counts.iter().all(is_count);
        let mut counts = self.earlier.remove(&layer.name).filter(fits).unwrap_or_default();
        counts.iter_mut().for_each(|count| *count = count.min(MOST));
        counts.resize(n_expert, 0.0);
        let name = layer.name.clone();
        self.layers.entry(layer.id).or_insert(Layer { name, counts, unit: 1.0 });
    }

    /// Uses of the experts of all layers that have names, ordered by these.
    fn uses(&self) -> Vec<ExpertUses> {
        let named = self.layers.values().filter(|layer| !layer.name.is_empty());
        let by_name: BTreeMap<_, _> = named.map(|layer| (layer.name.clone(), layer)).collect();
        let of = |(name, layer): (String, &Layer)| {
            let counts = layer.counts.iter().map(|count| count / layer.unit).collect();
            ExpertUses { layer: name, counts }
        };
        by_name.into_iter().map(of).collect()
    }

    /// The most used experts of all layers for which there is room. An expert of a layer has so many bytes; 0: it cannot be copied.
    pub fn best(&self, mut room: u64, bytes_of: &dyn Fn(u64) -> u64) -> Vec<Expert> {
        let of_layer = |(id, layer): (&u64, &Layer)| {
            let (id, n) = (*id, layer.counts.len());
            (0..n).map(move |expert| (id, expert)).collect::<Vec<_>>()
        };
        let all = self.layers.iter().flat_map(of_layer);
        let mut used: Vec<(f32, Expert)> =
            all.map(|expert| (self.of(expert), expert)).filter(|(count, _)| *count > 0.0).collect();
        used.sort_by(|(one, a), (other, b)| other.total_cmp(one).then(a.cmp(b)));
        let mut fits = |expert: &Expert| {
            let bytes = bytes_of(expert.0);
            let fits = (1..=room).contains(&bytes);
            room -= if fits { bytes } else { 0 };
            fits
        };
        used.into_iter().map(|(_, expert)| expert).filter(|expert| fits(expert)).collect()
    }

    /// A ubatch uses these experts, of so many of a layer.
    pub fn used(&mut self, layer: u64, n_expert: usize, experts: impl IntoIterator<Item = usize>) {
        self.n_counted += 1;
        let unknown = || Layer { unit: 1.0, ..Layer::default() };
        let layer = self.layers.entry(layer).or_insert_with(unknown);
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
        self.layers.get(&layer).map_or(0.0, of)
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

    fn layer(id: u64, name: &str) -> ExpertLayer {
        ExpertLayer { id, name: name.to_owned() }
    }

    #[test]
    fn a_stage_begins_with_what_one_before_it_counted() {
        let counts = UseCounts::default();
        counts.lock().know(&layer(7, "blk.2"), 4);
        counts.lock().know(&layer(9, "blk.10"), 2);
        (0..9).for_each(|_| counts.lock().used(7, 4, [1, 3]));
        (0..300).for_each(|_| counts.lock().used(9, 2, [0]));
        let uses = counts.read();
        assert_eq!(counts.n_counted(), 309);
        let names: Vec<&str> = uses.iter().map(|uses| uses.layer.as_str()).collect();
        assert_eq!(names, ["blk.10", "blk.2"]);
        let mut next = Counts::default();
        next.begin_with(uses.clone());
        next.know(&layer(1, "blk.2"), 4);
        next.know(&layer(2, "blk.3"), 4);
        // Of another model.
        next.know(&layer(3, "blk.10"), 3);
        assert!((next.of((1, 3)) - counts.lock().of((7, 3))).abs() < 1e-4);
        assert_eq!((next.of((1, 0)), next.of((2, 0)), next.of((3, 0))), (0.0, 0.0, 0.0));
        // What is no count is none.
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            let mut next = Counts::default();
            next.begin_with(vec![ExpertUses { layer: "blk.2".to_owned(), counts: vec![1.0, bad] }]);
            next.know(&layer(1, "blk.2"), 2);
            assert_eq!(next.of((1, 0)), 0.0, "{bad}");
        }
        let mut next = Counts::default();
        next.begin_with(vec![ExpertUses { layer: "blk.2".to_owned(), counts: vec![1e30] }]);
        next.know(&layer(1, "blk.2"), 1);
        assert_eq!(next.of((1, 0)), MOST);
        // A layer that two layers of the model share is known once.
        next.know(&layer(1, "blk.2"), 1);
        assert_eq!(next.of((1, 0)), MOST);
    }

    #[test]
    fn the_best_are_those_used_most_as_far_as_there_is_room() {
        let mut counts = Counts::default();
        let uses = |layer: &str, counts: &[f32]| ExpertUses {
            layer: layer.to_owned(),
            counts: counts.to_vec(),
        };
        counts.begin_with(vec![uses("a", &[5.0, 0.0, 9.0]), uses("b", &[7.0, 1.0, 6.0])]);
        counts.know(&layer(1, "a"), 3);
        counts.know(&layer(2, "b"), 3);
        // Experts of the second layer are larger.
        let bytes = |layer| if layer == 1 { 10 } else { 25 };
        assert_eq!(counts.best(1000, &bytes), [(1, 2), (2, 0), (2, 2), (1, 0), (2, 1)]);
        assert_eq!(counts.best(59, &bytes), [(1, 2), (2, 0), (1, 0)]);
        assert_eq!(counts.best(9, &bytes), []);
        assert_eq!(counts.best(1000, &|_| 0), []);
    }

    /// Hits and copies of caches that copy every expert which is used without a copy, and let the one go that is worth least.
    fn others(
        tokens: &[Vec<usize>],
        n_expert: usize,
        room: usize,
    ) -> [(&'static str, (usize, usize)); 3] {
        let mut uses = vec![Vec::new(); n_expert];
        for (step, token) in tokens.iter().enumerate() {
            token.iter().for_each(|expert| uses[*expert].push(step));
        }
        let before =
            |expert: usize, step: usize| uses[expert].partition_point(|use_| *use_ <= step);
        let hits = |worth: &dyn Fn(usize, usize) -> usize| {
            let (mut with, mut hits, mut copies) = (BTreeSet::new(), 0, 0);
            for (step, token) in tokens.iter().enumerate() {
                hits += token.iter().filter(|expert| with.contains(*expert)).count();
                copies += token.iter().filter(|expert| with.insert(**expert)).count();
                while with.len() > room {
                    let least = with.iter().copied().min_by_key(|expert| worth(*expert, step));
                    with.remove(&least.unwrap());
                }
            }
            (hits, copies)
        };
        let last = |expert: usize, step: usize| uses[expert][before(expert, step) - 1];
        let next = |expert: usize, step: usize| {
            usize::MAX - uses[expert].get(before(expert, step)).unwrap_or(&usize::MAX)
        };
        [
            ("used longest ago goes (LRU)", hits(&last)),
            ("used least goes (LFU)", hits(&before)),
            ("the best possible", hits(&next)),
        ]
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
        let mut tokens = Vec::new();
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
                tokens.push(token);
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
        for (policy, (hits, copied)) in others(&tokens, n_expert, room) {
            println!("{policy}: {:.1} % hits, {copied} copies", hits as f64 / all as f64 * 100.0);
            let allowed = if policy == "the best possible" { 0.8 } else { 1.0 };
            assert!(share > allowed * hits as f64 / all as f64, "{share} beside {policy}");
        }
        assert!(share > 0.93 * of_best, "{share} beside {of_best}");
        assert!(copies.exchanges < all / 100, "{} exchanges", copies.exchanges);
    }
}
