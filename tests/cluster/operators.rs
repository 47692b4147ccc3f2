//! The first hours of an operator. Messages name the missing workers and the next command, machines have one name
//! everywhere, losses are shown, and orders can be taken back.

use std::process::Command;
use std::time::Duration;

use brigade_tests::process::{Running, brigade, run, signal};
use brigade_tests::secure::{Cluster, READY, wait_until};
use brigade_tests::up_share::wait_up;
use serde_json::Value;

/// Time that a process gets to notice something.
const SOON: Duration = Duration::from_secs(60);

fn status(cluster: &Cluster) -> Value {
    let text = cluster.admin(&["cluster", "status", "--json"]);
    serde_json::from_str::<Value>(&text).unwrap()["status"].clone()
}

/// Where a machine stands, as `cluster status` has it.
fn state(cluster: &Cluster, name: &str) -> String {
    let status = status(cluster);
    let node = status["nodes"].as_array().unwrap().iter().find(|node| node["name"] == name);
    node.map_or("nobody".to_owned(), |node| node["state"].as_str().unwrap().to_owned())
}

fn node(cluster: &Cluster, name: &str) -> Value {
    let nodes: Value = serde_json::from_str(&cluster.admin(&["nodes", "--json"])).unwrap();
    nodes.as_array().unwrap().iter().find(|node| node["name"] == name).unwrap().clone()
}

/// A server without workers says how many it waits for, and the command that makes a token. A token is listed, can come over a
/// pipe, and is used up.
fn who_waits_is_told_what_for_and_what_to_type() {
    let cluster = Cluster::new();
    let (log, data) = (cluster.dir.join("log"), cluster.data("desk"));
    let args =
        ["serve", "--listen", "127.0.0.1:0", "--control", &cluster.control, "--data-dir", &data];
    let all = [&args[..], &["--expect", "2"]].concat();
    let server = Running::start_logged(&all, "brigade serve listening on ", &log);
    let next = format!("brigade token create --data-dir {data} --uses 2");
    let said = || cluster.admin(&["cluster", "status"]);
    wait_until("it says what it waits for", SOON, || said().contains("0 of 2 workers joined"));
    assert!(said().contains(&next), "{}", said());
    let logged = || std::fs::read_to_string(&log).unwrap();
    assert!(logged().contains(&format!("to add a machine: {next}")), "{}", logged());

    // The token is listed without its secret, and may come over a pipe.
    let join_line = cluster.join_line(&["--uses", "2"]);
    let token = join_line.split_whitespace().last().unwrap();
    let listed =
        || -> Value { serde_json::from_str(&cluster.admin(&["token", "list", "--json"])).unwrap() };
    assert_eq!(listed()[0]["uses_left"], 2, "{}", listed());
    assert!(!cluster.admin(&["token", "list"]).contains(token));
    let folder = cluster.data("lab");
    // An empty or missing file has no token in it, and a worker says so: it does not join without one.
    let empty = cluster.data("empty");
    std::fs::write(&empty, "\n").unwrap();
    for file in [empty, cluster.data("nothing")] {
        let args =
            ["worker", "--join", &cluster.control, "--token-file", &file, "--data-dir", &folder];
        let refused = run(&args);
        let why = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && why.contains("there is no token in it"), "{why}");
    }
    let ended = run(&["token", "create", "--ttl", "0", "--data-dir", &cluster.data("desk")]);
    assert!(!ended.status.success());
    let mut command = Command::new("sh");
    // The shell becomes the worker, so that it ends with this test: the last command of a pipeline would stay.
    let worker = "exec \"$@\" <<END\n$0\nEND\n";
    command.args(["-c", worker, &join_line]).arg(brigade());
    command.args(["worker", "--join", &cluster.control, "--token-file", "-", "--name", "lab"]);
    command.args(["--listen", "127.0.0.1:0", "--threads", "1", "--data-dir", &folder]);
    let lab = Running::spawn(command, READY);
    wait_until("one is there", SOON, || said().contains("1 of 2 workers joined"));
    assert!(said().contains(next.trim_end_matches(" --uses 2")), "{}", said());
    assert_eq!(state(&cluster, "lab"), "waiting");
    assert_eq!(listed()[0]["uses_left"], 1, "{}", listed());
    let _attic = cluster.worker("attic", token);
    wait_up(&server);
    assert!(said().contains("is up") && !said().contains("to add a machine"), "{}", said());
    assert_eq!(listed(), Value::Array(Vec::new()), "it is used up");
    // Looking is not an order, and is not logged as one.
    assert!(!logged().contains("an operator asks"), "{}", logged());
    drop(lab);
}

fn a_machine_has_one_name_in_all_commands_and_is_lost_when_it_is_killed() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--expect", "2", "--replace-after", "1s"]);
    let token = cluster.token(&["--uses", "2"]);
    let lab = cluster.worker("lab", &token);
    let attic = cluster.worker("attic", &token);
    wait_up(&server);
    let serving = || {
        let states = ["lab", "attic"].map(|name| state(&cluster, name));
        states.iter().all(|state| state == "serves" || state == "spare")
    };
    wait_until("both are known", SOON, serving);
    let (status, nodes) = (cluster.admin(&["cluster", "status"]), cluster.admin(&["nodes"]));
    for worker in [&lab, &attic] {
        let address = worker.ready.trim();
        assert!(status.contains(address) && nodes.contains(address), "{status}\n{nodes}");
    }
    for word in ["lab", "attic", "s ago", "GB/s", "GOP/s", "threads", "iB of "] {
        assert!(status.contains(word), "{word}: {status}");
    }
    assert!(!status.contains("worker 127.0.0.1"), "one name, not two: {status}");

    let plan = ["plan", "--json", "--worker", "lab", "--worker", "attic"];
    let plan: Value = serde_json::from_str(&cluster.admin(&plan)).unwrap();
    let mut planned: Vec<&str> =
        plan["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    planned.sort_unstable();
    assert_eq!(planned, ["attic", "lab"]);

    // A worker can be named in three ways, and a drained one can be used again.
    let key = node(&cluster, "lab")["key"].as_str().unwrap()[..12].to_owned();
    for called in ["lab", lab.ready.trim(), &key] {
        cluster.admin(&["cluster", "drain", called]);
        wait_until("it is drained", SOON, || state(&cluster, "lab") == "drained");
        let again = cluster.admin(&["cluster", "drain", called]);
        assert!(again.starts_with("lab has no layers"), "{again}");
        cluster.admin(&["cluster", "undrain", called]);
        assert_ne!(state(&cluster, "lab"), "drained", "{called}");
    }

    signal("KILL", attic.pid());
    wait_until("it is lost", SOON, || state(&cluster, "attic") == "lost");
    let told = node(&cluster, "attic");
    assert!(told["state"].as_str().unwrap().starts_with("lost since "), "{told}");
    // It is shown as lost also when the line goes on without it.
    wait_until("the line goes on", SOON, || state(&cluster, "lab") == "serves");
    assert_eq!(state(&cluster, "attic"), "lost");
    assert!(cluster.admin(&["cluster", "status"]).contains("attic"), "it is shown still");
    let data = cluster.data("desk");
    for called in ["attic", attic.ready.trim(), told["key"].as_str().unwrap()] {
        let refused = || {
            let said = run(&["cluster", "drain", called, "--data-dir", &data]).stderr;
            let why = String::from_utf8(said).unwrap();
            why.contains("attic is lost") && why.contains("brigade revoke attic")
        };
        wait_until("its loss is the answer", SOON, refused);
    }
    // Its address can be named to revoke it.
    let said = cluster.admin(&["revoke", attic.ready.trim()]);
    assert!(said.contains("revoked attic"), "{said}");
    drop(server);
    assert_eq!(node(&cluster, "lab")["state"], "has joined", "without a server nobody knows more");
}

/// A worker that was killed and started again is left out by itself, says why, and is used when the operator says so.
fn a_worker_that_broke_a_line_is_used_by_order() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--expect", "2", "--replace-after", "1s"]);
    let token = cluster.token(&["--uses", "2"]);
    let joins = |name: &str| {
        let args = cluster.worker_args(name, Some(&token), &["--speed", "20,200"]);
        Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), READY)
    };
    let (lab, attic) = (joins("lab"), joins("attic"));
    wait_up(&server);
    wait_until("both serve", SOON, || {
        ["lab", "attic"].iter().all(|w| state(&cluster, w) == "serves")
    });
    signal("KILL", attic.pid());
    wait_until("the line goes on", SOON, || state(&cluster, "lab") == "serves");
    drop(attic);
    let again = joins("attic");
    wait_until("it is a spare", SOON, || state(&cluster, "attic") == "spare");
    let said = || cluster.admin(&["cluster", "status"]);
    assert!(said().contains("attic: it broke a line: for "), "{}", said());
    let moved = cluster.admin(&["cluster", "rebalance"]);
    assert!(moved.contains("rebalanced: "), "{moved}");
    wait_until("both serve again", SOON, || {
        ["lab", "attic"].iter().all(|w| state(&cluster, w) == "serves")
    });
    drop((again, lab, server));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        who_waits_is_told_what_for_and_what_to_type,
        a_machine_has_one_name_in_all_commands_and_is_lost_when_it_is_killed,
        a_worker_that_broke_a_line_is_used_by_order;
];
