//! Matrix products and attention beside the limits of the machine, measured in the same run: `cargo bench -p
//! brigade-engine --bench kernels [-- FILTER]`.
//!
//! For products it prints bytes of weights a second beside the memory's, and operations a second beside the
//! arithmetic's. `BRIGADE_BENCH_ROWS` and `BRIGADE_BENCH_COLS` are the sides of the matrix, and
//! `BRIGADE_BENCH_BATCHES` lists the numbers of rows that it is multiplied with; `BRIGADE_BENCH_CONTEXTS` those of
//! positions that rows attend to. Cases named `experts` are in [`experts`], `fork-join` and
//! `rowwise` in [`threads`]. [`common`] says what else the environment chooses.

#[path = "../common/mod.rs"]
mod common;
mod experts;
mod threads;

use std::time::Instant;

use brigade_engine::batch::PageId;
use brigade_engine::kernels::{
    Attend, AttendPart, AttendVariant, KV_PAGE, KvLayout, KvRows, KvType, PackedMatrix, ValuePlace,
};
use brigade_engine::ops::{Derived, Product, Products};
use brigade_quant::{GgmlType, quantize_row};
use common::{Bench, beside};

/// Columns and rows of the measured matrices, unless `BRIGADE_BENCH_COLS` and `BRIGADE_BENCH_ROWS` say
/// otherwise.
const SIDE: usize = 4096;
/// Copies of the weights, so that decode reads memory and not a cache.
const COPIES: usize = 48;

const TYPES: [GgmlType; 28] = [
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
    GgmlType::NVFP4,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];

fn main() {
    let bench = Bench::start();
    for ty in TYPES.into_iter().filter(|ty| bench.wants(ty.name())) {
        matmul(&bench, ty);
    }
    experts::measure(&bench);
    threads::measure(&bench);
    if bench.wants("attention") {
        for context in numbers("BRIGADE_BENCH_CONTEXTS", "1024") {
            for n_rows in [1, 8, 64] {
                attention(&bench, n_rows, context);
            }
        }
    }
}

fn values(n: usize) -> Vec<f32> {
    common::values(n, 1).into_iter().map(|v| v * 0.1).collect()
}

/// The number that the environment gives under `name`.
fn side(name: &str) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(SIDE)
}

/// The numbers that the environment lists under `name`, or these.
fn numbers(name: &str, these: &str) -> Vec<usize> {
    let given = std::env::var(name).ok();
    let all = given.as_deref().unwrap_or(these).split(',');
    all.map(|n| n.trim().parse().expect("a list of numbers")).collect()
}

fn matmul(bench: &Bench, ty: GgmlType) {
    let (compute, limits) = (&bench.compute, &bench.limits);
    let (n_out, cols) = (side("BRIGADE_BENCH_ROWS"), side("BRIGADE_BENCH_COLS"));
    let mut row = vec![0; ty.row_bytes(cols).expect("whole blocks")];
    quantize_row(ty, &values(cols), &mut row).expect("a type with a quantiser");
    let bytes = row.repeat(n_out);
    let pack = || PackedMatrix::pack(compute, ty, n_out, cols, &bytes).expect("packs");
    let begin = Instant::now();
    for _ in 0..COPIES {
        drop(pack());
    }
    let packed = (COPIES * bytes.len()) as f64 / begin.elapsed().as_secs_f64();
    println!("{ty:7} packed at {:.2} GB/s", packed / 1e9);
    let weights: Vec<_> = (0..COPIES).map(|_| pack()).collect();
    for n_rows in numbers("BRIGADE_BENCH_BATCHES", "1,8,32,256") {
        let x = values(n_rows * cols);
        let mut out = vec![0.0; n_rows * n_out];
        let forms = Derived::default();
        let seconds = bench.seconds(|i| {
            let w = weights[i % COPIES].on_host();
            let job = Product { w, x: &x[..], forms: &forms, rows: 0..n_rows, out: &mut out[..] };
            compute.products(Products { jobs: vec![job] });
        });
        let bytes = weights[0].nbytes() as f64 / seconds;
        let ops = (2 * n_rows * n_out * cols) as f64 / seconds;
        let (name, peak) = match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => ("f32", limits.f32),
            _ => ("int8", limits.int8.of_bits(8.0 * row.len() as f64 / cols as f64)),
        };
        println!(
            "{ty:7} rows {n_rows:4}  {:8.3} ms  {}  {}",
            seconds * 1e3,
            beside(bytes, "GB/s", limits.memory, "memory"),
            beside(ops, "GOP/s", peak, name),
        );
    }
}

fn attention(bench: &Bench, n_rows: usize, context: usize) {
    let compute = &bench.compute;
    let layout = KvLayout {
        n_kv_head: 4,
        head_dim_k: 64,
        head_dim_v: 64,
        values: ValuePlace::Apart,
        index_dim: 0,
        ty: KvType::F16,
    };
    let (n_head, dim) = (16, 64);
    let blocks: Vec<_> = (0..context.div_ceil(KV_PAGE) as u32).map(PageId).collect();
    let mut pool = vec![0u64; blocks.len() * layout.page_bytes() / 8 + 8];
    let pool: &mut [u8] = bytemuck::cast_slice_mut(&mut pool);
    let start = pool.as_ptr().align_offset(64);
    let pool = &mut pool[start..];
    let all = AttendPart { pages: &blocks, first_pos: 0, n_rows: context, first_row: 0 };
    let k = values(context * 4 * dim);
    compute.kv_write(&layout, pool, &[all], &KvRows { k: &k, v: Some(&k), index: None });
    let part = AttendPart { first_pos: context - n_rows, n_rows, ..all };
    let attend = Attend {
        layout: &layout,
        pool,
        parts: &[part],
        n_head,
        scale: 0.125,
        variant: AttendVariant::default(),
    };
    let q = values(n_rows * n_head * dim);
    let mut out = vec![0.0; q.len()];
    let seconds = bench.seconds(|_| compute.attend(&attend, &q, &mut out));
    let ops = (4 * n_rows * n_head * dim * context) as f64 / seconds;
    println!(
        "attention rows {n_rows:4} context {context}  {:8.3} ms  {}",
        seconds * 1e3,
        beside(ops, "GFLOP/s", bench.limits.f32, "f32"),
    );
}
