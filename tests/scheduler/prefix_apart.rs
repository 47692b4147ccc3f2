//! Owners are separated: an owner's kept states are of no use to another one, and times reveal nothing about them.
//!
//! The attack is that of Gu et al., "Auditing Prompt Caching in Language Model APIs" (2025): one client sends a
//! prompt and another one sends it again. The time to the first token is compared with that of a new prompt. On a
//! simulated line times are exact. So the two must not differ at all.

use brigade_sched::sim::{Outcome, Sim, SimRequest, StageModel, Workload};
use brigade_sched::{Micros, Namespace, Share};
use brigade_spec::Prefixes;

/// Tokens of the prompt that an attacker guesses.
const PROMPT: u32 = 2_000;

/// When the attacker asks: while the victim's prompt is read, and long after.
const PROBES: [Micros; 2] = [300_000, 60_000_000];

fn sim(prefixes: Prefixes) -> Sim {
    let stage = StageModel { fixed_us: 8_000.0, per_row_us: 1_000.0, jitter: 0.1 };
    let mut sim = Sim::equal(2, stage);
    (sim.spec.prefixes, sim.spec.n_kept) = (prefixes, 16);
    sim
}

fn of(owner: u64, namespace: Option<Namespace>) -> SimRequest {
    let share = Share { owner, weight: 1, leaves_room: true };
    let max_tokens = Some(2);
    SimRequest { share, namespace, prompt: PROMPT, max_tokens, ..SimRequest::default() }
}

/// The victim sends a prompt, and then another owner sends the same one, or a different one.
fn attack(sim: &Sim, victim: SimRequest, guess: SimRequest, at: Micros, is_right: bool) -> Outcome {
    let probe = if is_right {
        SimRequest { at, after: Some((0, PROMPT)), prompt: 1, ..guess }
    } else {
        SimRequest { at, prompt: PROMPT + 1, ..guess }
    };
    let workload = Workload { requests: vec![victim, probe], stop_every: 0 };
    sim.run(&workload).unwrap_or_else(|what| panic!("{what}"))
}

fn no_time_tells_what_another_owner_has_asked() {
    let salted = |owner, salt| of(owner, Some(Namespace::of_owner(owner).salted(salt)));
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        let sim = sim(prefixes);
        for (victim, guess) in [
            (of(1, None), of(2, None)),
            (salted(1, "a"), of(1, None)),
            (of(1, None), salted(1, "a")),
            (salted(1, "a"), salted(1, "b")),
            (salted(1, "a"), salted(2, "a")),
        ] {
            for at in PROBES {
                let [right, wrong] = [true, false]
                    .map(|is_right| attack(&sim, victim.clone(), guess.clone(), at, is_right));
                let times = |out: &Outcome| {
                    let times = out.clients[1].received.iter().map(|came| came - at);
                    times.collect::<Vec<_>>()
                };
                assert_eq!(times(&right), times(&wrong), "{prefixes:?} at {at}");
                assert_eq!((right.clients[1].reused, right.n_rows), (0, wrong.n_rows));
                assert_eq!((right.prefixes.waits, right.prefixes.reused_tokens), (0, 0));
            }
        }
    }
}

fn owners_of_a_group_begin_with_each_others_prompts() {
    let names = ["ann".to_owned(), "bob".to_owned()];
    let group = Namespace::of_group(&names);
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        for (namespaces, reused) in [
            ([Some(group); 2], PROMPT),
            ([Some(group.salted("a")); 2], PROMPT),
            ([Some(group.salted("a")), Some(group)], 0),
            ([Some(group), None], 0),
        ] {
            let [victim, other] = [of(1, namespaces[0]), of(2, namespaces[1])];
            for at in PROBES {
                let out = attack(&sim(prefixes), victim.clone(), other.clone(), at, true);
                // One that is being read is waited for; a state is before the last row of its prompt.
                let last = u32::from(prefixes == Prefixes::Whole);
                let expected = reused.saturating_sub(last);
                assert_eq!(out.clients[1].reused, expected, "{prefixes:?} at {at}");
            }
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        no_time_tells_what_another_owner_has_asked,
        owners_of_a_group_begin_with_each_others_prompts;
];
