//! Products and attention beside the limits of the machine, measured in the same run:
//! `cargo bench -p brigade-engine --bench kernels [-- FILTER]`.
//!
//! `BRIGADE_BENCH_THREADS` (default 1), `BRIGADE_BENCH_KERNELS` (default the fastest) choose what
//! runs, `BRIGADE_BENCH_BEST` prints the fastest run instead of the median. Decode lines print bytes of weights a second beside the memory's, prefill lines operations
//! a second beside the arithmetic's.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_engine::batch::BlockId;
use brigade_engine::kernels::{
    ActRows, Attend, AttendPart, Compute, KV_PAGE, KvLayout, KvType, MatmulJob, PackedMatrix,
    ValuePlace, probe, select,
};
use brigade_engine::quant::{GgmlType, quantize_row};

/// Columns of the measured matrices, and rows unless `BRIGADE_BENCH_ROWS` says otherwise.
const COLS: usize = 4096;
/// How long a case runs.
const CASE_TIME: Duration = Duration::from_millis(300);
/// Copies of the weights, so that decode reads memory and not a cache.
const COPIES: usize = 48;

const TYPES: [GgmlType; 16] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
];

fn main() {
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    let threads = std::env::var("BRIGADE_BENCH_THREADS").ok().and_then(|n| n.parse().ok());
    let kernels = std::env::var("BRIGADE_BENCH_KERNELS").ok();
    let kernels = select(kernels.as_deref()).expect("a table of this machine");
    let compute = Compute::new(kernels, threads.unwrap_or(1), None).expect("threads start");
    println!("table {}, {} threads", kernels.name, compute.pool().threads());
    for ty in TYPES.into_iter().filter(|ty| ty.name().contains(&filter)) {
        matmul(&compute, ty);
    }
    if "fork-join".contains(&filter) {
        let threads = compute.pool().threads();
        let meet = || {
            let met = AtomicUsize::new(0);
            compute.pool().run(threads, &|_, _| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < threads {
                    std::hint::spin_loop();
                }
            });
        };
        let seconds = median(|_| (0..1000).for_each(|_| meet()));
        println!("fork-join in which all threads meet: {:.2} us", seconds * 1e3);
    }
    if "attention".contains(&filter) {
        for n_rows in [1, 8, 64] {
            attention(&compute, n_rows, 1024);
        }
    }
}

/// Median seconds of a run of `f`; the least, where `BRIGADE_BENCH_BEST` is set (on a busy machine).
fn median(mut f: impl FnMut(usize)) -> f64 {
    let (mut times, start) = (Vec::new(), Instant::now());
    while start.elapsed() < CASE_TIME || times.len() < 5 {
        let begin = Instant::now();
        f(times.len());
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    if std::env::var_os("BRIGADE_BENCH_BEST").is_some() { times[0] } else { times[times.len() / 2] }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 % 2039) as f32 / 1019.5 - 1.0) * 0.1).collect()
}

fn matmul(compute: &Compute, ty: GgmlType) {
    let n_out =
        std::env::var("BRIGADE_BENCH_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(COLS);
    let mut row = vec![0; ty.row_bytes(COLS).expect("whole blocks")];
    quantize_row(ty, &values(COLS), &mut row).expect("a type with a quantiser");
    let bytes = row.repeat(n_out);
    let pack = || PackedMatrix::pack(compute, ty, n_out, COLS, &bytes).expect("packs");
    let begin = Instant::now();
    for _ in 0..COPIES {
        drop(pack());
    }
    let packed = (COPIES * bytes.len()) as f64 / begin.elapsed().as_secs_f64();
    println!("{ty:7} packed at {:.2} GB/s", packed / 1e9);
    let weights: Vec<_> = (0..COPIES).map(|_| pack()).collect();
    for n_rows in [1, 8, 32, 256] {
        let x = values(n_rows * COLS);
        let mut out = vec![0.0; n_rows * n_out];
        let act = ActRows::new(compute, &x, COLS, &[&weights[0]]);
        let seconds = median(|i| {
            let w = &weights[i % COPIES];
            compute.matmul(&mut [MatmulJob { w, x: &act, rows: 0..n_rows, out: &mut out }]);
        });
        let bytes = weights[0].nbytes() as f64 / seconds;
        let ops = (2 * n_rows * n_out * COLS) as f64 / seconds;
        let (name, peak) = match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => ("f32", probe::f32_peak(compute)),
            _ => ("int8", probe::int8_peak(compute)),
        };
        let read = probe::memory_bandwidth(compute).expect("memory to read");
        println!(
            "{ty:7} rows {n_rows:4}  {:8.3} ms  {:6.2} GB/s = {:3.0} % of read {:5.2}  \
             {:7.1} GOP/s = {:3.0} % of {name} {:6.1}",
            seconds * 1e3,
            bytes / 1e9,
            100.0 * bytes / read,
            read / 1e9,
            ops / 1e9,
            100.0 * ops / peak,
            peak / 1e9,
        );
    }
}

fn attention(compute: &Compute, n_rows: usize, context: usize) {
    let layout = KvLayout {
        n_kv_head: 4,
        head_dim_k: 64,
        head_dim_v: 64,
        values: ValuePlace::Apart,
        ty: KvType::F16,
    };
    let (n_head, dim) = (16, 64);
    let blocks: Vec<_> = (0..context.div_ceil(KV_PAGE) as u32).map(BlockId).collect();
    let mut pool = vec![0u64; blocks.len() * layout.page_bytes() / 8 + 8];
    let pool: &mut [u8] = bytemuck::cast_slice_mut(&mut pool);
    let start = pool.as_ptr().align_offset(64);
    let pool = &mut pool[start..];
    let all = AttendPart { blocks: &blocks, first_pos: 0, n_rows: context, first_row: 0 };
    let k = values(context * 4 * dim);
    compute.kv_write(&layout, pool, &[all], &k, &k);
    let part = AttendPart { first_pos: context - n_rows, n_rows, ..all };
    let attend = Attend { layout: &layout, pool, parts: &[part], n_head, scale: 0.125 };
    let q = values(n_rows * n_head * dim);
    let mut out = vec![0.0; q.len()];
    let seconds = median(|_| compute.attend(&attend, &q, &mut out));
    let ops = (4 * n_rows * n_head * dim * context) as f64 / seconds;
    let peak = probe::f32_peak(compute);
    println!(
        "attention rows {n_rows:4} context {context}  {:8.3} ms  {:7.1} GOP/s = {:3.0} % of f32 {:6.1}",
        seconds * 1e3,
        ops / 1e9,
        100.0 * ops / peak,
        peak / 1e9,
    );
}
