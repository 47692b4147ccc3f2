//! Every table against the plain reference, and against every other table bit for bit. Every op also runs
//! alone and beside other rows, on one thread and on several, bit for bit the same.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attention;
mod block_index;
mod bounded_gate;
mod chosen_pages;
mod chunked;
mod conv;
mod delta;
mod depth_attention;
mod entries;
mod expert_job;
mod experts;
mod gates;
mod head_columns;
mod index;
mod kv;
mod lanes;
mod mamba;
mod mean_index;
mod numerics;
mod ops;
mod paged;
mod pool;
mod pool_lines;
mod pooling;
mod probe;
mod products;
mod reference;
mod scan_parts;
mod slabs;
mod ssd;
mod streams;
mod tables;
mod wkv6;
mod wkv7;

use brigade_kernels::{Compute, Kernels};

/// Thread counts that results must not depend on.
const THREADS: [usize; 3] = [1, 2, 5];
/// Threads of the tables that are not the fastest.
const OTHERS_THREADS: usize = 2;

/// A small generator of test values: xorshift, seeded.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// Uniform in -1..1.
    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
    /// Values of very different sizes, as activations have them.
    fn spread(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value() * (self.value() * 6.0).exp()).collect()
    }
}

/// The tables that this machine can run; with the feature `software-tables` also the one of 512 bits in software.
fn all_tables() -> Vec<&'static Kernels> {
    brigade_kernels_tables::available()
}

fn compute(kernels: &'static Kernels, threads: usize) -> Compute {
    Compute::new(kernels, threads, None).expect("threads start")
}

/// Runs `f` with every thread count on the fastest table, and on every other one; all must return the same bits as the first.
fn same_bits_everywhere(what: &str, f: impl Fn(&Compute) -> Vec<f32>) -> Vec<f32> {
    let tables = all_tables();
    let fastest = THREADS.map(|threads| (tables[0], threads));
    let others = tables[1..].iter().map(|kernels| (*kernels, OTHERS_THREADS));
    let mut runs = fastest.into_iter().chain(others).map(|(kernels, threads)| {
        (format!("{what}, {} x{threads}", kernels.name), f(&compute(kernels, threads)))
    });
    let (_, first) = runs.next().expect("there is a table");
    runs.for_each(|(run, out)| same_bits(&run, &out, &first));
    numerics::hold(what, &first);
    // So do those of what GPUs compute, which differ from these.
    let unfused = brigade_kernels_tables::available_unfused();
    let mut runs = unfused.map(|kernels| f(&compute(kernels, OTHERS_THREADS))).enumerate();
    if let Some((_, first)) = runs.next() {
        runs.for_each(|(i, out)| same_bits(&format!("{what}, unfused {i}"), &out, &first));
    }
    first
}

fn same_bits(what: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "{what}: lengths");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{what}: element {i} is {a:e} and {b:e}");
    }
}

/// `|got - want| <= bound`, element by element.
fn close(what: &str, got: f32, want: f64, bound: f64) {
    let error = (f64::from(got) - want).abs();
    assert!(error <= bound, "{what}: got {got:e}, want {want:e}: off by {error:e} > {bound:e}");
}
