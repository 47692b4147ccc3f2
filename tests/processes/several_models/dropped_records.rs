//! An order to drop kept prompts, on a server of several models whose workers keep records.

use std::path::Path;

use serde_json::json;

use crate::several_models::fleet::{Scratch, ask};
use crate::several_models::fleet_pool::Fleet;

/// Tokens of a prompt: four pages.
const PROMPT: u32 = 256;

/// The order, at the line of one model.
const DROP: [&str; 6] = ["cluster", "cache", "--drop", "all", "--model", "first"];

/// The number of record files of a worker.
fn records(folder: &Path) -> usize {
    let entries = |dir: &Path| {
        let all = std::fs::read_dir(dir).into_iter().flatten();
        all.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let realms = entries(&folder.join("records"));
    let files = realms.iter().flat_map(|realm| entries(realm));
    files.filter(|file| !file.ends_with("lock") && !file.ends_with("form")).count()
}

fn an_order_to_drop_reaches_workers_of_other_models_and_of_none() {
    let scratch = Scratch::new("dropped");
    let line = "load = \"demand\"\nctx = 512\nkeep = 4";
    let config = scratch.config(&[("first", None, line), ("second", None, line)]);
    let mut fleet = Fleet::start(&config);
    let folder = |worker: &str| scratch.folder.join(worker);
    for worker in ["w0", "w1"] {
        let cache = folder(worker);
        fleet.join_with(1, &["--prefix-disk", "64M", "--cache-dir", cache.to_str().unwrap()]);
    }
    let read = |fleet: &Fleet, model: &str, begins: u32| {
        let prompt: Vec<u32> = (begins..begins + PROMPT).collect();
        ask(
            &fleet.server,
            "/v1/completions",
            &json!({ "model": model, "prompt": prompt, "max_tokens": 2 }),
        );
    };
    read(&fleet, "first", 1);
    read(&fleet, "second", 1);
    let [first, second] = ["first", "second"].map(|model| fleet.line(model).remove(0));
    assert_ne!(first, second, "each has a worker");
    fleet.wait("both write records", |_| [&first, &second].iter().all(|w| records(&folder(w)) > 0));
    fleet.cluster.admin(&DROP);
    fleet.wait("the other model's worker drops its records", |_| {
        [&first, &second].iter().all(|worker| records(&folder(worker)) == 0)
    });
    // Then that worker belongs to the pool alone.
    read(&fleet, "second", 2);
    fleet.wait("it writes again", |_| records(&folder(&second)) > 0);
    fleet.cluster.admin(&["cluster", "unload", "second"]);
    fleet.wait("the pool has it", |fleet| fleet.spares("first").contains(&second));
    assert!(records(&folder(&second)) > 0, "its records stay");
    fleet.cluster.admin(&DROP);
    fleet.wait("the spare worker drops its records", |_| records(&folder(&second)) == 0);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: an_order_to_drop_reaches_workers_of_other_models_and_of_none;
];
