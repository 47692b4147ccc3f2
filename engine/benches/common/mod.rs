//! Common parts of the kernels' benches: the kernels to run on, the machine's limits, and the measurement of a time.
//!
//! The environment chooses what runs:
//!
//! - `BRIGADE_BENCH_THREADS` is the number of threads (default 1).
//! - `BRIGADE_BENCH_KERNELS` is the kernel table (default the fastest).
//! - `BRIGADE_BENCH_BEST` prints the fastest run instead of the median, for busy machines.
//! - `BRIGADE_BENCH_MS` is how long a case runs.

use std::time::{Duration, Instant};

use brigade_engine::kernels::probe::{self, Int8Peak};
use brigade_engine::kernels::{Compute, select};

/// Duration of a case by default.
const CASE_TIME: Duration = Duration::from_millis(300);
/// Least runs of a case.
const LEAST_RUNS: usize = 5;

/// Kernels that run the cases, and the machine's limits.
pub struct Bench {
    pub compute: Compute,
    pub limits: Limits,
    filter: String,
    case_time: Duration,
    best: bool,
}

/// Limits of the threads in use, measured when the bench starts.
pub struct Limits {
    /// Bytes a second read from memory.
    pub memory: f64,
    /// 8-bit operations a second.
    pub int8: Int8Peak,
    /// f32 operations a second.
    pub f32: f64,
}

fn variable(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

impl Bench {
    /// Reads the command line and the environment, then measures and prints the limits.
    pub fn start() -> Self {
        let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
        let name = std::env::var("BRIGADE_BENCH_KERNELS").ok();
        let kernels = select(name.as_deref()).expect("a table of this machine");
        let threads = variable("BRIGADE_BENCH_THREADS").unwrap_or(1);
        let compute = Compute::new(kernels, threads, None).expect("threads start");
        let limits = Limits {
            memory: probe::memory_bandwidth(&compute).expect("memory to read"),
            int8: probe::int8_peak(&compute),
            f32: probe::f32_peak(&compute),
        };
        println!(
            "table {}, {} threads; limits: memory read {:.1} GB/s, int8 {:.0} GOP/s with 4-bit codes \
             and {:.0} with bytes, f32 {:.1} GFLOP/s",
            kernels.name,
            compute.pool().threads(),
            limits.memory / 1e9,
            limits.int8.narrow / 1e9,
            limits.int8.wide / 1e9,
            limits.f32 / 1e9,
        );
        let case_time = variable("BRIGADE_BENCH_MS").map(|ms| Duration::from_millis(ms as u64));
        let best = std::env::var_os("BRIGADE_BENCH_BEST").is_some();
        Self { compute, limits, filter, case_time: case_time.unwrap_or(CASE_TIME), best }
    }

    /// Whether the filter lets `name` run.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// Median seconds of a run of `f`, which is told its number; or the least.
    pub fn seconds(&self, mut f: impl FnMut(usize)) -> f64 {
        self.seconds_of([&mut f])[0]
    }

    /// The same of several, which run in turn: what disturbs one disturbs the others.
    pub fn seconds_of<const N: usize>(&self, mut all: [&mut dyn FnMut(usize); N]) -> [f64; N] {
        let (mut times, start) = ([const { Vec::new() }; N], Instant::now());
        let time = self.case_time * N as u32;
        while start.elapsed() < time || times[0].len() < LEAST_RUNS {
            let n = times[0].len();
            for (f, times) in all.iter_mut().zip(&mut times) {
                let begin = Instant::now();
                f(n);
                times.push(begin.elapsed().as_secs_f64());
            }
        }
        times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            if self.best { times[0] } else { times[times.len() / 2] }
        })
    }
}

/// `rate` beside its limit, both in 10^9 a second, and the share.
pub fn beside(rate: f64, unit: &str, limit: f64, name: &str) -> String {
    let share = 100.0 * rate / limit;
    format!("{:7.2} {unit} = {share:3.0} % of {name} {:.1}", rate / 1e9, limit / 1e9)
}

/// Values between -1 and 1 without a pattern, the same for the same seed.
pub fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
