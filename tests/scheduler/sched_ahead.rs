//! Sequences that run ahead of their last drawn token, under simulation. Besides what every run of the simulator
//! checks: drafts change no token, states that are put back are those of exactly the sure tokens, and lent planes
//! come back.

use brigade_sched::Share;
use brigade_sched::sim::{LinkModel, Outcome, Rng, Sim, SimRequest, StageModel, Workload};
use brigade_spec::Prefixes;

use super::sched_sim::{random_sim, with_many_outages};

/// Random lines tried by each test run; a failure names its seed.
const SEEDS: u64 = 120;

/// A line of random shape with drafts, of which a random share is right.
fn random_with_drafts(seed: u64) -> (Sim, Workload) {
    let mut rng = Rng::new(seed ^ 0xd4af);
    let mut sim = random_sim(seed);
    sim.drafts = Some([0.4, 0.7, 0.9, 0.97][rng.between(0, 3) as usize]);
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

fn tokens_of(outcome: &Outcome) -> usize {
    outcome.clients.iter().map(|client| client.received.len()).sum()
}

fn random_lines_with_drafts_keep_every_promise() {
    let mut tokens = 0;
    for seed in 0..SEEDS {
        let (sim, workload) = random_with_drafts(seed);
        let outcome =
            sim.run(&workload).unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}"));
        tokens += tokens_of(&outcome);
    }
    println!("{tokens} tokens");
    assert!(tokens > 100 * SEEDS as usize, "{tokens}");
}

fn so_do_lines_that_are_lost_and_changed_again_and_again() {
    let mut put_back = [0; 2];
    for seed in 0..SEEDS {
        let (sim, workload) = random_with_drafts(seed);
        let mut sim = with_many_outages(sim, seed);
        // Half of them go in order.
        if seed % 2 == 0 {
            sim.changes = sim.outages.iter().map(|(down, _)| *down).collect();
            sim.outages.clear();
        }
        sim.sched.checkpoint_every = Some(1 + seed as u32 % 40);
        let outcome =
            sim.run(&workload).unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}"));
        put_back[seed as usize % 2] += outcome.n_put_back;
    }
    println!("states put back after changes and losses: {put_back:?}");
    assert!(put_back.iter().all(|n| *n > 0), "{put_back:?}");
}

/// However long its drafts are right, a sequence is copied as often as one without drafts, at the next window's beginning.
fn states_are_copied_while_windows_are_in_flight() {
    let every = 40;
    let mut sim = line(2, Prefixes::Whole, 0.0, Some(1.0));
    sim.sched.checkpoint_every = Some(every);
    let workload = Workload::at_once(1, 32, 400);
    let outcome = sim.run(&workload).unwrap_or_else(|what| panic!("{what}\n{sim:?}"));
    println!("{} copies", outcome.n_copied_ahead);
    let most_apart = u64::from(every) + 15;
    assert!(outcome.n_copied_ahead >= 400 / most_apart, "{}", outcome.n_copied_ahead);
}

/// `n` equal stages that share 20 ms a ubatch and 1 ms a row, hops of so many ms.
fn line(n: usize, prefixes: Prefixes, hop_ms: f64, drafts: Option<f64>) -> Sim {
    let share = 1.0 / n as f64;
    let stage = StageModel { fixed_us: 20_000.0 * share, per_row_us: 1_000.0 * share, jitter: 0.0 };
    let mut sim = Sim::equal(n, stage);
    sim.links = vec![LinkModel { latency_us: hop_ms * 1e3, per_row_us: 0.0 }; n + 1];
    sim.spec.prefixes = prefixes;
    sim.drafts = drafts;
    sim
}

/// Tokens a second of so many streams.
fn pace(sim: &Sim, n_streams: usize) -> f64 {
    let workload = Workload::at_once(n_streams, 32, 400);
    let outcome = sim.run(&workload).unwrap_or_else(|what| panic!("{what}\n{sim:?}"));
    let (from, to) = outcome.steady_decode();
    outcome.tokens_within(from, to) as f64 * 1e6 / (to - from) as f64
}

/// How many times as fast one stream is with drafts of which a share of `odds` is right.
fn gain(n: usize, prefixes: Prefixes, hop_ms: f64, odds: f64) -> f64 {
    let with = pace(&line(n, prefixes, hop_ms, Some(odds)), 1);
    with / pace(&line(n, prefixes, hop_ms, None), 1)
}

fn one_stream_is_faster_with_drafts() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        // Stages, milliseconds of a hop, share of drafts that are right, least gain.
        for (n, hop_ms, odds, least) in [
            (1, 0.0, 0.8, 1.8),
            (2, 0.0, 0.8, 2.4),
            (2, 0.0, 0.9, 3.5),
            (4, 0.0, 0.9, 4.0),
            (2, 10.0, 0.6, 1.9),
            (2, 10.0, 0.9, 4.2),
            (2, 100.0, 0.9, 6.5),
        ] {
            let gain = gain(n, prefixes, hop_ms, odds);
            println!("{prefixes:?}, {n} stages, hops of {hop_ms} ms, {odds} right: {gain:.2}");
            assert!(gain > least, "{prefixes:?}, {n} stages, {hop_ms} ms, {odds}: {gain}");
        }
    }
}

/// A distant line is kept busy by as many windows as a trip holds. A short copy gains as well, though all sizes are
/// new to the line, and so does an answer whose client names no length, whose pages come with its windows.
fn a_copy_on_a_far_line_fills_its_trips() {
    let tokens = 400;
    let seconds = |drafts, sure| {
        let mut workload = Workload::at_once(1, 32, tokens);
        workload.requests[0].sure = sure;
        let sim = line(2, Prefixes::All, 100.0, drafts);
        let outcome = sim.run(&workload).unwrap_or_else(|what| panic!("{what}\n{sim:?}"));
        let received = &outcome.clients[0].received;
        assert_eq!(received.len(), tokens as usize);
        (received[received.len() - 1] - received[0]) as f64 / 1e6
    };
    let without = seconds(None, None);
    for sure in [None, Some(8)] {
        let gain = without / seconds(Some(1.0), sure);
        println!("of which {sure:?} are sure: {gain:.1}");
        // With 64 rows in flight at most it is 53 and less.
        assert!(gain > 70.0, "{sure:?}: {gain}");
    }
}

fn drafts_that_are_often_wrong_cost_next_to_nothing() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        for n in [1, 2, 4] {
            for odds in [0.0, 0.3, 0.4, 0.5] {
                let gain = gain(n, prefixes, 0.0, odds);
                assert!(gain > 0.98, "{prefixes:?}, {n} stages, {odds}: {gain}");
            }
        }
    }
}

fn streams_that_fill_the_line_lose_nothing_by_drafts() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        for n_streams in [2, 5, 8, 32] {
            let without = pace(&line(2, prefixes, 0.0, None), n_streams);
            for odds in [0.4, 0.9] {
                let gain = pace(&line(2, prefixes, 0.0, Some(odds)), n_streams) / without;
                println!("{prefixes:?}, {n_streams} streams, {odds} right: {gain:.2}");
                assert!(gain > 0.98, "{prefixes:?}, {n_streams} streams, {odds}: {gain}");
            }
        }
    }
}

/// One stage that computes all the time: a second ubatch on the line only waits there, and a trip behind another one is
/// no time outside the stages.
fn streams_on_one_stage_lose_nothing_by_drafts() {
    let sim = |drafts| {
        let stage = StageModel { fixed_us: 9_000.0, per_row_us: 1_400.0, jitter: 0.02 };
        let mut sim = Sim::equal(1, stage);
        sim.links = vec![LinkModel { latency_us: 300.0, per_row_us: 0.0 }; 2];
        sim.drafts = drafts;
        sim
    };
    for n_streams in [4, 8, 12] {
        let without = pace(&sim(None), n_streams);
        for odds in [0.6, 0.9, 0.97] {
            let gain = pace(&sim(Some(odds)), n_streams) / without;
            println!("{n_streams} streams, {odds} right: {gain:.2}");
            assert!(gain > 0.98, "{n_streams} streams, {odds}: {gain}");
        }
    }
}

/// Streams of a key without drafts, beside as many of another key with drafts. Returns the ratios between a run with
/// the drafts and one without them: the first key's tokens, its mean time to the first token, and the other key's
/// tokens.
fn beside_drafts(n_each: u64) -> [f64; 3] {
    let of = |owner, at, max_tokens| SimRequest {
        at,
        prompt: 32,
        max_tokens: Some(max_tokens),
        share: Share { owner, weight: 1, leaves_room: false },
        without_drafts: owner == 1,
        ..SimRequest::default()
    };
    let seconds = 20_u64;
    let run = |drafts| {
        // Short ones of the first key follow each other; the other key's go on all the time.
        let short = (0..seconds * n_each).map(|i| of(1, 1_000_000 * i / n_each, 20));
        let long = (0..n_each).map(|_| of(2, 0, 6_000));
        let mut requests: Vec<SimRequest> = long.chain(short).collect();
        requests.sort_by_key(|request| request.at);
        let mut sim = line(2, Prefixes::All, 0.0, drafts);
        sim.audit = false;
        let outcome = sim.run(&Workload { requests, stop_every: 0 }).unwrap();
        let (own, other): (Vec<_>, Vec<_>) =
            outcome.clients.iter().partition(|c| c.request.share.owner == 1);
        let until = seconds * 1_000_000;
        let [received, others] = [&own, &other].map(|clients| {
            clients.iter().flat_map(|c| &c.received).filter(|at| **at < until).count() as f64
        });
        let firsts = own.iter().filter_map(|c| Some((c.received.first()? - c.request.at) as f64));
        [received, firsts.sum::<f64>() / own.len() as f64, others]
    };
    let (without, with) = (run(None), run(Some(0.9)));
    std::array::from_fn(|i| with[i] / without[i])
}

fn a_key_that_drafts_takes_nothing_from_one_that_does_not() {
    for n_each in [1, 2, 4] {
        let [tokens, first, other] = beside_drafts(n_each);
        println!(
            "{n_each} streams each: {tokens:.3} of the tokens, {first:.3} of the first tokens' time; \
             the other key gets {other:.2} times its tokens"
        );
        assert!(tokens > 0.98 && first < 1.02, "{n_each} streams each: {tokens}, {first}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        random_lines_with_drafts_keep_every_promise,
        so_do_lines_that_are_lost_and_changed_again_and_again,
        states_are_copied_while_windows_are_in_flight,
        one_stream_is_faster_with_drafts,
        a_copy_on_a_far_line_fills_its_trips,
        drafts_that_are_often_wrong_cost_next_to_nothing,
        streams_that_fill_the_line_lose_nothing_by_drafts,
        streams_on_one_stage_lose_nothing_by_drafts,
        a_key_that_drafts_takes_nothing_from_one_that_does_not;
];
