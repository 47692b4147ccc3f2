//! Products with every weight type against f64. Their bits are equal over tables, threads, tiles and cuts.

use bytemuck::Zeroable;

use crate::reference::matmul::{matmul_row, quantize_block, through_8_bits};
use crate::{Rng, close, compute, same_bits, same_bits_everywhere};
use brigade_kernels::inner::MANY_ROWS;
use brigade_kernels::inner::RUN;
use brigade_kernels::inner::{ACT_BLOCK, ActBlock};
use brigade_kernels::{Compute, Derived, Host, KernelError, PackedMatrix, Product, Products};
use brigade_kernels_tables::select;
use brigade_quant::{GgmlType, dequantize_row, quantize_row};

const FLOATS: [GgmlType; 3] = [GgmlType::F32, GgmlType::F16, GgmlType::BF16];
const QUANTS: [GgmlType; 25] = [
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

/// Weights made by the type's own quantiser.
fn quantised(ty: GgmlType, rows: usize, cols: usize, rng: &mut Rng) -> Vec<u8> {
    let row_bytes = ty.row_bytes(cols).expect("whole blocks");
    let mut bytes = vec![0; rows * row_bytes];
    for row in bytes.chunks_exact_mut(row_bytes) {
        quantize_row(ty, &rng.values(cols), row).expect("a type with a quantiser");
    }
    bytes
}

/// Weights of random bits, block by block, so that every code, scale and sign occurs. Blocks whose scales are
/// huge or not finite are drawn again.
fn random_blocks(ty: GgmlType, rows: usize, cols: usize, rng: &mut Rng) -> Vec<u8> {
    let (elems, size) = (ty.block_elems(), ty.block_bytes());
    let mut bytes = vec![0; rows * cols / elems * size];
    for block in bytes.chunks_exact_mut(size) {
        loop {
            block.fill_with(|| rng.bits() as u8);
            let mut values = vec![0.0; elems];
            dequantize_row(ty, "test", block, &mut values).expect("a supported type");
            if values.iter().all(|v| v.abs() < 1e4) {
                break;
            }
        }
    }
    bytes
}

fn multiply(compute: &Compute, w: &PackedMatrix, x: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / w.cols() * w.rows()];
    compute.multiply(w, x, &mut out);
    out
}

/// The product of every table within the bound of the f64 oracle, and equal bit for bit.
fn check_against_oracle(ty: GgmlType, rows: usize, cols: usize, bytes: &[u8], x: &[f32]) {
    let out = same_bits_everywhere(ty.name(), |compute| {
        let w = PackedMatrix::pack(compute, ty, rows, cols, bytes).expect("packs");
        multiply(compute, &w, x)
    });
    let float = FLOATS.contains(&ty);
    for (x, out) in x.chunks_exact(cols).zip(out.chunks_exact(rows)) {
        let x = if float { x.iter().copied().map(f64::from).collect() } else { through_8_bits(x) };
        for (element, got) in matmul_row(ty, rows, bytes, &x).iter().zip(out) {
            // One rounding for each step of the longest chain, each of half a unit of at most the
            // magnitude that the sum can have reached.
            let bound = if float {
                (RUN.min(cols) + cols / RUN + 1) as f64 * 2f64.powi(-24) * element.magnitude
            } else {
                (4 * cols / ACT_BLOCK + 8) as f64 * 2f64.powi(-24) * element.ceiling
            };
            close(ty.name(), *got, element.value, bound.max(1e-37));
        }
    }
}

#[test]
fn every_type_matches_the_plain_product_on_quantised_weights() {
    let mut rng = Rng::new(3);
    for ty in FLOATS.into_iter().chain(QUANTS) {
        let (rows, cols) = (37, 512);
        let bytes = quantised(ty, rows, cols, &mut rng);
        check_against_oracle(ty, rows, cols, &bytes, &rng.spread(11 * cols));
    }
}

#[test]
fn every_type_matches_the_plain_product_on_random_blocks() {
    let mut rng = Rng::new(4);
    for ty in QUANTS {
        let (rows, cols) = (16, 768);
        let bytes = random_blocks(ty, rows, cols, &mut rng);
        check_against_oracle(ty, rows, cols, &bytes, &rng.spread(3 * cols));
    }
}

/// Rows that are many: a number of its own, since recorded bits are those of so many.
const MANY: usize = 49;
const _: () = assert!(MANY > MANY_ROWS);

#[test]
fn a_scaled_matrix_scales_its_products_once() {
    let mut rng = Rng::new(11);
    let (rows, cols, scale) = (20, 256, 0.7);
    for ty in [GgmlType::NVFP4, GgmlType::F16] {
        let bytes = quantised(ty, rows, cols, &mut rng);
        let x = rng.spread(MANY * cols);
        let run = |compute: &Compute, n_rows: usize| {
            let pack = || PackedMatrix::pack(compute, ty, rows, cols, &bytes).expect("packs");
            let x = &x[..n_rows * cols];
            let plain: Vec<_> = multiply(compute, &pack(), x).iter().map(|v| v * scale).collect();
            let scaled = multiply(compute, &pack().scaled(scale), x);
            same_bits(ty.name(), &plain, &scaled);
            scaled
        };
        for n_rows in [1, 3, MANY] {
            same_bits_everywhere("scaled", |compute| run(compute, n_rows));
        }
    }
}

/// Bytes that 256 weights take in the file and when packed, where the latter is more.
const PACKED: [(GgmlType, u64, u64); 8] = [
    (GgmlType::IQ1_S, 50, 70),
    (GgmlType::IQ1_M, 56, 82),
    (GgmlType::IQ2_XXS, 66, 102),
    (GgmlType::IQ2_XS, 74, 106),
    (GgmlType::IQ2_S, 82, 106),
    (GgmlType::IQ3_XXS, 98, 134),
    (GgmlType::IQ3_S, 110, 134),
    (GgmlType::TQ1_0, 54, 66),
];

#[test]
fn packed_matrices_take_what_the_documents_say() {
    for ty in FLOATS.into_iter().chain(QUANTS) {
        let in_file = ty.row_bytes(256).expect("whole blocks") as u64;
        let packed = PackedMatrix::packed_bytes(ty, 16, 256).expect("a type with a kernel") / 16;
        let known = PACKED.iter().find(|known| known.0 == ty).copied();
        assert_eq!((ty, in_file, packed), known.unwrap_or((ty, in_file, in_file)));
    }
}

#[test]
fn odd_shapes_of_float_weights() {
    let mut rng = Rng::new(5);
    for (rows, cols) in [(1, 1), (3, 5), (17, 255), (16, 257), (33, 600)] {
        for ty in FLOATS {
            let bytes = quantised(ty, rows, cols, &mut rng);
            check_against_oracle(ty, rows, cols, &bytes, &rng.values(5 * cols));
        }
    }
}

#[test]
fn one_block_rows() {
    let mut rng = Rng::new(6);
    for ty in QUANTS {
        let cols = ty.block_elems();
        let bytes = quantised(ty, 1, cols, &mut rng);
        check_against_oracle(ty, 1, cols, &bytes, &rng.values(cols));
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_beside_others() {
    let mut rng = Rng::new(7);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        for ty in FLOATS.into_iter().chain(QUANTS) {
            let (rows, cols, n) = (50, 512, 21);
            let bytes = quantised(ty, rows, cols, &mut rng);
            let w = PackedMatrix::pack(&compute, ty, rows, cols, &bytes).expect("packs");
            let x = rng.spread(n * cols);
            let alone: Vec<f32> =
                x.chunks_exact(cols).flat_map(|x| multiply(&compute, &w, x)).collect();
            for size in [2, 3, 5, 7, 8, 13, 21] {
                let parts = x.chunks(size * cols).flat_map(|x| multiply(&compute, &w, x));
                let what = format!("{} {ty} by {size}", kernels.name);
                same_bits(&what, &parts.collect::<Vec<_>>(), &alone);
            }
        }
    }
}

/// Many rows are multiplied slice by slice of columns; fewer in tiles that take a panel whole.
#[test]
fn many_rows_have_the_bits_of_few() {
    let mut rng = Rng::new(12);
    for kernels in crate::all_tables() {
        let compute = compute(kernels, 2);
        for ty in FLOATS.into_iter().chain(QUANTS) {
            for (rows, cols, n) in
                [(37, 768, 131), (16, 256, 97), (20, 1280, MANY_ROWS), (37, 512, MANY)]
            {
                let cols = if FLOATS.contains(&ty) { cols + 89 } else { cols };
                let bytes = quantised(ty, rows, cols, &mut rng);
                let w = PackedMatrix::pack(&compute, ty, rows, cols, &bytes).expect("packs");
                let x = rng.spread(n * cols);
                let few = x.chunks(8 * cols).flat_map(|x| multiply(&compute, &w, x));
                let few: Vec<f32> = few.collect();
                let what = format!("{} {ty} {rows} x {cols} with {n} rows", kernels.name);
                same_bits(&what, &multiply(&compute, &w, &x), &few);
            }
        }
    }
}

#[test]
fn many_jobs_of_any_kind_run_in_one_call() {
    let mut rng = Rng::new(8);
    let (cols, n) = (256, 150);
    let types = [(GgmlType::Q4_K, 64), (GgmlType::F32, 9), (GgmlType::Q6_K, 130)];
    let sources = types.map(|(ty, rows)| (ty, rows, quantised(ty, rows, cols, &mut rng)));
    let x = rng.spread(n * cols);
    let ranges = [0..n, 7..80, 149..149];
    let run = |compute: &Compute| {
        let weights = sources.each_ref().map(|(ty, rows, bytes)| {
            PackedMatrix::pack(compute, *ty, *rows, cols, bytes).expect("packs")
        });
        let (x, forms) = (&x[..], &Derived::default());
        let mut outs: Vec<Vec<f32>> = weights
            .iter()
            .zip(&ranges)
            .map(|(w, rows)| vec![f32::NAN; rows.len() * w.rows()])
            .collect();
        let jobs = weights.iter().zip(&ranges).zip(&mut outs);
        let jobs = jobs.map(|((w, rows), out)| {
            let (w, rows, out) = (w.on_host(), rows.clone(), &mut out[..]);
            Product::<Host> { w, x, forms, rows, out }
        });
        compute.products(Products { jobs: jobs.collect() });
        for ((w, rows), out) in weights.iter().zip(&ranges).zip(&outs) {
            let alone = multiply(compute, w, &x[rows.start * cols..rows.end * cols]);
            same_bits("a job of several and a job alone", out, &alone);
        }
        outs.concat()
    };
    same_bits_everywhere("several jobs", run);
    compute(select(None).expect("a table"), 1).products(Products { jobs: Vec::new() });
}

/// Pinned threads have a part of each matrix.
#[test]
fn jobs_of_threads_with_places_have_the_same_bits() {
    let mut rng = Rng::new(12);
    let (cols, ty) = (512, GgmlType::Q8_0);
    let all_rows = [2048, 640, 648];
    let sources = all_rows.map(|rows| quantised(ty, rows, cols, &mut rng));
    let x = rng.spread(3 * cols);
    let run = |threads: usize, cpus: Option<&[usize]>| {
        let compute = Compute::new(select(None).expect("a table"), threads, cpus).expect("starts");
        let weights: Vec<PackedMatrix> = all_rows
            .iter()
            .zip(&sources)
            .map(|(rows, bytes)| {
                PackedMatrix::pack(&compute, ty, *rows, cols, bytes).expect("packs")
            })
            .collect();
        let (x, forms) = (&x[..], &Derived::default());
        let mut outs: Vec<Vec<f32>> =
            all_rows.iter().map(|rows| vec![f32::NAN; 3 * rows]).collect();
        let jobs = weights.iter().zip(&mut outs).map(|(w, out)| {
            let (w, out) = (w.on_host(), &mut out[..]);
            Product::<Host> { w, x, forms, rows: 0..3, out }
        });
        compute.products(Products { jobs: jobs.collect() });
        outs.concat()
    };
    let alone = run(1, None);
    for threads in [2, 3, 8, 64] {
        // All on one CPU, which is slow and right.
        same_bits("threads with places", &run(threads, Some(&[0])), &alone);
    }
}

#[test]
fn activations_are_quantised_exactly_as_stated() {
    let mut rng = Rng::new(9);
    let cols = 256;
    let mut x = rng.spread(9 * cols);
    x[..ACT_BLOCK].fill(0.0);
    x[ACT_BLOCK..2 * ACT_BLOCK].fill(1e-38);
    x[2 * ACT_BLOCK..3 * ACT_BLOCK].iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - 15.5);
    for kernels in crate::all_tables() {
        for (row, x) in x.chunks_exact(cols).enumerate() {
            let mut blocks = vec![ActBlock::zeroed(); cols / ACT_BLOCK];
            (kernels.quantize)(x, &mut blocks);
            for (got, x) in blocks.iter().zip(x.chunks_exact(ACT_BLOCK)) {
                let want = quantize_block(x);
                assert_eq!(got.q.as_slice(), want.q, "{} row {row}", kernels.name);
                assert_eq!(got.d.to_bits(), want.d.to_bits(), "{} row {row}", kernels.name);
                let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
                assert_eq!(got.neg_sum, -sum(&want.q));
                assert_eq!(got.neg_sum_half, [-sum(&want.q[..16]), -sum(&want.q[16..])]);
                assert_eq!(got.d_sum, want.d * sum(&want.q) as f32);
                assert_eq!(got.d_sum_half[1], want.d * sum(&want.q[16..]) as f32);
            }
        }
    }
}

#[test]
fn a_nan_or_infinity_shows_in_every_output_of_its_row_and_in_no_other() {
    let mut rng = Rng::new(10);
    let (rows, cols) = (20, 256);
    for ty in QUANTS {
        let bytes = quantised(ty, rows, cols, &mut rng);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for kernels in crate::all_tables() {
                let compute = compute(kernels, 1);
                let w = PackedMatrix::pack(&compute, ty, rows, cols, &bytes).expect("packs");
                let mut x = rng.values(3 * cols);
                x[cols + 77] = bad;
                let out = multiply(&compute, &w, &x);
                let finite = |row: &[f32]| row.iter().filter(|x| x.is_finite()).count();
                let finite: Vec<_> = out.chunks_exact(rows).map(finite).collect();
                assert_eq!(finite, [rows, 0, rows], "{} {ty} {bad}", kernels.name);
            }
        }
    }
}

#[test]
fn wrong_shapes_are_refused_with_the_reason() {
    let compute = compute(select(Some("reference")).expect("always there"), 1);
    let pack = |ty, rows, cols, bytes: &[u8]| {
        let error = PackedMatrix::pack(&compute, ty, rows, cols, bytes).err().expect("refused");
        (error.to_string(), error)
    };
    let (text, error) = pack(GgmlType::Q8_K, 1, 256, &[0; 292]);
    assert!(matches!(error, KernelError::Unsupported(_)) && text.contains("Q8_K"), "{text}");
    let (text, error) = pack(GgmlType::Q4_K, 1, 128, &[0; 72]);
    assert!(matches!(error, KernelError::Cols { .. }) && text.contains("256"), "{text}");
    let (text, error) = pack(GgmlType::Q8_0, 2, 32, &[0; 34]);
    assert!(matches!(error, KernelError::Length { .. }) && text.contains("34 bytes"), "{text}");
    let (_, error) = pack(GgmlType::F32, usize::MAX, 4, &[0; 16]);
    assert!(matches!(error, KernelError::Length { .. }));
    PackedMatrix::pack(&compute, GgmlType::F32, 0, 4, &[]).expect("no rows is a matrix too");
}
