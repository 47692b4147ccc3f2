//! Attacks on a running line by peers without a certificate, with a wrong one, or with one for another role: a table
//! of attacks and answers. The line must run on undisturbed.
//!
//!     cargo test --release --test cluster -- attacks::

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::control::cluster_client::ClusterClient;
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::*;
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{WantedBlob, WeightsRequest};
use brigade_proto::failure::Failure;
use brigade_proto::limits::MAX_GATHERED;
use brigade_proto::net::{Connection, Network, dial};
use brigade_proto::pipeline::pipeline_client::PipelineClient;
use brigade_proto::pipeline::{LaneFrame, LaneOpen, ResultsRequest, lane_frame};
use brigade_proto::tls::authority::{Validity, newcomer_certificate};
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::{Authority, Credentials, NodeKey, Role, Token, unix_now};
use brigade_proto::{SOFTWARE, WIRE_VERSION};
use brigade_tests::fakes::runtime;
use brigade_tests::process::Running;
use brigade_tests::secure::{Cluster, PAST_A_SECOND, Somebody, wait_until};
use brigade_tests::up_share::{completes, wait_up};
use tokio_stream::StreamExt;
use tonic::Status;

/// Least number of attacks in the table.
const ATTACKS: usize = 25;
/// How long an answer may take. A connection that says nothing is closed after 10 s.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// A line of two workers, and all that an attacker may have got hold of.
struct Scene {
    cluster: Cluster,
    server: Running,
    workers: [Running; 2],
    authority: Authority,
    other: Authority,
    used: Token,
}

impl Scene {
    fn new() -> Self {
        let cluster = Cluster::new();
        let server = cluster.serve(&["--expect", "2"]);
        let used = cluster.token(&["--uses", "2"]);
        let workers = [cluster.worker("lab", &used), cluster.worker("attic", &used)];
        wait_up(&server);
        let (key, pem) = Authority::create(unix_now()).unwrap();
        let other = Authority::load(key, "other", &pem).unwrap();
        let authority = cluster.authority();
        Self { cluster, server, workers, authority, other, used: used.parse().unwrap() }
    }

    fn worker(&self) -> Address {
        self.workers[0].ready.trim().parse().unwrap()
    }

    fn control(&self) -> Address {
        self.cluster.control.parse().unwrap()
    }

    fn member(&self, role: Role, name: &str) -> Somebody {
        Somebody::member(&self.authority, role, name)
    }

    /// A peer that shows this certificate, and trusts the cluster.
    fn showing(&self, by: &Authority, role: Role, validity: Validity) -> Somebody {
        Somebody::new(&self.authority, by, role, "desk", validity)
    }
}

/// The answer that an attacker got.
pub type Seen = Result<String, String>;

fn of_status(status: &Status) -> String {
    let failure = Failure::from_status(status);
    format!("{:?}: {}", failure.kind(), failure.reason)
}

fn answer<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, Status>) -> Seen {
    match answer {
        Ok(reply) => Ok(format!("{:?}", reply.into_inner())),
        Err(status) => Err(of_status(&status)),
    }
}

fn hello(coordinator_id: &str) -> HelloRequest {
    HelloRequest {
        wire_version: WIRE_VERSION,
        newest_wire_version: 0,
        software: SOFTWARE.into(),
        coordinator_id: coordinator_id.into(),
    }
}

/// A handshake, the first thing a coordinator says, by `who`.
pub async fn says_hello(who: &Somebody, to: &Address) -> Seen {
    calls(who, to, "Hello").await
}

/// The calls of the control service.
const ALL_CALLS: [&str; 14] = [
    "Hello",
    "Health",
    "Prepare",
    "Load",
    "PrepareAhead",
    "LoadAhead",
    "ForgetAhead",
    "Unload",
    "Snapshot",
    "PushTensors",
    "FetchTensors",
    "GatherTensors",
    "Drain",
    "Retire",
];

/// One call of the control service by `who`.
pub async fn calls(who: &Somebody, to: &Address, call: &str) -> Seen {
    let connection = who.dial(to, Role::Worker).await.map_err(|e| e.to_string())?;
    let mut client = WorkerClient::new(connection);
    let coordinator_id = who.coordinator_id();
    match call {
        "Hello" => answer(client.hello(hello(&coordinator_id)).await),
        "Health" => {
            let request = HealthRequest { epoch: 1, coordinator_id, ..Default::default() };
            answer(client.health(request).await)
        }
        "Prepare" => {
            let request = PrepareRequest { epoch: 99, coordinator_id, ..Default::default() };
            answer(client.prepare(request).await)
        }
        "Load" => answer(client.load(LoadRequest { epoch: 1, coordinator_id }).await.map(quiet)),
        "PrepareAhead" => {
            let request = PrepareRequest { epoch: 1, coordinator_id, ..Default::default() };
            answer(client.prepare_ahead(request).await)
        }
        "LoadAhead" => {
            let request = LoadRequest { epoch: 1, coordinator_id };
            answer(client.load_ahead(request).await.map(quiet))
        }
        "ForgetAhead" => {
            let request = UnloadRequest { epoch: 1, coordinator_id };
            answer(client.forget_ahead(request).await)
        }
        "Unload" => answer(client.unload(UnloadRequest { epoch: 1, coordinator_id }).await),
        "Snapshot" => {
            let request = SnapshotRequest { epoch: 1, coordinator_id, slot: 0 };
            answer(client.snapshot(request).await.map(quiet))
        }
        "PushTensors" => {
            let chunk = TensorChunk { epoch: 1, coordinator_id, ..Default::default() };
            answer(client.push_tensors(tokio_stream::once(chunk)).await)
        }
        "FetchTensors" => {
            let request = FetchRequest { epoch: 1, coordinator_id, ..Default::default() };
            answer(client.fetch_tensors(request).await.map(quiet))
        }
        "GatherTensors" => {
            let request = GatherRequest { epoch: 1, coordinator_id, ..Default::default() };
            answer(client.gather_tensors(request).await.map(quiet))
        }
        "Drain" => answer(client.drain(DrainRequest {}).await),
        "Retire" => {
            let request = RetireRequest { epoch: 99, coordinator_id, ..Default::default() };
            answer(client.retire(request).await)
        }
        other => panic!("no call {other}"),
    }
}

fn quiet<T>(reply: tonic::Response<T>) -> tonic::Response<&'static str> {
    reply.map(|_| "a stream")
}

/// Asks a stage for its results.
async fn asks_for_results(who: &Somebody, to: &Address) -> Seen {
    let connection = who.dial(to, Role::Worker).await.map_err(|e| e.to_string())?;
    let request = ResultsRequest { epoch: 1, coordinator_id: who.coordinator_id(), lane: 0 };
    answer(PipelineClient::new(connection).results(request).await.map(quiet))
}

/// Asks a worker for so many blobs of its cache, by made-up hashes; returns the blobs that it sends.
async fn asks_for_weights(who: &Somebody, to: &Address, n: usize, offset: u64) -> Seen {
    let connection = who.dial(to, Role::Worker).await.map_err(|e| e.to_string())?;
    let blob = WantedBlob { blake3: vec![7; 32].into(), nbytes: 1 << 20, offset };
    let request = WeightsRequest { blobs: vec![blob; n] };
    let parts = CopiesClient::new(connection).weights(request).await;
    let mut parts = parts.map_err(|status| of_status(&status))?.into_inner();
    match parts.message().await {
        Ok(Some(part)) => Ok(format!("{} bytes", part.data.len())),
        Ok(None) => Err("nothing of that is here".to_owned()),
        Err(status) => Err(of_status(&status)),
    }
}

/// Opens a lane at a stage, as this coordinator.
pub async fn opens_a_lane(
    who: &Somebody,
    to: &Address,
    stage: u32,
    coordinator_id: String,
) -> Seen {
    let connection = who.dial(to, Role::Worker).await.map_err(|e| e.to_string())?;
    let open = LaneOpen { epoch: 1, coordinator_id, lane: 0, stage };
    let frames = tokio_stream::once(LaneFrame { body: Some(lane_frame::Body::Open(open)) });
    let call = PipelineClient::new(connection).lane(frames.chain(tokio_stream::pending())).await;
    let mut events = call.map_err(|status| of_status(&status))?.into_inner();
    match events.message().await {
        Ok(event) => Ok(format!("{event:?}")),
        Err(status) => Err(of_status(&status)),
    }
}

/// Sends bytes to a port; returns the reply until the connection is closed.
pub fn sends(to: &Address, bytes: &[u8]) -> Seen {
    let mut stream = TcpStream::connect(to.to_string()).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN)).map_err(|e| e.to_string())?;
    stream.write_all(bytes).map_err(|e| e.to_string())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok("left open".into()),
        // A TLS alert is a refusal; a reset is an end.
        _ if answer.first().is_none_or(|byte| *byte == 0x15) => Err("closed without a word".into()),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Connects with a TLS client that accepts every certificate, with or without one of its own; returns what the server
/// sends.
pub async fn raw_tls(to: &Address, shown: Option<(brigade_proto::tls::Der, &NodeKey)>) -> Seen {
    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use tokio::io::AsyncReadExt;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous));
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some((own, key)) => builder.with_client_auth_cert(vec![own], key.to_der()).unwrap(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(to.to_string()).await.map_err(|e| e.to_string())?;
    let name = ServerName::try_from("brigade").unwrap();
    let connected = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let mut stream = connected.map_err(|e| e.to_string())?;
    let mut first = [0; 9];
    match stream.read_exact(&mut first).await {
        Ok(_) => Ok(format!("{first:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// A client that accepts every server.
#[derive(Debug)]
struct Credulous;

impl rustls::client::danger::ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// A connection to the coordinator by a process that has a key and no certificate.
async fn dials_as_newcomer(scene: &Scene, key: &NodeKey) -> Result<Connection, String> {
    let pin = scene.authority.id();
    let shown = Credentials::of_newcomer(key, "newcomer", pin, unix_now()).unwrap();
    let network = Network::with_credentials(Arc::new(shown), false);
    let expected = Expected { role: Role::Coordinator, key: None };
    network.dial(&scene.control(), Some(expected)).await.map_err(|e| e.to_string())
}

/// Asks for a certificate for a key, with a token or without.
async fn enrols(scene: &Scene, key: &NodeKey, name: &str, token: Option<&Token>) -> Seen {
    let connection = dials_as_newcomer(scene, key).await?;
    answer(ClusterClient::new(connection).enrol(enrol_request(name, token)).await)
}

fn enrol_request(name: &str, token: Option<&Token>) -> EnrolRequest {
    EnrolRequest {
        wire_version: WIRE_VERSION,
        newest_wire_version: 0,
        software: SOFTWARE.into(),
        token_id: token.map_or_else(String::new, |token| token.id.clone()),
        token_secret: token.map_or_else(Vec::new, |token| token.secret.to_vec()).into(),
        name: name.into(),
        voucher: Default::default(),
    }
}

fn join_request() -> JoinRequest {
    JoinRequest {
        wire_version: WIRE_VERSION,
        software: SOFTWARE.into(),
        address: "127.0.0.1:9".into(),
        ..Default::default()
    }
}

/// The table, as it grows.
#[derive(Default)]
pub struct Table {
    rows: Vec<(String, String)>,
    pub wrong: Vec<String>,
}

impl Table {
    /// Records an observation. It must be a refusal that says `words`.
    pub fn enter(&mut self, attack: &str, words: &str, seen: Seen) {
        let (said, is_refusal) = match seen {
            Ok(said) => (format!("ANSWERED: {said}"), false),
            Err(said) => (said, true),
        };
        if !is_refusal || !said.contains(words) {
            self.wrong.push(format!("{attack}: expected {words:?}, got {said}"));
        }
        println!("| {} | {attack} | {} |", self.rows.len() + 1, said.replace('\n', " "));
        self.rows.push((attack.to_owned(), said));
    }
}

fn nobody_else_gets_an_answer() {
    let scene = Scene::new();
    let mut table = Table::default();
    println!("| | attack | answer |\n|---|---|---|");
    runtime().block_on(async {
        without_a_certificate(&scene, &mut table).await;
        with_a_bad_certificate(&scene, &mut table).await;
        with_the_wrong_role(&scene, &mut table).await;
        as_another_coordinator(&scene, &mut table).await;
        on_the_control_address(&scene, &mut table).await;
    });
    by_command(&scene, &mut table);
    assert!(table.wrong.is_empty(), "\n{}", table.wrong.join("\n"));
    assert!(table.rows.len() >= ATTACKS, "{} attacks", table.rows.len());
    wait_until("the line runs on", Duration::from_secs(60), || completes(&scene.server.ready));
}

async fn without_a_certificate(scene: &Scene, table: &mut Table) {
    let worker = scene.worker();
    let plain = match dial(&worker, false).await {
        Ok(channel) => answer(WorkerClient::new(channel).hello(hello("a")).await),
        Err(error) => Err(error.to_string()),
    };
    table.enter("a plain gRPC client calls Hello", "", plain);
    let question = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    table.enter("a browser asks for a page", "closed", sends(&worker, question));
    let random: Vec<u8> =
        (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    table.enter("4 KiB of noise", "closed", sends(&worker, &random));
    let cut = [0x16, 3, 1, 2, 0, 1, 0, 1];
    table.enter("half a TLS greeting, then silence", "closed", sends(&worker, &cut));
    let absurd = [0x16, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff];
    table.enter("a TLS greeting that claims 16 MiB", "closed", sends(&worker, &absurd));
    table.enter("TLS without a certificate", "CertificateRequired", raw_tls(&worker, None).await);
}

async fn with_a_bad_certificate(scene: &Scene, table: &mut Table) {
    let (worker, now) = (scene.worker(), unix_now());
    let hour = Validity::from_now(now, Duration::from_secs(3600));
    let key = NodeKey::generate().unwrap();
    let own = newcomer_certificate(&key, "x", now).unwrap();
    let seen = says_hello(&Somebody::showing(&scene.authority, &key, own), &worker).await;
    table.enter("a certificate that it signed itself", "does not know the authority", seen);
    let foreign = scene.showing(&scene.other, Role::Coordinator, hour);
    let seen = says_hello(&foreign, &worker).await;
    table.enter("a coordinator of another cluster", "does not know the authority", seen);
    let over = Validity { not_before: now - 7200, not_after: now - 400 };
    let seen = says_hello(&scene.showing(&scene.authority, Role::Coordinator, over), &worker).await;
    table.enter("a coordinator whose certificate has expired", "has expired", seen);
    let early = Validity { not_before: now + 400, not_after: now + 7200 };
    let seen =
        says_hello(&scene.showing(&scene.authority, Role::Coordinator, early), &worker).await;
    table.enter("a certificate whose time has not begun", "has not begun", seen);
    let ca = std::fs::read_to_string(scene.cluster.dir.join("desk/cluster/ca.key")).unwrap();
    let ca_key = NodeKey::from_pem("ca", &ca).unwrap();
    let shown = Some((scene.authority.certificate().clone(), &ca_key));
    let seen = raw_tls(&worker, shown).await;
    table.enter("the authority's own certificate as a node's", "received fatal alert", seen);
    let newcomer = scene.member(Role::Newcomer, "x");
    let seen = says_hello(&newcomer, &worker).await;
    table.enter(
        "a certificate of the authority for a newcomer",
        "does not know the authority",
        seen,
    );
}

async fn with_the_wrong_role(scene: &Scene, table: &mut Table) {
    let worker = scene.worker();
    let neighbour = scene.member(Role::Worker, "cellar");
    for call in ALL_CALLS {
        let seen = calls(&neighbour, &worker, call).await;
        table.enter(&format!("a worker calls {call} of another worker"), "Forbidden", seen);
    }
    let seen = asks_for_results(&neighbour, &worker).await;
    table.enter("a worker asks for a stage's results", "Forbidden", seen);
    for (at, worker) in scene.workers.iter().enumerate() {
        let worker = worker.ready.trim().parse().unwrap();
        for stage in 0..2 {
            let seen = opens_a_lane(&neighbour, &worker, stage, "x".into()).await;
            let attack =
                format!("a worker that is not before it opens lane {stage} of worker {at}");
            table.enter(&attack, "Forbidden", seen);
        }
    }
    let desk = scene.member(Role::Coordinator, "desk");
    let seen = asks_for_weights(&desk, &worker, 1, 0).await;
    table.enter("a coordinator asks for weights as workers do", "Forbidden", seen);
    let seen = asks_for_weights(&neighbour, &worker, 1, 0).await;
    table.enter("a worker guesses the hash of a tensor", "nothing of that is here", seen);
    let seen = asks_for_weights(&neighbour, &worker, MAX_GATHERED + 1, 0).await;
    table.enter("a worker asks for more tensors than one call may", "weights.blobs", seen);
    let seen = asks_for_weights(&neighbour, &worker, 1, 1 << 20).await;
    table.enter("a worker asks for what is behind a tensor's end", "weights.blobs.offset", seen);
    // The name alone is nothing: keys count.
    for (worker, name) in scene.workers.iter().zip(["attic", "lab"]) {
        let (worker, namesake) =
            (worker.ready.trim().parse().unwrap(), scene.member(Role::Worker, name));
        let seen = opens_a_lane(&namesake, &worker, 1, "x".into()).await;
        table.enter("another key under the name of the stage before", "Forbidden", seen);
    }
    let seen = scene.member(Role::Coordinator, "d").dial(&scene.control(), Role::Worker).await;
    let seen = seen.map(|_| "connected".into()).map_err(|e| e.to_string());
    table.enter("the coordinator's address given as a worker's", "a worker was expected", seen);
}

async fn as_another_coordinator(scene: &Scene, table: &mut Table) {
    let (worker, second) = (scene.worker(), scene.member(Role::Coordinator, "second"));
    let seen = calls(&second, &worker, "Prepare").await;
    table.enter("a second coordinator wants the worker", "(key ", seen);
    for (call, words) in [
        ("Unload", "does not hold"),
        ("ForgetAhead", "does not hold"),
        ("Drain", "Forbidden"),
        ("Load", "does not hold"),
        ("Retire", "does not hold"),
        ("FetchTensors", "does not hold"),
        ("GatherTensors", "does not hold"),
    ] {
        let seen = calls(&second, &worker, call).await;
        table.enter(&format!("a second coordinator calls {call}"), words, seen);
    }
    let connection = second.dial(&worker, Role::Worker).await.unwrap();
    let mut client = WorkerClient::new(connection);
    let holder = scene.member(Role::Coordinator, "desk").coordinator_id();
    let request = HealthRequest { epoch: 1, coordinator_id: holder.clone(), ..Default::default() };
    let seen = answer(client.health(request).await);
    table.enter("a second coordinator speaks in another's name", "Forbidden", seen);
    let seen = opens_a_lane(&second, &worker, 0, holder).await;
    table.enter("a lane opened in another coordinator's name", "Forbidden", seen);
    let coordinator_id = second.coordinator_id();
    let request = HealthRequest { epoch: 0, coordinator_id, revoked: vec![0; 33].into() };
    let seen = answer(client.health(request).await);
    table.enter("a list of revoked keys that is cut off", "BadMessage", seen);
}

async fn on_the_control_address(scene: &Scene, table: &mut Table) {
    let key = NodeKey::generate().unwrap();
    let seen = enrols(scene, &key, "x", None).await;
    table.enter("a newcomer without a token", "has not joined", seen);
    let mut guessed = scene.used.clone();
    guessed.secret = [7; 16];
    let seen = enrols(scene, &key, "x", Some(&guessed)).await;
    table.enter("a token with a guessed secret", "not one of this cluster", seen);
    let seen = enrols(scene, &key, "x", Some(&scene.used)).await;
    table.enter("a token that was used, again", "used already", seen);
    let expired: Token = scene.cluster.token(&["--ttl", "1s"]).parse().unwrap();
    tokio::time::sleep(PAST_A_SECOND).await;
    let seen = enrols(scene, &key, "x", Some(&expired)).await;
    table.enter("a token that has expired", "has expired", seen);
    let seen = enrols(scene, &key, "../../etc", Some(&scene.used)).await;
    table.enter("a name that is a path", "cannot be a node's name", seen);
    let plain = dial(&scene.control(), false).await.unwrap();
    let mut client = ClusterClient::new(plain);
    let seen = answer(client.enrol(enrol_request("x", Some(&scene.used))).await);
    table.enter("a token over a plain connection", "over TLS", seen);
    let connection = dials_as_newcomer(scene, &key).await.unwrap();
    let seen = answer(ClusterClient::new(connection).join(join_request()).await);
    table.enter("a newcomer joins without a certificate", "Forbidden", seen);
    let desk = scene.member(Role::Coordinator, "desk");
    let connection = desk.dial(&scene.control(), Role::Coordinator).await.unwrap();
    let seen = answer(ClusterClient::new(connection).join(join_request()).await);
    table.enter("a coordinator joins as a worker", "Forbidden", seen);
}

/// With the program itself.
fn by_command(scene: &Scene, table: &mut Table) {
    let other = Cluster::new();
    let _other = other.serve(&[]);
    let token = scene.cluster.token(&[]);
    let lured = other.worker_args("lured", Some(&token), &[]);
    let seen = Err(other.refused(&lured).lines().last().unwrap_or_default().to_owned());
    table.enter("another coordinator in the place of the token's", "not the one that made", seen);
    let cellar = scene.cluster.worker("cellar", &token);
    scene.cluster.admin(&["revoke", "cellar"]);
    std::thread::sleep(Duration::from_secs(3));
    drop(cellar);
    let pem = std::fs::read_to_string(scene.cluster.dir.join("cellar/node/key.pem")).unwrap();
    let key = NodeKey::from_pem("key", &pem).unwrap();
    let fresh: Token = scene.cluster.token(&[]).parse().unwrap();
    let seen = runtime().block_on(enrols(scene, &key, "cellar", Some(&fresh)));
    table.enter("a revoked node with a fresh token", "was revoked", seen);
    let hour = Validity::from_now(unix_now(), Duration::from_secs(3600));
    let own = scene.authority.issue_to(&key, Role::Worker, "cellar", hour).unwrap();
    let revoked = Somebody::showing(&scene.authority, &key, own);
    let seen = runtime().block_on(opens_a_lane(&revoked, &scene.worker(), 1, "x".into()));
    table.enter("a revoked node opens a lane", "was revoked", seen);
    let control = scene.control();
    let seen = runtime().block_on(async {
        let dialled = revoked.dial(&control, Role::Coordinator).await;
        dialled.map(|_| "connected".to_owned()).map_err(|e| e.to_string())
    });
    table.enter("a revoked node dials the coordinator", "was revoked", seen);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: nobody_else_gets_an_answer;
];
