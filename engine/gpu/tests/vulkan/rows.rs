//! Norms and softmax beside the CPU's, bit for bit.

use brigade_engine::kernels::Compute;
use brigade_gpu::{Gpu, GpuBuffer, SpanMut};

use crate::common::{Random, assert_same, compute, gpu, on, values_of};

/// Rows and columns: tiny, ragged, as heads, on both sides of where a row gets a workgroup, longer than a piece, and on both sides of
/// what a workgroup holds.
const SHAPES: [(usize, usize); 19] = [
    (1, 1),
    (1, 7),
    (3, 15),
    (2, 16),
    (17, 17),
    (33, 64),
    (100, 128),
    (5, 511),
    (5, 512),
    (2, 513),
    (3, 2048),
    (1, 4096),
    (2, 4097),
    (2, 5120),
    (1, 1040),
    (2, 8192),
    (1, 8208),
    (1, 9999),
    (0, 64),
];

/// A buffer with these values behind one other, so that no four of them lie on four.
fn on_odd(gpu: &Gpu, x: &[f32]) -> GpuBuffer {
    on(gpu, &[&[9.0], x].concat())
}

fn both(
    gpu: &Gpu,
    compute: &Compute,
    name: &str,
    x: &[f32],
    on_gpu: &dyn Fn(&Gpu, SpanMut<'_>),
    on_cpu: &dyn Fn(&Compute, &mut [f32]),
) {
    let (mut there, mut here) = (on(gpu, x), x.to_vec());
    on_gpu(gpu, there.span_mut());
    on_cpu(compute, &mut here);
    assert_same(name, &values_of(&there), &here);
}

#[test]
fn norms_of_rows() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(1));
    for (n, d) in SHAPES {
        let (x, weight) = (random.values(n * d, 3.0), random.values(d, 2.0));
        let weight_there = on(&gpu, &weight);
        let name = |op: &str| format!("{op} of {n} rows of {d}");
        let w = weight_there.span();
        let rms = |g: &Gpu, x: SpanMut<'_>| g.rms_norm_inplace(x, w, 1e-5);
        both(&gpu, &compute, &name("rms"), &x, &rms, &|c, x| c.rms_norm_inplace(x, &weight, 1e-5));
        let l2 = |g: &Gpu, x: SpanMut<'_>| g.l2_norm(x, d, 1e-6);
        both(&gpu, &compute, &name("l2"), &x, &l2, &|c, x| c.l2_norm(x, d, 1e-6));
        let (from, mut there) = (on(&gpu, &x), on(&gpu, &vec![-1.0; n * d]));
        let mut here = vec![-1.0; n * d];
        gpu.rms_norm(from.span(), w, 1e-5, there.span_mut());
        compute.rms_norm(&x, &weight, 1e-5, &mut here);
        assert_same(&name("rms elsewhere"), &values_of(&there), &here);
    }
}

#[test]
fn norms_of_rows_that_begin_anywhere() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(4));
    for d in [512, 2048] {
        let (x, weight) = (random.values(2 * d, 3.0), random.values(d, 2.0));
        let mut want = x.clone();
        compute.rms_norm_inplace(&mut want, &weight, 1e-5);
        for odd in 0..4 {
            let place = |which: u32, values: &[f32]| {
                if odd == which { (on_odd(&gpu, values), 4) } else { (on(&gpu, values), 0) }
            };
            let (from, from_at) = place(0, &x);
            let (w, w_at) = place(1, &weight);
            let (mut to, to_at) = place(2, &vec![f32::NAN; 2 * d]);
            let (from_end, w_end, to_end) = (from.len(), w.len(), to.len());
            let [from, w] = [from.span().part(from_at..from_end), w.span().part(w_at..w_end)];
            gpu.rms_norm(from, w, 1e-5, to.span_mut().part(to_at..to_end));
            let got = values_of(&to).split_off(to_at / 4);
            assert_same(&format!("rows of {d}, operand {odd} off"), &got, &want);
        }
    }
}

#[test]
fn norms_with_weights_by_group() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(2));
    for (n, d) in SHAPES {
        for groups in [1, 3] {
            let x = random.values(n * groups * d, 3.0);
            let (weights, biases) =
                (random.values(groups * d, 2.0), random.values(groups * d, 1.0));
            let (weights_there, biases_there) = (on(&gpu, &weights), on(&gpu, &biases));
            let (w, b) = (weights_there.span(), biases_there.span());
            let name = |op: &str| format!("{op} of {n} rows of {groups} groups of {d}");
            let rms = |g: &Gpu, x: SpanMut<'_>| g.group_rms_norm(x, w, d, 1e-6);
            both(&gpu, &compute, &name("rms"), &x, &rms, &|c, x| {
                c.group_rms_norm(x, &weights, d, 1e-6)
            });
            let layer = |g: &Gpu, x: SpanMut<'_>| g.group_layer_norm(x, w, b, d, 1e-5);
            both(&gpu, &compute, &name("layer"), &x, &layer, &|c, x| {
                c.group_layer_norm(x, &weights, &biases, d, 1e-5);
            });
        }
    }
}

#[test]
fn softmax_of_rows() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(3));
    for (n, d) in SHAPES {
        let mut x = random.values(n * d, 20.0);
        // Masked values, and a row of nothing but them beside others.
        x.iter_mut().skip(3).step_by(5).for_each(|x| *x = f32::NEG_INFINITY);
        let name = format!("softmax of {n} rows of {d}");
        let softmax = |g: &Gpu, x: SpanMut<'_>| g.softmax(x, d);
        both(&gpu, &compute, &name, &x, &softmax, &|c, x| c.softmax(x, d));
    }
}
