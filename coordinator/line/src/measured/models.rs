//! Metrics of models that are loaded when a request needs them, and of models that requests have fetched.
//!
//! The label `model` is the model's name. Only so many names are told apart, since requests may bring new ones.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{counter, describe_counter};

const LOADS: &str = "brigade_model_loads_total";
const LOAD_TIME: &str = "brigade_model_load_microseconds_total";
const UNLOADS: &str = "brigade_model_unloads_total";
const FETCHES: &str = "brigade_model_fetches_total";
const FETCHED_BYTES: &str = "brigade_model_fetched_bytes_total";

/// Names of models that are told apart in one process's life.
const MAX_NAMES: usize = 256;

/// The name of all others.
const OTHERS: &str = "other";

static NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A model's label.
fn label(name: &str) -> [(&'static str, String); 1] {
    // A panic elsewhere leaves whole names behind.
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_known = names.contains(name) || names.len() < MAX_NAMES && names.insert(name.to_owned());
    [("model", if is_known { name } else { OTHERS }.to_owned())]
}

/// How a load or a fetch ended, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The model can be used.
    Done,
    /// It cannot.
    Failed,
    /// Nobody wanted it any more, or there was no room.
    Stopped,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// Labels of a model's loads that ended so.
fn of_outcome(name: &str, outcome: Outcome) -> [(&'static str, String); 2] {
    let [model] = label(name);
    [model, ("outcome", outcome.word().to_owned())]
}

pub(super) fn describe() {
    describe_counter!(LOADS, "Loads of models on demand, by outcome");
    describe_counter!(LOAD_TIME, "Time that loads of models on demand took until they were up");
    describe_counter!(UNLOADS, "Models on demand that were unloaded");
    describe_counter!(FETCHES, "Fetches of models that requests asked for, by outcome");
    describe_counter!(FETCHED_BYTES, "Bytes that came for models that requests asked for");
}

/// Every counter of a model on demand is there at 0 from the start.
pub fn on_demand(name: &str) {
    for outcome in [Outcome::Done, Outcome::Failed] {
        counter!(LOADS, &of_outcome(name, outcome)).increment(0);
    }
    counter!(LOAD_TIME, &label(name)).increment(0);
    counter!(UNLOADS, &label(name)).increment(0);
}

/// A model on demand is up, after this time.
pub fn loaded(name: &str, took: Duration) {
    counter!(LOAD_TIME, &label(name)).increment(took.as_micros() as u64);
    counter!(LOADS, &of_outcome(name, Outcome::Done)).increment(1);
}

/// The load of a model on demand has failed.
pub fn load_failed(name: &str) {
    counter!(LOADS, &of_outcome(name, Outcome::Failed)).increment(1);
}

/// The line of a model on demand has ended.
pub fn unloaded(name: &str) {
    counter!(UNLOADS, &label(name)).increment(1);
}

/// A fetch has ended.
pub fn fetched(outcome: Outcome) {
    counter!(FETCHES, "outcome" => outcome.word()).increment(1);
}

/// Bytes of a model have come.
pub fn fetched_bytes(bytes: u64) {
    counter!(FETCHED_BYTES).increment(bytes);
}

/// Counters of fetches are there at 0 where requests may ask for some.
pub fn may_fetch() {
    for outcome in [Outcome::Done, Outcome::Failed, Outcome::Stopped] {
        counter!(FETCHES, "outcome" => outcome.word()).increment(0);
    }
    counter!(FETCHED_BYTES).increment(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_names() {
        let of = |name: &str| label(name)[0].1.clone();
        let all: BTreeSet<String> = (0..2 * MAX_NAMES).map(|i| of(&format!("m{i}"))).collect();
        assert!(all.len() <= MAX_NAMES + 1 && all.contains(OTHERS), "{}", all.len());
        assert_eq!(of("m0"), "m0", "known names stay");
    }
}
