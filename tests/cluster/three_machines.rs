//! Three workers in three network namespaces, as on three machines: joined by token, and what those see who may not
//! join. Needs the right to make namespaces (root, and `ip` of iproute2); without it the test says that it skips.
//!
//!     cargo test --release --test cluster -- three_machines::

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::identity::to_pem;
use brigade_proto::tls::{NodeKey, Role, unix_now};
use brigade_tests::process::{Running, brigade, run};
use brigade_tests::secure::{Cluster, IN_FORCE_WITHIN, PAST_A_SECOND, READY, refusal, wait_until};

/// Machines beside the coordinator's.
const MACHINES: usize = 4;
/// Time that a line gets to come up.
const UP_WITHIN: Duration = Duration::from_secs(120);

fn ip(args: &str) -> Output {
    Command::new("ip").args(args.split(' ')).output().unwrap()
}

/// Network namespaces on a bridge: `c` has 10.77.0.1, `w1` 10.77.0.2, and so on.
struct Net {
    name: String,
}

impl Net {
    /// Makes them; `None` where that is not permitted.
    fn new() -> Option<Self> {
        let net = Self { name: format!("brigade{}", std::process::id()) };
        let made = Command::new("ip").args(["netns", "add", &net.of("c")]).output();
        if !made.as_ref().is_ok_and(|output| output.status.success()) {
            let why = made.map_or_else(
                |error| error.to_string(),
                |output| String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            );
            println!("three_machines is SKIPPED: no network namespace can be made here: {why}");
            return None;
        }
        let coordinator = net.of("c");
        net.must(&format!("-n {coordinator} link add name hub0 type bridge"));
        net.must(&format!("-n {coordinator} addr add 10.77.0.1/24 dev hub0"));
        net.must(&format!("-n {coordinator} link set hub0 up"));
        net.must(&format!("-n {coordinator} link set lo up"));
        for n in 1..=MACHINES {
            let machine = net.of(&format!("w{n}"));
            net.must(&format!("netns add {machine}"));
            net.must(&format!(
                "-n {coordinator} link add v{n} type veth peer name eth0 netns {machine}"
            ));
            net.must(&format!("-n {coordinator} link set v{n} master hub0 up"));
            net.must(&format!("-n {machine} addr add {}/24 dev eth0", address(n)));
            net.must(&format!("-n {machine} link set eth0 up"));
            net.must(&format!("-n {machine} link set lo up"));
        }
        Some(net)
    }

    fn of(&self, machine: &str) -> String {
        format!("{}{machine}", self.name)
    }

    fn must(&self, args: &str) {
        let output = ip(args);
        assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// `brigade ARGS` on a machine.
    fn on(&self, machine: &str, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.of(machine)]).arg(brigade()).args(args);
        command
    }

    /// Whether the server on the coordinator's machine completes a request.
    fn completes(&self, url: &str) -> bool {
        let address = url.trim_start_matches("http://").replacen(':', "/", 1);
        let body = r#"{"prompt":"In the","max_tokens":1,"temperature":0}"#;
        let head = format!(
            "POST /v1/completions HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-type: application/json\\r\\n\
             content-length: {}\\r\\nconnection: close\\r\\n\\r\\n",
            body.len()
        );
        let script = format!(
            "exec 3<>/dev/tcp/{address} && printf '{head}{body}' >&3 && timeout 20 head -1 <&3"
        );
        let asked = Command::new("ip")
            .args(["netns", "exec", &self.of("c"), "bash", "-c", &script])
            .output()
            .unwrap();
        String::from_utf8_lossy(&asked.stdout).contains(" 200 ")
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let workers = (1..=MACHINES).map(|n| format!("w{n}"));
        for machine in workers.chain(["c".to_owned()]) {
            ip(&format!("netns del {}", self.of(&machine)));
        }
    }
}

fn address(n: usize) -> String {
    format!("10.77.0.{}", n + 1)
}

/// The join line's words after `brigade`, and what a test adds.
fn worker_args<'a>(line: &'a str, data: &'a str) -> Vec<&'a str> {
    let words = line.split_whitespace().skip(1);
    words.chain(["--data-dir", data, "--threads", "1"]).collect()
}

fn three_machines_joined_by_token_and_nobody_else() {
    let Some(net) = Net::new() else { return };
    let mut cluster = Cluster::new();
    cluster.control = "10.77.0.1:7000".to_owned();
    let desk = cluster.data("desk");
    let serve =
        ["serve", "--listen", "127.0.0.1:0", "--control", &cluster.control, "--data-dir", &desk];
    let expect = ["--expect", "3"];
    let all: Vec<&str> = serve.iter().chain(&expect).copied().collect();
    let server = Running::spawn(net.on("c", &all), "brigade serve listening on ");
    println!("| machine | comes with | what it sees |\n|---|---|---|");
    let mut lines = Vec::new();
    let mut workers = Vec::new();
    for n in 1..=3 {
        // The line as it was printed is all that a new machine needs.
        let line = cluster.join_line(&[]);
        let data = cluster.data(&format!("machine-{n}"));
        let command = net.on(&format!("w{n}"), &worker_args(&line, &data));
        let worker = Running::spawn(command, READY);
        assert_eq!(worker.ready.trim(), format!("{}:7070", address(n)));
        println!("| {n} | a token | joined, listens on {} |", worker.ready.trim());
        workers.push(worker);
        lines.push(line);
    }
    wait_until("the line of three machines is up", UP_WITHIN, || net.completes(&server.ready));
    println!("| 1-3 | | the line is up and answers |");
    who_may_not_join(&net, &cluster, &lines);
    let begin = Instant::now();
    cluster.admin(&["revoke", revoked_name(&cluster)]);
    // Its connections, as its own machine counts them.
    let open = || {
        let counted = ip(&format!("netns exec {} cat /proc/net/tcp", net.of("w3")));
        let text = String::from_utf8_lossy(&counted.stdout).into_owned();
        text.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
    };
    wait_until("a revoked machine's connections end", IN_FORCE_WITHIN, || open() == 0);
    println!(
        "| 3 | revoked | all its connections ended after {} ms |",
        begin.elapsed().as_millis()
    );
    wait_until("the line goes on with two", UP_WITHIN, || net.completes(&server.ready));
    println!("| 1-2 | | the line is up again without it, and answers |");
    let third = workers.remove(2);
    drop(third);
    members_are_sent_to_the_coordinator(&cluster);
    std::fs::remove_file(cluster.dir.join("machine-3/node/certificate.pem")).unwrap();
    let (line, data) = (cluster.join_line(&[]), cluster.data("machine-3"));
    let said = refusal(&mut net.on("w3", &worker_args(&line, &data)));
    told("3", "a fresh token, revoked", &said, "was revoked");
}

/// A member has no books and makes no tokens, and asking leaves it no authority.
fn members_are_sent_to_the_coordinator(cluster: &Cluster) {
    let data = cluster.data("machine-1");
    for command in [["nodes"].as_slice(), &["token", "create"]] {
        let output = run(&[command, &["--data-dir", &data]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("on its coordinator's machine"), "{said}");
    }
    assert!(!std::fs::exists(format!("{data}/cluster")).unwrap(), "an authority was made");
}

/// Name of the third node that joined.
fn revoked_name(cluster: &Cluster) -> &'static str {
    let nodes: serde_json::Value =
        serde_json::from_str(&cluster.admin(&["nodes", "--json"])).unwrap();
    let name = nodes[2]["name"].as_str().unwrap().to_owned();
    // It lives as long as the test's process.
    Box::leak(name.into_boxed_str())
}

fn told(machine: &str, with: &str, said: &str, words: &str) {
    let last = said.lines().last().unwrap_or_default();
    println!("| {machine} | {with} | {last} |");
    assert!(said.contains(words), "{with}: {said}");
}

/// A fourth machine, with everything but a good token.
fn who_may_not_join(net: &Net, cluster: &Cluster, lines: &[String]) {
    let data = cluster.data("machine-4");
    let plain =
        ["worker", "--listen", "10.77.0.5:7070", "--join", &cluster.control, "--threads", "1"];
    told("4", "nothing", &refusal(&mut net.on("w4", &plain)), "brigade token create");
    let said = refusal(&mut net.on("w4", &worker_args(&lines[0], &data)));
    told("4", "a used token", &said, "the token was used already");
    let expired = cluster.join_line(&["--ttl", "1s"]);
    std::thread::sleep(PAST_A_SECOND);
    let said = refusal(&mut net.on("w4", &worker_args(&expired, &data)));
    told("4", "an expired token", &said, "the token has expired");
    let other = Cluster::new();
    let foreign = other.join_line(&["--join", &cluster.control]);
    let said = refusal(&mut net.on("w4", &worker_args(&foreign, &data)));
    told("4", "another cluster's token", &said, "not the one that made the token");
    other_certificate(net, cluster, &other);
}

/// A worker with a certificate of another cluster can start, but no process accepts it.
fn other_certificate(net: &Net, cluster: &Cluster, other: &Cluster) {
    let (ours, theirs, key) =
        (cluster.authority(), other.authority(), NodeKey::generate().unwrap());
    let hour = Validity::from_now(unix_now(), Duration::from_secs(3600));
    let own = theirs.issue_to(&key, Role::Worker, "foreign", hour).unwrap();
    let file = |name: &str, text: String| {
        let path = cluster.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cert = file("foreign.crt", to_pem(&[own]));
    let key = file("foreign.key", key.to_pem());
    // It believes our authority, so that it is the coordinator who refuses.
    let ca = file("foreign.ca", to_pem(std::slice::from_ref(ours.certificate())));
    let mut args = vec!["worker", "--join", &cluster.control, "--threads", "1"];
    args.extend(["--cluster-cert", &cert, "--cluster-key", &key, "--cluster-ca", &ca]);
    let log = cluster.dir.join("foreign.log");
    let mut command = net.on("w4", &args);
    command.stderr(std::fs::File::create(&log).unwrap()).env("NO_COLOR", "1");
    let foreign = Running::spawn(command, READY);
    let said = || std::fs::read_to_string(&log).unwrap();
    let words = "it does not know the authority of this node's certificate";
    wait_until("it says why", Duration::from_secs(30), || said().contains(words));
    let line = said().lines().find(|line| line.contains(words)).unwrap().to_owned();
    told("4", "another cluster's certificate", &line, words);
    drop(foreign);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: three_machines_joined_by_token_and_nobody_else;
];
