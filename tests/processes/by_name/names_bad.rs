//! Problems with a name, a hub or a disk: each gives an error with a remedy, and no existing file is lost.

use std::process::Command;

use brigade_tests::hub::{File, Mood, sha256};
use brigade_tests::named::{Machine, NAME, PATH, model, said};
use brigade_tests::process::brigade;

/// How the hub behaves, what is asked for, and what the message must have.
type Bad = (&'static str, Mood, &'static str, &'static [&'static str]);

const BAD: [Bad; 19] = [
    (
        "no repository",
        Mood::Good,
        "hf:nobody/nothing:Q8_0",
        &["nobody/nothing does not exist", "HF_TOKEN"],
    ),
    ("no quantisation", Mood::Good, "hf:user/repo:Q2_K", &["has no Q2_K", "it has Q8_0"]),
    ("a private one", Mood::Private, NAME, &["does not exist", "or is private", "HF_TOKEN"]),
    ("a bad token", Mood::BadToken, NAME, &["does not take the token", "make a new one"]),
    (
        "a gated one",
        Mood::Gated,
        NAME,
        &["user/repo", "is gated", "open http://127.0.0.1:", "/user/repo in a browser"],
    ),
    ("a file that is gone", Mood::Gone, NAME, &["status 404", "Entry not found"]),
    ("a page for the listing", Mood::Page, NAME, &["a web page", "HF_ENDPOINT"]),
    (
        "a page for the file",
        Mood::PageForFile,
        NAME,
        &["a web page (HTML), not a GGUF file", "login"],
    ),
    (
        "a longer head",
        Mood::LongerHead,
        NAME,
        &["bytes where 897440 were expected", "brigade pull"],
    ),
    ("no end", Mood::Endless, NAME, &["more than 897440", "sends more than it says"]),
    ("busy for long", Mood::Busy(9, 0), NAME, &["wants fewer requests (status 429)", "5 tries"]),
    ("busy for hours", Mood::Busy(9, 7200), NAME, &["try again in 7200 s"]),
    (
        "connections without an answer",
        Mood::Dead(0, 0),
        NAME,
        &["cannot fetch", "continues from it"],
    ),
    (
        "an address inside",
        Mood::Inside,
        NAME,
        &["127.0.0.3", "only if the operator names it", "--private-host"],
    ),
    (
        "a name of this machine",
        Mood::InsideByName,
        NAME,
        &["localhost", "only if the operator names it"],
    ),
    (
        "a listing without an end",
        Mood::EndlessListing,
        NAME,
        &["is not a usable answer", "longer than"],
    ),
    ("a circle", Mood::Circle, NAME, &["more than 5 redirects"]),
    (
        "a name with dots",
        Mood::Good,
        "hf:user/../../etc",
        &["is not the name of a model", "is needed"],
    ),
    (
        "a quantisation with dots",
        Mood::Good,
        "hf:user/repo:../../x.gguf",
        &["names lead to no other folder"],
    ),
];

fn each_fault_is_said_and_nothing_is_lost() {
    let machine = Machine::new();
    for (what, mood, name, words) in BAD {
        machine.hub.mood(mood);
        let error = machine.error(&["pull", name]);
        println!("{what}: {}", error.trim());
        for word in words {
            assert!(error.contains(word), "{what}: {word:?} is not in {error}");
        }
        assert!(!error.contains("a-signature") && !error.contains("panicked"), "{what}: {error}");
        let whole = machine.files("data/models").into_iter().filter(|file| file.ends_with(".gguf"));
        assert_eq!(whole.collect::<Vec<_>>(), [""; 0], "{what}");
    }
    assert!(!machine.dir.join("data/models.lock").exists(), "nothing was resolved");
    machine.hub.mood(Mood::Good);
    machine.ids(NAME);
}

fn a_busy_hub_is_waited_for() {
    let machine = Machine::new();
    machine.hub.mood(Mood::Busy(2, 1));
    machine.out(&["pull", NAME]);
}

fn other_bytes_than_the_listing_says_are_not_kept() {
    let machine = Machine::new();
    // Other weights under the same header, uploaded midway: the listing still has the old hash.
    let mut bytes = model();
    *bytes.last_mut().unwrap() ^= 1;
    let lie = File { sha256: sha256(&model()), ..File::new(bytes) };
    machine.hub.put(PATH, lie);
    let error = machine.error(&["pull", NAME]);
    assert!(error.contains("has the hash") && error.contains(&sha256(&model())), "{error}");
    assert_eq!(machine.files("data/models"), [""; 0]);
}

fn a_source_that_changes_midway_is_begun_anew() {
    let machine = Machine::new();
    machine.hub.mood(Mood::Dead(300_000, 1));
    machine.error(&["pull", NAME]);
    let parts = machine.files("data/models");
    assert!(parts.iter().any(|file| file.ends_with(".gguf.part")), "{parts:?}");
    // The same bytes in another state: no byte of the old one is taken on trust.
    machine.hub.put(PATH, File { etag: "\"another\"".to_string(), ..File::new(model()) });
    machine.hub.mood(Mood::Good);
    machine.hub.sent();
    machine.out(&["pull", NAME]);
    assert_eq!(machine.hub.sent(), model().len() as u64);
}

fn a_killed_pull_goes_on() {
    let machine = Machine::new();
    machine.hub.mood(Mood::Dead(300_000, 1));
    machine.error(&["pull", NAME]);
    machine.hub.mood(Mood::Good);
    machine.hub.sent();
    machine.out(&["pull", NAME]);
    assert_eq!(machine.hub.sent(), model().len() as u64 - 300_000, "the rest alone");
}

fn a_disk_without_room_is_seen_before_and_during() {
    let machine = Machine::with(&[(PATH, File { listed: 1 << 60, ..File::new(model()) })]);
    let error = machine.error(&["pull", NAME]);
    assert!(error.contains("bytes free") && error.contains("brigade prune"), "{error}");
    assert_eq!(machine.hub.sent(), 0);
    // A limit on files is a disk that fills up.
    machine.hub.put(PATH, File::new(model()));
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "trap '' XFSZ; ulimit -f 500; exec \"$0\" \"$@\"",
        brigade().to_str().unwrap(),
    ]);
    let output = machine.wrapped(shell, &["pull", NAME]).output().unwrap();
    let error = said(&output, &["pull"]);
    assert!(error.contains("brigade prune") && error.contains("--download-dir"), "{error}");
    machine.hub.sent();
    machine.out(&["pull", NAME]);
    assert!(machine.hub.sent() < model().len() as u64, "what was written is not fetched again");
}

fn a_lock_of_another_version_or_cut_in_half_stops_by_name() {
    let machine = Machine::new();
    machine.out(&["pull", NAME]);
    let path = machine.dir.join("data/models.lock");
    let good = std::fs::read_to_string(&path).unwrap();
    machine.hub.seen();
    for (text, word) in [
        (
            good.replacen("\"version\": 1", "\"version\": 7", 1),
            "version 7, and this brigade knows version 1",
        ),
        (good[..good.len() / 2].to_string(), "damaged"),
    ] {
        std::fs::write(&path, &text).unwrap();
        for args in [
            vec!["run", "-m", NAME, "-n", "1", "a"],
            vec!["models"],
            vec!["pull", NAME],
            vec!["prune", "--yes"],
        ] {
            let error = machine.error(&args);
            assert!(
                error.contains("models.lock")
                    && error.contains(word)
                    && error.contains("move it away"),
                "{error}"
            );
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(machine.hub.sent(), model().len() as u64);
    // The remedy works: nothing is fetched again.
    std::fs::remove_file(&path).unwrap();
    machine.ids(NAME);
    assert_eq!(machine.hub.sent(), 0);
    assert_eq!(std::fs::read_to_string(&path).unwrap().matches(&sha256(&model())).count(), 1);
}

fn offline_asks_nobody() {
    let machine = Machine::new();
    let error = machine.error(&["run", "-m", NAME, "--offline", "-n", "1", "a"]);
    assert!(
        error.contains("--offline") && error.contains("brigade pull hf:user/repo:Q8_0"),
        "{error}"
    );
    let mut command = machine.command(&["pull", NAME]);
    let output = command.env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert!(said(&output, &["pull"]).contains("--offline"));
    assert!(machine.hub.seen().is_empty());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        each_fault_is_said_and_nothing_is_lost,
        a_busy_hub_is_waited_for,
        other_bytes_than_the_listing_says_are_not_kept,
        a_source_that_changes_midway_is_begun_anew,
        a_killed_pull_goes_on,
        a_disk_without_room_is_seen_before_and_during,
        a_lock_of_another_version_or_cut_in_half_stops_by_name,
        offline_asks_nobody;
];
