//! "A line that can be up is up": the share of time in which a completion of one token succeeds, beside
//! workers that crash, hang, drain or are lost. This prints the table, with each case for 40 s and all of
//! them at once:
//!
//! ```text
//! cargo test --release --test cluster -- up_share::
//! ```
//!
//! With `BRIGADE_UP_SHARE_SECONDS=60` each case takes so long, one after the other. Only figures of such
//! runs, at night, count.

use std::time::Duration;

use brigade_tests::up_share::{
    HEAD, Seen, crash_looping_fourth, four_hung, one_of_three_drains, one_of_three_lost,
};

/// Seconds for each case, one after the other.
const SECONDS: &str = "BRIGADE_UP_SHARE_SECONDS";

/// The window where nothing is said: longer than what named workers are waited for.
const SHORT: Duration = Duration::from_secs(40);

/// A case, and the share that it must have at least: far below what a quiet machine has.
type Case = (&'static str, fn(Duration) -> Seen, f64);

const CASES: [Case; 4] = [
    ("a fourth crash-loops, joining on new ports", crash_looping_fourth, 0.4),
    ("one of three is lost", one_of_three_lost, 0.3),
    ("four named addresses hang", four_hung, 0.1),
    ("one of three drains, one is restarted", one_of_three_drains, 0.3),
];

fn lines_are_up_beside_workers_that_misbehave() {
    let long = std::env::var(SECONDS).ok().map(|text| Duration::from_secs(text.parse().unwrap()));
    let all: Vec<Seen> = match long {
        Some(window) => CASES.iter().map(|(_, case, _)| case(window)).collect(),
        None => std::thread::scope(|scope| {
            let running: Vec<_> =
                CASES.iter().map(|(_, case, _)| scope.spawn(|| case(SHORT))).collect();
            running.into_iter().map(|case| case.join().unwrap()).collect()
        }),
    };
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
    alone: lines_are_up_beside_workers_that_misbehave;
];
