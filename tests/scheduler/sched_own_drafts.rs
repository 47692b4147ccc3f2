//! A model's own drafting block, under simulation. Beside the checks of every run, drafts change no token. Requests
//! to the block fit the sequence and the block. Each draft on the line is one of the block's, in its right place.

use brigade_sched::sim::{LinkModel, Outcome, Rng, Sim, StageModel, Workload};
use brigade_spec::Prefixes;

use super::sched_sim::{random_sim, with_many_outages};

/// Random lines tried by each test run; a failure names its seed.
const SEEDS: u64 = 120;

/// A line of random shape with a block of random quality, with or without drafts from texts beside it.
fn random_with_a_block(seed: u64) -> (Sim, Workload) {
    let mut rng = Rng::new(seed ^ 0xb10c);
    let mut sim = random_sim(seed);
    sim.spec.own_drafts = [1, 3, 16][rng.between(0, 2) as usize];
    sim.own_drafts = Some([0.5, 0.8, 0.95][rng.between(0, 2) as usize]);
    sim.drafts = rng.one_in(3).then_some(0.7);
    let n_requests = 1 + seed as usize % [2, 5, 60][rng.between(0, 2) as usize];
    let mut workload = Workload::random(seed, n_requests);
    if rng.one_in(2) {
        // Few enough at a time to run ahead.
        for (i, request) in workload.requests.iter_mut().enumerate() {
            request.at += i as u64 * 700_000;
        }
    }
    if rng.one_in(3) {
        workload = workload.open_ended(seed, 2, 40);
    }
    if rng.one_in(3) {
        // Masks are late, of windows and of what is drawn alone.
        sim.late_every = 2 + seed % 9;
    }
    (sim, workload)
}

fn run(seed: u64, sim: &Sim, workload: &Workload) -> Outcome {
    sim.run(workload).unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}"))
}

fn add(sum: &mut [u64; 3], outcome: &Outcome) {
    sum.iter_mut().zip(outcome.own_drafts).for_each(|(sum, n)| *sum += n);
}

fn random_lines_with_a_block_keep_every_promise() {
    let mut drafts = [0; 3];
    for seed in 0..SEEDS {
        let (sim, workload) = random_with_a_block(seed);
        add(&mut drafts, &run(seed, &sim, &workload));
    }
    println!("drafted, right, wrong: {drafts:?}");
    assert!(drafts.iter().all(|n| *n > 100), "{drafts:?}");
}

fn so_do_lines_with_a_block_that_are_lost_and_changed_again_and_again() {
    let (mut drafts, mut put_back) = ([0; 3], [0; 2]);
    for seed in 0..SEEDS {
        let (sim, workload) = random_with_a_block(seed);
        let mut sim = with_many_outages(sim, seed);
        // Half of them go in order.
        if seed % 2 == 0 {
            sim.changes = sim.outages.iter().map(|(down, _)| *down).collect();
            sim.outages.clear();
        }
        sim.sched.checkpoint_every = Some(1 + seed as u32 % 40);
        let outcome = run(seed, &sim, &workload);
        put_back[seed as usize % 2] += outcome.n_put_back;
        add(&mut drafts, &outcome);
    }
    println!("drafted, right, wrong: {drafts:?}; states put back: {put_back:?}");
    assert!(drafts.iter().all(|n| *n > 100), "{drafts:?}");
    assert!(put_back.iter().all(|n| *n > 0), "{put_back:?}");
}

/// `n` equal stages that share 20 ms a ubatch and 1 ms a row, hops of so many ms, with a block that drafts up to 16 tokens.
fn line(n: usize, prefixes: Prefixes, hop_ms: f64, odds: Option<f64>) -> Sim {
    let share = 1.0 / n as f64;
    let stage = StageModel { fixed_us: 20_000.0 * share, per_row_us: 1_000.0 * share, jitter: 0.0 };
    let mut sim = Sim::equal(n, stage);
    sim.links = vec![LinkModel { latency_us: hop_ms * 1e3, per_row_us: 0.0 }; n + 1];
    sim.spec.prefixes = prefixes;
    sim.spec.own_drafts = odds.map_or(0, |_| 16);
    sim.own_drafts = odds;
    sim
}

/// Tokens a second of so many streams, and what became of the block's drafts.
fn pace(sim: &Sim, n_streams: usize) -> (f64, [u64; 3]) {
    let workload = Workload::at_once(n_streams, 32, 400);
    let outcome = run(0, sim, &workload);
    let (from, to) = outcome.steady_decode();
    (outcome.tokens_within(from, to) as f64 * 1e6 / (to - from) as f64, outcome.own_drafts)
}

fn one_stream_is_faster_with_a_block() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        // Stages, milliseconds of a hop, share of first drafts that are right, least gain.
        for (n, hop_ms, odds, least) in
            [(1, 0.0, 0.8, 1.5), (2, 0.0, 0.8, 1.7), (2, 0.0, 0.95, 2.4), (2, 10.0, 0.8, 1.7)]
        {
            let without = pace(&line(n, prefixes, hop_ms, None), 1).0;
            let (with, drafts) = pace(&line(n, prefixes, hop_ms, Some(odds)), 1);
            let gain = with / without;
            println!("{prefixes:?}, {n} stages, hops of {hop_ms} ms, {odds}: {gain:.2} {drafts:?}");
            assert!(gain > least, "{prefixes:?}, {n} stages, {hop_ms} ms, {odds}: {gain}");
        }
    }
}

fn a_block_that_is_of_no_use_is_asked_for_little() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        let of = |odds, n_streams| pace(&line(2, prefixes, 0.0, odds), n_streams);
        // It is never right; or streams fill the line.
        for (odds, n_streams) in [(0.0, 1), (0.9, 32)] {
            let ((without, _), (with, drafts)) = (of(None, n_streams), of(Some(odds), n_streams));
            println!("{prefixes:?}, {odds}, {n_streams} streams: {:.2} {drafts:?}", with / without);
            assert!(with > 0.98 * without, "{with} {without}");
            assert!(drafts[0] < 8 * 25 * n_streams as u64, "{drafts:?}");
        }
    }
}

fn what_a_block_takes_is_weighed_against_what_it_brings() {
    // Milliseconds of a draft, of a line that takes 21 for a row; least gain, and most drafts for each token that is said.
    for (n, draft_ms, least, most) in
        [(1, 2.0, 1.4, 4.0), (1, 40.0, 0.95, 0.1), (2, 4.0, 1.5, 6.0), (2, 40.0, 0.95, 0.1)]
    {
        let of = |odds| {
            let mut sim = line(n, Prefixes::All, 0.0, odds);
            sim.nature.draft_us = draft_ms * 1e3;
            pace(&sim, 1)
        };
        let ((without, _), (with, drafts)) = (of(None), of(Some(0.8)));
        let (gain, each) = (with / without, drafts[0] as f64 / 400.0);
        println!(
            "{n} stages, {draft_ms} ms a draft: {gain:.2}, {each:.2} drafts a token, {drafts:?}"
        );
        assert!(gain > least && each < most, "{n} stages, {draft_ms} ms: {gain}, {each}");
    }
}

fn no_block_drafts_beside_a_text_that_is_as_good() {
    let mut sim = line(2, Prefixes::All, 0.0, Some(0.8));
    (sim.nature.draft_us, sim.drafts) = (4_000.0, Some(0.95));
    let (with, drafts) = pace(&sim, 1);
    (sim.own_drafts, sim.spec.own_drafts) = (None, 0);
    let (of_text, _) = pace(&sim, 1);
    println!("{:.2} of the text's pace, {drafts:?}", with / of_text);
    assert!(with > 0.95 * of_text && drafts[0] < 80, "{with} {of_text} {drafts:?}");
}

/// How many positions each copy in a run's log has, and how many of them have the block read on from there.
fn copies(log: &str) -> (Vec<u32>, usize) {
    let len = |copy: &str| copy.split("len: ").nth(1)?.split(',').next()?.parse().ok();
    let all: Vec<&str> = log.split("Copy {").skip(1).collect();
    let is_read =
        |copy: &&&str| copy.lines().next().is_some_and(|rest| rest.contains("}, Draft {"));
    let reads = all.iter().filter(is_read).count();
    (all.into_iter().filter_map(len).collect(), reads)
}

fn a_graft_leaves_the_block_the_row_before_it() {
    for (prefixes, again) in [(Prefixes::All, 1), (Prefixes::Whole, 0)] {
        let of = |odds| {
            let mut sim = line(2, prefixes, 0.0, odds);
            (sim.spec.n_kept, sim.log, sim.sched.marks) = (4, true, false);
            let chat = Workload::chats(1, 3, 100, 20, 20);
            copies(&run(0, &sim, &chat).log)
        };
        let ((without, none), (with, reads)) = (of(None), of(Some(0.9)));
        println!("{prefixes:?}: {without:?} {with:?}");
        assert_eq!((without.len(), none, reads), (2, 0, 2), "{without:?} {with:?}");
        let shorter: Vec<u32> = without.iter().map(|len| len - again).collect();
        assert_eq!(with, shorter, "{prefixes:?}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        random_lines_with_a_block_keep_every_promise,
        so_do_lines_with_a_block_that_are_lost_and_changed_again_and_again,
        one_stream_is_faster_with_a_block,
        a_block_that_is_of_no_use_is_asked_for_little,
        what_a_block_takes_is_weighed_against_what_it_brings,
        no_block_drafts_beside_a_text_that_is_as_good,
        a_graft_leaves_the_block_the_row_before_it;
];
