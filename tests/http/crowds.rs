//! A crowd of idle connections beside one client that works: its delays, compared with those at a quiet server.
//!
//! A measurement, not a part of the usual suite; it prints a table:
//!
//! ```text
//! ulimit -n 32768; cargo test --release --test http -- --ignored crowds::
//! ```
//!
//! The crowd comes from many addresses of the loopback network, stays as long as the server lets it, and comes back.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, post_with, run};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

/// Number of connections that send nothing.
const IDLE: usize = 10_000;
/// Connections that send a byte now and then: half of them within a head, the others within a body.
const TRICKLING: usize = 1_000;
/// Requests that the working client sends, one after the other.
const REQUESTS: usize = 200;
/// How long a closed connection waits before it comes back.
const COMES_BACK: Duration = Duration::from_secs(10);
/// The delay that the working client may have: this many times that at a quiet server, and so many milliseconds more.
const ALLOWED: (f64, f64) = (2.0, 20.0);

/// A connection from one of 50 addresses.
async fn connect(to: SocketAddr, i: usize) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let from = format!("127.0.{}.{}:0", 1 + i % 5, 1 + i % 50);
    socket.bind(from.parse().expect("an address"))?;
    socket.connect(to).await
}

async fn idle(to: SocketAddr, i: usize) {
    loop {
        if let Ok(mut stream) = connect(to, i).await {
            // Ends when the server closes it.
            let _ = stream.read(&mut [0; 16]).await;
        }
        sleep(COMES_BACK).await;
    }
}

async fn trickle(to: SocketAddr, i: usize) {
    let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n";
    loop {
        if let Ok(mut stream) = connect(to, i).await {
            if i.is_multiple_of(2) {
                // A server that has closed it says so at the next write.
                let _ = stream.write_all(head.as_bytes()).await;
            }
            for byte in head.bytes().cycle() {
                let there = timeout(Duration::from_secs(5), stream.write_all(&[byte])).await;
                if !matches!(there, Ok(Ok(()))) {
                    break;
                }
                sleep(Duration::from_millis(500)).await;
            }
        }
        sleep(COMES_BACK).await;
    }
}

/// Median, the slowest of 20 and the slowest latency, in milliseconds.
fn work(server: &Server, secret: &str) -> (f64, f64, f64) {
    let body = json!({ "prompt": "In the", "max_tokens": 1, "temperature": 0 }).to_string();
    let mut took: Vec<f64> = (0..REQUESTS)
        .map(|_| {
            let began = Instant::now();
            let reply = post_with(&server.url("/v1/completions"), &body, "api-key", secret);
            assert_eq!(reply.unwrap().status, 200);
            began.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    took.sort_by(f64::total_cmp);
    (took[took.len() / 2], took[took.len() * 95 / 100], took[took.len() - 1])
}

fn sockets(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn a_crowd_leaves_a_working_client_alone() {
    let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("crowds");
    // One that an earlier run has left.
    let _ = std::fs::remove_dir_all(&data);
    let data = data.to_str().unwrap();
    let made = run(&["key", "create", "worker", "--data-dir", data]);
    let secret = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let server = Server::start(&["--workers", "1", "--threads", "1", "--data-dir", data]);
    let to: SocketAddr = server.process.ready.trim_start_matches("http://").parse().unwrap();
    println!("| beside | p50 ms | p95 ms | slowest ms | files the server has open |");
    println!("|---|---|---|---|---|");
    let row = |what: &str, (p50, p95, slowest): (f64, f64, f64)| {
        let open = sockets(server.process.pid());
        println!("| {what} | {p50:.1} | {p95:.1} | {slowest:.1} | {open} |");
    };
    work(&server, &secret);
    let alone = work(&server, &secret);
    row("nothing", alone);
    let check = |(_, p95, _): (f64, f64, f64)| {
        assert!(p95 <= ALLOWED.0 * alone.1 + ALLOWED.1, "{p95} ms after {} ms", alone.1);
    };
    let runtime = Runtime::new().unwrap();
    (0..IDLE).for_each(|i| drop(runtime.spawn(idle(to, i))));
    std::thread::sleep(Duration::from_secs(5));
    let idle = work(&server, &secret);
    row(&format!("{IDLE} idle connections"), idle);
    (0..TRICKLING).for_each(|i| drop(runtime.spawn(trickle(to, i))));
    std::thread::sleep(Duration::from_secs(5));
    let both = work(&server, &secret);
    row(&format!("these and {TRICKLING} trickling ones"), both);
    runtime.shutdown_background();
    check(idle);
    check(both);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone:
        a_crowd_leaves_a_working_client_alone ignored("a measurement with 11,000 connections; the module's head has its command");
];
