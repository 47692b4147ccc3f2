//! The cost of a hop, compared with raw TCP on the same loopback: `cargo bench -p brigade-worker`.
//!
//! The stages compute nothing. So the benchmark measures encoding, sending, receiving, checking, the hand-over to the
//! executor, and the way back. Each worker has a runtime of its own, as a process would.
//!
//! - decode: one row of 1024 f32 (4 KiB) at a time, through one to three workers, and the result back. One
//!   worker is two hops, and each further worker is one more. Beside it stands the round trip over raw TCP.
//! - prefill: boundaries of 512 rows of 4096 f32 (8 MiB), several in flight, into one worker and through two.
//!   Beside them stands a plain TCP stream.

#[allow(dead_code, reason = "a bench uses a part")]
#[path = "../tests/worker/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use brigade_proto::control::WireType;
use brigade_proto::pipeline::{self as pb, Want};
use common::fake::FakeBackend;
use common::model::{Model, write_model};
use common::*;

/// The allocator of the `brigade` binary, since large messages are allocated and freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rounds of the whole bench; the median of each figure is printed, so that a busy moment of the
/// machine does not decide.
const REPEATS: usize = 5;
const N_LAYERS: u32 = 4;
const DECODE_WIDTH: usize = 1024;
const DECODE_BYTES: usize = 4 * DECODE_WIDTH;
const ROUND_TRIPS: usize = 2000;
const WARM_UP: usize = 300;
const PREFILL_WIDTH: usize = 4096;
const PREFILL_ROWS: u32 = 512;
const PREFILL_BYTES: usize = 4 * PREFILL_WIDTH * PREFILL_ROWS as usize;
const FRAMES: u64 = 50;

fn main() {
    // `cargo test --benches` asks for a smoke test only.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let mut rounds: Vec<[f64; 7]> = Vec::new();
    for _ in 0..REPEATS {
        let tcp = us(raw_round_trip());
        let [one, two, three] = [1, 2, 3].map(|n| us(runtime.block_on(decode(n))));
        let stream = raw_stream();
        let [into, through] = [1, 2].map(|n| runtime.block_on(prefill(n)));
        rounds.push([tcp, one, two, three, stream, into, through]);
    }
    let of = |figure: &dyn Fn(&[f64; 7]) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[REPEATS / 2]
    };
    println!("medians of {REPEATS} rounds");
    println!("4 KiB there, 1 B back, raw TCP          {:7.1} us", of(&|r| r[0]));
    for n in 1..=3 {
        println!("decode row there through {n}, result back  {:7.1} us", of(&|r| r[n]));
    }
    println!("one hop of two (row in, result out)     {:7.1} us", of(&|r| r[1] / 2.0));
    println!("  above half the TCP round trip         {:7.1} us", of(&|r| (r[1] - r[0]) / 2.0));
    println!("one more worker in the line             {:7.1} us", of(&|r| (r[3] - r[1]) / 2.0));
    println!("8 MiB pieces, raw TCP                   {:7.0} MiB/s", of(&|r| r[4]));
    println!("8 MiB boundaries into a worker          {:7.0} MiB/s", of(&|r| r[5]));
    println!("  of raw TCP                            {:7.1} %", of(&|r| 100.0 * r[5] / r[4]));
    println!("8 MiB boundaries through two workers    {:7.0} MiB/s", of(&|r| r[6]));
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Median round trip of a decode row there and one byte back, both ends blocking threads.
fn raw_round_trip() -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("accept");
        peer.set_nodelay(true).expect("nodelay");
        let mut row = vec![0; DECODE_BYTES];
        while peer.read_exact(&mut row).is_ok() {
            peer.write_all(&row[..1]).expect("write");
        }
    });
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    let (row, mut answer) = (vec![1; DECODE_BYTES], [0]);
    let times = (0..ROUND_TRIPS).map(|_| {
        let started = Instant::now();
        stream.write_all(&row).expect("write");
        stream.read_exact(&mut answer).expect("read");
        started.elapsed()
    });
    median(times.skip(WARM_UP).collect())
}

/// MiB a second of a plain TCP stream, written and read in prefill-sized pieces.
fn raw_stream() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("bound");
    let reader = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("accept");
        let mut piece = vec![0; PREFILL_BYTES];
        while peer.read_exact(&mut piece).is_ok() {}
    });
    let mut stream = TcpStream::connect(address).expect("connect");
    let piece = vec![1; PREFILL_BYTES];
    let started = Instant::now();
    for _ in 0..FRAMES {
        stream.write_all(&piece).expect("write");
    }
    drop(stream);
    reader.join().expect("the reader");
    mib(started.elapsed())
}

fn mib(time: Duration) -> f64 {
    FRAMES as f64 * PREFILL_BYTES as f64 / f64::from(1 << 20) / time.as_secs_f64()
}

/// A line whose first worker is stage 1: this program is stage 0, so that each worker takes a
/// boundary.
struct Line {
    _workers: Vec<TestWorker>,
    _clients: Vec<Client>,
    results: tonic::Streaming<pb::ResultFrame>,
    lane: Lane,
}

async fn line(n: u32, width: usize, rows: u32) -> Line {
    let dir = scratch();
    let model = Model::open(&write_model(&dir, "m.gguf", N_LAYERS, 16, 0.0));
    let start = || TestWorker::fake(&dir, FakeBackend::with_width(width), |_| ());
    let workers: Vec<TestWorker> = (0..n).map(|_| start()).collect();
    let mut clients = Vec::new();
    for (i, worker) in (0..n).zip(&workers) {
        let next = workers.get(i as usize + 1).map(|w| &w.address);
        let end = if next.is_some() { i + 2 } else { N_LAYERS };
        let mut spec = spec(i + 1, n + 1, i + 1..end, next);
        (spec.max_rows, spec.max_ctx) = (rows, 1 << 20);
        let mut client = Client::connect(worker, "c", 1).await;
        client.prepare(client.order(&model, spec, false)).await.expect("prepared");
        client.load().await.expect("loaded");
        clients.push(client);
    }
    let results = clients.last_mut().expect("workers").results().await.expect("results");
    let lane = clients[0].open_lane(1).await.expect("open");
    Line { _workers: workers, _clients: clients, results, lane }
}

fn rows(id: u64, n: u32, width: usize, data: bytes::Bytes) -> pb::Ubatch {
    let ops = if id == 0 { vec![open(0)] } else { vec![] };
    let parts = vec![part(0, id as u32 * n, &vec![1; n as usize], Want::Nothing)];
    let dtype = WireType::F32.into();
    let boundary = Some(pb::Boundary { dtype, n_rows: n, width: width as u32, data });
    pb::Ubatch { boundary, ..ubatch(id, ops, parts) }
}

/// Median time from sending a decode row to its result, through `n` workers.
async fn decode(n: u32) -> Duration {
    let mut line = line(n, DECODE_WIDTH, 1).await;
    let data = bytes::Bytes::from(vec![0; DECODE_BYTES]);
    let mut times = Vec::new();
    for id in 0..ROUND_TRIPS as u64 {
        let frame = rows(id, 1, DECODE_WIDTH, data.clone());
        let started = Instant::now();
        line.lane.send(frame).await;
        next(&mut line.results).await;
        times.push(started.elapsed());
    }
    median(times.split_off(WARM_UP))
}

/// MiB a second of prefill boundaries into `n` workers, sent as fast as they are taken.
async fn prefill(n: u32) -> f64 {
    let Line { _workers, _clients, mut results, lane } = line(n, PREFILL_WIDTH, PREFILL_ROWS).await;
    let data = bytes::Bytes::from(vec![0; PREFILL_BYTES]);
    let started = Instant::now();
    let sender = tokio::spawn(async move {
        for id in 0..FRAMES {
            lane.send(rows(id, PREFILL_ROWS, PREFILL_WIDTH, data.clone())).await;
        }
        lane
    });
    for _ in 0..FRAMES {
        next(&mut results).await;
    }
    let elapsed = started.elapsed();
    drop(sender.await);
    mib(elapsed)
}
