//! Helpers that the tests of all families share.

use brigade_engine::kernels::{Compute, select};
use brigade_gpu::{
    DeviceClass, DeviceOptions, Gpu, GpuBuffer, KvType, Purpose, RowForm, WeightType as W,
};
use brigade_quant::GgmlType;

/// All quantised types of weights, as the engine and as the GPU calls them.
pub const QUANTS: [(GgmlType, W); 25] = [
    (GgmlType::Q4_0, W::Q4_0),
    (GgmlType::Q4_1, W::Q4_1),
    (GgmlType::Q5_0, W::Q5_0),
    (GgmlType::Q5_1, W::Q5_1),
    (GgmlType::Q8_0, W::Q8_0),
    (GgmlType::Q2_K, W::Q2_K),
    (GgmlType::Q3_K, W::Q3_K),
    (GgmlType::Q4_K, W::Q4_K),
    (GgmlType::Q5_K, W::Q5_K),
    (GgmlType::Q6_K, W::Q6_K),
    (GgmlType::IQ4_NL, W::IQ4_NL),
    (GgmlType::IQ4_XS, W::IQ4_XS),
    (GgmlType::MXFP4, W::MXFP4),
    (GgmlType::NVFP4, W::NVFP4),
    (GgmlType::IQ1_S, W::IQ1_S),
    (GgmlType::IQ1_M, W::IQ1_M),
    (GgmlType::IQ2_XXS, W::IQ2_XXS),
    (GgmlType::IQ2_XS, W::IQ2_XS),
    (GgmlType::IQ2_S, W::IQ2_S),
    (GgmlType::IQ3_XXS, W::IQ3_XXS),
    (GgmlType::IQ3_S, W::IQ3_S),
    (GgmlType::TQ1_0, W::TQ1_0),
    (GgmlType::TQ2_0, W::TQ2_0),
    (GgmlType::Q1_0, W::Q1_0),
    (GgmlType::Q2_0, W::Q2_0),
];

/// All types of numbers in pages.
pub const KV_TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

/// Each of three and more shapes with one of the types: drivers in software compile each pair for seconds.
pub fn in_turn<T: Copy>(shapes: &[T]) -> impl Iterator<Item = (T, KvType)> {
    shapes.iter().copied().zip(KV_TYPES.into_iter().cycle())
}

/// Whether tests have all pairs of types, shapes and variants: on a GPU, and at night (`BRIGADE_TEST_ALL_PAIRS`) on drivers in
/// software too, which compile each pair for seconds.
pub fn all_pairs(gpu: &Gpu) -> bool {
    let is_slow = gpu.facts().kind == DeviceClass::Software;
    !is_slow || std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some()
}

/// Shapes with which type number `i` is tested, from lists of shapes of which each uses another kernel. With
/// [`all_pairs`] these are all; without, one of each list in turn.
pub fn shapes_in_turn<'a, T>(
    gpu: &Gpu,
    i: usize,
    lists: &'a [Vec<T>],
) -> impl Iterator<Item = &'a T> {
    let (all, turn) = (all_pairs(gpu), i % lists.len());
    lists.iter().enumerate().filter(move |(at, _)| all || *at == turn).flat_map(|(_, list)| list)
}

/// The first device, or a line that says that there is none.
pub fn gpu() -> Option<Gpu> {
    match Gpu::open(0, &DeviceOptions::default()) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            println!("skipped: no Vulkan device ({error})");
            None
        }
    }
}

/// The first device with fast math, or a line that says that it has not what it takes.
pub fn fast_gpu() -> Option<Gpu> {
    match Gpu::open(0, &DeviceOptions { fast_math: true, ..DeviceOptions::default() }) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            println!("skipped: no fast math ({error})");
            None
        }
    }
}

/// Rows of `cols` values in a form that products read.
pub fn formed(gpu: &Gpu, form: RowForm, x: &[f32], cols: usize) -> GpuBuffer {
    let x_there = on(gpu, x);
    let n_rows = x.len() / cols;
    let mut out = gpu.buffer(n_rows * form.row_bytes(cols), Purpose::Activations).expect("room");
    match form {
        RowForm::Floats => return x_there,
        RowForm::Blocks => gpu.quantize(x_there.span(), out.span_mut()),
        RowForm::Halves => gpu.halve(x_there.span(), cols, out.span_mut()),
    }
    out
}

/// ||got - want|| / ||want||
pub fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let difference = norm(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - w));
    (difference / norm(&mut want.iter().copied()).max(f64::MIN_POSITIVE)).sqrt()
}

/// The CPU's kernels whose bits those of the GPU are.
pub fn compute() -> Compute {
    let table = select(Some("unfused")).expect("it is always there");
    Compute::new(table, 1, None).expect("no further thread")
}

/// A buffer with these values.
pub fn on(gpu: &Gpu, values: &[f32]) -> GpuBuffer {
    words_on(gpu, bytemuck::cast_slice(values))
}

/// A buffer with these words.
pub fn words_on(gpu: &Gpu, words: &[u32]) -> GpuBuffer {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    let mut buffer = gpu.buffer(bytes.len(), Purpose::Activations).expect("room");
    buffer.bytes_mut().copy_from_slice(bytes);
    buffer
}

/// The bytes of a buffer, wherever it lies.
pub fn bytes_of(buffer: &GpuBuffer) -> Vec<u8> {
    let mut bytes = Vec::new();
    buffer.read(0..buffer.len(), &mut bytes).expect("room for a copy");
    buffer.gpu().check().expect("no failure");
    bytes
}

/// The values of a buffer.
pub fn values_of(buffer: &GpuBuffer) -> Vec<f32> {
    bytemuck::pod_collect_to_vec(&bytes_of(buffer))
}

/// Holds every value to the bits of the CPU's. A NaN is any NaN, and for a subnormal number a GPU may have 0.
#[track_caller]
pub fn assert_same(what: &str, gpu: &[f32], cpu: &[f32]) {
    assert_eq!(gpu.len(), cpu.len(), "{what}: lengths");
    let differs = |(g, c): (&f32, &f32)| {
        let flushed = *g == 0.0 && c.is_subnormal();
        g.to_bits() != c.to_bits() && !flushed && !(g.is_nan() && c.is_nan())
    };
    let wrong: Vec<usize> = (0..gpu.len()).filter(|&i| differs((&gpu[i], &cpu[i]))).collect();
    let first = wrong.first().map(|&i| (i, gpu[i], cpu[i]));
    assert!(wrong.is_empty(), "{what}: {} of {} differ, first {first:?}", wrong.len(), gpu.len());
}

/// Numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    /// Any 64 bits (splitmix64).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A value in -1..1.
    pub fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// `n` values in -scale..scale.
    pub fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.value() * scale).collect()
    }
}
