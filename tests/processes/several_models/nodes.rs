//! A worker that is a node: a process for each stage of its machine.

use std::fs;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use brigade_engine::device::gpus;
use brigade_proto::address::Address;
use brigade_tests::process::{Running, Server, is_alive, run, signal};
use brigade_tests::secure::{Cluster, READY};
use brigade_tests::up_share::first_of_free_ports;
use serde_json::{Value, json};

use crate::several_models::fleet::{PATIENCE, Scratch, said, stream, wait_for_models, words};
use crate::several_models::fleet_pool::{Fleet, long, while_both_answer};

/// How often something is looked at that takes a while.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A node called `lab` with two stages, in a fleet; it joins with a token for one.
fn join(fleet: &Fleet) -> Running {
    join_with(fleet, "2", "2G")
}

/// A node called `lab` with so many stages and so much memory.
fn join_with(fleet: &Fleet, stages: &str, memory: &str) -> Running {
    join_on(fleet, &["--memory", memory, "--speed", "20,200", "--stages", stages])
}

/// A node called `lab` with these options.
fn join_on(fleet: &Fleet, more: &[&str]) -> Running {
    let token = fleet.cluster.token(&[]);
    let args = fleet.cluster.worker_args("lab", Some(&token), more);
    Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), READY)
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
    let folder = fleet.cluster.data("lab");
    assert!(fs::exists(format!("{folder}/node/key.pem")).unwrap(), "the node has joined");
    let inside: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(inside, ["node"], "and its stages keep nothing");
    let first: Address = node.ready.trim().parse().unwrap();
    let (first, second) = (first.clone().of_stage(1), first.of_stage(2));
    let listed = fleet.cluster.admin(&["nodes"]);
    let has = |address: &Address| {
        listed.split_whitespace().any(|word| word.trim_end_matches(',') == address.to_string())
    };
    assert!(has(&first) && has(&second), "they have one port: {listed}");
    let stages = ["1/2", "2/2"].map(|stage| node.stage(stage).unwrap());
    let listening = [node.pid(), stages[0], stages[1]].map(|pid| sockets(pid, LISTENS));
    assert_eq!(listening, [1, 0, 0], "the node alone listens");
    let undisturbed = stream(&fleet.server.url("/v1/completions"), &long("first"), |_| {});
    // One is killed: it comes again, and the other has not noticed.
    let of = |model: &str| fleet.line(model)[0].replace("lab.", "") + "/2";
    let [killed, other] = ["first", "second"].map(|model| node.stage(&of(model)).unwrap());
    let first = of("first");
    while_both_answer(&fleet, &undisturbed, || signal("KILL", killed));
    assert_eq!((fleet.down("first"), fleet.down("second")), (1.0, 0.0));
    let again = node.stage(&first).unwrap();
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
    // Work memory for so many rows makes it as large as a model of 280 MiB.
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
    fleet.wait("all three have joined, and one has the model", is("large", 3, 270..=290));
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
    let both = 280..=330;
    fleet.wait("what the first one had has come back", is("other", 2, both.clone()));
    // The one that has it is killed: what it had comes back, and the model is loaded again.
    let stage = fleet.line("other")[0].replace("lab.", "") + "/3";
    let killed = node.stage(&stage).unwrap();
    signal("KILL", killed);
    fleet.wait("the line is up again", |fleet| fleet.down("other") >= 1.0);
    assert_eq!(said(&fleet.server, "other", 1)[1], answer[1]);
    fleet.wait("it has as much as before", is("other", 2, both));
    assert_eq!(loaded(), ["other", "small"]);
}
/// State of a connection that is not closed, in the system's table.
const OPEN: &str = "01";
/// State of a socket that listens.
const LISTENS: &str = "0A";

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
    sockets(pid, OPEN)
}

/// Sockets of the process in this state.
fn sockets(pid: u32, state: &str) -> usize {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let names = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    let sockets: Vec<String> = names
        .filter_map(|name| Some(name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.into()))
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let is_in = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 9 && fields[3] == state && sockets.iter().any(|inode| inode == fields[9])
    };
    table.lines().filter(is_in).count()
}

fn a_node_that_is_revoked_loses_all_of_its_stages() {
    let scratch = Scratch::new("node-revoked");
    let config = scratch.config(&[("first", None, "ctx = 1024"), ("second", None, "ctx = 1024")]);
    let fleet = Fleet::start(&config);
    let node = join(&fleet);
    let attic = fleet.cluster.worker_args("attic", Some(&fleet.token), &["--speed", "20,200"]);
    let attic = Running::start(&attic.iter().map(String::as_str).collect::<Vec<_>>(), READY);
    wait_for_models(&fleet.server, &["first", "second"]);
    let stages = ["1/2", "2/2"].map(|stage| node.stage(stage).unwrap());
    wait("both stages are connected", || stages.iter().all(|pid| connections(*pid) > 0));
    let revoked = fleet.cluster.admin(&["revoke", "lab"]);
    assert!(revoked.contains("revoked lab (key "), "{revoked}");
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

/// A line over both stages of a node, which answers, also after one of them has come again.
fn answers_over(first: &Address, second: &Address, node: &Running) {
    let at = [first.to_string(), second.to_string()];
    let args = ["--checkpoint", "buddy", "--worker", &at[0], "--worker", &at[1]];
    let server = Server::start(&[&args[..], &["--cuts", "2"]].concat());
    let body = json!({"prompt": "one two", "max_tokens": 8, "temperature": 0});
    let before = server.post("/v1/completions", &body);
    assert_eq!(before.status, 200, "{}", before.body);
    signal("KILL", node.stage("2/2").unwrap());
    let text = |body: &str| {
        let answer: Value = serde_json::from_str(body).unwrap();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    wait("the line answers the same again", || {
        let again = server.post("/v1/completions", &body);
        again.status == 200 && text(&again.body) == text(&before.body)
    });
}

fn plain_stages_of_a_node_are_one_line_through_one_port() {
    let args = ["worker", "--listen", "127.0.0.1:0", "--stages", "2", "--memory", "2G"];
    let node = Running::start(&[&args[..], &["--speed", "20,200"]].concat(), READY);
    let port: Address = node.ready.trim().parse().unwrap();
    wait("two stages", || node.stage("2/2").is_some());
    answers_over(&port.clone().of_stage(1), &port.of_stage(2), &node);
}

fn stages_have_ports_of_their_own_where_they_are_named() {
    let first = first_of_free_ports(2);
    let (listen, ports) = (format!("127.0.0.1:{first}"), format!("{first}-{}", first + 1));
    let args = ["worker", "--stages", "2", "--memory", "2G", "--speed", "20,200"];
    let each = ["--listen", &listen, "--stage-ports", &ports];
    let node = Running::start(&[&args[..], &each].concat(), READY);
    let port = |number: u16| Address::tcp("127.0.0.1", first + number - 1);
    wait("two stages", || node.stage("2/2").is_some());
    answers_over(&port(1), &port(2), &node);
    assert_eq!(sockets(node.pid(), LISTENS), 0, "the node itself listens nowhere");
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
    let said = refused(&["--listen", "127.0.0.1:7070", "--stage-ports", "7070-7070"]);
    assert!(said.contains("are 1 ports, for 2 stages"), "{said}");
    let said = refused(&["--listen", "0.0.0.0:0"]);
    assert!(said.contains("is not on this machine"), "{said}");
    let said = refused(&["--listen", "127.0.0.1:0", "--kernels", "none"]);
    assert!(said.contains("ended before it was ready"), "{said}");
    let said = refused(&["--join", "127.0.0.1:9", "--token-file", "-"]);
    assert!(said.contains("there is no token in it"), "{said}");
}

fn a_node_is_one_worker_under_a_coordinator_that_certifies_no_stages() {
    let scratch = Scratch::new("node-older");
    let config = scratch.config(&[("first", None, "ctx = 512")]);
    let cluster = Cluster::new();
    let older = ["--config", &config, "--certify-no-stages"];
    let mut server = Server { process: cluster.serve(&older) };
    let token = cluster.token(&["--uses", "1"]);
    let more = ["--memory", "2G", "--speed", "20,200", "--stages", "2"];
    let args = cluster.worker_args("lab", Some(&token), &more);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut node = Running::start(&args, READY);
    wait_for_models(&server, &["first"]);
    assert_eq!(server.line_workers("first"), ["lab"], "it has the node's own name");
    assert!(node.stage("1/1").is_some() && node.stage("2/2").is_none());
    let answer = said(&server, "first", 1);
    // It comes again without a token, and asks before it starts its stages.
    drop(node);
    node = Running::start(&args, READY);
    assert!(node.stage("1/1").is_some() && node.stage("2/2").is_none());
    // A newer coordinator takes the place of the older one.
    drop(server);
    server = Server { process: cluster.serve(&["--config", &config]) };
    // The line may have begun on the lone stage. That makes way for the first stage when the line is on the second. Both are on
    // it where the second came so late that the lone one had gone.
    wait("the line is on certified stages", || {
        let on_line = server.line_workers("first");
        !on_line.is_empty()
            && on_line.iter().all(|name| ["lab.1", "lab.2"].contains(&name.as_str()))
    });
    wait("both stages are there", || node.stage("1/2").is_some() && node.stage("2/2").is_some());
    wait_for_models(&server, &["first"]);
    assert_eq!(said(&server, "first", 1)[1], answer[1]);
    // And an older one that of the newer one: the node is started again.
    drop((server, node));
    server = Server { process: cluster.serve(&older) };
    node = Running::start(&args, READY);
    wait_for_models(&server, &["first"]);
    assert!(node.stage("1/1").is_some() && node.stage("2/2").is_none());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_model_may_have_most_of_its_node, a_node_is_one_worker_under_a_coordinator_that_certifies_no_stages, a_node_that_is_revoked_loses_all_of_its_stages, a_node_has_a_process_for_each_model, a_node_that_is_told_to_leave_ends_with_its_stages,
        plain_stages_of_a_node_are_one_line_through_one_port, stages_have_ports_of_their_own_where_they_are_named,
        what_a_node_cannot_share_is_refused_at_once;
    computes: stages_on_one_gpu_say_the_same_at_the_same_time;
];
