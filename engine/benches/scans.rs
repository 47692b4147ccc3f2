//! Recurrences of the sizes that models have, in every form: `cargo bench -p brigade-engine --bench
//! scans [-- FILTER]`. Microseconds for a token and a layer, the share of the machine's f32 peak
//! (measured in the same run), and how far outputs are from the blocked recurrence's.
//!
//! `BRIGADE_BENCH_THREADS` (default 1), `BRIGADE_BENCH_KERNELS` (default the fastest) choose what
//! runs, `BRIGADE_BENCH_BEST` prints the fastest run instead of the median.

use std::time::{Duration, Instant};

use brigade_engine::kernels::{Columns, Compute, ScanPart, Ssd, SsdInput, SsdShape, probe, select};

/// How long a case runs.
const CASE_TIME: Duration = Duration::from_millis(500);
/// Tokens of a prompt.
const LENGTHS: [usize; 3] = [64, 256, 1024];
/// Granite 4 H-Tiny.
const GRANITE: SsdShape = SsdShape { n_head: 48, head_dim: 64, n_state: 128, n_group: 1 };

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let threads = std::env::var("BRIGADE_BENCH_THREADS").ok().and_then(|n| n.parse().ok());
    let kernels = std::env::var("BRIGADE_BENCH_KERNELS").ok();
    let kernels = select(kernels.as_deref()).expect("a table of this machine");
    let compute = Compute::new(kernels, threads.unwrap_or(1), None).expect("threads start");
    println!("table {}, {} threads", kernels.name, compute.pool().threads());
    if "ssd".contains(&filter) {
        for n in LENGTHS {
            ssd(&compute, n);
        }
    }
}

/// Median seconds of a run of `f`; the least, where `BRIGADE_BENCH_BEST` is set (on a busy machine).
fn median(mut f: impl FnMut()) -> f64 {
    let (mut times, start) = (Vec::new(), Instant::now());
    while start.elapsed() < CASE_TIME || times.len() < 5 {
        let begin = Instant::now();
        f();
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    if std::env::var_os("BRIGADE_BENCH_BEST").is_some() { times[0] } else { times[times.len() / 2] }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 2039) as f32 / 1019.5 - 1.0).collect()
}

/// One line: a form's time over `n` tokens, `flops` operations each.
fn report(compute: &Compute, form: &str, n: usize, flops: usize, seconds: f64, off: f32) {
    let rate = (n * flops) as f64 / seconds;
    let peak = probe::f32_peak(compute);
    println!(
        "{form:20} {n:5} tokens  {:8.2} us/token  {:6.1} GFLOP/s = {:3.0} % of f32 {:6.1}  \
         largest difference {off:.1e}",
        seconds * 1e6 / n as f64,
        rate / 1e9,
        100.0 * rate / peak,
        peak / 1e9,
    );
}

/// The largest difference between two outputs, relative to the largest output.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
    a.iter().zip(b).fold(0.0, |m: f32, (a, b)| m.max((a - b).abs())) / largest
}

/// Mamba-2: token by token, blocked, in chunks.
fn ssd(compute: &Compute, n: usize) {
    let shape = GRANITE;
    let small = |n| values(n).iter().map(|v| v * 0.5 - 1.0).collect::<Vec<_>>();
    let bias = small(shape.n_head).iter().map(|v| v * 2.0).collect();
    let layer = Ssd::new(shape, small(shape.n_head), values(shape.n_head), bias);
    let width = shape.n_inner() + 2 * shape.n_bc();
    let (xbc, dt) = (values(n * width), values(n * shape.n_head));
    let columns = |first_col| Columns { data: &xbc, stride: width, first_col };
    let input = SsdInput {
        x: columns(0),
        b: columns(shape.n_inner()),
        c: columns(shape.n_inner() + shape.n_bc()),
        dt: Columns { data: &dt, stride: shape.n_head, first_col: 0 },
    };
    let parts = [ScanPart { slot: 0, first_pos: 0, first_row: 0, n_rows: n }];
    let flops = 5 * shape.state_len();
    let mut blocked = Vec::new();
    let mut case = |name: &str, run: &dyn Fn(&mut [f32], &mut [f32])| {
        let (mut state, mut out) = (vec![0.0; shape.state_len()], vec![0.0; n * shape.n_inner()]);
        run(&mut state, &mut out);
        if blocked.is_empty() {
            blocked.clone_from(&out);
        }
        let off = difference(&out, &blocked);
        let seconds = median(|| run(&mut state, &mut out));
        report(compute, name, n, flops, seconds, off);
    };
    case("ssd blocked", &|state, out| compute.ssd(&layer, &parts, state, input, out));
    case("ssd plain", &|state, out| compute.ssd_plain(&layer, &parts, state, input, out));
    for chunk in [16, 64, 128, 256] {
        case(&format!("ssd chunks of {chunk}"), &|state, out| {
            compute.ssd_chunked(&layer, chunk, &parts, state, input, out);
        });
    }
}
