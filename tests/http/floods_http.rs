//! Clients that flood the HTTP port, and their cost for the coordinator: memory, gaps in other streams, and time to
//! end.
//!
//! This is a measurement and not a part of the usual suite. It prints a table beside the named limits:
//!
//! ```text
//! cargo test --release --test http -- --ignored floods_http::
//! ```
//!
//! One stream of the built-in model is read while each flood goes on. A flood ends by itself, and its open
//! connections are dropped with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, get, is_alive, signal};

/// How long each flood is watched.
const FLOOD: Duration = Duration::from_secs(10);
/// Clients that send large bodies, one after the other.
const LARGE_CLIENTS: usize = 8;
/// Bytes of a large body: a little below the server's limit.
const LARGE_BYTES: usize = (16 << 20) - 1024;
/// Clients that send a body a byte at a time.
const TRICKLING_CLIENTS: usize = 200;
/// Connections that send nothing.
const IDLE_CLIENTS: usize = 2000;

/// The cost of one flood.
struct Cost {
    flood: &'static str,
    /// Resident memory of the coordinator, MiB: before, and the most during the flood.
    before: f64,
    most: f64,
    /// Longest time between two events of the stream beside it.
    gap: Duration,
    /// Connections that are open at the end of it.
    open: usize,
    /// The outcome, in words.
    outcome: String,
}

/// A field of `/proc/PID/status` in MiB.
fn memory(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// Sockets that a process has open.
fn sockets(pid: u32) -> usize {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let is_socket = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    files.flatten().filter(|file| is_socket(file.path())).count()
}

fn server() -> Server {
    Server::start(&["--workers", "2", "--threads", "1", "--max-seqs", "4", "--ctx", "4096"])
}

fn address(server: &Server) -> SocketAddr {
    server.process.ready.trim_start_matches("http://").parse().unwrap()
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Streams one long answer after the other until `over`, and keeps the longest gap between two events, in us.
fn watch_stream(to: SocketAddr, over: &AtomicBool, gap: &AtomicUsize) {
    let body = r#"{"messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 3000, "temperature": 0,
                   "ignore_eos": true, "stream": true}"#;
    while !over.load(Ordering::SeqCst) {
        let Ok(mut stream) = connect(to) else { continue };
        if stream.write_all((head("/v1/chat/completions", body.len()) + body).as_bytes()).is_err() {
            continue;
        }
        let mut last: Option<Instant> = None;
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if !line.starts_with("data: ") {
                continue;
            }
            if let Some(last) = last.replace(Instant::now()) {
                gap.fetch_max(last.elapsed().as_micros() as usize, Ordering::SeqCst);
            }
            if over.load(Ordering::SeqCst) || line.contains("[DONE]") {
                break;
            }
        }
    }
}

/// Runs `flood` on clients of its own beside a stream, and returns its cost.
fn measure(
    flood: &'static str,
    clients: usize,
    client: impl Fn(SocketAddr, &AtomicBool) -> Option<u16> + Sync,
) -> Cost {
    let server = server();
    let (to, pid) = (address(&server), server.process.pid());
    let before = memory(pid, "VmRSS");
    let (over, gap) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (served, refused, cut) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let mut open = 0;
    let mut healthy = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| watch_stream(to, &over, &gap));
        std::thread::sleep(Duration::from_secs(2));
        gap.store(0, Ordering::SeqCst);
        for _ in 0..clients {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    match client(to, &over) {
                        Some(200) => served.fetch_add(1, Ordering::SeqCst),
                        Some(_) => refused.fetch_add(1, Ordering::SeqCst),
                        None => cut.fetch_add(1, Ordering::SeqCst),
                    };
                }
            });
        }
        let end = Instant::now() + FLOOD;
        while Instant::now() < end {
            healthy += usize::from(get(&server.url("/health")).is_ok_and(|r| r.status == 200));
            std::thread::sleep(Duration::from_millis(100));
            open = open.max(sockets(pid));
        }
        over.store(true, Ordering::SeqCst);
    });
    let count = |n: AtomicUsize| n.into_inner();
    Cost {
        flood,
        before,
        most: memory(pid, "VmHWM"),
        gap: Duration::from_micros(count(gap) as u64),
        open,
        outcome: format!(
            "{} served, {} refused, {} cut; {healthy} health checks answered",
            count(served),
            count(refused),
            count(cut)
        ),
    }
}

/// Sends `body` at once; the answer's status.
fn send(to: SocketAddr, path: &str, body: &[u8]) -> Option<u16> {
    let mut stream = connect(to).ok()?;
    stream.write_all(head(path, body.len()).as_bytes()).ok()?;
    // A server that has refused it reads no further: its answer is there all the same.
    let _ = stream.write_all(body);
    let mut start = [0; 12];
    stream.read_exact(&mut start).ok()?;
    String::from_utf8_lossy(&start[9..12]).parse().ok()
}

/// A body of small values: the costliest kind to keep as a tree.
fn nested() -> Vec<u8> {
    let mut body = br#"{"messages": [{"role": "user", "content": "x", "y": ["#.to_vec();
    while body.len() < LARGE_BYTES {
        body.extend_from_slice(b"[],");
    }
    body.extend_from_slice(b"0]}]}");
    body
}

/// A body that is one long text.
fn text() -> Vec<u8> {
    let text = "In the beginning ".repeat(LARGE_BYTES / 17 - 8);
    format!(r#"{{"prompt": "{text}"}}"#).into_bytes()
}

/// A body that is one long list of tokens.
fn tokens() -> Vec<u8> {
    format!(r#"{{"prompt": [{}1]}}"#, "1,".repeat(LARGE_BYTES / 2 - 16)).into_bytes()
}

fn trickle(to: SocketAddr, over: &AtomicBool) -> Option<u16> {
    let mut stream = connect(to).ok()?;
    stream.write_all(head("/v1/completions", LARGE_BYTES).as_bytes()).ok()?;
    while !over.load(Ordering::SeqCst) {
        stream.write_all(b" ").ok()?;
        std::thread::sleep(Duration::from_millis(500));
    }
    None
}

fn idle(to: SocketAddr, over: &AtomicBool) -> Option<u16> {
    let mut stream = connect(to).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    while !over.load(Ordering::SeqCst) {
        // Zero bytes are the server's end of the connection.
        match stream.read(&mut [0; 64]) {
            Ok(0) => break,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
            Ok(_) | Err(_) => {}
        }
    }
    // Not at once again: this is a flood of connections that stay.
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(100));
    }
    None
}

/// Seconds from SIGTERM to the end with half a head, half a body and a silent connection open.
fn exit_with_half_sent() -> Duration {
    let server = server();
    let (to, pid) = (address(&server), server.process.pid());
    let mut open = Vec::new();
    for half in ["", "POST /v1/completions HTTP/1.1\r\n", &head("/v1/completions", 99)] {
        for _ in 0..10 {
            let mut stream = connect(to).unwrap();
            stream.write_all(half.as_bytes()).unwrap();
            open.push(stream);
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    signal("TERM", pid);
    while is_alive(pid) {
        assert!(began.elapsed() < Duration::from_secs(60), "it did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

fn print(costs: &[Cost], exit: Duration) {
    println!("| flood | before MiB | most MiB | longest gap ms | sockets | outcome |");
    println!("|---|---|---|---|---|---|");
    for cost in costs {
        println!(
            "| {} | {:.0} | {:.0} | {} | {} | {} |",
            cost.flood,
            cost.before,
            cost.most,
            cost.gap.as_millis(),
            cost.open,
            cost.outcome
        );
    }
    println!(
        "| 30 half-sent requests at SIGTERM | | | | | the process ended after {:.1} s |",
        exit.as_secs_f64()
    );
    println!(
        "limits: a body {} MiB, all bodies {} MiB beyond 64 KiB of each, {} connections, a body within 60 s and \
         never 10 s without a byte, one large body read at a time, half a request 0.5 s at the end",
        brigade_http::MAX_BODY_BYTES >> 20,
        brigade_http::MAX_BODIES_BYTES >> 20,
        brigade_http::MAX_CONNECTIONS,
    );
}

fn floods() {
    let (nested, text, tokens) = (Arc::new(nested()), Arc::new(text()), Arc::new(tokens()));
    let costs = [
        measure("none", 0, |_, _| None),
        measure("8 x 16 MB of small values", LARGE_CLIENTS, |to, _| {
            send(to, "/v1/chat/completions", &nested)
        }),
        measure("8 x 16 MB of text", LARGE_CLIENTS, |to, _| send(to, "/v1/completions", &text)),
        measure("8 x 16 MB of tokens", LARGE_CLIENTS, |to, _| send(to, "/v1/completions", &tokens)),
        measure("200 trickled bodies", TRICKLING_CLIENTS, trickle),
        measure("2000 idle connections", IDLE_CLIENTS, idle),
    ];
    print(&costs, exit_with_half_sent());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone: floods ignored("a measurement of two minutes; the module's head has its command");
];
