//! One key's overload beside another's usual requests, in the simulator: how long the other waits for its first
//! tokens. `cargo test --release --test scheduler -- sched_fair::` prints the table.

use brigade_sched::Share;
use brigade_sched::sim::{Outcome, Rng, Sim, SimRequest, StageModel, Workload};

/// The key that asks as usual.
const USUAL: Share = Share { owner: 1, weight: 4, leaves_room: true };
/// The one that overloads the line.
const GREEDY: Share = Share { owner: 2, weight: 4, leaves_room: true };

/// How long the usual key asks.
const SECONDS: u64 = 240;

/// Most that an overload may cost another key's slowest requests.
const ALLOWED: f64 = 2.0;

/// Two stages of a model that takes 16 ms + 2 ms a row, with the default number of places.
fn line() -> Sim {
    let mut sim = Sim::equal(2, StageModel { fixed_us: 8e3, per_row_us: 1e3, jitter: 0.05 });
    sim.spec.n_slots = 16;
    sim.spec.n_kept = 0;
    sim.spec.n_blocks = 16 * 64;
    sim.sched.max_waiting = 256;
    // The simulator checks that no request waits beside a free place, and that owners leave some to others.
    sim.audit = false;
    sim
}

fn request(at: u64, prompt: u32, max_tokens: u32, share: Share) -> SimRequest {
    SimRequest { at, prompt, max_tokens: Some(max_tokens), share, ..SimRequest::default() }
}

/// A request of 200 tokens for 64 about every 1.5 s, at random times.
fn usual() -> Vec<SimRequest> {
    let mut rng = Rng::new(5);
    let mut at = 1_000_000;
    let mut requests = Vec::new();
    while at < SECONDS * 1_000_000 {
        requests.push(request(at, 200, 64, USUAL));
        at += rng.between(500_000, 2_500_000);
    }
    requests
}

/// The time to the first token that 95 of 100 of the usual key's requests do not exceed, and the mean, in ms.
fn first_tokens(outcome: &Outcome) -> (f64, f64, usize) {
    let own = outcome.clients.iter().filter(|client| client.request.share == USUAL);
    let waits = own.map(|client| {
        let first = client.received.first().unwrap_or_else(|| panic!("{:?}", client.ended));
        (first - client.request.at) as f64 * 1e-3
    });
    let mut waits: Vec<f64> = waits.collect();
    waits.sort_by(f64::total_cmp);
    let p95 = waits[(waits.len() - 1) * 95 / 100];
    (p95, waits.iter().sum::<f64>() / waits.len() as f64, waits.len())
}

fn run(greedy: Vec<SimRequest>, shares: impl Fn(Share) -> Share) -> Outcome {
    let mut requests: Vec<SimRequest> = usual().into_iter().chain(greedy).collect();
    requests.sort_by_key(|request| request.at);
    requests.iter_mut().for_each(|request| request.share = shares(request.share));
    line().run(&Workload { requests, stop_every: 0 }).unwrap()
}

/// Ten times what the line can serve beside the usual key: some seven requests like its own a second.
fn ten_times() -> Vec<SimRequest> {
    (0..SECONDS * 7).map(|i| request(i * 1_000_000 / 7, 200, 64, GREEDY)).collect()
}

/// `n` requests at once, again and again.
fn bursts(n: u64, every_s: u64, prompt: u32, max_tokens: u32) -> Vec<SimRequest> {
    let burst = |at: u64| (0..n).map(move |_| request(at, prompt, max_tokens, GREEDY));
    (0..SECONDS / every_s).flat_map(|i| burst(i * every_s * 1_000_000)).collect()
}

fn one_keys_overload_does_not_make_another_wait() {
    let alone = run(Vec::new(), |share| share);
    let (p95_alone, mean_alone, n) = first_tokens(&alone);
    println!("| beside {n} usual requests | p95 of their first tokens, ms | mean | times alone |");
    println!("|---|---|---|---|");
    println!("| nothing | {p95_alone:.0} | {mean_alone:.0} | 1.00 |");
    for (name, greedy) in [
        ("ten times the load, evenly", ten_times()),
        ("200 requests at once, every 30 s", bursts(200, 30, 200, 64)),
        ("4 requests with n = 64 at once, every 30 s", bursts(256, 30, 100, 64)),
        ("200 prompts of 2000 tokens at once, every 60 s", bursts(200, 60, 2000, 8)),
        ("16 endless answers", bursts(16, SECONDS, 50, 3000)),
    ] {
        let (p95, mean, _) = first_tokens(&run(greedy, |share| share));
        println!("| {name} | {p95:.0} | {mean:.0} | {:.2} |", p95 / p95_alone);
        assert!(p95 <= ALLOWED * p95_alone, "{name}: {p95} ms after {p95_alone} ms");
    }
    let nobodys = Share::default();
    let one_queue = run(ten_times(), |_| nobodys);
    let mut waits: Vec<f64> = usual_waits(&one_queue);
    waits.sort_by(f64::total_cmp);
    println!(
        "| ten times the load, in one queue for all | {:.0} | | |",
        waits[waits.len() * 95 / 100]
    );
    assert!(waits[waits.len() * 95 / 100] > 10.0 * p95_alone, "else this test shows nothing");
}

/// A row takes 40 us on a stage here: rows in flight before a newcomer's prompt cost more than the prompt itself,
/// unless they are few.
fn nor_on_a_line_that_is_fast() {
    let stage = StageModel { fixed_us: 500.0, per_row_us: 40.0, jitter: 0.05 };
    let fast = Sim { stages: vec![stage; 2], ..line() };
    let usual = (1..100).map(|i| request(i * 370_000, 240, 64, USUAL));
    let beside = |greedy: Vec<SimRequest>| {
        let mut requests: Vec<SimRequest> = usual.clone().chain(greedy).collect();
        requests.sort_by_key(|request| request.at);
        first_tokens(&fast.run(&Workload { requests, stop_every: 0 }).unwrap()).0
    };
    let alone = beside(Vec::new());
    for (name, prompt, max_tokens) in [("like these", 240, 64), ("of 2000 tokens for 8", 2000, 8)] {
        let burst = |at: u64| (0..100).map(move |_| request(at, prompt, max_tokens, GREEDY));
        let p95 = beside((0..18).flat_map(|i| burst(i * 2_000_000)).collect());
        println!("100 requests {name}, every 2 s: {p95:.0} ms after {alone:.0} alone");
        assert!(p95 <= ALLOWED * alone, "{name}: {p95} ms after {alone} ms");
    }
}

/// The waits of the usual key's requests where keys are not told apart. Refused ones are left out.
fn usual_waits(outcome: &Outcome) -> Vec<f64> {
    let times: Vec<u64> = usual().iter().map(|request| request.at).collect();
    let own = outcome.clients.iter().filter(|client| times.contains(&client.request.at));
    own.filter_map(|c| Some((c.received.first()? - c.request.at) as f64 * 1e-3)).collect()
}

fn shares_go_by_priority_when_all_want_more_than_there_is() {
    let weights = [16, 4, 1];
    let share = |i: usize| Share { owner: i as u64 + 1, weight: weights[i], leaves_room: true };
    let mut requests = Vec::new();
    for n in 0..80 {
        for i in 0..3 {
            requests.push(request(n, 128, 64, share(i)));
        }
    }
    let outcome = line().run(&Workload { requests, stop_every: 0 }).unwrap();
    let half = outcome.end / 3;
    let served = |i: usize| {
        let own = outcome.clients.iter().filter(|c| c.request.share == share(i));
        own.flat_map(|c| &c.received).filter(|at| **at < half).count() as f64
    };
    let [high, normal, low] = [0, 1, 2].map(served);
    println!("tokens in the first third: high {high}, normal {normal}, low {low}");
    // The first requests find free places, whosever they are.
    assert!(high > 2.0 * normal && normal > low && low > 0.0);
    assert_eq!(outcome.endings.get("finished"), Some(&240), "nobody starves");
}

fn an_only_key_may_have_the_whole_line() {
    let only = Share { leaves_room: false, ..GREEDY };
    let workload = |share| {
        let requests = (0..64).map(|_| request(0, 32, 256, share)).collect();
        Workload { requests, stop_every: 0 }
    };
    let (whole, room) =
        (line().run(&workload(only)).unwrap(), line().run(&workload(GREEDY)).unwrap());
    println!("64 requests: {} us with all places, {} us leaving room", whole.end, room.end);
    assert_eq!(whole.end, line().run(&workload(Share::default())).unwrap().end);
    assert!(whole.end < room.end && (room.end as f64) < 1.5 * whole.end as f64);
}

fn deadlines_end_who_waits_and_who_runs() {
    let mut sim = line();
    sim.spec.n_slots = 1;
    let late = |within| SimRequest { within: Some(within), ..request(0, 16, 1000, USUAL) };
    let requests = vec![late(2_000_000), late(1_000_000), request(0, 16, 8, USUAL)];
    let outcome = sim.run(&Workload { requests, stop_every: 0 }).unwrap();
    assert_eq!(outcome.endings, [("failed", 2), ("finished", 1)].into());
    // The simulator's clock ticks once a second.
    let ended: Vec<u64> = outcome.clients.iter().map(|c| c.ended.unwrap().0).collect();
    assert!((2_000_000..3_100_000).contains(&ended[0]), "{ended:?}");
    assert!((1_000_000..2_100_000).contains(&ended[1]), "{ended:?}");
    assert!(outcome.clients[0].received.len() > 10 && outcome.clients[1].received.is_empty());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        one_keys_overload_does_not_make_another_wait,
        nor_on_a_line_that_is_fast,
        shares_go_by_priority_when_all_want_more_than_there_is,
        an_only_key_may_have_the_whole_line,
        deadlines_end_who_waits_and_who_runs;
];
