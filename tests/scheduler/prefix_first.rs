//! Among an owner's waiting requests, those with cached prompts go first. No request waits long because of it, and no
//! other owner is affected.

use brigade_sched::sim::{Outcome, Sim, SimRequest, StageModel, Workload};
use brigade_sched::{Micros, Share};
use brigade_spec::Prefixes;

/// Tokens that the prompts of a family begin with.
const SHARED: u32 = 2_000;

const PAGE: u32 = 64;

/// Requests that wait, of two families by turns.
const WAITING: usize = 8;

/// Further apart than any that overtake each other.
const APART: Micros = 2_100_000;

/// A line with one place.
fn sim(prefixes: Prefixes, n_blocks: u32, n_kept: u32) -> Sim {
    let stage = StageModel { fixed_us: 5_000.0, per_row_us: 500.0, jitter: 0.0 };
    let mut sim = Sim::equal(1, stage);
    (sim.spec.prefixes, sim.spec.n_kept, sim.spec.n_slots) = (prefixes, n_kept, 1);
    sim.spec.n_blocks = n_blocks;
    sim
}

/// Has the place for so many tokens, 5 ms each.
fn blocker(max_tokens: u32) -> SimRequest {
    SimRequest { prompt: 8, max_tokens: Some(max_tokens), ..SimRequest::default() }
}

/// One of a family that begins as client `of` does, or its first.
fn member(at: Micros, of: Option<usize>, own: u32) -> SimRequest {
    let after = of.map(|of| (of, SHARED));
    let prompt = if of.is_some() { own } else { SHARED + own };
    SimRequest { at, after, prompt, max_tokens: Some(1), ..SimRequest::default() }
}

fn run(sim: &Sim, requests: Vec<SimRequest>) -> Outcome {
    let workload = Workload { requests, stop_every: 0 };
    sim.run(&workload).unwrap_or_else(|what| panic!("{what}"))
}

/// Clients in the order of their first tokens.
fn order(outcome: &Outcome) -> Vec<usize> {
    let mut all: Vec<usize> = (0..outcome.clients.len()).collect();
    all.sort_by_key(|i| outcome.clients[*i].received[0]);
    all
}

/// Two families by turns, so long after each other, while the only place is taken.
fn two_families(prefixes: Prefixes, apart: Micros) -> Outcome {
    // One family's pages, and a few. A state of a recurrent model needs its place besides: three, for the marks of one.
    let pages = SHARED.div_ceil(PAGE) + 8;
    let sim = sim(prefixes, pages, 3);
    // Long enough for those that are far apart: as long as there are pages.
    let mut requests = vec![blocker(PAGE * pages - 8)];
    for i in 0..WAITING {
        let of = (i >= 2).then_some(1 + i % 2);
        requests.push(member(100_000 + i as u64 * apart, of, 10 + i as u32));
    }
    run(&sim, requests)
}

fn a_family_is_read_once_though_memory_is_for_one() {
    println!("| states | us apart | rows of prompts | order |");
    println!("|---|---|---|---|");
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        let rows = [0, APART].map(|apart| {
            let outcome = two_families(prefixes, apart);
            let rows = outcome.prefixes.prompt_tokens - outcome.prefixes.reused_tokens;
            println!("| {prefixes:?} | {apart} | {rows} | {:?} |", order(&outcome));
            match apart {
                0 => assert_eq!(order(&outcome), [0, 1, 3, 5, 7, 2, 4, 6, 8], "{prefixes:?}"),
                _ => assert_eq!(order(&outcome), [0, 1, 2, 3, 4, 5, 6, 7, 8], "first come"),
            }
            rows
        });
        let once = u64::from(2 * SHARED);
        assert!(rows[0] <= once + once / 10, "{prefixes:?}: each family is read once, {rows:?}");
        // Where pages can go one by one, the beginning stays of what had to make room.
        assert!(
            rows[1] > 3 * rows[0],
            "{prefixes:?}: first come, most is read each time: {rows:?}"
        );
    }
}

/// How many of a family overtake a request of another that came before them, so long after each other.
fn overtaking(n: usize, apart: Micros) -> usize {
    let sim = sim(Prefixes::All, 4096, 8);
    let begun = 30_000_000;
    // The family is there, and then the place is taken until all have come.
    let mut requests = vec![member(0, None, 1)];
    requests.push(SimRequest { at: 10_000_000, ..blocker(4_000) });
    requests.push(member(begun - apart, None, 1));
    let family = (0..n as u64).map(|i| member(begun + i * apart, Some(0), 10 + i as u32));
    requests.extend(family);
    let outcome = run(&sim, requests);
    let order = order(&outcome);
    assert_eq!(order[..2], [0, 1]);
    order.iter().position(|client| *client == 2).unwrap() - 2
}

fn nobody_is_overtaken_for_long() {
    let rapid = overtaking(40, 10_000);
    println!("{rapid} of 40 that came 10 ms apart went before it");
    assert_eq!(rapid, 16);
    let slow = overtaking(8, 450_000);
    println!("{slow} of 8 that came 450 ms apart went before it");
    assert_eq!(slow, 4, "those that came within two seconds");
    assert_eq!(overtaking(3, 10_000), 3);
}

/// Two owners with six requests each that wait; in each owner's queue a longer beginning comes later.
fn owners(apart: Micros) -> Vec<usize> {
    let sim = sim(Prefixes::All, 4096, 8);
    let share = |owner| Share { owner, weight: 1, leaves_room: false };
    let of = |owner, request: SimRequest| SimRequest { share: share(owner), ..request };
    let mut requests = vec![of(1, member(0, None, 1)), of(2, member(0, None, 1))];
    requests.push(of(3, SimRequest { at: 10_000_000, ..blocker(6_000) }));
    for i in 0..6 {
        for owner in [1, 2] {
            // Each of them computes as many rows, in any order.
            let after = Some((owner as usize - 1, 200 * (i + 1)));
            let at = 20_000_000 + u64::from(i) * apart;
            requests.push(of(owner, SimRequest { after, ..member(at, Some(0), 700) }));
        }
    }
    order(&run(&sim, requests))
}

fn other_owners_have_their_turns_as_before() {
    let owner = |client: &usize| if *client < 3 { *client } else { (client - 3) % 2 };
    let [longest_first, first_come] = [0, APART].map(owners);
    println!("{longest_first:?}, and with nobody overtaken {first_come:?}");
    assert_ne!(longest_first, first_come);
    let turns = |order: &[usize]| order.iter().map(owner).collect::<Vec<_>>();
    assert_eq!(turns(&longest_first), turns(&first_come));
    let changes = turns(&longest_first[3..]).windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > 3, "they take turns");
    for (owner_of, own) in [(1, [13, 11, 9, 7, 5, 3]), (0, [14, 12, 10, 8, 6, 4])] {
        let of: Vec<usize> =
            longest_first[3..].iter().copied().filter(|c| c % 2 == owner_of).collect();
        assert_eq!(of, own, "in each queue the longest comes first");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_family_is_read_once_though_memory_is_for_one;
    computes: nobody_is_overtaken_for_long;
    computes: other_owners_have_their_turns_as_before;
];
