//! Products with fast math, whose bits are the device's own: held to products in f64 of the same weights and rows, by how
//! far they are from them. Devices without matrix units for f16 skip.

use brigade_quant::{GgmlType, dequantize_row, quantize_row};
use std::sync::Arc;

use brigade_engine::kernels::{ChooseBy, Compute, ExpertChoice, PackedMatrix};
use brigade_gpu::{
    DeviceOptions, ExpertWeights, FormedExpertProduct, Gpu, GpuBuffer, GpuError, Purpose, RowForm,
    Span, WeightType as W,
};
use brigade_ops::{ExpertRows, Weights};

use crate::common::{
    QUANTS, Random, compute, fast_gpu, formed, on, relative_error, shapes_in_turn, values_of,
    words_on,
};

const HALVES: (GgmlType, W) = (GgmlType::F16, W::F16);

/// All types that f16 units multiply.
fn types() -> impl Iterator<Item = (GgmlType, W)> {
    [HALVES].into_iter().chain(QUANTS)
}

/// Rows for each size of tile, of which types have one, in turn.
const N_ROWS: [usize; 3] = [14, 21, 42];

/// All types, each with how many rows it multiplies where one number of them will do.
fn types_with_rows() -> impl Iterator<Item = ((GgmlType, W), usize)> {
    types().zip(N_ROWS.into_iter().cycle())
}

/// Bound on the error of all values together, relative to their norm.
const FAR: f64 = 1e-3;

/// Bound on the error of each value, relative to the norms of its two rows. Both factors are rounded to 11 bits, on
/// some devices cut off to 10, so that their product is off by 2^-9 at most.
const FAR_OF_NORMS: f64 = 2e-3;

/// Weights of random bits, block by block; blocks with values that are no numbers, or that f32 may not hold times 2^7, are
/// drawn again.
fn random_blocks(ty: GgmlType, n: usize, random: &mut Random) -> Vec<u8> {
    let (elems, size) = (ty.block_elems(), ty.block_bytes());
    let mut bytes = vec![0; n / elems * size];
    for block in bytes.chunks_exact_mut(size) {
        loop {
            block.fill_with(|| random.bits() as u8);
            let values = values(ty, block, elems);
            if values.iter().all(|v| *v == 0.0 || (1e-30..1e30).contains(&v.abs())) {
                break;
            }
        }
    }
    bytes
}

/// The values of weights.
fn values(ty: GgmlType, bytes: &[u8], n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    dequantize_row(ty, "test", bytes, &mut values).expect("a supported type");
    values
}

/// Rows and columns of weights.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
}

/// Weights with their values.
struct Matrix {
    ty: W,
    values: Vec<f32>,
    packed: PackedMatrix,
    there: GpuBuffer,
}

impl Matrix {
    fn new(gpu: &Gpu, compute: &Compute, types: (GgmlType, W), shape: Shape, bytes: &[u8]) -> Self {
        let ((ty, there), Shape { rows, cols }) = (types, shape);
        let packed = PackedMatrix::pack(compute, ty, rows, cols, bytes).expect("packs");
        let mut buffer = gpu.buffer(packed.bytes().len(), Purpose::Weights).expect("room");
        buffer.write(0, packed.bytes());
        Self { ty: there, values: values(ty, bytes, rows * cols), packed, there: buffer }
    }

    fn weights(&self) -> Weights<Span<'_>> {
        let (rows, cols) = (self.packed.rows(), self.packed.cols());
        let (scale, panels) = (self.packed.scale(), self.there.span());
        Weights { ty: self.packed.ty(), rows, cols, scale, panels }
    }

    fn product(&self, gpu: &Gpu, x: &[f32]) -> Vec<f32> {
        let w = self.weights();
        let n_rows = x.len() / w.cols;
        let x = formed(gpu, gpu.row_form(self.ty, n_rows), x, w.cols);
        let mut out = on(gpu, &vec![f32::NAN; n_rows * w.rows]);
        gpu.product(&w, x.span(), n_rows, out.span_mut());
        values_of(&out)
    }

    /// The product in f64.
    fn wanted(&self, x: &[f32]) -> Vec<f64> {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let cols = self.packed.cols();
        let scale = f64::from(self.packed.scale());
        let row = |x| self.values.chunks_exact(cols).map(move |w| scale * dot(w, x));
        x.chunks_exact(cols).flat_map(row).collect()
    }

    /// Holds a product to that in f64, each value and all together; how far these are.
    fn check(&self, gpu: &Gpu, x: &[f32]) -> f64 {
        let (rows, cols) = (self.packed.rows(), self.packed.cols());
        let (got, want) = (self.product(gpu, x), self.wanted(x));
        let what = format!("{:?} [{rows}, {cols}] with {} rows", self.ty, x.len() / cols);
        let norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let norms = |all: &[f32]| all.chunks_exact(cols).map(norm).collect::<Vec<_>>();
        let (of_x, of_w) = (norms(x), norms(&self.values));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let both = of_x[i / rows] * of_w[i % rows] * f64::from(self.packed.scale());
            let off = (f64::from(*got) - want).abs() / both.max(f64::MIN_POSITIVE);
            assert!(off < FAR_OF_NORMS, "{what}: value {i} is {got} and not {want}");
        }
        let error = relative_error(&got, &want);
        // Sums of few values may cancel out.
        assert!(rows < 16 || error < FAR, "{what}: {error:.2e} off");
        if rows < 16 { 0.0 } else { error }
    }
}

/// The type's own quantiser of values in -1..1.
fn quantised(ty: GgmlType, shape: Shape, random: &mut Random) -> Vec<u8> {
    let Shape { rows, cols } = shape;
    let row_bytes = ty.row_bytes(cols).expect("whole blocks");
    let mut bytes = vec![0; rows * row_bytes];
    for row in bytes.chunks_exact_mut(row_bytes) {
        quantize_row(ty, &random.values(cols, 1.0), row).expect("a type with a quantiser");
    }
    bytes
}

#[test]
fn many_rows_of_every_type_are_near_the_product_in_f64() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    // By the sizes of their tiles.
    let shapes = [
        vec![(16, 1, 9)],
        vec![(17, 2, 17), (17, 3, 65)],
        vec![(100, 3, 64), (64, 2, 130), (1, 8, 33)],
    ];
    for (i, ty) in types().enumerate() {
        let unit = ty.0.block_elems().max(32);
        let mut exact = 0.0f64;
        let mut worst = 0.0f64;
        for &(rows, units, n_rows) in shapes_in_turn(&gpu, i, &shapes) {
            let shape = Shape { rows, cols: units * unit };
            let matrix =
                Matrix::new(&gpu, &compute, ty, shape, &quantised(ty.0, shape, &mut random));
            let x = random.values(n_rows * shape.cols, 1.0);
            worst = worst.max(matrix.check(&gpu, &x));
            // The class of stated bits, for comparison.
            if rows >= 16 {
                let mut plain = vec![f32::NAN; n_rows * rows];
                compute.multiply(&matrix.packed, &x, &mut plain);
                exact = exact.max(relative_error(&plain, &matrix.wanted(&x)));
            }
        }
        println!("{:8} {worst:.1e} off, and {exact:.1e} without", format!("{:?}", ty.1));
    }
}

/// Scales of any size in one row: none is too great for f16.
#[test]
fn weights_of_random_bits() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for (ty, n_rows) in types_with_rows().skip(1) {
        let shape = Shape { rows: 48, cols: 3 * ty.0.block_elems().max(32) };
        let bytes = random_blocks(ty.0, shape.rows * shape.cols, &mut random);
        let matrix = Matrix::new(&gpu, &compute, ty, shape, &bytes);
        let x = random.values(n_rows * shape.cols, 1.0);
        matrix.check(&gpu, &x);
    }
}

#[test]
fn floats_of_any_number_of_columns() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    for cols in [5, 31, 32, 33, 63, 64, 65, 257, 600] {
        for n_rows in [9, 16, 40] {
            let shape = Shape { rows: 33, cols };
            let bytes = quantised(GgmlType::F16, shape, &mut random);
            let matrix = Matrix::new(&gpu, &compute, HALVES, shape, &bytes);
            matrix.check(&gpu, &random.values(n_rows * cols, 1.0));
        }
    }
}

/// Rows far beyond f16, beside each other, and weights of which the greatest exceed f16.
#[test]
fn huge_and_tiny_values() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    let shape = Shape { rows: 40, cols: 512 };
    for (ty, n_rows) in types_with_rows() {
        let bytes = quantised(ty.0, shape, &mut random);
        let matrix = Matrix::new(&gpu, &compute, ty, shape, &bytes);
        let scales = [1e30, 1e-30, 1.0, 7e4, 1e-8, 2e34, 3e-36];
        let rows = (0..n_rows).flat_map(|i| random.values(shape.cols, scales[i % 7]));
        matrix.check(&gpu, &rows.collect::<Vec<_>>());
        let mut zeros = random.values(n_rows * shape.cols, 1.0);
        zeros[..3 * shape.cols].fill(0.0);
        let got = matrix.product(&gpu, &zeros);
        assert!(got[..3 * shape.rows].iter().all(|x| *x == 0.0), "{:?}: zeros", ty.1);
        assert!(got[3 * shape.rows..].iter().any(|x| *x != 0.0), "{:?}: others", ty.1);
    }
    // d of 60000 with codes up to 127, in one block of each second row.
    let mut bytes = quantised(GgmlType::Q8_0, shape, &mut random);
    for row in bytes.chunks_exact_mut(2 * 34 * 16) {
        row[..2].copy_from_slice(&0x7b53u16.to_le_bytes());
    }
    let matrix = Matrix::new(&gpu, &compute, QUANTS[4], shape, &bytes);
    assert!(matrix.values.iter().any(|x| x.abs() > 1e6), "greater than any f16");
    matrix.check(&gpu, &random.values(16 * shape.cols, 1.0));
}

#[test]
fn a_nan_or_infinity_makes_all_of_its_row_nan_and_no_other() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(5));
    let shape = Shape { rows: 20, cols: 256 };
    let Shape { rows, cols } = shape;
    for (ty, n_rows) in types_with_rows() {
        let bytes = quantised(ty.0, shape, &mut random);
        let matrix = Matrix::new(&gpu, &compute, ty, shape, &bytes);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.values(n_rows * cols, 1.0);
            x[3 * cols + 77] = bad;
            let out = matrix.product(&gpu, &x);
            for (i, row) in out.chunks_exact(rows).enumerate() {
                let is_right = |x: &f32| if i == 3 { x.is_nan() } else { x.is_finite() };
                assert!(row.iter().all(is_right), "{:?} {bad}: row {i}", ty.1);
            }
        }
    }
}

/// A weight that is no number is not lost on the way through f16.
#[test]
fn weights_that_are_no_numbers_show() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(6));
    let shape = Shape { rows: 17, cols: 64 };
    for bad in [0x7c00u16, 0xfc00, 0x7e00] {
        // The first of row 2: a value of F16, the scale of a block of Q8_0.
        for (ty, row_bytes) in [(HALVES, 128), (QUANTS[4], 68)] {
            let mut bytes = quantised(ty.0, shape, &mut random);
            bytes[2 * row_bytes..2 * row_bytes + 2].copy_from_slice(&bad.to_le_bytes());
            let matrix = Matrix::new(&gpu, &compute, ty, shape, &bytes);
            let out = matrix.product(&gpu, &random.values(11 * shape.cols, 1.0));
            for (i, x) in out.iter().enumerate() {
                assert_eq!(x.is_finite(), i % shape.rows != 2, "{:?} {bad:x}: {i} is {x}", ty.1);
            }
        }
    }
}

/// Products of types that f16 units do not take, and of few rows, have the bits of those without fast math.
#[test]
fn other_products_keep_their_bits() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(7));
    let shape = Shape { rows: 33, cols: 256 };
    let wide = [(GgmlType::F32, W::F32), (GgmlType::BF16, W::BF16)];
    let cases = wide.map(|ty| (ty, 20)).into_iter().chain(types().map(|ty| (ty, 8)));
    for (ty, n_rows) in cases {
        assert!(gpu.row_form(ty.1, n_rows) != RowForm::Halves, "{:?}", ty.1);
        let bytes = quantised(ty.0, shape, &mut random);
        let matrix = Matrix::new(&gpu, &compute, ty, shape, &bytes);
        let x = random.values(n_rows * shape.cols, 1.0);
        let mut want = vec![f32::NAN; n_rows * shape.rows];
        compute.multiply(&matrix.packed, &x, &mut want);
        crate::common::assert_same(&format!("{:?}", ty.1), &matrix.product(&gpu, &x), &want);
    }
}

/// The same rows of the same device have the same bits again.
#[test]
fn products_repeat() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(8));
    let shape = Shape { rows: 70, cols: 1024 };
    let matrix =
        Matrix::new(&gpu, &compute, QUANTS[7], shape, &quantised(QUANTS[7].0, shape, &mut random));
    let x = random.values(70 * shape.cols, 1.0);
    let first = matrix.product(&gpu, &x);
    (0..3).for_each(|_| crate::common::assert_same("again", &matrix.product(&gpu, &x), &first));
}

/// Experts, with rows in both forms, in pieces of up to eight rows and of more.
#[test]
fn products_of_experts() {
    let Some(gpu) = fast_gpu() else { return };
    let (compute, mut random) = (compute(), Random(9));
    let sizes = [vec![(20, 9, 3), (60, 7, 2)], vec![(61, 4, 2)], vec![(131, 4, 2)]];
    for (i, ty) in [HALVES, QUANTS[4], QUANTS[5], QUANTS[7], QUANTS[12]].into_iter().enumerate() {
        for &(n_rows, n_expert, n_used) in shapes_in_turn(&gpu, i, &sizes) {
            let shape = Shape { rows: 37, cols: 2 * ty.0.block_elems().max(32) };
            let experts = (0..n_expert).map(|e| {
                let bytes = quantised(ty.0, shape, &mut random);
                let mut matrix = Matrix::new(&gpu, &compute, ty, shape, &bytes);
                matrix.packed = matrix.packed.scaled(1.0 + e as f32 / 8.0);
                matrix
            });
            let experts: Vec<Matrix> = experts.collect();
            let x = random.values(n_rows * shape.cols, 1.0);
            let probs = random.values(n_rows * n_expert, 1.0);
            check_experts(&gpu, &experts, &x, &probs, n_used);
        }
    }
}

fn check_experts(gpu: &Gpu, experts: &[Matrix], x: &[f32], probs: &[f32], n_used: usize) {
    let n_expert = experts.len();
    let [rows, cols] = [experts[0].packed.rows(), experts[0].packed.cols()];
    let kept = |m: &Matrix| (Arc::new(gpu.keep(m.packed.bytes()).expect("room")), m.packed.scale());
    let table = gpu.expert_table(experts[0].ty, rows, cols, experts.iter().map(kept).collect());
    let table = table.expect("room");
    let by = ChooseBy::Score { bias: None, groups: None };
    let choice = ExpertChoice { n_expert, n_used, by, weights: ExpertWeights::Scaled(1.0) };
    let routes = gpu.route(&choice, on(gpu, probs).span()).expect("room");
    let list = |list: Span<'_>| -> Vec<u32> {
        let mut copy = words_on(gpu, &vec![0; list.len() / 4]);
        gpu.copy(list, copy.span_mut());
        values_of(&copy).into_iter().map(f32::to_bits).collect()
    };
    let (of_rows, of_experts) = (list(routes.rows()), list(routes.experts()));
    let row = |i: &u32| &x[*i as usize * cols..][..cols];
    let pairs: Vec<f32> = of_rows.iter().flat_map(|i| row(i).to_vec()).collect();
    let wanted = of_rows.iter().zip(&of_experts);
    let wanted: Vec<f64> = wanted.flat_map(|(i, e)| experts[*e as usize].wanted(row(i))).collect();
    let form = gpu.expert_row_form(experts[0].ty, routes.work());
    assert_eq!(form == RowForm::Halves, routes.work().piece_rows() > 8, "the form of many rows");
    for of_pairs in [false, true] {
        let mut out = on(gpu, &vec![f32::NAN; wanted.len()]);
        let there = formed(gpu, form, if of_pairs { &pairs } else { x }, cols);
        let x = if of_pairs {
            ExpertRows::OfPairs(there.span())
        } else {
            ExpertRows::Routed(there.span())
        };
        gpu.expert_products(
            routes.work(),
            [FormedExpertProduct { w: &table, x, out: out.span_mut() }],
        );
        let error = relative_error(&values_of(&out), &wanted);
        // Few rows are of 8 bits.
        let bound = if form == RowForm::Halves { FAR } else { 2e-2 };
        let what = format!("{:?}, pieces of {}", experts[0].ty, routes.work().piece_rows());
        assert!(error < bound, "{what}, of pairs {of_pairs}: {error:.2e} off");
    }
}

/// A device without the units says so, and what to do.
#[test]
fn without_units_fast_math_is_refused() {
    let Some(gpu) = crate::common::gpu() else { return };
    let options =
        |matrix_units| DeviceOptions { fast_math: true, matrix_units, ..Default::default() };
    let refused = |matrix_units| match Gpu::open(0, &options(matrix_units)) {
        Ok(_) => None,
        Err(error @ GpuError::NoHalfUnits { .. }) => Some(error.to_string()),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(refused(true).is_none(), gpu.facts().has_f16_units());
    let why = refused(false).expect("left alone, it has none");
    assert!(why.contains("start without --fast-math"), "{why}");
}
