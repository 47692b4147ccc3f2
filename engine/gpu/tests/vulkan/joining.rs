//! Ops that are joined with the one before them: fewer runs of kernels, the same bits.

use brigade_engine::kernels::Compute;
use brigade_gpu::{Gpu, GpuBuffer, Purpose, RopeLayout, SpanMut};
use brigade_ops::{Angles, Rope};

use crate::common::{Random, assert_same, compute, gpu, on, values_of};

/// Rows and columns: whole blocks of 32, on both sides of where a row gets a workgroup, longer than a piece, and longer than what a
/// workgroup holds.
const SHAPES: [(usize, usize); 8] =
    [(1, 32), (3, 64), (17, 480), (2, 512), (1, 4096), (3, 4128), (1, 8192), (2, 8224)];

/// Room for the 8-bit form of so many values.
fn room(gpu: &Gpu, values: usize) -> GpuBuffer {
    gpu.buffer(Gpu::quantized_bytes(values), Purpose::Activations).expect("room")
}

/// Runs of kernels that `ops` makes.
fn runs(gpu: &Gpu, ops: impl FnOnce()) -> u64 {
    gpu.finish().expect("it works");
    let before = gpu.handed().runs;
    ops();
    gpu.finish().expect("it works");
    gpu.handed().runs - before
}

/// Holds blocks to those that are made of the values apart from all else.
fn assert_blocks_of(what: &str, gpu: &Gpu, values: &GpuBuffer, blocks: &GpuBuffer) {
    let mut apart = room(gpu, values.len() / 4);
    assert_eq!(runs(gpu, || gpu.quantize(values.span(), apart.span_mut())), 1);
    assert!(apart.bytes() == blocks.bytes(), "{what}: other blocks");
}

#[test]
fn a_sum_its_norm_and_the_blocks_of_that_are_one_run() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    for (n, d) in SHAPES {
        let what = format!("{n} rows of {d}");
        let [mut x, y] = [0; 2].map(|_| random.values(n * d, 3.0));
        let weight = random.values(d, 2.0);
        let (mut x_there, y_there, w_there) = (on(&gpu, &x), on(&gpu, &y), on(&gpu, &weight));
        let mut normed = on(&gpu, &vec![f32::NAN; n * d]);
        let mut blocks = room(&gpu, n * d);
        let found = runs(&gpu, || {
            gpu.add_scaled(x_there.span_mut(), y_there.span(), 0.7);
            gpu.rms_norm(x_there.span(), w_there.span(), 1e-5, normed.span_mut());
            gpu.quantize(normed.span(), blocks.span_mut());
        });
        assert_eq!(found, 1, "{what}");
        compute.add_scaled(&mut x, &y, 0.7);
        let mut want = vec![f32::NAN; n * d];
        compute.rms_norm(&x, &weight, 1e-5, &mut want);
        assert_same(&format!("{what}: sum"), &values_of(&x_there), &x);
        assert_same(&format!("{what}: norm"), &values_of(&normed), &want);
        assert_blocks_of(&what, &gpu, &normed, &blocks);
    }
}

/// A function of each value on both sides: an op, and what the CPU has for it.
type Function = (&'static str, fn(&Gpu, SpanMut<'_>, &GpuBuffer), fn(&Compute, &mut [f32], &[f32]));

const FUNCTIONS: [Function; 5] = [
    ("silu_mul", |g, x, y| g.silu_mul_inplace(x, y.span()), |c, x, y| c.silu_mul_inplace(x, y)),
    ("gelu_mul", |g, x, y| g.gelu_mul(x, y.span()), |c, x, y| c.gelu_mul(x, y)),
    ("sigmoid_mul", |g, x, y| g.sigmoid_mul(x, y.span()), |c, x, y| c.sigmoid_mul(x, y)),
    ("relu_squared", |g, x, _| g.relu_squared(x), |c, x, _| c.relu_squared(x)),
    ("add", |g, x, y| g.add(x, y.span()), |c, x, y| c.add(x, y)),
];

#[test]
fn a_function_and_the_blocks_of_it_are_one_run() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for (name, on_gpu, on_cpu) in FUNCTIONS {
        for n in [32, 1024, 4128] {
            let what = format!("{name} of {n}");
            let [mut x, y] = [0; 2].map(|_| random.values(n, 4.0));
            let (mut x_there, y_there) = (on(&gpu, &x), on(&gpu, &y));
            let mut blocks = room(&gpu, n);
            let found = runs(&gpu, || {
                on_gpu(&gpu, x_there.span_mut(), &y_there);
                gpu.quantize(x_there.span(), blocks.span_mut());
            });
            assert_eq!(found, 1, "{what}");
            on_cpu(&compute, &mut x, &y);
            assert_same(&what, &values_of(&x_there), &x);
            assert_blocks_of(&what, &gpu, &x_there, &blocks);
        }
    }
}

/// The second op must read the rows that the first one wrote, and other ops must find them too.
#[test]
fn what_does_not_belong_together_is_not_joined() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    let (n, d) = (2, 64);
    let [x, y, other] = [0; 3].map(|_| random.values(n * d, 3.0));
    let weight = random.values(d, 2.0);
    let (y_there, w_there) = (on(&gpu, &y), on(&gpu, &weight));
    let mut blocks = room(&gpu, n * d);

    let mut in_place = on(&gpu, &x);
    let found = runs(&gpu, || {
        gpu.add_scaled(in_place.span_mut(), y_there.span(), 0.5);
        gpu.rms_norm_inplace(in_place.span_mut(), w_there.span(), 1e-5);
    });
    assert_eq!(found, 2, "a norm in the place of the sum");
    let mut want = x.clone();
    compute.add_scaled(&mut want, &y, 0.5);
    compute.rms_norm_inplace(&mut want, &weight, 1e-5);
    assert_same("a norm in the place of the sum", &values_of(&in_place), &want);

    let (mut x_there, other_there) = (on(&gpu, &x), on(&gpu, &other));
    let found = runs(&gpu, || {
        gpu.silu_mul_inplace(x_there.span_mut(), y_there.span());
        gpu.quantize(other_there.span(), blocks.span_mut());
    });
    assert_eq!(found, 2, "blocks of other values");
    assert_blocks_of("blocks of other values", &gpu, &other_there, &blocks);

    let mut x_there = on(&gpu, &x);
    let found = runs(&gpu, || {
        gpu.lerp(x_there.span_mut(), y_there.span(), w_there.span());
        gpu.quantize(x_there.span(), blocks.span_mut());
    });
    assert_eq!(found, 2, "a function of three operands");
    assert_blocks_of("a function of three operands", &gpu, &x_there, &blocks);

    let mut x_there = on(&gpu, &x);
    let found = runs(&gpu, || {
        gpu.relu(x_there.span_mut());
        gpu.finish().expect("it works");
        gpu.quantize(x_there.span(), blocks.span_mut());
    });
    assert_eq!(found, 2, "an op that was handed over");
    assert_blocks_of("an op that was handed over", &gpu, &x_there, &blocks);
}

/// Rotations of queries and of keys run at the same time; two of the same rows do not.
#[test]
fn rotations_follow_each_other_where_they_have_to() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(4);
    let (n_rows, head_dim) = (300, 64);
    let angles = random.values(n_rows * head_dim, 1.0);
    let table = on(&gpu, &angles);
    let x = random.values(n_rows * head_dim * 8, 1.0);
    let (by_pair, n_rot, layout) = (table.span(), head_dim, RopeLayout::Neox);
    let angles = Angles { by_pair, n_rot, layout };
    let rotate = |x: &mut GpuBuffer| gpu.rope(Rope { x: x.span_mut(), head_dim, angles });
    let mut apart = on(&gpu, &x);
    for _ in 0..4 {
        rotate(&mut apart);
        gpu.finish().expect("it works");
    }
    let [mut one, mut other] = [0; 2].map(|_| on(&gpu, &x));
    for _ in 0..2 {
        rotate(&mut one);
        rotate(&mut one);
        rotate(&mut other);
        rotate(&mut other);
    }
    assert_same("one", &values_of(&one), &values_of(&apart));
    assert_same("other", &values_of(&other), &values_of(&apart));
}
