//! Kept states and their reuse by the scheduler, under simulation. The promises of `sched_sim` are checked here too:
//! every token that a client gets follows from its own prompt.

use brigade_sched::sim::{Client, Outcome, Sim, SimRequest, StageModel, Workload};
use brigade_spec::Prefixes;

/// Prompt tokens a turn adds, and tokens of an answer.
const SAID: u32 = 100;
const ANSWER: u32 = 50;

fn sim(prefixes: Prefixes, n_kept: u32) -> Sim {
    let stage = StageModel { fixed_us: 8_000.0, per_row_us: 1_000.0, jitter: 0.1 };
    let mut sim = Sim::equal(2, stage);
    (sim.spec.prefixes, sim.spec.n_kept) = (prefixes, n_kept);
    sim
}

fn run(sim: &Sim, workload: &Workload) -> Outcome {
    sim.run(workload).unwrap_or_else(|what| panic!("{what}\n{sim:?}"))
}

fn reused(out: &Outcome) -> Vec<u32> {
    out.clients.iter().map(|c| c.reused).collect()
}

fn a_turn_computes_what_is_new() {
    println!("| prefixes | answers | rows without | rows with |");
    println!("|---|---|---|---|");
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        // Answers that come back as they were given, and answers rewritten by a template.
        for (repeated, word) in [(ANSWER, "as they were"), (0, "rewritten")] {
            let (chats, turns) = (3, 5);
            let workload = Workload::chats(chats, turns, SAID, ANSWER, repeated);
            let without = run(&sim(prefixes, 0), &workload);
            let with = run(&sim(prefixes, 4 * chats as u32), &workload);
            println!("| {prefixes:?} | {word} | {} | {} |", without.n_rows, with.n_rows);
            for (i, client) in with.clients.iter().enumerate() {
                let before = (i / chats) as u32 * (SAID + ANSWER);
                // The last token drawn has no row of its own.
                let rewritten = ANSWER - repeated.min(ANSWER - 1);
                // So has the last token of a prompt where there are states: one row is left to an identical prompt.
                let last = u32::from(prefixes == Prefixes::Whole && repeated == 0);
                let expected = before.saturating_sub(rewritten + last);
                assert_eq!(client.reused, expected, "turn {}", i / chats);
                assert_eq!(client.tokens, without.clients[i].tokens);
            }
            assert!(reused(&without).iter().all(|&n| n == 0));
            let saved = reused(&with).iter().map(|&n| u64::from(n)).sum::<u64>();
            assert_eq!(with.n_rows + saved, without.n_rows);
        }
    }
}

fn two_continuations_of_one_beginning_both_reuse_it() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        let mut workload = Workload::at_once(1, SAID, ANSWER);
        let fork = SimRequest {
            at: 30_000_000,
            after: Some((0, u32::MAX)),
            prompt: 20,
            max_tokens: Some(ANSWER),
            ..SimRequest::default()
        };
        workload.requests.extend([fork.clone(), fork]);
        let out = run(&sim(prefixes, 4), &workload);
        // The last token drawn has no row of its own, but the first of the two reads it, and the other one may begin with that.
        let second = SAID + ANSWER - u32::from(prefixes == Prefixes::Whole);
        assert_eq!(reused(&out), [0, SAID + ANSWER - 1, second]);
        assert_ne!(out.clients[1].tokens, out.clients[2].tokens);
    }
}

fn where_memory_holds_one_sequence_the_next_turn_takes_its_pages_over() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        let workload = Workload::chats(1, 4, SAID, ANSWER, ANSWER);
        let mut sim = sim(prefixes, 2);
        sim.spec.n_slots = 1;
        sim.spec.n_blocks = (4 * (SAID + ANSWER)).div_ceil(sim.spec.block_positions);
        let out = run(&sim, &workload);
        let turns = (1..4).map(|turn| turn * (SAID + ANSWER) - 1);
        assert_eq!(reused(&out), [0].into_iter().chain(turns).collect::<Vec<_>>());
    }
}

fn the_longest_unused_conversation_is_forgotten_first() {
    let workload = Workload::chats(3, 2, SAID, ANSWER, ANSWER);
    let with_places = |n_kept| {
        let mut sim = sim(Prefixes::All, n_kept);
        sim.spec.n_slots = 1;
        run(&sim, &workload)
    };
    // Places for two of three, with the slot that is idle between requests: when the third begins, the first goes, and
    // then each in its turn.
    let out = with_places(1);
    assert_eq!((reused(&out), out.most_kept), (vec![0; 6], 2));
    let out = with_places(3);
    assert_eq!((reused(&out)[3..].to_vec(), out.most_kept), (vec![SAID + ANSWER - 1; 3], 3));
}

fn idle_slots_hold_states_until_sequences_need_them() {
    for (prefixes, chats) in [(Prefixes::All, 4), (Prefixes::Whole, 2)] {
        let mut sim = sim(prefixes, 1);
        sim.spec.n_slots = 4;
        // One after the other, so that all slots but one are idle. With recurrent layers each prompt has a state at its
        // end too.
        let mut workload = Workload::chats(chats, 2, SAID, ANSWER, ANSWER);
        let out = run(&sim, &workload);
        assert_eq!(reused(&out)[chats..], vec![SAID + ANSWER - 1; chats], "{prefixes:?}");
        assert_eq!(out.most_kept, 4 + u32::from(prefixes == Prefixes::Whole), "{prefixes:?}");
        // Then as many at once as may run: the simulator checks that no request waits for what is kept.
        let other = SimRequest {
            at: 60_000_000,
            prompt: 2 * SAID,
            after: None,
            ..workload.requests[0].clone()
        };
        workload.requests.extend(vec![other; 4]);
        let out = run(&sim, &workload);
        assert!(out.clients.iter().all(Client::finished), "{prefixes:?}");
        let gone = out.prefixes.evicted_for_places;
        assert!(gone >= 3, "{prefixes:?}: {gone}; one place is beside the slots");
    }
}

fn with_one_place_and_one_slot_the_next_turn_finds_what_the_last_one_left() {
    for (repeated, begins) in [
        (0, [0, SAID - 1, SAID + ANSWER + SAID - 1]),
        (ANSWER, [0, SAID + ANSWER - 1, 2 * (SAID + ANSWER) - 1]),
    ] {
        let workload = Workload::chats(1, 3, SAID, ANSWER, repeated);
        let mut sim = sim(Prefixes::Whole, 1);
        sim.spec.n_slots = 1;
        // Before the last token of each prompt, or behind each answer.
        assert_eq!(reused(&run(&sim, &workload)), begins);
    }
}

fn what_a_client_that_left_had_computed_is_of_use_to_the_next() {
    for prefixes in [Prefixes::All, Prefixes::Whole] {
        let mut workload = Workload::at_once(1, 4_000, ANSWER);
        // Gone in the middle of its prompt.
        workload.requests[0].cancel_at = Some(2_000_000);
        let after = Some((0, u32::MAX));
        let again = SimRequest {
            at: 3_000_000,
            after,
            prompt: 1,
            max_tokens: Some(1),
            ..SimRequest::default()
        };
        workload.requests.push(again);
        let out = run(&sim(prefixes, 1), &workload);
        assert!((1_000..4_000).contains(&reused(&out)[1]), "{:?}", reused(&out));
    }
}

fn logits_of_every_row_are_computed_and_nothing_of_them_is_kept() {
    let logits = SimRequest { prompt: 100, max_tokens: None, ..SimRequest::default() };
    let requests = vec![logits.clone(), SimRequest { at: 10_000_000, ..logits }];
    let out = run(&sim(Prefixes::All, 4), &Workload { requests, stop_every: 0 });
    assert_eq!((reused(&out), out.n_rows, out.most_kept), (vec![0, 0], 200, 0));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_turn_computes_what_is_new,
        two_continuations_of_one_beginning_both_reuse_it,
        where_memory_holds_one_sequence_the_next_turn_takes_its_pages_over,
        the_longest_unused_conversation_is_forgotten_first,
        idle_slots_hold_states_until_sequences_need_them,
        with_one_place_and_one_slot_the_next_turn_finds_what_the_last_one_left,
        what_a_client_that_left_had_computed_is_of_use_to_the_next,
        logits_of_every_row_are_computed_and_nothing_of_them_is_kept;
];
