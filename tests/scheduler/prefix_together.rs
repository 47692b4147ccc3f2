//! Agents that start together compute their common beginning once, even if the one that computes it leaves in the
//! middle.

use brigade_sched::Micros;
use brigade_sched::sim::{Sim, SimRequest, StageModel, Workload};
use brigade_spec::Prefixes;

/// Tokens that all of them begin with.
const SHARED: u32 = 4_000;

const AGENTS: u64 = 8;

/// When the first one leaves, if it does: in the middle of its prompt.
const LEAVES_AT: Micros = 2_500_000;

/// Most rows that all of them compute, over those of one read.
const MOST_OF_ONE_READ: f64 = 1.05;

/// Rows of all agents that start at this distance, with `own` tokens each behind their common beginning.
fn rows(prefixes: Prefixes, apart: Micros, own: impl Fn(u64) -> u32, leaves: bool) -> u64 {
    let stage = StageModel { fixed_us: 8_000.0, per_row_us: 1_000.0, jitter: 0.1 };
    let mut sim = Sim::equal(2, stage);
    (sim.spec.prefixes, sim.spec.n_kept) = (prefixes, 16);
    let agent = |i: u64| SimRequest {
        at: i * apart,
        after: (i > 0).then_some((0, SHARED)),
        prompt: if i > 0 { own(i) } else { SHARED + own(0) },
        max_tokens: Some(2),
        cancel_at: (leaves && i == 0).then_some(LEAVES_AT),
        ..SimRequest::default()
    };
    let workload = Workload { requests: (0..AGENTS).map(agent).collect(), stop_every: 0 };
    sim.run(&workload).unwrap_or_else(|what| panic!("{what}")).n_rows
}

fn eight_agents_read_what_they_share_once() {
    println!("| states | us apart | own tokens | the first leaves | rows | of one read |");
    println!("|---|---|---|---|---|---|");
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        for apart in [0, 200_000] {
            // Tails of their own, or one token each, as of the choices of `n`.
            for own in [|i| i as u32 + 1, |_| 1] {
                for leaves in [false, true] {
                    let rows = rows(prefixes, apart, own, leaves);
                    let of_one = rows as f64 / f64::from(SHARED);
                    println!(
                        "| {prefixes:?} | {apart} | {} | {leaves} | {rows} | {of_one:.3} |",
                        own(2)
                    );
                    assert!(of_one <= MOST_OF_ONE_READ, "{prefixes:?} {apart} {leaves}: {of_one}");
                }
            }
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: eight_agents_read_what_they_share_once;
];
