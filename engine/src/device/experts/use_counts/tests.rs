//! Rules of the choice, on drawn routings and on one of a trained mixture.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A copy of each of so many experts, which are let in and leave.
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

    /// A ubatch that uses these experts of the layer 0; how many had a copy.
    fn step(&mut self, n_expert: usize, experts: &[usize]) -> usize {
        self.step_of(0, n_expert, experts)
    }

    /// Likewise, of any layer.
    fn step_of(&mut self, layer: u64, n_expert: usize, experts: &[usize]) -> usize {
        let all = || experts.iter().map(|expert| (layer, *expert));
        let hits = all().filter(|expert| self.with.contains(expert)).count();
        self.counts.used(layer, n_expert, experts.iter().copied());
        let without = all().filter(|expert| !self.with.contains(expert));
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

/// What a cache did with a routing.
struct Outcome {
    policy: &'static str,
    hits: usize,
    copied: usize,
}

/// Caches that copy every expert which is used without a copy, and let the one go that is worth least: with a routing whose steps
/// are the experts of one layer.
fn others(steps: &[Vec<Expert>], room: usize) -> [Outcome; 3] {
    let mut uses = BTreeMap::<Expert, Vec<usize>>::new();
    for (step, experts) in steps.iter().enumerate() {
        experts.iter().for_each(|expert| uses.entry(*expert).or_default().push(step));
    }
    let before = |expert: &Expert, step: usize| uses[expert].partition_point(|used| *used <= step);
    // What an expert is worth changes only when it is used.
    let run = |policy, worth: &dyn Fn(&Expert, usize) -> usize| {
        let (mut with, mut hits, mut copied) = (BTreeMap::new(), 0, 0);
        let mut order = BTreeSet::new();
        for (step, experts) in steps.iter().enumerate() {
            for expert in experts {
                let now = worth(expert, step);
                match with.insert(*expert, now) {
                    Some(was) => {
                        hits += 1;
                        order.remove(&(was, *expert));
                    }
                    None => copied += 1,
                }
                order.insert((now, *expert));
            }
            while with.len() > room {
                let (_, least) = order.pop_first().unwrap();
                with.remove(&least);
            }
        }
        Outcome { policy, hits, copied }
    };
    let last = |expert: &Expert, step: usize| uses[expert][before(expert, step) - 1];
    let next = |expert: &Expert, step: usize| {
        usize::MAX - uses[expert].get(before(expert, step)).unwrap_or(&usize::MAX)
    };
    [
        run("used longest ago goes (LRU)", &last),
        run("used least goes (LFU)", &before),
        run("the best possible", &next),
    ]
}

/// Eight of 64 experts a token, some used more than others, and which these are changes halfway: hits beside those of the best
/// choice that never changes within a half.
#[test]
fn what_is_used_most_gets_the_copies() {
    let mut state = 1u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
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
            tokens.push(token.iter().map(|e| (0, *e)).collect());
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
    for Outcome { policy, hits, copied } in others(&tokens, room) {
        println!("{policy}: {:.1} % hits, {copied} copies", hits as f64 / all as f64 * 100.0);
        let allowed = if policy == "the best possible" { 0.8 } else { 1.0 };
        assert!(share > allowed * hits as f64 / all as f64, "{share} beside {policy}");
    }
    assert!(share > 0.93 * of_best, "{share} beside {of_best}");
    assert!(copies.exchanges < all / 100, "{} exchanges", copies.exchanges);
}

/// Which experts a small trained mixture chose for each token of held-out prose and of chats, one token at a time
/// (`tests/demo-model/experts.py`): a line with the numbers of tokens, layers, experts and experts used, then a byte for each choice.
const RECORDED: &[u8] = include_bytes!("../../../../../tests/data/experts/routing.bin");

/// The recorded routing: the experts of each layer, one token after the other, and the number of all experts.
fn recorded() -> (Vec<Vec<Expert>>, u64, usize) {
    let end = RECORDED.iter().position(|byte| *byte == b'\n').unwrap();
    let head = std::str::from_utf8(&RECORDED[..end]).unwrap();
    let sizes: Vec<usize> = head.split(' ').map(|size| size.parse().unwrap()).collect();
    let [n_tokens, n_layers, n_expert, n_used] = sizes[..] else { panic!("four sizes: {head}") };
    let choices = &RECORDED[end + 1..];
    assert_eq!(choices.len(), n_tokens * n_layers * n_used);
    let of = |(step, chosen): (usize, &[u8])| {
        let layer = (step % n_layers) as u64;
        chosen.iter().map(|expert| (layer, usize::from(*expert))).collect()
    };
    (choices.chunks(n_used).enumerate().map(of).collect(), n_layers as u64, n_expert)
}

/// Hits on the recorded routing with room for a quarter and for half of all experts: as many as LRU and LFU have, but for a
/// fiftieth, which copy at each miss. The best possible knows what comes.
#[test]
fn copies_of_a_trained_mixture_hit_like_those_used_last_with_few_copies() {
    let (steps, n_layers, n_expert) = recorded();
    let n_experts = n_layers as usize * n_expert;
    let all: usize = steps.iter().map(Vec::len).sum();
    let percent = |hits: usize| hits as f64 / all as f64 * 100.0;
    for room in [n_experts / 4, n_experts / 2] {
        let mut copies = Copies::of(room);
        let step = |experts: &Vec<Expert>| {
            let numbers: Vec<usize> = experts.iter().map(|expert| expert.1).collect();
            copies.step_of(experts[0].0, n_expert, &numbers)
        };
        let hits: usize = steps.iter().map(step).sum();
        let copied = room + copies.exchanges;
        println!("room for {room} of {n_experts}: {:.1} % hits, {copied} copies", percent(hits));
        for Outcome { policy, hits: theirs, copied: copied_there } in others(&steps, room) {
            println!("  {policy}: {:.1} % hits, {copied_there} copies", percent(theirs));
            if policy != "the best possible" {
                assert!(hits * 51 > theirs * 50, "{policy}: {hits} of {all}, and {theirs}");
                assert!(copied * 10 < copied_there, "{policy}: {copied} and {copied_there} copies");
            }
        }
    }
}
