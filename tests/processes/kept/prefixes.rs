//! Prefixes below the stages' memory. A prompt is not computed twice when its state was evicted, when all processes
//! were killed, or when the layers are cut in another way. The bytes are those of a prompt that was computed.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use brigade_gguf::Gguf;
use brigade_tests::process::Running;
use brigade_tests::up_share::free_address;
use serde_json::Value;

use crate::kept::records::{Place, ask, metric, prompt, settle, settle_kept, until};

const TIERS: &[&str] = &["--prefix-disk", "64M"];

fn prompts_outlive_processes_and_cuts(arch: &str, is_whole: bool) {
    let place = Place::new(arch, arch);
    let cold = place.serve("cold", &["--keep", "0"]);
    let (first, other) = (prompt(1), prompt(2));
    let branch = [&first[..200], &other[..100]].concat();
    let expected: Vec<Value> = [&first, &branch].map(|prompt| ask(&cold, prompt).0).into();
    drop(cold);
    let two = ["--workers", "2", "--cuts", "1", "--keep", "4"];
    let server = place.serve("data", &[&two, TIERS].concat());
    assert_eq!(ask(&server, &first), (expected[0].clone(), 0));
    settle(&server);
    // Drop kills it with SIGKILL; its workers end with it.
    drop(server);
    let modes =
        place.files().iter().all(|p| p.metadata().unwrap().permissions().mode() & 0o77 == 0);
    assert!(modes && !place.files().is_empty(), "others cannot read them");
    let three = ["--workers", "3", "--cuts", "1,2", "--keep", "4"];
    let server = place.serve("data", &[&three, TIERS].concat());
    let begun = Instant::now();
    let (said, cached) = ask(&server, &first);
    println!(
        "{arch}: {cached} of {} after a restart on another cut, {:?}",
        first.len(),
        begun.elapsed()
    );
    assert_eq!(said, expected[0]);
    // Where any position will do, whole pages; else the state before the last row.
    assert_eq!(cached, if is_whole { 299 } else { 256 });
    assert_eq!(metric(&server, "brigade_prefixes_loaded_total{outcome=\"done\"}"), 1);
    let (said, cached) = ask(&server, &branch);
    assert_eq!(said, expected[1]);
    assert!(cached > 0 || is_whole, "it branches off where states are few: {cached}");
    drop(server);
    // With another salt, or another type of cache, nothing is found.
    for (data, more) in [("other", ["--kv-type", "f16"]), ("data", ["--kv-type", "q8_0"])] {
        let server = place.serve(data, &[&two, &more[..], TIERS].concat());
        let (said, cached) = ask(&server, &first);
        assert_eq!(cached, 0, "{data} {more:?}");
        assert_eq!(said == expected[0], data == "other");
    }
}

fn prompts_of_llama_outlive_processes_and_cuts() {
    prompts_outlive_processes_and_cuts("llama", false);
}

fn prompts_of_granitehybrid_outlive_processes_and_cuts() {
    prompts_outlive_processes_and_cuts("granitehybrid", true);
}

fn a_worker_gives_records_of_more_layers_than_it_has_now() {
    let mut place = Place::new("layers", "llama");
    // Whole, a prompt is nearly as long as a sequence can be.
    place.ctx = 320;
    let two = ["--workers", "2", "--keep", "4"];
    let n_layers = brigade_models::describe(&Gguf::open(&place.model).unwrap()).unwrap().n_layer();
    let server = place.serve("data", &[&two[..], &["--cuts", "1"], TIERS].concat());
    let (said, _) = ask(&server, &prompt(1));
    settle_kept(&server, 1);
    drop(server);
    let cuts = (n_layers - 1).to_string();
    let server = place.serve("data", &[&two[..], &["--cuts", &cuts], TIERS].concat());
    assert_eq!(ask(&server, &prompt(1)), (said, 256), "{n_layers} layers");
}

fn what_had_to_go_comes_back_from_ram_and_without_tiers_it_does_not() {
    let place = Place::new("ram", "llama");
    // Places for two states: the slot is one of them between requests.
    let args = ["--workers", "2", "--cuts", "1", "--max-seqs", "1", "--keep", "1"];
    for tiers in [&["--prefix-ram", "64M"][..], &[]] {
        let server = place.serve("data", &[&args, tiers].concat());
        let (said, cached) = ask(&server, &prompt(1));
        assert_eq!(cached, 0);
        let saves = |n: u64| if tiers.is_empty() { 0 } else { n };
        settle_kept(&server, saves(1));
        for other in [2, 3] {
            ask(&server, &prompt(other));
            settle_kept(&server, saves(other.into()));
        }
        let again = ask(&server, &prompt(1));
        assert_eq!(again, (said, if tiers.is_empty() { 0 } else { 256 }));
        assert!(place.files().is_empty(), "nothing is on the disk");
    }
}

/// Bytes a second that are written to records while a save is to last: a file takes longer than an answer.
const SLOW: &str = "96K";

fn requests_are_answered_while_a_state_is_written() {
    let place = Place::new("yields", "llama");
    let cold = place.serve("cold", &["--keep", "0"]);
    let expected = [1, 2].map(|seed| ask(&cold, &prompt(seed)).0);
    drop(cold);
    let control = free_address();
    let cache = place.dir.join("cache/brigade");
    let _worker = Running::start(
        &[
            &["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--join", &control][..],
            &["--record-rate", SLOW, "--cache-dir", cache.to_str().unwrap()],
            TIERS,
        ]
        .concat(),
        brigade_worker::run::READY_PREFIX,
    );
    let server = place.serve("data", &["--control", &control, "--keep", "4"]);
    let saved = || metric(&server, "brigade_prefix_states_saved_total");
    assert_eq!(ask(&server, &prompt(1)).0, expected[0]);
    until("a file to be written", || !bundles(&place).is_empty());
    let begun = bundles(&place).len();
    // The save goes on meanwhile: requests that began and ended before its end did not wait for it.
    let mut answered = 0;
    until("the state to be written", || {
        assert_eq!(ask(&server, &prompt(2)).0, expected[1]);
        let is_saved = saved() > 0;
        answered += u32::from(!is_saved);
        is_saved
    });
    let written = bundles(&place).len();
    println!("{answered} requests were answered while {begun} files became {written}");
    assert!(answered > 0 && written > begun, "{answered} answers, {begun} files, then {written}");
    // And what was written is whole.
    drop(server);
    let server = place.serve("data", &["--control", &control, "--keep", "4"]);
    assert_eq!(ask(&server, &prompt(1)), (expected[0].clone(), 256));
}

/// The files of the records.
fn bundles(place: &Place) -> Vec<PathBuf> {
    let is_bundle = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 16);
    place.files().into_iter().filter(is_bundle).collect()
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        prompts_of_llama_outlive_processes_and_cuts,
        prompts_of_granitehybrid_outlive_processes_and_cuts,
        a_worker_gives_records_of_more_layers_than_it_has_now,
        what_had_to_go_comes_back_from_ram_and_without_tiers_it_does_not,
        requests_are_answered_while_a_state_is_written;
];
