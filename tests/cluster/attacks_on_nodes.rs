//! Attacks on the port of a node, behind which its stages are: who says nothing, too much or a wrong name, and who has a
//! key of another stage. The line over the stages must run on.
//!
//!     cargo test --release --test cluster -- attacks_on_nodes::

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::limits::MAX_GREETING_BYTES;
use brigade_proto::net::Network;
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::{Authority, Role};
use brigade_tests::fakes::runtime;
use brigade_tests::process::{Running, signal};
use brigade_tests::secure::{Cluster, READY, Somebody, wait_until};
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
        let token = cluster.token(&["--uses", "2"]);
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

    /// Who has the key and the certificate of a stage.
    fn with_key_of(&self, stage: u8) -> Somebody {
        self.cluster.node(&format!("lab/stage-{stage}"))
    }
}

fn nobody_else_gets_through_a_nodes_port() {
    let scene = Scene::new();
    let mut table = Table::default();
    println!("| | attack | answer |\n|---|---|---|");
    runtime().block_on(async {
        by_what_is_said_first(&scene, &mut table).await;
        with_a_stages_certificate(&scene, &mut table).await;
    });
    assert!(completes(&scene.server.ready), "the line has noticed nothing");
    while_a_stage_ends(&scene, &mut table);
    assert!(table.wrong.is_empty(), "\n{}", table.wrong.join("\n"));
    wait_until("the line runs on", RUNS_WITHIN, || completes(&scene.server.ready));
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
    let first = scene.with_key_of(1);
    for call in ["Hello", "Prepare", "Drain"] {
        let seen = calls(&first, &scene.second, call).await;
        table.enter(&format!("the first stage calls {call} of the second"), "Forbidden", seen);
    }
    // The second stage opens the lane of the first: it is not the one before it.
    let second = scene.with_key_of(2);
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
