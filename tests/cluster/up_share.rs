//! "A line that can be up is up": the share of time in which a completion of one token succeeds, beside
//! workers that crash, hang, drain or are lost. At night this prints the table, with each case for a minute:
//!
//! ```text
//! cargo test --release --test cluster -- --ignored --nocapture up_share::
//! ```
//!
//! Each time the test checks that such lines come up, and that they are changed and restored while streams run:
//! `joins`, `changes`, `losses`, and the supervisor's decisions in virtual time (`fault_sim`).

use std::time::Duration;

use brigade_tests::up_share::{
    HEAD, Seen, crash_looping_fourth, four_hung, one_of_three_drains, one_of_three_lost,
};

/// How long each case is looked at: longer than what named workers are waited for.
const WINDOW: Duration = Duration::from_secs(60);

/// A case, and the share that it must have at least: far below what a quiet machine has.
type Case = (&'static str, fn(Duration) -> Seen, f64);

const CASES: [Case; 4] = [
    ("a fourth crash-loops, joining on new ports", crash_looping_fourth, 0.4),
    ("one of three is lost", one_of_three_lost, 0.3),
    ("four named addresses hang", four_hung, 0.1),
    ("one of three drains, one is restarted", one_of_three_drains, 0.3),
];

fn lines_are_up_beside_workers_that_misbehave() {
    let all: Vec<Seen> = CASES.iter().map(|(_, case, _)| case(WINDOW)).collect();
    println!("{HEAD}");
    for ((name, ..), seen) in CASES.iter().zip(&all) {
        println!("{}", seen.row(name));
    }
    for ((name, _, at_least), seen) in CASES.iter().zip(&all) {
        assert!(seen.at_the_end, "{name}: down at the end: {seen:?}");
        assert!(seen.share() >= *at_least, "{name}: {seen:?}, at least {at_least}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone: lines_are_up_beside_workers_that_misbehave ignored("four minutes: prints the share of time that lines are up");
];
