//! Each flood that a hostile peer can make, against a real `brigade worker`. The table has the bytes sent, the
//! highest resident memory, the caps that bound it, and the losses of a line over that worker.
//!
//! ```text
//! cargo test --release --test cluster -- --ignored floods::
//! ```
//!
//! `BRIGADE_VICTIM` names another binary, to compare two, and `BRIGADE_VICTIM_WIRE` that one's wire version.
//! Every worker runs under an 8 GiB cap on its address space.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brigade_proto::WIRE_VERSION;
use brigade_proto::address::Address;
use brigade_proto::control::HelloRequest;
use brigade_proto::limits::*;
use brigade_proto::net::STREAM_WINDOW_BYTES;
use brigade_proto::tls::Role;
use brigade_tests::fakes::runtime;
use brigade_tests::hostile::*;
use brigade_tests::process::{Server, signal};
use brigade_tests::secure::{Cluster, Somebody, wait_until};
use brigade_tests::up_share::{completes, wait_up};
use bytes::Bytes;
use prost::Message;
use serde_json::json;
use tokio::io::AsyncWriteExt;

const LANE: &str = "/brigade.pipeline.Pipeline/Lane";
const PREPARE: &str = "/brigade.control.Worker/Prepare";
const PUSH: &str = "/brigade.control.Worker/PushTensors";
const HELLO: &str = "/brigade.control.Worker/Hello";

/// Time over which tokens are counted, before a flood and during it.
const COUNT_FOR: Duration = Duration::from_secs(4);
/// Streams that keep the line busy.
const STREAMS: usize = 4;
/// A flood of bytes ends after this long, wherever it is.
const FLOOD_FOR: Duration = Duration::from_secs(20);

type Sent = Pin<Box<dyn Future<Output = u64> + Send>>;

/// A row of the table. To add one, add it to [`FLOODS`].
struct Flood {
    name: &'static str,
    /// The caps that bound what it can take beside an idle worker, and their sum in bytes.
    caps: &'static str,
    cap_bytes: usize,
    /// Whether it goes on until told to stop, beside a line whose tokens are counted.
    beside_a_line: bool,
    /// Sends it, and says how many messages, calls or connections that were.
    run: fn(Arc<Victim>, Arc<AtomicBool>) -> Sent,
}

const FLOODS: &[Flood] = &[
    Flood {
        name: "60 lengths of 250 MB, nothing after them",
        caps: "MAX_SMALL_BYTES a call",
        cap_bytes: 60 * MAX_SMALL_BYTES,
        beside_a_line: false,
        run: |victim, _| Box::pin(claims(victim)),
    },
    Flood {
        name: "16 MB of empty ops in a lane's first frame",
        caps: "MAX_SMALL_BYTES",
        cap_bytes: MAX_SMALL_BYTES,
        beside_a_line: false,
        run: |victim, _| {
            let ops = framed(&field(2, &field(4, &[]).repeat(8 << 20)));
            Box::pin(calls(victim, LANE, ops, 4))
        },
    },
    Flood {
        name: "Prepares of 16 MB of empty tensors",
        caps: "MAX_PEER_BYTES, 16 windows",
        cap_bytes: MAX_PEER_BYTES + 16 * STREAM_WINDOW_BYTES as usize,
        beside_a_line: false,
        run: |victim, _| {
            let tensors = framed(&field(6, &[]).repeat(8 << 20));
            Box::pin(calls(victim, PREPARE, tensors, 16))
        },
    },
    Flood {
        name: "Prepares of 32 MiB without their last byte",
        caps: "MAX_PEER_BYTES, 64 windows",
        cap_bytes: MAX_PEER_BYTES + 64 * STREAM_WINDOW_BYTES as usize,
        beside_a_line: false,
        run: |victim, _| Box::pin(endless(victim)),
    },
    Flood {
        name: "weights that nobody asked for, 4 MiB a piece",
        caps: "MAX_PEER_BYTES",
        cap_bytes: MAX_PEER_BYTES,
        beside_a_line: false,
        run: |victim, _| {
            let piece = framed(&field(5, &vec![7; MAX_CHUNK_BYTES]));
            Box::pin(calls(victim, PUSH, piece, 128))
        },
    },
    Flood {
        name: "2000 connections that say nothing",
        caps: "MAX_PEER_CONNECTIONS",
        cap_bytes: MAX_PEER_CONNECTIONS * (64 << 10),
        beside_a_line: true,
        run: |victim, stop| Box::pin(connections(victim, stop)),
    },
    Flood {
        name: "Hellos on 8 connections, 16 at once",
        caps: "STRANGER_CALLS_PER_SECOND",
        cap_bytes: 8 * MAX_STREAMS as usize * MAX_SMALL_BYTES,
        beside_a_line: true,
        run: |victim, stop| Box::pin(hellos(victim, stop, 8)),
    },
    Flood {
        name: "Hellos on 64 connections, 16 at once",
        caps: "STRANGER_CALLS_PER_SECOND",
        cap_bytes: 64 * MAX_STREAMS as usize * MAX_SMALL_BYTES,
        beside_a_line: true,
        run: |victim, stop| Box::pin(hellos(victim, stop, 64)),
    },
];

fn every_flood_stays_within_its_caps() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!(
        "| flood | sent | peak before | peak after | caps | tokens/s before | during | lives |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut bad = Vec::new();
    for flood in FLOODS {
        let seen = runtime.block_on(measure(flood));
        println!("{}", seen.row);
        bad.extend(seen.bad.map(|why| format!("{}: {why}", flood.name)));
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

struct Seen {
    row: String,
    bad: Option<String>,
}

/// Beside what the caps count: pieces being copied, HTTP/2's buffers, the allocator's.
const SLACK: u64 = 96 << 20;

async fn measure(flood: &Flood) -> Seen {
    let victim = Arc::new(Victim::ours());
    let stop = Arc::new(AtomicBool::new(false));
    let line = flood.beside_a_line.then(|| Line::over(&victim));
    if let Some(line) = &line {
        line.rate().await;
    }
    let tokens_before = match &line {
        Some(line) => Some(line.rate().await),
        None => None,
    };
    victim.forget_peak();
    let before = victim.peak().unwrap();
    let sending = tokio::spawn((flood.run)(victim.clone(), stop.clone()));
    let tokens_during = match &line {
        Some(line) => Some(line.rate().await),
        None => None,
    };
    if line.is_some() {
        stop.store(true, Ordering::Relaxed);
    }
    let sent = sending.await.unwrap();
    let (peak, serves) = (victim.peak(), victim.serves().await);
    let mib = |n: u64| format!("{} MiB", n >> 20);
    let rate = |rate: Option<f64>| rate.map_or("".into(), |rate| format!("{rate:.0}"));
    let row = format!(
        "| {} | {sent} | {} | {} | {}: {} | {} | {} | {} |",
        flood.name,
        mib(before),
        peak.map_or("gone".into(), mib),
        flood.caps,
        mib(flood.cap_bytes as u64),
        rate(tokens_before),
        rate(tokens_during),
        if serves { "yes" } else { "NO" },
    );
    let allowed = flood.cap_bytes as u64 + SLACK;
    let bad = match peak {
        _ if !serves => Some("it no longer serves".into()),
        Some(peak) if peak.saturating_sub(before) > allowed => {
            Some(format!("{} more", mib(peak - before)))
        }
        _ => None,
    };
    Seen { row, bad }
}

fn wire_version() -> u32 {
    let named = std::env::var("BRIGADE_VICTIM_WIRE").ok();
    named.map_or(WIRE_VERSION, |text| text.parse().expect("BRIGADE_VICTIM_WIRE is a number"))
}

/// A line over the victim that is kept busy.
struct Line {
    server: Arc<Server>,
    stop: Arc<AtomicBool>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Line {
    fn over(victim: &Victim) -> Self {
        let worker = victim.address.to_string();
        let args = ["--worker", &worker, "--max-seqs", "8", "--keep", "0"];
        let server = Arc::new(Server::start_of(&binary(), &args));
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for i in 0..STREAMS {
            let (server, stop) = (server.clone(), stop.clone());
            clients.push(std::thread::spawn(move || {
                let body = json!({
                    "messages": [{"role": "user", "content": format!("Tell me about day {i}")}],
                    "max_tokens": 400, "temperature": 0, "ignore_eos": true,
                });
                while !stop.load(Ordering::Relaxed) {
                    if server.chat_stream(&body).error.is_some() {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            }));
        }
        Self { server, stop, clients }
    }

    /// Tokens a second, over a while.
    async fn rate(&self) -> f64 {
        let count = |server: &Server| server.metric("brigade_generated_tokens_total");
        let (began, before) = (Instant::now(), count(&self.server));
        tokio::time::sleep(COUNT_FOR).await;
        (count(&self.server) - before) / began.elapsed().as_secs_f64()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Its streams end with it, so that no client holds it any more.
        signal("KILL", self.server.process.pid());
        self.clients.drain(..).for_each(|client| drop(client.join()));
    }
}

/// Claims lengths, and waits a while with the calls open.
async fn claims(victim: Arc<Victim>) -> u64 {
    let mut open = Vec::new();
    for _ in 0..60 {
        let Ok(peer) = Peer::connect(victim.address, HOSTILE).await else { continue };
        let Ok((answer, mut body)) = peer.begin(LANE).await else { continue };
        // A call that is refused already is one less to wait for.
        let _ = push(&mut body, claim(250_000_000)).await;
        open.push((peer, answer, body));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    open.len() as u64
}

/// The same call `n` times, all at once, each on a connection of its own.
async fn calls(victim: Arc<Victim>, path: &'static str, bytes: Bytes, n: u64) -> u64 {
    let sent = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..n {
        let (victim, bytes, sent) = (victim.clone(), bytes.clone(), sent.clone());
        tasks.spawn(async move {
            let peer = Peer::connect(victim.address, HOSTILE).await.ok()?;
            let (answer, _body) = peer.send(path, bytes).await.ok()?;
            sent.fetch_add(1, Ordering::Relaxed);
            outcome(answer).await
        });
    }
    // Hung connections end with the worker.
    let _ =
        tokio::time::timeout(FLOOD_FOR, async { while tasks.join_next().await.is_some() {} }).await;
    sent.load(Ordering::Relaxed)
}

/// Messages that lack their last byte.
async fn endless(victim: Arc<Victim>) -> u64 {
    let most = Bytes::from(vec![0xff; MAX_CONTROL_BYTES - 1]);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let (victim, most) = (victim.clone(), most.clone());
        tasks.spawn(async move {
            let peer = Peer::connect(victim.address, HOSTILE).await.ok()?;
            let (answer, mut body) = peer.begin(PREPARE).await.ok()?;
            push(&mut body, claim(MAX_CONTROL_BYTES as u32)).await.ok()?;
            // Refused in the midst of it, where it is.
            let _ = tokio::time::timeout(FLOOD_FOR / 2, push(&mut body, most)).await;
            Some((peer, answer, body))
        });
    }
    let open = tasks.join_all().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    open.iter().flatten().count() as u64
}

async fn connections(victim: Arc<Victim>, stop: Arc<AtomicBool>) -> u64 {
    let mut open = Vec::new();
    while open.len() < 2000 && !stop.load(Ordering::Relaxed) {
        match silent(victim.address, HOSTILE).await {
            Ok(stream) => open.push(stream),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    open.len() as u64
}

/// Handshakes as fast as they are answered.
async fn hellos(victim: Arc<Victim>, stop: Arc<AtomicBool>, n_connections: usize) -> u64 {
    let hello = HelloRequest { wire_version: wire_version(), ..HelloRequest::default() };
    let message = framed(&hello.encode_to_vec());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..n_connections {
        let Ok(peer) = Peer::connect(victim.address, HOSTILE).await else { continue };
        for _ in 0..MAX_STREAMS {
            let (peer, message, stop) = (peer.clone(), message.clone(), stop.clone());
            tasks.spawn(async move {
                let mut answered = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Ok((answer, _body)) = peer.send(HELLO, message.clone()).await else {
                        break;
                    };
                    answered += u64::from(outcome(answer).await.is_some());
                }
                answered
            });
        }
    }
    tasks.join_all().await.into_iter().sum()
}

/// A client's first words in TLS, whole.
fn greeting() -> Vec<u8> {
    use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName};
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
    let mut config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("brigade").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut words = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut words).unwrap();
    }
    words
}

/// The bytes that a stranger sends before it falls silent, on each of its connections.
fn half_handshakes() -> [(&'static str, Vec<u8>); 4] {
    let whole = greeting();
    // The largest message that a first record may announce, with half of the record behind it.
    let mut large = vec![0x16, 3, 1, 0x3f, 0xff, 1, 0, 0xff, 0xff];
    large.resize(8 << 10, 0);
    [
        ("nothing", Vec::new()),
        ("half a greeting", whole[..whole.len() / 2].to_vec()),
        ("half of the largest greeting", large),
        ("a greeting, and no answer to ours", whole),
    ]
}

/// The most that handshakes of one address may take: each connection counts as [`HANDSHAKE_BYTES`] until it is over.
const HANDSHAKES: u64 = (MAX_PEER_CONNECTIONS * HANDSHAKE_BYTES) as u64;

fn half_handshakes_stay_within_their_caps() {
    let cluster = Cluster::new();
    let server = cluster.serve(&[]);
    let process = cluster.worker("lab", &cluster.token(&[]));
    let address = process.ready.trim().parse().unwrap();
    let victim = Victim { process, address };
    wait_up(&server);
    let runtime = runtime();
    println!("| 2000 connections that say | peak before | peak after | cap | slowest answer |");
    println!("|---|---|---|---|---|");
    for (name, words) in half_handshakes() {
        victim.forget_peak();
        let before = victim.peak().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flood = runtime.spawn(greetings(victim.address, words, stop.clone()));
        let (began, mut slowest) = (Instant::now(), Duration::ZERO);
        while began.elapsed() < FLOOD_FOR / 2 {
            let asked = Instant::now();
            assert!(completes(&server.ready), "{name}: the line runs on");
            slowest = slowest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Ordering::Relaxed);
        let sent = runtime.block_on(flood).unwrap();
        let peak = victim.peak().expect("the worker lives");
        let mib = |bytes: u64| bytes >> 20;
        println!(
            "| {name} ({sent} were made) | {} MiB | {} MiB | {} MiB | {slowest:?} |",
            mib(before),
            mib(peak),
            mib(HANDSHAKES)
        );
        assert!(sent >= 2000, "{sent} connections");
        let more = peak.saturating_sub(before);
        assert!(more <= HANDSHAKES + SLACK, "{name}: {} MiB more", mib(more));
    }
    // An honest peer is let in as soon as the flood is over, also from its address.
    let desk = Somebody::member(&cluster.authority(), Role::Coordinator, "other");
    let worker: Address = victim.process.ready.trim().parse().unwrap();
    wait_until("a member is let in", Duration::from_secs(30), || {
        runtime.block_on(desk.dial(&worker, Role::Worker)).is_ok()
    });
}

/// Keeps 2000 connections open that have said `words`; those that are closed are made again. How many were made.
async fn greetings(to: SocketAddr, words: Vec<u8>, stop: Arc<AtomicBool>) -> u64 {
    let (mut open, mut made) = (VecDeque::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut stream) = silent(to, HOSTILE).await {
            made += 1;
            // One that was turned away takes nothing.
            let _ = stream.write_all(&words).await;
            open.push_back(stream);
        }
        if open.len() > 2000 {
            open.pop_front();
        }
    }
    made
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone:
        every_flood_stays_within_its_caps ignored("minutes; a nightly measurement"),
        half_handshakes_stay_within_their_caps ignored("a minute; a nightly measurement");
];
