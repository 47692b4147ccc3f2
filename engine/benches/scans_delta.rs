//! The delta rule with Kimi Linear 48B's shapes: token by token, as a blocked recurrence, by chunks;
//! beside the arithmetic's peak, measured in the same run:
//! `cargo bench -p brigade-engine --bench scans_delta`.
//!
//! `BRIGADE_BENCH_THREADS` (default 1), `BRIGADE_BENCH_KERNELS` (default the fastest) choose what
//! runs, `BRIGADE_BENCH_BEST` prints the fastest run instead of the median.

use std::time::{Duration, Instant};

use brigade_engine::kernels::{
    Columns, Compute, Decay, DeltaRows, DeltaShape, KeyHeads, ScanPart, probe, select,
};

/// How long a case runs.
const CASE_TIME: Duration = Duration::from_millis(300);

/// One layer of Kimi Linear 48B.
const KIMI: DeltaShape = DeltaShape {
    n_head: 32,
    n_key_head: 32,
    key_heads: KeyHeads::Grouped,
    d_k: 128,
    d_v: 128,
    decay: Decay::PerChannel,
};

/// Operations of a token in the recurrence: decay, prediction, update, read-out.
const TOKEN_OPS: usize = 7 * KIMI.n_head * KIMI.d_k * KIMI.d_v;

fn main() {
    let threads = std::env::var("BRIGADE_BENCH_THREADS").ok().and_then(|n| n.parse().ok());
    let kernels = std::env::var("BRIGADE_BENCH_KERNELS").ok();
    let kernels = select(kernels.as_deref()).expect("a table of this machine");
    let compute = Compute::new(kernels, threads.unwrap_or(1), None).expect("threads start");
    let peak = probe::f32_peak(&compute);
    let n_threads = compute.pool().threads();
    println!("table {}, {n_threads} threads, f32 peak {:.1} GFLOP/s", kernels.name, peak / 1e9);
    for n in [64, 256, 1024] {
        let x = Inputs::new(n);
        let exact = x.in_f64();
        let row = |name: &str, run: &dyn Fn(&mut Run)| {
            let mut result = Run::new(n);
            run(&mut result);
            let off = largest_difference(&result.out, &exact);
            let seconds = median(|| run(&mut result)) / n as f64;
            let (micros, share) = (seconds * 1e6, 100.0 * TOKEN_OPS as f64 / seconds / peak);
            println!(
                "KDA {n:5} tokens, {name:20} {micros:7.1} us a token and layer, {share:4.1} % of peak, off by {off:.1e}"
            );
        };
        row("lanes along the keys", &|run| x.plain(&compute, run));
        row("one token at a time", &|run| x.scan(&compute, 1, run));
        row("blocked recurrence", &|run| x.scan(&compute, n, run));
        for chunk in [16, 32, 64] {
            row(&format!("chunks of {chunk}"), &|run| x.chunked(&compute, chunk, run));
        }
    }
}

/// Operands of a sequence: unit keys and queries, decays of a few per cent.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

/// State and outputs of a run.
struct Run {
    state: Vec<f32>,
    out: Vec<f32>,
}

impl Run {
    fn new(n: usize) -> Self {
        Self { state: vec![0.0; KIMI.state_len()], out: vec![0.0; n * KIMI.n_head * KIMI.d_v] }
    }
}

/// Values between -1 and 1 without a pattern.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

impl Inputs {
    fn new(n: usize) -> Self {
        let width = n * KIMI.n_head * KIMI.d_k;
        let unit = |seed| {
            let mut x = values(width, seed);
            for head in x.chunks_exact_mut(KIMI.d_k) {
                let norm = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                head.iter_mut().for_each(|x| *x /= norm);
            }
            x
        };
        Self {
            q: unit(1),
            k: unit(2),
            v: values(width, 3),
            decay: values(width, 4).into_iter().map(|x| 1.0 - 0.05 * x.abs()).collect(),
            beta: values(n * KIMI.n_head, 5).into_iter().map(f32::abs).collect(),
        }
    }

    fn rows(&self) -> DeltaRows<'_> {
        let width = KIMI.n_head * KIMI.d_k;
        DeltaRows {
            q: Columns::whole(&self.q, width),
            k: Columns::whole(&self.k, width),
            v: Columns::whole(&self.v, width),
            decay: Columns::whole(&self.decay, width),
            beta: Columns::whole(&self.beta, KIMI.n_head),
        }
    }

    fn part(&self) -> ScanPart {
        let n_rows = self.beta.len() / KIMI.n_head;
        ScanPart { slot: 0, first_pos: 0, first_row: 0, n_rows }
    }

    fn plain(&self, compute: &Compute, run: &mut Run) {
        run.state.fill(0.0);
        compute.delta_plain(&KIMI, &[self.part()], &mut run.state, self.rows(), &mut run.out);
    }

    /// The recurrence in pieces of `step` tokens.
    fn scan(&self, compute: &Compute, step: usize, run: &mut Run) {
        run.state.fill(0.0);
        let all = self.part();
        for first in (0..all.n_rows).step_by(step) {
            let n_rows = step.min(all.n_rows - first);
            let piece = ScanPart { first_pos: first, first_row: first, n_rows, ..all };
            compute.delta_scan(&KIMI, &[piece], &mut run.state, self.rows(), &mut run.out);
        }
    }

    fn chunked(&self, compute: &Compute, chunk: usize, run: &mut Run) {
        run.state.fill(0.0);
        let (part, state) = ([self.part()], &mut run.state);
        compute.delta_chunked(&KIMI, chunk, &part, state, self.rows(), &mut run.out);
    }

    /// Outputs of the recurrence in f64.
    fn in_f64(&self) -> Vec<f64> {
        let (d, width) = (KIMI.d_k, KIMI.n_head * KIMI.d_k);
        let mut out = vec![0.0; self.v.len()];
        for head in 0..KIMI.n_head {
            let mut state = vec![0.0; d * d];
            for row in 0..self.v.len() / width {
                let at = row * width + head * d..row * width + (head + 1) * d;
                let (q, k) = (&self.q[at.clone()], &self.k[at.clone()]);
                let mut predicted = vec![0.0; d];
                for (i, state) in state.chunks_exact_mut(d).enumerate() {
                    for (state, sum) in state.iter_mut().zip(&mut predicted) {
                        *state *= f64::from(self.decay[at.start + i]);
                        *sum += *state * f64::from(k[i]);
                    }
                }
                let beta = f64::from(self.beta[row * KIMI.n_head + head]);
                for (i, state) in state.chunks_exact_mut(d).enumerate() {
                    for (j, state) in state.iter_mut().enumerate() {
                        let v = f64::from(self.v[at.start + j]);
                        *state += f64::from(k[i]) * beta * (v - predicted[j]);
                        out[at.start + j] += *state * f64::from(q[i]) / (d as f64).sqrt();
                    }
                }
            }
        }
        out
    }
}

fn largest_difference(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
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
