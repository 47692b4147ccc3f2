//! The scheduler's promises, under seeded simulation of a line of stages. Every run of the simulator checks
//! all of these:
//!
//! - Each request ends exactly once. Its tokens are right and in order, and its positions contiguous.
//! - Ubatch ids are consecutive. A decoding sequence is in one ubatch at most, and no ubatch takes more than
//!   an even share of the decoding sequences.
//! - Pages hold the tokens that their sequences wrote. Copies are states of exactly those tokens.
//! - Checkpoints are of the right tokens too, and sequences go on from them after a lost line.
//! - Nothing that can be sent is held back while fewer ubatches than (equal) stages are in flight.
//! - No request waits that would have a place without kept states. Nothing is left behind.
//!
//! `cargo test --release --test scheduler -- sched_sim::busy` prints the tables.

use brigade_sched::sim::{
    Client, Ending, LinkModel, Nature, Outcome, Rng, Sim, SimRequest, Spells, StageModel, Workload,
};
use brigade_spec::Prefixes;

/// Random lines tried by each test run; a failure names its seed.
const SEEDS: u64 = 90;

/// A model that takes 16 ms + 2 ms a row, cut into `n` equal stages.
fn equal(n: usize) -> Sim {
    let share = 1.0 / n as f64;
    let stage = StageModel { fixed_us: 16_000.0 * share, per_row_us: 2_000.0 * share, jitter: 0.0 };
    Sim::equal(n, stage)
}

fn run(sim: &Sim, workload: &Workload) -> Outcome {
    sim.run(workload).unwrap_or_else(|what| panic!("{what}\n{sim:?}"))
}

/// A line of random shape: stages of unequal speed, jitter, links, few or many places.
pub(super) fn random_sim(seed: u64) -> Sim {
    let mut rng = Rng::new(seed ^ 0xdead);
    let n = rng.between(1, 9) as usize;
    let mut sim = equal(n);
    let (equal, jitter) = (rng.one_in(2), [0.0, 0.1, 0.9][rng.between(0, 2) as usize]);
    for stage in &mut sim.stages {
        stage.jitter = jitter;
        if !equal {
            stage.fixed_us *= 0.2 + 2.0 * rng.unit();
            stage.per_row_us *= 0.2 + 2.0 * rng.unit();
        }
    }
    let latency_us = [0.0, 300.0, 20_000.0][rng.between(0, 2) as usize];
    for link in &mut sim.links {
        *link = LinkModel { latency_us: latency_us * rng.unit(), per_row_us: 50.0 * rng.unit() };
    }
    sim.seed = seed;
    sim.spec.max_rows = [1, 7, 64, 512][rng.between(0, 3) as usize];
    sim.spec.n_slots = [1, 3, 16, 64][rng.between(0, 3) as usize];
    sim.spec.block_positions = [1, 16, 64][rng.between(0, 2) as usize];
    sim.spec.n_blocks = rng.between(1, 20_000 / u64::from(sim.spec.block_positions)) as u32;
    sim.sched.max_waiting = rng.between(0, 300) as usize;
    sim.sched.prefill_rows = rng.one_in(4).then(|| rng.between(1, 600) as u32);
    sim.sched.decode_gap_us = rng.one_in(4).then(|| rng.between(0, 500_000));
    sim.sched.max_in_flight = rng.one_in(4).then(|| rng.between(1, 12) as usize);
    sim.sched.max_logits_rows = rng.between(1, 600) as u32;
    if rng.one_in(3) {
        let down = rng.between(0, 3_000_000);
        sim.outages =
            vec![(down, down + rng.between(1, 500_000)), (down + 900_000, down + 950_000)];
    }
    sim.spec.n_kept = [0, 1, 3, 16][rng.between(0, 3) as usize];
    sim.spec.prefixes = if rng.one_in(2) { Prefixes::Whole } else { Prefixes::All };
    sim.sched.checkpoint_every = rng.one_in(2).then(|| rng.between(1, 64) as u32);
    sim
}

fn random_lines_and_workloads_keep_every_promise() {
    let mut endings = std::collections::BTreeMap::new();
    let (mut reused, mut put_back, mut in_idle_slots) = ([0; 2], 0, 0);
    for seed in 0..SEEDS {
        let n_requests = 1 + seed as usize % 150;
        let sim = random_sim(seed);
        let outcome = sim
            .run(&Workload::random(seed, n_requests))
            .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}"));
        let limit = sim.sched.max_in_flight.unwrap_or(4 * sim.spec.n_stages);
        assert!(outcome.most_in_flight <= limit, "seed {seed}: {}", outcome.most_in_flight);
        let all = outcome.clients.iter().map(|c| u64::from(c.reused)).sum::<u64>();
        assert!(all == 0 || sim.spec.n_kept > 0, "seed {seed}");
        put_back += outcome.n_put_back;
        in_idle_slots += u64::from(outcome.most_kept > sim.spec.n_kept);
        reused[usize::from(sim.spec.prefixes == Prefixes::Whole)] += all;
        for (ending, n) in outcome.endings {
            *endings.entry(ending).or_insert(0) += n;
        }
    }
    println!("{endings:?}, tokens reused: {reused:?}, states put back: {put_back}");
    assert!(put_back > SEEDS / 10, "{put_back}");
    // The simulator checks that no request waits for what is kept there.
    assert!(in_idle_slots > SEEDS / 10, "{in_idle_slots}");
    assert!(reused.iter().all(|&n| n > 100 * SEEDS), "{reused:?}");
    for ending in ["finished", "rejected", "cancelled"] {
        assert!(endings.get(ending).is_some_and(|&n| n > SEEDS as usize), "{ending}: {endings:?}");
    }
    assert_eq!(endings.get("failed"), None, "two lost lines end nothing");
}

/// A line that is lost again and again, for longer and shorter times.
pub(super) fn with_many_outages(mut sim: Sim, seed: u64) -> Sim {
    let mut rng = Rng::new(seed ^ 0x10e5);
    let (mut at, every) = (0, [1_000_000, 3_000_000, 9_000_000][rng.between(0, 2) as usize]);
    sim.outages.clear();
    for _ in 0..rng.between(3, 40) {
        let down = at + 1 + rng.between(0, every);
        at = down + 1 + rng.between(0, 200_000);
        sim.outages.push((down, at));
    }
    sim
}

fn lines_that_are_lost_again_and_again_lose_no_request() {
    let (mut replays, mut put_back, mut finished, mut failed) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let sim = with_many_outages(random_sim(seed), seed);
        // The simulator checks that every token is the undisturbed run's, and that none comes twice.
        let outcome = sim
            .run(&Workload::random(seed, 1 + seed as usize % 60))
            .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}"));
        replays += outcome.clients.iter().map(|client| client.replays).sum::<u32>();
        put_back += outcome.n_put_back;
        finished += outcome.endings.get("finished").copied().unwrap_or(0);
        failed += outcome.endings.get("failed").copied().unwrap_or(0);
    }
    println!(
        "{replays} replays, {put_back} of them from checkpoints; {finished} requests finished, {failed} ended after three \
         losses"
    );
    assert!(put_back > SEEDS, "{put_back}");
    assert!(replays > 10 * SEEDS as u32 && finished > 10 * SEEDS as usize);
    assert!(failed * 10 < finished, "only who gets no further on three lines in a row may fail");
}

fn guided_requests_keep_every_promise_beside_others() {
    let (mut finished, mut replays, mut reused) = (0, 0, 0);
    for seed in 0..SEEDS {
        let (one_in, longest) = ([1, 3][seed as usize % 2], [3, 40, 400][seed as usize % 3]);
        let workload = Workload::random(seed, 1 + seed as usize % 100);
        let workload = workload.with_companions(seed, one_in, longest);
        let random = random_sim(seed);
        for sim in [
            with_many_outages(random.clone(), seed),
            with_many_changes(random.clone(), seed),
            random,
        ] {
            // The simulator checks that each draw had its companion, and that this had the right tokens.
            let outcome = sim
                .run(&workload)
                .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}\n{workload:?}"));
            let clients =
                outcome.clients.iter().filter(|client| client.request.companion.is_some());
            let done = |c: &&Client| matches!(c.ended, Some((_, Ending::Finished)));
            finished += clients.clone().filter(done).count();
            replays += clients.clone().map(|client| client.replays).sum::<u32>();
            reused += clients.map(|client| u64::from(client.reused)).sum::<u64>();
            let limit = sim.sched.max_in_flight.unwrap_or(4 * sim.spec.n_stages);
            assert!(outcome.most_in_flight <= limit, "seed {seed}: {}", outcome.most_in_flight);
        }
    }
    println!(
        "{finished} requests with companions finished, {replays} replays, {reused} tokens reused"
    );
    assert!(finished > 20 * SEEDS as usize && replays > 10 * SEEDS as u32 && reused > 100 * SEEDS);
}

fn answers_get_as_long_as_there_is_room_and_nobody_waits_for_them() {
    const SEEDS: u64 = 40;
    let (mut long, mut cut, mut whole, mut replays) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let (one_in, sure) = ([1, 3][seed as usize % 2], [1, 20, 200][seed as usize % 3]);
        let workload = Workload::random(seed, 1 + seed as usize % 60);
        let workload = if seed % 5 == 0 { workload.with_companions(seed, 3, 40) } else { workload };
        let workload = workload.open_ended(seed, one_in, sure);
        let random = random_sim(seed);
        for sim in [
            with_many_outages(random.clone(), seed),
            with_many_changes(random.clone(), seed),
            random,
        ] {
            // The simulator checks that pages are of one sequence each, that tokens are right, and that no request
            // waits that would have a place if answers held only the pages that they have used.
            let outcome = sim
                .run(&workload)
                .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}\n{workload:?}"));
            for client in outcome.clients.iter().filter(|c| c.finished()) {
                let (Some(sure), got) = (client.request.sure, client.received.len() as u32) else {
                    continue;
                };
                long += u32::from(got > sure + sim.spec.block_positions);
                let is_whole = client.request.max_tokens == Some(got);
                whole += u32::from(is_whole);
                cut += u32::from(!is_whole && got > sure);
                replays += client.replays;
            }
        }
    }
    println!(
        "{long} answers got longer than what was sure, {whole} as long as they might, {cut} ended earlier; {replays} \
         replays"
    );
    assert!(
        long > 10 * SEEDS as u32
            && whole > SEEDS as u32
            && cut > SEEDS as u32
            && replays > SEEDS as u32
    );
}

fn draws_that_are_put_off_change_no_token_and_hold_up_nobody() {
    let (mut finished, mut replays, mut moved) = (0, 0, 0);
    const SEEDS: u64 = 50;
    for seed in 0..SEEDS {
        let workload = Workload::random(seed, 1 + seed as usize % 60);
        let workload = if seed % 3 == 0 { workload.with_companions(seed, 3, 40) } else { workload };
        let random = Sim { late_every: 2 + seed % 5, ..random_sim(seed) };
        for sim in [
            with_many_outages(random.clone(), seed),
            with_many_changes(random.clone(), seed),
            random,
        ] {
            // The simulator checks that every token is the undisturbed run's, and that no request waits without need.
            let outcome = sim
                .run(&workload)
                .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}\n{workload:?}"));
            finished += outcome.endings.get("finished").copied().unwrap_or(0);
            replays += outcome.clients.iter().map(|client| client.replays).sum::<u32>();
            moved += outcome.n_moved;
        }
    }
    println!("{finished} requests finished, {replays} replays, {moved} states moved");
    assert!(finished > 20 * SEEDS as usize && replays > 10 * SEEDS as u32 && moved > SEEDS);
}

/// Changes again and again, and nothing else goes wrong.
fn with_many_changes(mut sim: Sim, seed: u64) -> Sim {
    let mut rng = Rng::new(seed ^ 0xc4a6);
    let (mut at, every) = (0, [500_000, 2_000_000, 9_000_000][rng.between(0, 2) as usize]);
    sim.outages.clear();
    for _ in 0..rng.between(1, 20) {
        at += 1 + rng.between(0, every);
        sim.changes.push(at);
    }
    sim
}

fn sequences_move_with_their_states_when_a_line_changes_as_planned() {
    let (mut moved, mut again, mut put_back) = (0, 0, 0);
    for seed in 0..SEEDS {
        let sim = with_many_changes(random_sim(seed), seed);
        // The simulator checks that a sequence goes back to where it was, and that its tokens are the undisturbed run's.
        let outcome = sim
            .run(&Workload::random(seed, 1 + seed as usize % 60))
            .unwrap_or_else(|what| panic!("seed {seed}: {what}\n{sim:?}"));
        let failed = outcome.endings.get("failed");
        assert_eq!(failed, None, "seed {seed}: a planned change ends nothing");
        (moved, put_back) = (moved + outcome.n_moved, put_back + outcome.n_put_back);
        again += outcome.clients.iter().map(|client| client.replays).sum::<u32>();
    }
    println!("{moved} states moved, of {again} sequences that went on, {put_back} put back in all");
    assert!(moved > 3 * SEEDS, "{moved}");
}

fn the_same_seed_gives_the_same_bytes() {
    for seed in [3, 14, 15, 92, 65] {
        let logs = [(); 2].map(|()| {
            let sim = Sim { log: true, ..random_sim(seed) };
            run(&sim, &Workload::random(seed, 60)).log
        });
        assert!(logs[0].len() > 1_000 && logs[0] == logs[1], "seed {seed}");
    }
}

/// Streams beside which prompts of 4000 tokens arrive.
fn streams_and_prompts(streams: usize, prompts: u64) -> Workload {
    let mut workload = Workload::at_once(streams, 16, 400);
    for i in 0..prompts {
        let at = 1_000_000 + 100_000 * i;
        let prompt = 4_000;
        let one = SimRequest { at, prompt, max_tokens: Some(1), ..SimRequest::default() };
        workload.requests.push(one);
    }
    workload
}

fn prompts_do_not_stall_streams() {
    for n in [1, 2, 4, 8] {
        for (streams, prompts) in [(1, 4), (8, 4), (8, 16)] {
            let out = run(&equal(n), &streams_and_prompts(streams, prompts));
            let gap = out.clients[..streams].iter().map(|c| c.longest_gap()).max().unwrap();
            println!(
                "{n} stages, {streams} streams beside {prompts} prompts: longest gap {gap} us, \
                 bound {:?}",
                out.gap_bound
            );
            assert!(out.gap_bound.is_some_and(|bound| gap <= bound), "{:?}", out.gap_bound);
            // The scheduler's default aim, 200 ms; a decode step alone takes 18 to 32 ms here.
            assert!(gap <= 200_000, "{n} stages, {streams} streams, {prompts} prompts: {gap} us");
            let (from, to) = (2_000_000, out.clients[streams].ended.unwrap().0.max(2_500_000));
            let busy = out.busy(from, to);
            assert!(
                busy.iter().all(|&share| share > 0.85),
                "{n} stages, {streams} streams: {busy:?}"
            );
        }
    }
}

fn a_wished_gap_is_kept() {
    for gap_us in [100_000, 400_000] {
        let mut sim = equal(2);
        sim.sched.decode_gap_us = Some(gap_us);
        let out = run(&sim, &streams_and_prompts(4, 8));
        let gap = out.clients[..4].iter().map(|c| c.longest_gap()).max().unwrap();
        assert!((gap_us / 2..=gap_us).contains(&gap), "{gap} us for {gap_us}");
        assert!(out.gap_bound.is_some_and(|bound| gap <= bound), "{:?}", out.gap_bound);
    }
}

fn neither_prompts_nor_streams_starve_when_every_row_is_taken() {
    for max_rows in [1, 2, 5] {
        let mut sim = equal(2);
        sim.spec.max_rows = max_rows;
        // No place in the line beyond those that the streams fill.
        sim.sched.max_in_flight = Some(2);
        let mut workload = Workload::at_once(16, 1, 400);
        let (at, prompt) = (500_000, 50);
        let late = SimRequest { at, prompt, max_tokens: Some(1), ..SimRequest::default() };
        workload.requests.push(late);
        let out = run(&sim, &workload);
        let prompt_done = out.clients[16].ended.unwrap().0;
        let first_stream_done = out.clients[..16].iter().map(|c| c.ended.unwrap().0).min().unwrap();
        assert!(
            prompt_done < first_stream_done,
            "{max_rows} rows: {prompt_done} {first_stream_done}"
        );
    }
}

fn requests_are_admitted_in_order_and_refused_when_the_queue_is_full() {
    let mut sim = equal(2);
    sim.spec.n_slots = 2;
    sim.sched.max_waiting = 10;
    let out = run(&sim, &Workload::at_once(20, 10, 5));
    assert_eq!(out.endings, [("finished", 12), ("rejected", 8)].into());
    let ends: Vec<_> = out.clients[..12].iter().map(|c| c.ended.unwrap().0).collect();
    assert!(ends.is_sorted(), "{ends:?}");
}

/// Least and mean busy share.
fn least_and_mean(busy: &[f64]) -> (f64, f64) {
    let least = busy.iter().copied().fold(1.0, f64::min);
    (least, busy.iter().sum::<f64>() / busy.len() as f64)
}

/// Prints a row about the time `from..to` of a run, in which this many tokens were computed.
fn row(n: usize, test: &str, out: &Outcome, tokens: usize, from: u64, to: u64) -> f64 {
    let (least, mean) = least_and_mean(&out.busy(from, to));
    let rate = tokens as f64 * 1e6 / out.end as f64;
    let (ubatches, flying) = (out.n_ubatches, out.most_in_flight);
    println!("| {n} | {test} | {least:.3} | {mean:.3} | {rate:.0} | {ubatches} | {flying} |");
    least
}

fn table_head() {
    println!("| stages | test | least busy | mean busy | tokens/s | ubatches | most in flight |");
    println!("|---|---|---|---|---|---|---|");
}

fn busy_in_prefill() {
    table_head();
    for n in [1, 2, 4, 8, 16] {
        for prompts in [1, 8, 32] {
            let out = run(&equal(n), &Workload::at_once(prompts, 1024, 1));
            let test = format!("prefill, {prompts} prompts of 1024");
            let (from, to) = out.steady();
            let least = row(n, &test, &out, prompts * 1024, from, to);
            let aim = if n == 16 && prompts == 8 { 0.90 } else { 0.94 };
            assert!(least > aim, "{n} stages, {prompts} prompts: {least}");
        }
    }
}

fn busy_in_decode() {
    table_head();
    for (n, jitter) in [(1, 0.1), (2, 0.0), (2, 0.1), (4, 0.1), (8, 0.1), (16, 0.1)] {
        let mut sim = equal(n);
        sim.stages.iter_mut().for_each(|stage| stage.jitter = jitter);
        for streams in [8, 32] {
            let out = run(&sim, &Workload::at_once(streams, 32, 128));
            let test = format!("decode, {streams} streams, times +-{:.0} %", jitter * 100.0);
            let (from, to) = out.steady_decode();
            let least = row(n, &test, &out, streams * 128, from, to);
            // With fewer streams than stages, the other stages are idle under any schedule.
            let bound = (streams as f64 / n as f64).min(1.0);
            assert!(least > 0.90 * bound, "{n} stages, {streams} streams: {least}");
        }
    }
}

fn far_stages_get_more_groups() {
    let mut sim = equal(4);
    sim.links.iter_mut().for_each(|link| link.latency_us = 2_000.0);
    let out = run(&sim, &Workload::at_once(32, 32, 256));
    let (from, to) = out.steady_decode();
    let (least, mean) = least_and_mean(&out.busy(from, to));
    println!("4 stages 2 ms apart, 32 streams: busy {least:.3} to {mean:.3} on average");
    // Four groups of 8 would be busy 32 of 42 ms; five of 6 or 7 are busy 36 of 40.
    assert!(least > 0.88, "{least}");
}

/// Two stages of kernels that compute rows four at a time, on machines that are not theirs alone.
fn shared_machines(jitter: f64, spells: Option<Spells>) -> Sim {
    let mut sim = Sim::equal(2, StageModel { fixed_us: 1_000.0, per_row_us: 5_000.0, jitter });
    sim.nature = Nature { row_tile: 4, spells, ..Nature::default() };
    // Stages that vary so much may look unequal.
    sim.audit = false;
    sim
}

/// Tokens a second while all decode, and the busy share of the stage that idles more; `tight`: with no more
/// groups than stages.
fn decoded(sim: &Sim, streams: usize, tight: bool) -> (f64, f64) {
    let mut sim = sim.clone();
    sim.sched.max_in_flight = tight.then_some(sim.spec.n_stages);
    let out = run(&sim, &Workload::at_once(streams, 16, 256));
    let (from, to) = out.steady_decode();
    let rate = out.tokens_within(from, to) as f64 * 1e6 / (to - from) as f64;
    (rate, least_and_mean(&out.busy(from, to)).0)
}

fn stages_that_vary_get_slack() {
    let spells = Some(Spells { slower: 1.4, every_us: 8e6, last_us: 2e6 });
    println!("| streams | times | spells | groups as stages: tokens/s | busy | as chosen | busy |");
    println!("|---|---|---|---|---|---|---|");
    // Groups of 10 rows take as long as 12. A line with little variation has little to gain, and spells make a stage
    // slower than the other for any groups.
    let gains =
        [(8, 0.99, 0.99), (16, 0.99, 1.03), (20, 1.2, 1.2), (32, 1.03, 1.05), (40, 1.03, 1.05)];
    for (streams, gain_20, gain_30) in gains {
        let disturbed = [(0.1, None, 0.99), (0.2, None, gain_20), (0.3, None, gain_30)];
        for (jitter, spells, gain) in disturbed.into_iter().chain([(0.3, spells, 0.97)]) {
            let sim = shared_machines(jitter, spells);
            let (two, busy_two) = decoded(&sim, streams, true);
            let (chosen, busy) = decoded(&sim, streams, false);
            let often = if spells.is_some() { "yes" } else { "no" };
            println!(
                "| {streams} | ±{:.0} % | {often} | {two:.1} | {busy_two:.3} | {chosen:.1} | {busy:.3} |",
                jitter * 100.0
            );
            assert!(chosen > gain * two, "{streams} streams, ±{jitter}: {chosen} after {two}");
        }
    }
}

fn unequal_stages_run_at_the_pace_of_the_slowest() {
    let mut sim = equal(4);
    sim.stages[2].fixed_us *= 2.0;
    sim.stages[2].per_row_us *= 2.0;
    let out = run(&sim, &Workload::at_once(32, 32, 128));
    let (from, to) = out.steady_decode();
    let busy = out.busy(from, to);
    assert!(busy[2] > 0.97, "{busy:?}");
    let out = run(&sim, &Workload::at_once(16, 1024, 1));
    let (from, to) = out.steady();
    assert!(out.busy(from, to)[2] > 0.97);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        random_lines_and_workloads_keep_every_promise,
        lines_that_are_lost_again_and_again_lose_no_request,
        guided_requests_keep_every_promise_beside_others,
        answers_get_as_long_as_there_is_room_and_nobody_waits_for_them,
        draws_that_are_put_off_change_no_token_and_hold_up_nobody,
        sequences_move_with_their_states_when_a_line_changes_as_planned,
        the_same_seed_gives_the_same_bytes,
        prompts_do_not_stall_streams,
        a_wished_gap_is_kept,
        neither_prompts_nor_streams_starve_when_every_row_is_taken,
        requests_are_admitted_in_order_and_refused_when_the_queue_is_full,
        busy_in_prefill,
        busy_in_decode,
        far_stages_get_more_groups,
        stages_that_vary_get_slack,
        unequal_stages_run_at_the_pace_of_the_slowest;
];
