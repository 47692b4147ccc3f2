//! Products of many rows in pairs of bfloat16 values, which only tables of fast math have: against f64 over rounded values,
//! and equal on all lanes.

use brigade_kernels::inner::{MANY_ROWS, RUN};
use brigade_kernels::lanes::Scalar;
use brigade_kernels::{
    Compute, Derived, Kernels, NUMERICS, NUMERICS_PAIRS, PackedMatrix, Product, Products,
};
use brigade_quant::{GgmlType, dequantize_row, quantize_row};

use crate::reference::matmul::{matmul_row, through_bf16};
use crate::{Rng, close, compute, same_bits};

/// Pairs on plain lanes.
static PLAIN: Kernels = Kernels::with_pairs_of::<Scalar>(&brigade_kernels_reference::TABLE);

/// Pairs as AVX2 would compute them.
#[cfg(target_arch = "x86_64")]
static AVX2: Kernels =
    Kernels::with_pairs_of::<brigade_kernels_avx2::Avx2>(&brigade_kernels_avx2::TABLE);

/// Tables of pairs that this machine can run.
fn tables() -> Vec<&'static Kernels> {
    let mut tables = vec![&PLAIN];
    #[cfg(target_arch = "x86_64")]
    tables.extend((AVX2.detected)().then_some(&AVX2));
    match brigade_kernels_tables::fast() {
        Some(fast) => tables.push(fast),
        None => println!("this machine has no table of fast math: its bits are not compared"),
    }
    tables
}

/// Random weights `[rows, cols]` of a type.
fn weights(ty: GgmlType, rows: usize, cols: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; rows * ty.row_bytes(cols).expect("whole blocks")];
    quantize_row(ty, &rng.values(rows * cols), &mut bytes).expect("a type with a quantiser");
    bytes
}

/// Weights of F16 or BF16, rounded to BF16.
fn rounded(ty: GgmlType, n: usize, bytes: &[u8]) -> Vec<u8> {
    let mut values = vec![0.0; n];
    dequantize_row(ty, "test", bytes, &mut values).expect("a supported type");
    let halves = values.iter().map(|v| half::bf16::from_f32(*v).to_le_bytes());
    halves.flatten().collect()
}

fn multiply(compute: &Compute, shape: Shape, bytes: &[u8], x: &[f32]) -> Vec<f32> {
    let (ty, rows, cols) = shape;
    let w = PackedMatrix::pack(compute, ty, rows, cols, bytes).expect("packs");
    let mut out = vec![f32::NAN; x.len() / cols * rows];
    compute.multiply(&w, x, &mut out);
    out
}

/// Type, rows and columns of weights.
type Shape = (GgmlType, usize, usize);

#[test]
fn many_rows_are_multiplied_in_pairs() {
    let mut rng = Rng::new(21);
    for ty in [GgmlType::F16, GgmlType::BF16] {
        for (rows, cols, n_rows) in
            [(37, 512, MANY_ROWS), (16, 301, 49), (33, 1, 25), (48, 700, 140)]
        {
            let shape = (ty, rows, cols);
            let (bytes, x) = (weights(ty, rows, cols, &mut rng), rng.spread(n_rows * cols));
            let out = multiply(&compute(&PLAIN, 1), shape, &bytes, &x);
            for (table, threads) in tables().into_iter().flat_map(|table| [(table, 1), (table, 2)])
            {
                let name = format!("{} {shape:?} x{threads}", table.name);
                same_bits(&name, &multiply(&compute(table, threads), shape, &bytes, &x), &out);
            }
            let bytes = rounded(ty, rows * cols, &bytes);
            for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact(rows)) {
                let elements = matmul_row(GgmlType::BF16, rows, &bytes, &through_bf16(x));
                for (element, got) in elements.iter().zip(out) {
                    let steps = (RUN.min(cols) + cols / RUN + 2) as f64;
                    let bound = steps * 2f64.powi(-24) * element.magnitude;
                    close(ty.name(), *got, element.value, bound.max(1e-37));
                }
            }
        }
    }
}

#[test]
fn few_rows_and_other_weights_keep_their_bits() {
    let mut rng = Rng::new(22);
    let cols = 512;
    for (ty, n_rows) in [
        (GgmlType::F16, MANY_ROWS - 1),
        (GgmlType::BF16, 1),
        (GgmlType::F32, 49),
        (GgmlType::Q4_K, 49),
        (GgmlType::Q8_0, 49),
    ] {
        let shape = (ty, 32, cols);
        let (bytes, x) = (weights(ty, 32, cols, &mut rng), rng.spread(n_rows * cols));
        let want = multiply(&compute(&brigade_kernels_reference::TABLE, 1), shape, &bytes, &x);
        for table in tables() {
            same_bits(ty.name(), &multiply(&compute(table, 1), shape, &bytes, &x), &want);
        }
    }
}

#[test]
fn what_is_not_finite_shows_in_its_row_alone() {
    let mut rng = Rng::new(23);
    let (rows, cols, n_rows) = (32, 256, MANY_ROWS);
    let shape = (GgmlType::F16, rows, cols);
    let bytes = weights(GgmlType::F16, rows, cols, &mut rng);
    for (row, bad) in [(0, f32::NAN), (7, f32::INFINITY), (n_rows - 1, f32::NEG_INFINITY)] {
        let mut x = rng.values(n_rows * cols);
        x[row * cols + 11] = bad;
        for table in tables() {
            let out = multiply(&compute(table, 1), shape, &bytes, &x);
            for (r, out) in out.chunks_exact(rows).enumerate() {
                assert_eq!(out.iter().all(|v| !v.is_finite()), r == row, "{} row {r}", table.name);
                assert_eq!(out.iter().any(|v| !v.is_finite()), r == row, "{} row {r}", table.name);
            }
        }
    }
}

#[test]
fn all_rows_of_a_product_are_multiplied_alike_and_jobs_side_by_side() {
    let mut rng = Rng::new(24);
    // The last group of rows is one row.
    let (rows, cols, n_rows) = (16, 64, 2049);
    let x = rng.spread(n_rows * cols);
    let types = [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0];
    let bytes = types.map(|ty| weights(ty, rows, cols, &mut rng));
    for table in tables() {
        let compute = compute(table, 2);
        let packed: Vec<_> = types
            .iter()
            .zip(&bytes)
            .map(|(ty, bytes)| {
                PackedMatrix::pack(&compute, *ty, rows, cols, bytes).expect("packs").scaled(0.5)
            })
            .collect();
        let (mut outs, forms) =
            (vec![vec![f32::NAN; n_rows * rows]; types.len()], Derived::default());
        let jobs = packed.iter().zip(&mut outs).map(|(w, out)| Product {
            w: w.on_host(),
            x: &x[..],
            forms: &forms,
            rows: 0..n_rows,
            out: &mut out[..],
        });
        compute.products(Products { jobs: jobs.collect() });
        for ((ty, bytes), out) in types.iter().zip(&bytes).zip(&outs) {
            let x = &x[(n_rows - MANY_ROWS) * cols..];
            let last = multiply(&compute, (*ty, rows, cols), bytes, x);
            let halves: Vec<f32> = last.iter().map(|v| v * 0.5).collect();
            same_bits(ty.name(), &out[(n_rows - MANY_ROWS) * rows..], &halves);
        }
    }
}

#[test]
fn tables_of_pairs_are_a_class_of_their_own() {
    assert!(tables().iter().all(|table| table.numerics == NUMERICS_PAIRS));
    assert!(tables().iter().all(|table| table.pairs_are_as_stated()));
    assert!(!brigade_kernels_reference::TABLE.pairs_are_as_stated(), "it has none");
    assert_ne!(NUMERICS_PAIRS, NUMERICS);
    let listed = brigade_kernels_tables::available();
    assert!(listed.iter().all(|table| table.numerics == NUMERICS), "only fast math takes them");
}
