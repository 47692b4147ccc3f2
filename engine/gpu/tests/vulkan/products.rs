//! Products beside the CPU's, bit for bit, for every type of weights.

use brigade_engine::kernels::{Compute, PackedMatrix};
use brigade_gpu::{DeviceOptions, FormedProduct, Gpu, GpuBuffer, Purpose, Span, WeightType};
use brigade_ops::{Accelerator, Fill, Weights};
use brigade_quant::{GgmlType, dequantize_row, quantize_row};

use crate::common::{
    QUANTS, Random, all_pairs, assert_same, compute, gpu, on, shapes_in_turn, values_of,
};

use WeightType as W;

const FLOATS: [(GgmlType, W); 3] =
    [(GgmlType::F32, W::F32), (GgmlType::F16, W::F16), (GgmlType::BF16, W::BF16)];

/// Values of very different sizes, as activations have them, none near what is subnormal.
fn spread(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| random.value() * (random.value() * 6.0).exp()).collect()
}

/// Weights of random bits, block by block, so that every code, scale and sign occurs. Blocks whose values are huge, tiny
/// or no numbers are drawn again.
fn random_blocks(ty: GgmlType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let (elems, size) = (ty.block_elems(), ty.block_bytes());
    let mut bytes = vec![0; rows * cols / elems * size];
    for block in bytes.chunks_exact_mut(size) {
        loop {
            block.fill_with(|| random.bits() as u8);
            let mut values = vec![0.0; elems];
            dequantize_row(ty, "test", block, &mut values).expect("a supported type");
            let sane = |v: &f32| *v == 0.0 || (1e-30..1e4).contains(&v.abs());
            if values.iter().all(sane) {
                break;
            }
        }
    }
    bytes
}

/// Weights of the type's own quantiser.
fn quantised(ty: GgmlType, rows: usize, cols: usize, random: &mut Random) -> Vec<u8> {
    let row_bytes = ty.row_bytes(cols).expect("whole blocks");
    let mut bytes = vec![0; rows * row_bytes];
    for row in bytes.chunks_exact_mut(row_bytes) {
        quantize_row(ty, &random.values(cols, 1.0), row).expect("a type with a quantiser");
    }
    bytes
}

/// Packed weights on both sides.
struct Both {
    ty: W,
    here: PackedMatrix,
    there: GpuBuffer,
}

impl Both {
    fn new(
        gpu: &Gpu,
        compute: &Compute,
        ty: (GgmlType, W),
        shape: [usize; 2],
        bytes: &[u8],
    ) -> Self {
        let here = PackedMatrix::pack(compute, ty.0, shape[0], shape[1], bytes).expect("packs");
        assert_eq!(here.bytes().len(), ty.1.packed_bytes(shape[0], shape[1]), "{:?}", ty.1);
        let mut there = gpu.buffer(here.bytes().len(), Purpose::Weights).expect("room");
        there.write(0, here.bytes());
        Self { ty: ty.1, here, there }
    }

    fn weights(&self) -> Weights<Span<'_>> {
        let (rows, cols) = (self.here.rows(), self.here.cols());
        let panels = self.there.span();
        Weights { ty: self.here.ty(), rows, cols, scale: self.here.scale(), panels }
    }

    fn on_cpu(&self, compute: &Compute, x: &[f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; x.len() / self.here.cols() * self.here.rows()];
        compute.multiply(&self.here, x, &mut out);
        out
    }

    fn on_gpu(&self, gpu: &Gpu, x: &[f32]) -> Vec<f32> {
        let n_rows = x.len() / self.here.cols();
        let x = activations(gpu, self.ty, x);
        let mut out = on(gpu, &vec![f32::NAN; n_rows * self.here.rows()]);
        gpu.product(&self.weights(), x.span(), n_rows, out.span_mut());
        values_of(&out)
    }

    /// Holds the product with `x` to the CPU's.
    fn check(&self, gpu: &Gpu, compute: &Compute, x: &[f32]) {
        let (rows, cols) = (self.here.rows(), self.here.cols());
        let what = format!("{:?} [{rows}, {cols}] with {} rows", self.ty, x.len() / cols);
        assert_same(&what, &self.on_gpu(gpu, x), &self.on_cpu(compute, x));
    }
}

/// Rows in the form that the type's products read.
fn activations(gpu: &Gpu, ty: W, x: &[f32]) -> GpuBuffer {
    let x_there = on(gpu, x);
    if !ty.wants_blocks() {
        return x_there;
    }
    let bytes = Gpu::quantized_bytes(x.len());
    let mut blocks = gpu.buffer(bytes, Purpose::Activations).expect("room");
    gpu.quantize(x_there.span(), blocks.span_mut());
    blocks
}

/// Some shapes `(rows, cols, n_rows)` that the same kernel multiplies.
type Shapes = Vec<(usize, usize, usize)>;

/// Checks weights of random bits in shapes for several kernels, with types whose blocks have so many elements.
fn check_shapes(types: &[(GgmlType, W)], shapes: impl Fn(usize) -> Vec<Shapes>) {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    for (i, ty) in types.iter().enumerate() {
        let lists = shapes(ty.0.block_elems());
        for &(rows, cols, n_rows) in shapes_in_turn(&gpu, i, &lists) {
            let bytes = random_blocks(ty.0, rows, cols, &mut random);
            let both = Both::new(&gpu, &compute, *ty, [rows, cols], &bytes);
            both.check(&gpu, &compute, &spread(&mut random, n_rows * cols));
        }
    }
}

#[test]
fn few_rows_of_every_quantised_type() {
    check_shapes(&QUANTS, |unit| {
        let one = vec![(1, unit, 1), (300, 3 * unit, 1)];
        vec![one, vec![(17, 768, 2)], vec![(5, 512, 3)], vec![(48, 1280, 8)]]
    });
}

#[test]
fn many_rows_of_every_quantised_type() {
    check_shapes(&QUANTS, |unit| {
        let [one, two] = [vec![(1, unit, 9), (17, 768, 9)], vec![(48, 3 * unit, 17), (5, 512, 32)]];
        vec![one, two, vec![(90, 1280, 33)]]
    });
}

/// Every number of rows, and of blocks that neither fill a step nor a side of shared memory.
#[test]
fn every_cut_of_a_product() {
    let types = [W::Q8_0, W::Q4_1, W::NVFP4];
    let types: Vec<_> = QUANTS.into_iter().filter(|ty| types.contains(&ty.1)).collect();
    let cols = [64, 192, 256, 768, 1088, 4160];
    let shapes = (1..=12).chain([16, 31, 48, 64, 65, 70]).enumerate();
    let shapes: Vec<_> = shapes.map(|(i, n)| ([16, 1, 37, 64][i % 4], cols[i % 6], n)).collect();
    check_shapes(&types, |_| vec![shapes.clone()]);
    // One that waits three times, which two sides do not hold.
    let mins: Vec<_> = QUANTS.into_iter().filter(|ty| ty.1 == W::Q2_K).collect();
    check_shapes(&mins, |_| vec![(1..10).map(|n| (33, 2304, n)).collect()]);
}

#[test]
fn weights_of_the_quantisers() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for ty in QUANTS.into_iter().chain(FLOATS) {
        let bytes = quantised(ty.0, 21, 512, &mut random);
        let both = Both::new(&gpu, &compute, ty, [21, 512], &bytes);
        both.check(&gpu, &compute, &spread(&mut random, 512));
    }
}

#[test]
fn float_types() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    let shapes = [(1, 1), (3, 5), (17, 255), (16, 256), (16, 257), (33, 600), (70, 4700)];
    for ty in FLOATS {
        for (rows, cols) in shapes {
            for n_rows in [1, 2, 5, 8, 9, 33, 70] {
                let bytes = quantised(ty.0, rows, cols, &mut random);
                let both = Both::new(&gpu, &compute, ty, [rows, cols], &bytes);
                both.check(&gpu, &compute, &spread(&mut random, n_rows * cols));
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_beside_others() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    let mut types = vec![W::Q4_K, W::Q2_K, W::F16];
    if all_pairs(&gpu) {
        types.extend([W::Q6_K, W::MXFP4]);
    }
    for ty in QUANTS.into_iter().chain(FLOATS).filter(|ty| types.contains(&ty.1)) {
        let (rows, cols, n) = (50, 512, 71);
        let bytes = quantised(ty.0, rows, cols, &mut random);
        let both = Both::new(&gpu, &compute, ty, [rows, cols], &bytes);
        let x = spread(&mut random, n * cols);
        let together = both.on_gpu(&gpu, &x);
        for size in [1, 3, 8, 13, 40] {
            let parts = x.chunks(size * cols).flat_map(|x| both.on_gpu(&gpu, x));
            assert_same(&format!("{:?} by {size}", ty.1), &parts.collect::<Vec<_>>(), &together);
        }
    }
}

/// Experts, say: of several types and sizes, each with other rows, one with none.
#[test]
fn several_scaled_products_beside_each_other() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(5));
    let cols = 256;
    let x = spread(&mut random, 40 * cols);
    let (blocks, row_bytes) = (activations(&gpu, W::Q4_K, &x), Gpu::quantized_bytes(cols));
    let types = [(QUANTS[7], 64, 0..0), (QUANTS[7], 64, 0..40), (QUANTS[13], 9, 3..4)];
    let types = types.into_iter().chain([(QUANTS[9], 130, 4..11), (QUANTS[4], 33, 20..40)]);
    let types: Vec<_> = types.collect();
    let weights = types.iter().map(|(ty, rows, _)| {
        let bytes = quantised(ty.0, *rows, cols, &mut random);
        let mut both = Both::new(&gpu, &compute, *ty, [*rows, cols], &bytes);
        both.here = both.here.scaled(0.7);
        both
    });
    let weights: Vec<Both> = weights.collect();
    let outs = types.iter().map(|(_, rows, of)| on(&gpu, &vec![f32::NAN; of.len() * rows]));
    let mut outs: Vec<GpuBuffer> = outs.collect();
    let jobs =
        weights.iter().zip(&types).zip(&mut outs).map(|((both, (_, _, of)), out)| FormedProduct {
            w: both.weights(),
            x: blocks.span().part(of.start * row_bytes..of.end * row_bytes),
            n_rows: of.len(),
            out: out.span_mut(),
        });
    gpu.products(jobs);
    for ((both, (_, _, of)), out) in weights.iter().zip(&types).zip(&outs) {
        let x = &x[of.start * cols..of.end * cols];
        assert_same("one of several", &values_of(out), &both.on_cpu(&compute, x));
    }
}

#[test]
fn nothing_to_multiply() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(6));
    let bytes = quantised(GgmlType::Q8_0, 3, 64, &mut random);
    let both = Both::new(&gpu, &compute, QUANTS[4], [3, 64], &bytes);
    assert!(both.on_gpu(&gpu, &[]).is_empty());
    let none = Both::new(&gpu, &compute, QUANTS[4], [0, 64], &[]);
    assert!(none.on_gpu(&gpu, &spread(&mut random, 128)).is_empty());
}

/// The words of a block by the rule: `d = amax / 127`, `q = round_half_even(x * (127 / amax))`.
fn plain_block(x: &[f32]) -> [u32; 16] {
    let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let zero = if x.iter().all(|v| v.is_sign_negative()) { -0.0 } else { 0.0 };
    let (d, inverse) = if amax < 1e-30 { (zero, 0.0) } else { (amax / 127.0, 127.0 / amax) };
    let q: Vec<i32> = x.iter().map(|v| (v * inverse).round_ties_even() as i32).collect();
    let sums = [q[..16].iter().sum::<i32>(), q[16..].iter().sum()];
    let sum = sums[0] + sums[1];
    let mut words = [0; 16];
    for (word, q) in words.iter_mut().zip(q.chunks(4)) {
        *word = u32::from_le_bytes([0, 1, 2, 3].map(|i| q[i] as u8));
    }
    let floats = [d, d * sum as f32, d * sums[0] as f32, d * sums[1] as f32];
    words[8..12].copy_from_slice(&floats.map(f32::to_bits));
    words[12..15].copy_from_slice(&[-sum, -sums[0], -sums[1]].map(|i| i as u32));
    words
}

#[test]
fn activations_are_quantised_exactly_as_stated() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(7);
    for blocks in [0, 1, 2, 31, 32, 33, 1000] {
        let mut x = spread(&mut random, 32 * blocks);
        for (i, block) in x.chunks_exact_mut(32).enumerate() {
            match i % 7 {
                0 => block.fill(0.0),
                1 => block.fill(-1e-32),
                2 => block[i % 32] = 1e5,
                3 => block.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - 15.5),
                _ => {}
            }
        }
        let there = activations(&gpu, W::Q8_0, &x);
        let got: &[u32] = bytemuck::cast_slice(there.bytes());
        for (i, (got, x)) in got.chunks_exact(16).zip(x.chunks_exact(32)).enumerate() {
            assert_eq!(got, plain_block(x), "block {i} of {blocks}");
        }
    }
}

#[test]
fn a_nan_or_infinity_shows_in_every_output_of_its_row_and_in_no_other() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(8));
    let (rows, cols) = (20, 256);
    for ty in QUANTS {
        let bytes = quantised(ty.0, rows, cols, &mut random);
        let both = Both::new(&gpu, &compute, ty, [rows, cols], &bytes);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.values(4 * cols, 1.0);
            x[cols + 77] = bad;
            let out = both.on_gpu(&gpu, &x);
            assert_same("with a bad value", &out, &both.on_cpu(&compute, &x));
            let finite = |row: &[f32]| row.iter().filter(|x| x.is_finite()).count();
            let finite: Vec<_> = out.chunks_exact(rows).map(finite).collect();
            assert_eq!(finite, [rows, 0, rows, rows], "{:?} {bad}", ty.1);
        }
    }
}

/// Weights packed to a GPU's memory are those packed to the host's, whatever the memory held before. This holds for
/// memory that the host sees, and for chunks that are copied.
#[test]
fn weights_are_packed_to_used_memory_as_to_new() {
    let Some(seen) = gpu() else { return };
    let apart = DeviceOptions { apart: true, ..DeviceOptions::default() };
    let apart = Gpu::open(0, &apart).expect("it was opened before");
    let (compute, mut random) =
        (Compute::new(compute().kernels(), 2, None).expect("a thread"), Random(11));
    // All chunks of the ring, and memory that is there for the next.
    let used = vec![0xa5; 49 << 20];
    let held = [&seen, &apart].map(|gpu| {
        let (held, used) = (gpu.keep(&[1; 4]).expect("room"), gpu.keep(&used).expect("room"));
        drop(used);
        held
    });
    for (ty, _) in FLOATS.into_iter().chain(QUANTS) {
        for (rows, blocks) in [(1, 1), (16, 2), (17, 3), (63, 1), (200, 5)] {
            let cols = blocks * ty.block_elems() + if ty.block_elems() == 1 { 41 } else { 0 };
            let bytes: Vec<u8> = (0..rows * ty.row_bytes(cols).expect("whole blocks"))
                .map(|_| random.bits() as u8)
                .collect();
            let here = PackedMatrix::pack(&compute, ty, rows, cols, &bytes).expect("packs");
            for gpu in [&seen, &apart] {
                let keep =
                    |len, piece, fill: &mut Fill<'_>| Accelerator::keep(gpu, len, piece, fill);
                let there = PackedMatrix::pack_with(&compute, ty, rows, cols, &bytes, keep);
                let there = there.expect("room");
                let mut read = Vec::new();
                let buffer = there.with_device().expect("it lies with a GPU");
                buffer.read(0..buffer.len(), &mut read).expect("room");
                assert!(read == here.bytes(), "{ty} [{rows}, {cols}]");
            }
        }
    }
    assert!(held.iter().all(|held| held.len() == 4));
}
