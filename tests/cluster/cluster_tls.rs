//! A cluster from its first start to a revocation, over real processes. A coordinator makes its authority, workers
//! join by token and come back without one, and a line runs over TLS. No other peer gets an answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::net::dial;
use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::identity::to_pem;
use brigade_proto::tls::{Authority, NodeKey, Role, unix_now};
use brigade_tests::fakes::runtime;
use brigade_tests::process::{Running, brigade, run};
use brigade_tests::secure::{Cluster, IN_FORCE_WITHIN, PAST_A_SECOND, READY, wait_until};
use brigade_tests::up_share::{completes, wait_up};
use serde_json::Value;

/// Time that a process gets to notice something.
const SOON: Duration = Duration::from_secs(30);

fn args(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

/// Whether a plain gRPC client gets an answer of any kind from a worker there.
fn answers_plain(address: &str) -> bool {
    let address: Address = address.trim().parse().unwrap();
    runtime().block_on(async {
        use brigade_proto::control::HealthRequest;
        use brigade_proto::control::worker_client::WorkerClient;
        let Ok(channel) = dial(&address, false).await else { return false };
        let answer = WorkerClient::new(channel).health(HealthRequest::default()).await;
        answer.is_ok_and(|_| true)
    })
}

fn a_line_over_tls_from_the_first_token_on() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--expect", "2"]);
    let line = cluster.join_line(&["--uses", "2"]);
    let words: Vec<&str> = line.split_whitespace().collect();
    let expected = ["brigade", "worker", "--join", cluster.control.as_str(), "--token"];
    assert_eq!(words[..5], expected, "the line is what a new machine needs");
    let token = words[5];
    let workers = [cluster.worker("lab", token), cluster.worker("attic", token)];
    wait_up(&server);
    for worker in &workers {
        assert!(!answers_plain(&worker.ready), "a worker with a token answers a plain client");
    }
    for private in ["desk/cluster/ca.key", "desk/cluster/coordinator.key", "lab/node/key.pem"] {
        let mode = cluster.dir.join(private).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{private}");
    }
    let nodes = cluster.admin(&["nodes"]);
    for word in ["lab", "attic", "stage 0", workers[0].ready.trim()] {
        assert!(nodes.contains(word), "{nodes}");
    }
    // A used token is refused, and the error says so.
    let refused = cluster.refused(&cluster.worker_args("cellar", Some(token), &[]));
    assert!(refused.contains("the token was used already"), "{refused}");
    // Nodes that have joined come back without a token, also with an invalid one.
    let [lab, attic] = workers;
    drop(lab);
    drop(attic);
    wait_until("the line is down", SOON, || !completes(&server.ready));
    let _lab = cluster.worker("lab", token);
    let without = cluster.worker_args("attic", None, &[]);
    let _attic = Running::start(&args(&without), READY);
    wait_up(&server);
}

fn plain_workers_of_this_machine_join_as_ever() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--expect", "2"]);
    let join = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--join", &cluster.control];
    let workers = [Running::start(&join, READY), Running::start(&join, READY)];
    wait_up(&server);
    assert!(workers.iter().all(|worker| answers_plain(&worker.ready)));
}

fn local_workers_stand_beside_those_that_join() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--workers", "1", "--cuts", "2", "--expect", "2"]);
    let _lab = cluster.worker("lab", &cluster.token(&[]));
    wait_up(&server);
}

fn a_revoked_node_loses_what_it_has_and_stays_out() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--expect", "2"]);
    let token = cluster.token(&["--uses", "5"]);
    let _lab = cluster.worker("lab", &token);
    let attic = cluster.worker("attic", &token);
    wait_up(&server);
    let address = attic.ready.trim().to_owned();
    let open = || {
        let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
        let is_open = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.len() > 3 && fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "01"
        };
        text.lines().filter(is_open).count()
    };
    assert!(open() >= 2, "the coordinator and the stage before have connections to it");
    let said = cluster.admin(&["revoke", "attic"]);
    assert!(said.contains("revoked attic"), "{said}");
    let took = wait_until("its connections end", IN_FORCE_WITHIN, || open() == 0);
    println!("revoked: all connections to it ended after {} ms", took.as_millis());
    // The line goes on without it.
    wait_until("the line is up again", SOON * 2, || completes(&server.ready));
    assert!(cluster.admin(&["nodes"]).contains("revoked"));
    drop(attic);
    // Its key does not help it, nor does the token that is good for more.
    let args = cluster.worker_args("attic", None, &[]);
    let again = Running::start(&self::args(&args), READY);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(open(), 0, "nobody connects to it again");
    drop(again);
    let refused = cluster.refused(&cluster.worker_args("attic-2", Some(&token), &[]));
    assert!(refused.contains("not one of this cluster"), "{refused}");
}

fn certificates_are_renewed_while_everything_runs() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--cluster-cert-ttl", "12s"]);
    let _lab = cluster.worker("lab", &cluster.token(&[]));
    wait_up(&server);
    let file = cluster.dir.join("lab/node/certificate.pem");
    let first = std::fs::read_to_string(&file).unwrap();
    wait_until("another certificate", SOON, || std::fs::read_to_string(&file).unwrap() != first);
    let second = std::fs::read_to_string(&file).unwrap();
    let (begin, mut asked) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(14) {
        assert!(completes(&server.ready), "a renewal disturbs nobody");
        asked += 1;
    }
    println!("answered {asked} requests over two renewals");
    assert_ne!(std::fs::read_to_string(&file).unwrap(), second, "it was renewed meanwhile");
}

fn a_token_is_for_one_coordinator() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let _ours = ours.serve(&[]);
    let token = theirs.token(&["--join", "127.0.0.1:1"]);
    let refused = ours.refused(&ours.worker_args("lab", Some(&token), &[]));
    assert!(refused.contains("not the one that made the token"), "{refused}");
    let expired = ours.token(&["--ttl", "1s"]);
    std::thread::sleep(PAST_A_SECOND);
    let refused = ours.refused(&ours.worker_args("lab", Some(&expired), &[]));
    assert!(refused.contains("the token has expired"), "{refused}");
    let refused = ours.refused(&ours.worker_args("lab", None, &[]));
    assert!(refused.contains("has no certificate yet"), "{refused}");
    let refused = ours.refused(&ours.worker_args("lab", Some("brg1_x"), &[]));
    assert!(refused.contains("this is not a token"), "{refused}");
}

fn workers_of_one_folder_are_two_machines_to_the_cluster() {
    let cluster = Cluster::new();
    let server = cluster.serve(&["--expect", "2"]);
    let token = cluster.token(&["--uses", "2"]);
    let first = cluster.worker("lab", &token);
    let second = cluster.worker("lab", &token);
    wait_up(&server);
    let names = |cluster: &Cluster| {
        let nodes: Value = serde_json::from_str(&cluster.admin(&["nodes", "--json"])).unwrap();
        let names =
            nodes.as_array().unwrap().iter().map(|n| n["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&cluster), ["lab", "lab-2"]);
    // There is no third identity to use, and both come back as themselves without a token.
    let refused = cluster.refused(&cluster.worker_args("lab", None, &[]));
    assert!(refused.contains("use all identities in"), "{refused}");
    drop((first, second));
    let args = cluster.worker_args("lab", None, &[]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let _again = [(); 2].map(|()| Running::start(&args, READY));
    wait_up(&server);
    assert_eq!(names(&cluster), ["lab", "lab-2"]);
}

/// A command as on a machine of its own: it names no folder, and its home is `home`.
fn at_home(home: &str, args: &[&str]) -> Command {
    let mut command = Command::new(brigade());
    command.args(args).env_remove("BRIGADE_DATA_DIR");
    // `Running` and `run` set XDG_DATA_HOME for all others.
    let line = ["-c", "export XDG_DATA_HOME=$0; exec \"$@\"", home];
    let mut shell = Command::new("sh");
    shell.args(line).arg(command.get_program()).args(command.get_args());
    shell
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The walk of the README on one machine: no folder and no port is named, and workers come back without a token.
fn the_walk_on_loopback_is_that_of_three_machines() {
    let cluster = Cluster::new();
    let home = cluster.data("home");
    let serve =
        ["serve", "--listen", "127.0.0.1:0", "--control", &cluster.control, "--expect", "2"];
    let server = Running::spawn(at_home(&home, &serve), "brigade serve listening on ");
    let line = output_of(&mut at_home(&home, &["token", "create", "--uses", "2"]));
    assert!(
        line.starts_with(&format!("brigade worker --join {} --token ", cluster.control)),
        "{line}"
    );
    let words: Vec<&str> = line.split_whitespace().skip(1).chain(["--threads", "1"]).collect();
    let start = |words: &[&str]| Running::spawn(at_home(&home, words), READY);
    let workers = [start(&words), start(&words)];
    let ports = workers.each_ref().map(|worker| worker.ready.trim().to_owned());
    assert_ne!(ports[0], ports[1], "each has a port of its own");
    wait_up(&server);
    // Commands that need an identity find it.
    let plan = ["plan", "--json", "--worker", &ports[0], "--worker", &ports[1]];
    let plan: Value = serde_json::from_str(&output_of(&mut at_home(&home, &plan))).unwrap();
    assert_eq!(plan["stages"].as_array().map(Vec::len), Some(2), "{plan}");
    drop(workers);
    let again = ["worker", "--join", &cluster.control, "--threads", "1"];
    let workers = [start(&again), start(&again)];
    wait_up(&server);
    let nodes = output_of(&mut at_home(&home, &["nodes", "--json"]));
    let nodes: Value = serde_json::from_str(&nodes).unwrap();
    assert_eq!(nodes.as_array().map(Vec::len), Some(2), "they are the same two: {nodes}");
    drop(workers);
}

fn a_lost_authority_is_begun_anew_only_when_that_is_said() {
    let cluster = Cluster::new();
    let server = cluster.serve(&[]);
    let lab = cluster.worker("lab", &cluster.token(&[]));
    wait_up(&server);
    drop(server);
    drop(lab);
    std::fs::remove_file(cluster.dir.join("desk/cluster/ca.key")).unwrap();
    let data = cluster.data("desk");
    let base =
        ["serve", "--listen", "127.0.0.1:0", "--control", &cluster.control, "--data-dir", &data];
    let lost = String::from_utf8(run(&base).stderr).unwrap();
    assert!(lost.contains("--new-ca") && lost.contains("lab"), "{lost}");
    let log = cluster.dir.join("log");
    let anew: Vec<&str> = base.iter().copied().chain(["--new-ca"]).collect();
    let server = Running::start_logged(&anew, "brigade serve listening on ", &log);
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("Join these anew") && said.contains("lab"), "{said}");
    // Certificates of the old authority are invalid; a new token is all that is needed.
    let lab = cluster.worker("lab", &cluster.token(&[]));
    wait_up(&server);
    // And it is taken for the new one's from then on.
    drop(lab);
    let again = cluster.worker_args("lab", None, &[]);
    let _lab = Running::start(&args(&again), READY);
    wait_until("it serves again", SOON, || completes(&server.ready));
}

/// With a cluster, the flag is about HTTP only: it does not open the control address.
fn the_insecure_flag_opens_no_cluster() {
    let mut cluster = Cluster::new();
    let local: Address = cluster.control.parse().unwrap();
    cluster.control = cluster.control.replace("127.0.0.1", "0.0.0.0");
    let _server = cluster.serve(&["--insecure-network"]);
    let is_answered = runtime().block_on(async {
        use brigade_proto::control::JoinRequest;
        use brigade_proto::control::cluster_client::ClusterClient;
        let Ok(channel) = dial(&local, false).await else { return false };
        let request = JoinRequest { address: "127.0.0.1:9".to_owned(), ..JoinRequest::default() };
        let joined = ClusterClient::new(channel).join(request).await;
        // A refusal of the service would carry its reason.
        joined.map_or_else(|status| !status.details().is_empty(), |_| true)
    });
    assert!(!is_answered, "a plain client is answered");
}

/// Certificates of an authority that brigade knows nothing of, in files.
fn foreign(
    cluster: &Cluster,
    by: &Authority,
    role: Role,
    name: &str,
    validity: Validity,
) -> Vec<String> {
    let key = NodeKey::generate().unwrap();
    let own = by.issue_to(&key, role, name, validity).unwrap();
    let file = |end: &str, text: &str| {
        let path = cluster.dir.join(format!("{name}.{end}"));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let files = [
        ("--cluster-cert", file("crt", &to_pem(&[own]))),
        ("--cluster-key", file("key", &key.to_pem())),
        ("--cluster-ca", file("ca", &to_pem(std::slice::from_ref(by.certificate())))),
    ];
    files.into_iter().flat_map(|(flag, file)| [flag.to_owned(), file]).collect()
}

fn certificates_of_somebody_elses_authority() {
    let cluster = Cluster::new();
    let (key, pem) = Authority::create(unix_now()).unwrap();
    let authority = Authority::load(key, "ca", &pem).unwrap();
    let hour = Validity::from_now(unix_now(), Duration::from_secs(3600));
    let desk = foreign(&cluster, &authority, Role::Coordinator, "desk", hour);
    let server = cluster.serve(&args(&desk));
    let worker = |name: &str, validity, more: &[&str]| {
        let files = foreign(&cluster, &authority, Role::Worker, name, validity);
        let mut all = vec!["worker", "--listen", "127.0.0.1:0", "--join", &cluster.control];
        all.extend(more);
        let all: Vec<String> = all.into_iter().map(str::to_owned).chain(files).collect();
        all
    };
    let lab = worker("lab", hour, &[]);
    let lab = Running::start(&args(&lab), READY);
    wait_up(&server);
    assert!(!answers_plain(&lab.ready));
    // It is in the books, and can be revoked.
    wait_until("it is listed", SOON, || cluster.admin(&["nodes"]).contains("lab"));
    cluster.admin(&["revoke", "lab"]);
    wait_until("it is out", SOON, || !completes(&server.ready));
    drop(lab);
    // A peer with an expired certificate gets an error that says so.
    let over = Validity { not_before: unix_now() - 7200, not_after: unix_now() - 3600 };
    let log = cluster.dir.join("expired.log");
    let expired = Running::start_logged(&args(&worker("attic", over, &[])), READY, &log);
    wait_until("it says why", SOON, || {
        std::fs::read_to_string(&log).unwrap().contains("this node's certificate has expired")
    });
    drop(expired);
}

/// Good from so many seconds before now, or after it, to so many before or after it.
fn validity(from: i64, to: i64) -> Validity {
    let at = |seconds: i64| unix_now().checked_add_signed(seconds).unwrap();
    Validity { not_before: at(from), not_after: at(to) }
}

/// A coordinator's certificate that begins in nearly four minutes, and a worker's that ended as long ago, are good. One
/// that is further off is refused, and its process is told why.
fn clocks_may_differ_by_five_minutes_and_no_more() {
    let cluster = Cluster::new();
    let (key, pem) = Authority::create(unix_now()).unwrap();
    let authority = Authority::load(key, "ca", &pem).unwrap();
    let files =
        |role, name: &str, from, to| foreign(&cluster, &authority, role, name, validity(from, to));
    let desk = files(Role::Coordinator, "desk", 230, 7200);
    let server = cluster.serve(&args(&desk));
    let join = ["worker", "--listen", "127.0.0.1:0", "--join", &cluster.control];
    let worker = |name: &str, from, to| {
        let files = files(Role::Worker, name, from, to);
        let all: Vec<String> = join.iter().copied().map(str::to_owned).chain(files).collect();
        let log = cluster.dir.join(format!("{name}.log"));
        (Running::start_logged(&args(&all), READY, &log), log)
    };
    let (_lab, _) = worker("lab", -7200, -230);
    wait_up(&server);
    for (name, from, to) in [("over", -7200, -320), ("early", 400, 7200)] {
        let (_worker, log) = worker(name, from, to);
        wait_until("it is told", SOON, || {
            let said = std::fs::read_to_string(&log).unwrap();
            said.contains("this node's certificate has expired or has not begun")
                && said.contains("clocks")
        });
    }
    assert!(completes(&server.ready), "the line does not mind");
}

/// A machine that was off for longer than its certificate is good for comes back by its key.
fn a_certificate_that_has_ended_is_given_again_to_the_same_key() {
    let cluster = Cluster::new();
    let server = cluster.serve(&[]);
    drop(cluster.worker("lab", &cluster.token(&[])));
    let node = cluster.dir.join("lab/node");
    let pem = std::fs::read_to_string(node.join("key.pem")).unwrap();
    let key = NodeKey::from_pem("key", &pem).unwrap();
    let authority = cluster.authority();
    let over = authority.issue_to(&key, Role::Worker, "lab", validity(-7200, -3600)).unwrap();
    let path = node.join("certificate.pem");
    let ended = to_pem(&[over, authority.certificate().clone()]);
    std::fs::write(&path, &ended).unwrap();
    let args = cluster.worker_args("lab", None, &[]);
    let _lab = Running::start(&self::args(&args), READY);
    wait_up(&server);
    assert_ne!(std::fs::read_to_string(&path).unwrap(), ended);
}

fn what_is_no_tls_is_closed_without_a_word() {
    let cluster = Cluster::new();
    let _server = cluster.serve(&[]);
    let lab = cluster.worker("lab", &cluster.token(&[]));
    for sent in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0x16, 3, 1]]
    {
        let mut stream = TcpStream::connect(lab.ready.trim()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(sent).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // A reset is as good as an end.
        let _ = stream.read_to_end(&mut answer);
        let is_alert = answer.first().is_none_or(|byte| *byte == 0x15);
        assert!(is_alert && answer.len() < 16, "{answer:?}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        certificates_are_renewed_while_everything_runs,
        a_revoked_node_loses_what_it_has_and_stays_out,
        a_line_over_tls_from_the_first_token_on,
        plain_workers_of_this_machine_join_as_ever,
        local_workers_stand_beside_those_that_join,
        a_token_is_for_one_coordinator,
        workers_of_one_folder_are_two_machines_to_the_cluster,
        the_walk_on_loopback_is_that_of_three_machines,
        a_lost_authority_is_begun_anew_only_when_that_is_said,
        the_insecure_flag_opens_no_cluster,
        certificates_of_somebody_elses_authority,
        clocks_may_differ_by_five_minutes_and_no_more,
        a_certificate_that_has_ended_is_given_again_to_the_same_key,
        what_is_no_tls_is_closed_without_a_word;
];
