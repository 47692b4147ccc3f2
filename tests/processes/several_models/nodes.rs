//! A worker that is a node: a process for each stage of its machine.

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use brigade_engine::device::gpus;
use brigade_tests::process::{Running, is_alive, run, signal};
use brigade_tests::secure::READY;

use serde_json::Value;

use crate::several_models::fleet::{PATIENCE, Scratch, said, stream, wait_for_models, words};
use crate::several_models::fleet_pool::{Fleet, long, while_both_answer};

/// How often something is looked at that takes a while.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A node called `lab` with two stages, in a fleet.
fn join(fleet: &Fleet) -> Running {
    join_with(fleet, "2", "2G")
}

/// A node called `lab` with so many stages and so much memory.
fn join_with(fleet: &Fleet, stages: &str, memory: &str) -> Running {
    join_on(fleet, &["--memory", memory, "--speed", "20,200", "--stages", stages])
}

/// A node called `lab` with these options.
fn join_on(fleet: &Fleet, more: &[&str]) -> Running {
    let args = fleet.cluster.worker_args("lab", Some(&fleet.token), more);
    Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), READY)
}

/// The process of a node's stage: `1/2`.
fn process_of(node: &Running, stage: &str) -> Option<u32> {
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("--stage\0{stage}"))
    };
    node.children().into_iter().find(is_it)
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

fn a_node_has_a_process_for_each_model() {
    let scratch = Scratch::new("node");
    let config = scratch.config(&[("first", None, "ctx = 1024"), ("second", None, "ctx = 1024")]);
    let fleet = Fleet::start(&config);
    let node = join(&fleet);
    wait_for_models(&fleet.server, &["first", "second"]);
    let mut names = [fleet.line("first"), fleet.line("second")].concat();
    names.sort();
    assert_eq!(names, ["lab.1", "lab.2"], "stages are workers with names of their own");
    let key = |stage: &str| {
        let data = fleet.cluster.data("lab");
        fs::read(format!("{data}/stage-{stage}/node/key.pem")).unwrap()
    };
    assert_ne!(key("1"), key("2"), "and with keys of their own");
    let undisturbed = stream(&fleet.server.url("/v1/completions"), &long("first"), |_| {});
    // One is killed: it comes again, and the other has not noticed.
    let of = |model: &str| fleet.line(model)[0].replace("lab.", "") + "/2";
    let [killed, other] = ["first", "second"].map(|model| process_of(&node, &of(model)).unwrap());
    let first = of("first");
    while_both_answer(&fleet, &undisturbed, || signal("KILL", killed));
    assert_eq!((fleet.down("first"), fleet.down("second")), (1.0, 0.0));
    let again = process_of(&node, &first).unwrap();
    assert!(again != killed && is_alive(other), "it is another process");
    assert_eq!(of("first"), first, "under the same name");
    // However the node ends, its stages do.
    signal("KILL", node.pid());
    wait("the stages end with their node", || !is_alive(again) && !is_alive(other));
}

/// Bytes that the stages of the only node have beside three processes, as all of them say it.
fn granted(fleet: &Fleet, model: &str) -> Vec<u64> {
    let status = fleet.status(model);
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let of = |node: &Value| Some(node["node_memory"]["granted"].as_u64()? - 3 * (96 << 20));
    nodes.filter_map(of).collect()
}

fn a_model_may_have_most_of_its_node() {
    let scratch = Scratch::new("node-ledger");
    // Work memory for so many rows makes it as large as a model of 250 MiB.
    let large = "load = \"demand\"\nctx = 512\nmax-seqs = 4\nubatch = 8192";
    let small = "load = \"demand\"\nctx = 512\nmax-seqs = 4";
    let models = [("large", None, large), ("other", None, large), ("small", None, small)];
    let fleet = Fleet::start(&scratch.config(&models));
    // A third of it is too little for a large one, and the whole for two.
    let node = join_with(&fleet, "3", "780M");
    let answer = said(&fleet.server, "large", 1);
    assert_eq!(fleet.line("large").len(), 1, "one stage has it");
    let is = |model: &'static str, heard: usize, has: RangeInclusive<u64>| {
        move |fleet: &Fleet| {
            let granted = granted(fleet, model);
            granted.len() == heard && granted.iter().all(|bytes| has.contains(&(bytes >> 20)))
        }
    };
    // Its process counts as well: it is more than a third.
    fleet.wait("all three have joined, and one has the model", is("large", 3, 180..=215));
    // What it leaves is enough for a small one.
    assert_eq!(said(&fleet.server, "small", 1)[1], answer[1]);
    let loaded = || -> Vec<String> {
        let words = words(&fleet.server).into_iter();
        words.filter(|(_, word)| word == "loaded").map(|(name, _)| name).collect()
    };
    assert_eq!(loaded(), ["large", "small"]);
    // Another large one takes the place of the first.
    assert_eq!(said(&fleet.server, "other", 1)[1], answer[1]);
    assert_eq!(loaded(), ["other", "small"]);
    // Its stage and the small one's; not what the first one had as well. The line does not hear of the small one's.
    let both = 200..=250;
    fleet.wait("what the first one had has come back", is("other", 2, both.clone()));
    // The one that has it is killed: what it had comes back, and the model is loaded again.
    let stage = fleet.line("other")[0].replace("lab.", "") + "/3";
    let killed = process_of(&node, &stage).unwrap();
    signal("KILL", killed);
    fleet.wait("the line is up again", |fleet| fleet.down("other") >= 1.0);
    assert_eq!(said(&fleet.server, "other", 1)[1], answer[1]);
    fleet.wait("it has as much as before", is("other", 2, both));
    assert_eq!(loaded(), ["other", "small"]);
}

fn stages_on_one_gpu_say_the_same_at_the_same_time() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let scratch = Scratch::new("node-gpu");
    let config = scratch.config(&[("first", None, "ctx = 512"), ("second", None, "ctx = 512")]);
    let fleet = Fleet::start(&config);
    // Without speeds: the first stage measures the device for both.
    let _node = join_on(&fleet, &["--device", "vulkan:0", "--memory", "1500M", "--stages", "2"]);
    wait_for_models(&fleet.server, &["first", "second"]);
    let mut lines = [fleet.line("first"), fleet.line("second")].concat();
    lines.sort();
    assert_eq!(lines, ["lab.1", "lab.2"]);
    let alone = said(&fleet.server, "first", 1);
    let [first, second] = std::thread::scope(|scope| {
        let server = &fleet.server;
        let second = scope.spawn(|| said(server, "second", 1));
        let first = scope.spawn(|| said(server, "first", 1));
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!((&first[1], &second[1]), (&alone[1], &alone[1]));
}

/// Connections of the process to others that are not closed.
fn connections(pid: u32) -> usize {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let names = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let sockets: Vec<String> = names
        .filter_map(|name| Some(name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.into()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let is_open = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 9 && fields[3] == "01" && sockets.iter().any(|inode| inode == fields[9])
    };
    table.lines().filter(is_open).count()
}

fn a_node_that_is_revoked_loses_all_of_its_stages() {
    let scratch = Scratch::new("node-revoked");
    let config = scratch.config(&[("first", None, "ctx = 1024"), ("second", None, "ctx = 1024")]);
    let fleet = Fleet::start(&config);
    let node = join(&fleet);
    let attic = fleet.cluster.worker_args("attic", Some(&fleet.token), &["--speed", "20,200"]);
    let attic = Running::start(&attic.iter().map(String::as_str).collect::<Vec<_>>(), READY);
    wait_for_models(&fleet.server, &["first", "second"]);
    let stages = ["1/2", "2/2"].map(|stage| process_of(&node, stage).unwrap());
    wait("both stages are connected", || stages.iter().all(|pid| connections(*pid) > 0));
    let revoked = fleet.cluster.admin(&["revoke", "lab"]);
    assert!(revoked.contains("revoked lab.1") && revoked.contains("revoked lab.2"), "{revoked}");
    assert!(!revoked.contains("attic"), "{revoked}");
    let began = Instant::now();
    wait("their connections end", || stages.iter().all(|pid| connections(*pid) == 0));
    println!(
        "revoked: all connections of its stages ended after {} ms",
        began.elapsed().as_millis()
    );
    let standing = fleet.cluster.admin(&["nodes"]);
    assert_eq!(standing.matches("revoked").count(), 2, "{standing}");
    assert!(connections(attic.pid()) > 0, "the other machine has lost nothing");
}

fn a_node_that_is_told_to_leave_ends_with_its_stages() {
    let args = ["worker", "--listen", "127.0.0.1:0", "--stages", "3", "--memory", "3G"];
    let node = Running::start(&[&args[..], &["--speed", "20,200"]].concat(), READY);
    wait("three stages", || node.children().len() == 3);
    let stages = node.children();
    // A stage that is told to leave by another leaves, and comes again.
    signal("TERM", stages[0]);
    wait("it comes again", || node.children().len() == 3 && node.children() != stages);
    let stages = node.children();
    assert_eq!(node.stop(PATIENCE), Some(0));
    assert!(!stages.into_iter().any(is_alive));
}

fn what_a_node_cannot_share_is_refused_at_once() {
    let refused = |more: &[&str]| {
        let output = run(&[&["worker", "--stages", "2"], more].concat());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&["--listen", "unix:/tmp/none"]);
    assert!(said.contains("is one socket"), "{said}");
    let said = refused(&["--listen", "127.0.0.1:65535"]);
    assert!(said.contains("name a lower one"), "{said}");
    let said = refused(&["--listen", "127.0.0.1:0", "--kernels", "none"]);
    assert!(said.contains("ended before it was ready"), "{said}");
    let said = refused(&["--join", "127.0.0.1:9", "--token-file", "-"]);
    assert!(said.contains("write the token to a file"), "{said}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_model_may_have_most_of_its_node, a_node_that_is_revoked_loses_all_of_its_stages, a_node_has_a_process_for_each_model, a_node_that_is_told_to_leave_ends_with_its_stages,
        what_a_node_cannot_share_is_refused_at_once;
    computes: stages_on_one_gpu_say_the_same_at_the_same_time;
];
