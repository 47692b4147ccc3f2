//! All that experts do with their rows as one run of the threads: the bits of single steps, on every table, however many threads.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use brigade_kernels::{ActRows, Compute, Derived, ExpertRun, ExpertsJob, PackedMatrix};
use brigade_quant::{GgmlType, quantize_row};

use super::{OTHERS_THREADS, Rng, THREADS, all_tables, compute, same_bits};

const WIDTH: usize = 256;
const N_FF: usize = 512;

/// The matrices of an expert.
struct Expert {
    up: PackedMatrix,
    gate: Option<PackedMatrix>,
    down: PackedMatrix,
}

/// The rows of each expert, what they read, and the experts.
struct Case {
    name: String,
    counts: Vec<usize>,
    x: Vec<f32>,
    ty: GgmlType,
    is_gated: bool,
}

impl Case {
    fn experts(&self, compute: &Compute) -> Vec<Expert> {
        let mut rng = Rng::new(7);
        let mut pack = |rows: usize, cols: usize| {
            let mut bytes = vec![0; self.ty.row_bytes(cols).unwrap() * rows];
            for row in bytes.chunks_exact_mut(self.ty.row_bytes(cols).unwrap()) {
                quantize_row(self.ty, &rng.values(cols), row).unwrap();
            }
            PackedMatrix::pack(compute, self.ty, rows, cols, &bytes).unwrap()
        };
        let mut expert = || Expert {
            up: pack(N_FF, WIDTH),
            gate: self.is_gated.then(|| pack(N_FF, WIDTH)),
            down: pack(WIDTH, N_FF),
        };
        self.counts.iter().map(|_| expert()).collect()
    }

    /// Rows of each expert, one behind the other.
    fn pairs(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.counts.iter().scan(0, |end, n| {
            *end += n;
            Some(*end)
        });
        ends.zip(&self.counts).map(|(end, n)| end - n..end)
    }

    fn n_pairs(&self) -> usize {
        self.counts.iter().sum()
    }

    /// One step after the other.
    fn by_steps(&self, compute: &Compute) -> Vec<f32> {
        let mut out = vec![0.0; self.n_pairs() * WIDTH];
        for (expert, pairs) in self.experts(compute).iter().zip(self.pairs()) {
            let x = &self.x[pairs.start * WIDTH..pairs.end * WIDTH];
            let mut up = vec![0.0; pairs.len() * N_FF];
            compute.multiply(&expert.up, x, &mut up);
            let mut gate = vec![0.0; if self.is_gated { up.len() } else { 0 }];
            if let Some(w) = &expert.gate {
                compute.multiply(w, x, &mut gate);
            }
            activate(compute, &gate, &mut up);
            let out = &mut out[pairs.start * WIDTH..pairs.end * WIDTH];
            compute.multiply(&expert.down, &up, out);
        }
        out
    }

    fn at_once(&self, compute: &Compute, between: &(dyn Fn(usize) + Sync)) -> Vec<f32> {
        let experts = self.experts(compute);
        let run = |(expert, pairs): (&'_ usize, Range<usize>)| {
            let Expert { up, gate, down } = &experts[*expert];
            let (up, gate) = (up.on_host(), gate.as_ref().map(PackedMatrix::on_host));
            ExpertRun { rows: pairs.clone(), pairs, up, gate, down: down.on_host() }
        };
        let numbers: Vec<_> = (0..experts.len()).collect();
        let runs: Vec<_> = numbers.iter().zip(self.pairs()).map(run).collect();
        let n_pairs = self.n_pairs();
        let mut up = vec![f32::NAN; n_pairs * N_FF];
        let mut gate = vec![f32::NAN; if self.is_gated { up.len() } else { 0 }];
        let mut out = vec![f32::NAN; n_pairs * WIDTH];
        let forms = Derived::default();
        compute.run_experts(ExpertsJob {
            x: ActRows::new(&self.x, WIDTH, &forms),
            runs: &runs,
            between: &|run, gate, up| {
                between(run);
                activate(compute, gate, up);
            },
            up: &mut up,
            gate: &mut gate,
            out: &mut out,
        });
        out
    }
}

fn activate(compute: &Compute, gate: &[f32], up: &mut [f32]) {
    if gate.is_empty() { compute.relu_squared(up) } else { compute.silu_mul_inplace(up, gate) }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in [GgmlType::Q4_K, GgmlType::MXFP4, GgmlType::Q8_0, GgmlType::F16] {
        for counts in [&[1][..], &[1; 8], &[3, 1, 9, 2, 1], &[23, 5]] {
            let is_gated = counts.len() != 5;
            let n = counts.iter().sum::<usize>();
            let x = Rng::new(n as u64).spread(n * WIDTH);
            let name = format!("{ty} {counts:?}");
            cases.push(Case { name, counts: counts.to_vec(), x, ty, is_gated });
        }
    }
    cases
}

#[test]
fn the_bits_are_those_of_single_steps() {
    for case in cases() {
        let tables = all_tables().into_iter().chain(brigade_kernels_tables::available_unfused());
        for (i, kernels) in tables.enumerate() {
            let want = case.by_steps(&compute(kernels, OTHERS_THREADS));
            let threads = if i == 0 { &THREADS[..] } else { &[OTHERS_THREADS][..] };
            for threads in threads {
                let got = case.at_once(&compute(kernels, *threads), &|_| {});
                same_bits(&format!("{}, {} x{threads}", case.name, kernels.name), &got, &want);
            }
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_threads_go_on() {
    let case = cases().swap_remove(2);
    for threads in THREADS {
        let compute = compute(all_tables()[0], threads);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            case.at_once(&compute, &|run| assert_ne!(run, 2, "that one breaks"))
        }));
        let payload = broken.expect_err("it panics");
        let text = payload.downcast_ref::<String>().map_or("", String::as_str);
        assert!(text.contains("that one breaks"), "{text}");
        same_bits("afterwards", &case.at_once(&compute, &|_| {}), &case.by_steps(&compute));
    }
}

#[test]
fn experts_that_would_write_the_same_row_are_refused() {
    let compute = compute(all_tables()[0], OTHERS_THREADS);
    let (name, counts, x) = (String::new(), vec![1, 1], vec![0.5; 2 * WIDTH]);
    let case = Case { name, counts, x, ty: GgmlType::Q8_0, is_gated: false };
    let experts = case.experts(&compute);
    let is_refused = |second: Range<usize>| {
        let run = |(expert, pairs): (usize, Range<usize>)| {
            let Expert { up, down, .. } = &experts[expert];
            let (up, down) = (up.on_host(), down.on_host());
            ExpertRun { rows: pairs.clone(), pairs, up, gate: None, down }
        };
        let runs: Vec<_> = [0..1, second].into_iter().enumerate().map(run).collect();
        let (mut up, mut out) = (vec![0.0; 2 * N_FF], vec![0.0; 2 * WIDTH]);
        let forms = Derived::default();
        let job = ExpertsJob {
            x: ActRows::new(&case.x, WIDTH, &forms),
            runs: &runs,
            between: &|_, gate, up| activate(&compute, gate, up),
            up: &mut up,
            gate: &mut [],
            out: &mut out,
        };
        catch_unwind(AssertUnwindSafe(|| compute.run_experts(job))).is_err()
    };
    assert!(!is_refused(1..2) && is_refused(0..1));
}
