//! Attacks on the port of a node, behind which its stages are: who says nothing, too much or a wrong name, and who has a
//! key of another stage. The line over the stages must run on.
//!
//!     cargo test --release --test cluster -- attacks_on_nodes::

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::control::EnrolRequest;
use brigade_proto::control::cluster_client::ClusterClient;
use brigade_proto::failure::Failure;
use brigade_proto::limits::MAX_GREETING_BYTES;
use brigade_proto::net::Network;
use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::voucher::vouch;
use brigade_proto::tls::{Authority, Credentials, NodeKey, Role, unix_now};
use brigade_proto::{SOFTWARE, WIRE_VERSION};
use brigade_tests::fakes::runtime;
use brigade_tests::process::{Running, signal};
use brigade_tests::secure::{Cluster, IN_FORCE_WITHIN, READY, Somebody, wait_until};
use brigade_tests::up_share::{completes, wait_up};

use crate::attacks::{Seen, Table, calls, opens_a_lane, raw_tls, says_hello, sends};

/// How long the line may take to run again.
const RUNS_WITHIN: Duration = Duration::from_secs(60);

/// A line over the two stages of a node, and all that an attacker may have got hold of.
struct Scene {
    cluster: Cluster,
    server: Running,
    node: Running,
    authority: Authority,
    first: Address,
    second: Address,
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new();
        let server = cluster.serve(&["--expect", "2"]);
        let token = cluster.token(&[]);
        let more = ["--memory", "2G", "--speed", "20,200", "--stages", "2"];
        let args = cluster.worker_args("lab", Some(&token), &more);
        let node = Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), READY);
        wait_up(&server);
        let at: Address = node.ready.trim().parse().unwrap();
        let authority = cluster.authority();
        Self {
            cluster,
            server,
            node,
            authority,
            first: at.clone().of_stage(1),
            second: at.of_stage(2),
        }
    }

    /// The endpoint of the node, without a stage's number.
    fn port(&self) -> &Address {
        &self.first
    }

    /// Who has a certificate of a stage.
    fn stage(&self, number: u8) -> Somebody {
        let key = NodeKey::generate().unwrap();
        let node = self.cluster.node("lab").credentials.party();
        let hour = Validity::from_now(unix_now(), Duration::from_secs(3600));
        let name = format!("lab.{number}");
        let own = self.authority.issue_to_stage(&key.public(), &name, &node.key, hour).unwrap();
        Somebody::showing(&self.authority, &key, own)
    }

    /// The node's own key.
    fn key(&self) -> NodeKey {
        let pem = std::fs::read_to_string(self.cluster.dir.join("lab/node/key.pem")).unwrap();
        NodeKey::from_pem("key.pem", &pem).unwrap()
    }
}

fn nobody_else_gets_through_a_nodes_port() {
    let scene = Scene::new();
    let mut table = Table::default();
    println!("| | attack | answer |\n|---|---|---|");
    runtime().block_on(async {
        by_what_is_said_first(&scene, &mut table).await;
        with_a_stages_certificate(&scene, &mut table).await;
        with_the_nodes_word(&scene, &mut table).await;
    });
    assert!(completes(&scene.server.ready), "the line has noticed nothing");
    while_a_stage_ends(&scene, &mut table);
    assert!(table.wrong.is_empty(), "\n{}", table.wrong.join("\n"));
    wait_until("the line runs on", RUNS_WITHIN, || completes(&scene.server.ready));
    scene.cluster.admin(&["revoke", "lab"]);
    let key = NodeKey::generate().unwrap();
    let word = vouch(&scene.key(), 1, &key.id(), unix_now()).unwrap();
    let seen = runtime().block_on(shows_the_word(&scene, &key, word));
    assert!(seen.as_ref().is_err_and(|why| why.contains("was revoked")), "{seen:?}");
    let stage = scene.stage(1);
    let control = scene.cluster.control.parse().unwrap();
    let dialled = || runtime().block_on(stage.dial(&control, Role::Coordinator)).map(drop);
    wait_until("no stage of a revoked node comes in", IN_FORCE_WITHIN, || {
        dialled().is_err_and(|error| error.to_string().contains("was revoked"))
    });
}

/// Asks for a stage's certificate for a key, with a node's word.
async fn shows_the_word(scene: &Scene, key: &NodeKey, word: Vec<u8>) -> Seen {
    let shown = Credentials::of_newcomer(key, "stage", scene.authority.id(), unix_now()).unwrap();
    let network = Network::with_credentials(Arc::new(shown), false);
    let control = scene.cluster.control.parse().unwrap();
    let expected = Expected { role: Role::Coordinator, key: None };
    let connection = network.dial(&control, Some(expected)).await.map_err(|e| e.to_string())?;
    let request = EnrolRequest {
        wire_version: WIRE_VERSION,
        software: SOFTWARE.into(),
        name: "stage".into(),
        voucher: word.into(),
        ..EnrolRequest::default()
    };
    match ClusterClient::new(connection).enrol(request).await {
        Ok(reply) => Ok(reply.into_inner().name),
        Err(status) => Err(Failure::from_status(&status).reason),
    }
}

async fn with_the_nodes_word(scene: &Scene, table: &mut Table) {
    let [node, key, other] =
        [scene.key(), NodeKey::generate().unwrap(), NodeKey::generate().unwrap()];
    let now = unix_now();
    let word = |by: &NodeKey, number: u8, at: u64| vouch(by, number, &key.id(), at).unwrap();
    let good = shows_the_word(scene, &key, word(&node, 2, now)).await;
    assert_eq!(good, Ok("lab.2".to_owned()), "what is refused below differs from this alone");
    let mut rows = Vec::new();
    rows.push(("another key shows the node's word", "another key", &other, word(&node, 2, now)));
    rows.push(("a word from an hour and a half ago", "too old", &key, word(&node, 2, now - 5400)));
    rows.push(("a word for a stage that cannot be", "no stage has", &key, word(&node, 65, now)));
    rows.push(("the word of one who has not joined", "has not joined", &key, word(&other, 2, now)));
    rows.push(("a key's word for itself", "has not joined", &key, word(&key, 2, now)));
    rows.push(("half a word", "length of one", &key, word(&node, 2, now)[..50].to_vec()));
    for (attack, words, shown_by, word) in rows {
        table.enter(attack, words, shows_the_word(scene, shown_by, word).await);
    }
}

async fn by_what_is_said_first(scene: &Scene, table: &mut Table) {
    let port = scene.port();
    table.enter("a connection that says nothing", "closed", sends(port, b""));
    // Less than a record, and more than the node looks at.
    let huge = [&[0x16, 3, 1, 62, 128, 1, 0, 62, 124][..], &[0; 2 * MAX_GREETING_BYTES]].concat();
    table.enter("a ClientHello of 16 KiB", "closed", sends(port, &huge));
    let cut = [0x16, 3, 1, 2, 0, 1, 0, 1];
    table.enter("half a ClientHello, then silence", "closed", sends(port, &cut));
    table.enter("a browser asks for a page", "closed", sends(port, b"GET / HTTP/1.1\r\n\r\n"));
    table.enter("a line that names a stage, without TLS", "closed", sends(port, b"STAGE 2\nPRI"));
    table.enter("a line that names no stage", "closed", sends(port, b"STAGE 77\nPRI"));
    table.enter("a server name that is no stage's", "reset", raw_tls(port, None).await);
    let desk = Somebody::member(&scene.authority, Role::Coordinator, "second");
    let third = scene.first.clone().of_stage(3);
    table.enter("the name of a stage that is not there", "reset", says_hello(&desk, &third).await);
}

async fn with_a_stages_certificate(scene: &Scene, table: &mut Table) {
    let first = scene.stage(1);
    for call in ["Hello", "Prepare", "Drain"] {
        let seen = calls(&first, &scene.second, call).await;
        table.enter(&format!("the first stage calls {call} of the second"), "Forbidden", seen);
    }
    // The second stage opens the lane of the first: it is not the one before it.
    let second = scene.stage(2);
    let seen = opens_a_lane(&second, &scene.first, 0, "x".into()).await;
    table.enter("a stage opens the lane of the one before it", "Forbidden", seen);
    // Under the second's name, the first does not answer: who expects its key is told.
    let network = Network::with_credentials(second.credentials.clone(), false);
    let key = Some(first.credentials.party().key);
    let expected = Expected { role: Role::Worker, key };
    let seen = network.dial(&scene.second, Some(expected)).await;
    let seen = seen.map(|_| "connected".to_owned()).map_err(|error| error.to_string());
    table.enter("the second stage's name, and the first one's key expected", "its key is", seen);
}

/// A connection is half made when its stage ends.
fn while_a_stage_ends(scene: &Scene, table: &mut Table) {
    let mut open: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(scene.port().to_string()).unwrap()).collect();
    open.iter_mut().for_each(|stream| stream.write_all(b"STAGE ").unwrap());
    let ends = scene.node.stage("2/2").unwrap();
    // Some are handed to it before it ends, some while it does, some afterwards.
    for (n, stream) in open.iter_mut().enumerate() {
        if n == 4 {
            signal("KILL", ends);
        }
        stream.write_all(b"2\n").unwrap();
    }
    for mut stream in open {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let seen: Seen = if answer.is_empty() {
            Err("closed without a word".into())
        } else {
            Ok(format!("{answer:?}"))
        };
        table.enter("a connection to a stage that ends meanwhile", "closed", seen);
    }
    let is_another = || scene.node.stage("2/2").is_some_and(|pid| pid != ends);
    wait_until("the stage comes again", RUNS_WITHIN, is_another);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: nobody_else_gets_through_a_nodes_port;
];
