//! The time mixing of RWKV-6 and RWKV-7.

use brigade_ops::{Vector, Wkv6, Wkv6Rows, Wkv7, Wkv7Bonus, Wkv7Prepare, Wkv7Rows, Wkv7Weights};

use super::{PARTS, Scan, n_rows, parts};
use crate::common::{Random, assert_same, compute, gpu, on, values_of};

/// Heads and their widths.
const SHAPES: [(usize, usize); 4] = [(1, 16), (3, 32), (2, 64), (1, 96)];

/// Decays of keys around `mean`, at most 1.
fn decays(random: &mut Random, n: usize, mean: f32) -> Vec<f32> {
    random.values(n, mean.min(1.0 - mean)).iter().map(|w| mean + w).collect()
}

fn check6(n_heads: usize, d: usize, has_own: bool, decay: f32, random: &mut Random) {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    let (n, width) = (n_rows(&parts(&PARTS)), n_heads * d);
    let w = decays(random, n * width, decay);
    let [r, k, v] = [0; 3].map(|_| random.values(n * width, 1.0));
    let own = random.values(width, 1.0);
    let buffers = [&r, &w, &k, &v, &own].map(|x| on(&gpu, x));
    let spans = buffers.each_ref().map(|x| x.span());
    Scan {
        name: &format!("wkv6 of {n_heads} heads of {d}, own {has_own}, decays {decay}"),
        per_slot: width * d,
        width,
        on_cpu: &|parts, states, out| {
            let own = has_own.then_some(&own[..]);
            let rows = Wkv6Rows { r: &r[..], w: &w, k: &k, v: &v, own };
            compute.wkv6(Wkv6 { n_heads, d, parts, states, rows, out });
        },
        on_gpu: &|gpu, parts, states, out| {
            let [r, w, k, v, own] = spans;
            let rows = Wkv6Rows { r, w, k, v, own: has_own.then_some(own) };
            gpu.wkv6(Wkv6 { n_heads, d, parts, states, rows, out });
        },
    }
    .check_all(random);
}

#[test]
fn wkv6_has_the_bits_of_the_cpu() {
    let mut random = Random(57);
    for (i, (n_heads, d)) in SHAPES.into_iter().enumerate() {
        check6(n_heads, d, i % 2 == 0, 0.8, &mut random);
    }
    check6(2, 64, false, 0.8, &mut random);
    check6(1, 16, true, 1e-9, &mut random);
}

fn check7(n_heads: usize, d: usize, decay: f32, random: &mut Random) {
    let Some(gpu) = gpu() else { return };
    let compute = compute();
    let (n, width) = (n_rows(&parts(&PARTS)), n_heads * d);
    let w = decays(random, n * width, decay);
    let [r, k, v, mut kappa] = [0; 4].map(|_| random.values(n * width, 1.0));
    for head in kappa.chunks_exact_mut(d) {
        let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
        head.iter_mut().for_each(|x| *x /= length);
    }
    let kappa_a: Vec<f32> = kappa.iter().map(|x| x * (0.5 + 0.5 * random.value())).collect();
    let buffers = [&r, &w, &k, &v, &kappa, &kappa_a].map(|x| on(&gpu, x));
    let spans = buffers.each_ref().map(|x| x.span());
    Scan {
        name: &format!("wkv7 of {n_heads} heads of {d}, decays {decay}"),
        per_slot: width * d,
        width,
        on_cpu: &|parts, states, out| {
            let (r, w, k, v) = (&r[..], &w[..], &k[..], &v[..]);
            let rows = Wkv7Rows { r, w, k, v, kappa: &kappa, kappa_a: &kappa_a };
            compute.wkv7(Wkv7 { n_heads, d, parts, states, rows, out });
        },
        on_gpu: &|gpu, parts, states, out| {
            let [r, w, k, v, kappa, kappa_a] = spans;
            let rows = Wkv7Rows { r, w, k, v, kappa, kappa_a };
            gpu.wkv7(Wkv7 { n_heads, d, parts, states, rows, out });
        },
    }
    .check_all(random);
}

#[test]
fn wkv7_has_the_bits_of_the_cpu() {
    let mut random = Random(58);
    for (n_heads, d) in SHAPES {
        check7(n_heads, d, 0.8, &mut random);
    }
    check7(1, 16, 1e-9, &mut random);
}

#[test]
fn preparation_and_bonus_have_the_bits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let (compute, mut random) = (compute(), Random(59));
    for (n, (n_heads, d)) in [1, 7, 5, 2].into_iter().zip(SHAPES) {
        let width = n_heads * d;
        let [w0, a0, k_k, k_a] = [0; 4].map(|_| Vector::from(random.values(width, 2.0)));
        let weights = &Wkv7Weights { w0, a0, k_k, k_a };
        let [mut w, mut k, mut a, v] = [0; 4].map(|_| random.values(n * width, 3.0));
        // A head without any length.
        k[..d].fill(0.0);
        let mut kappa = vec![0.0; n * width];
        let mut there = [&w, &k, &a, &kappa].map(|x| on(&gpu, x));
        let v_there = on(&gpu, &v);
        {
            let [w, k, a, kappa] = there.each_mut().map(|x| x.span_mut());
            gpu.wkv7_prepare(Wkv7Prepare { weights, d, w, k, a, kappa });
        }
        let rows = [&mut w, &mut k, &mut a, &mut kappa].map(|x| &mut x[..]);
        let [w_here, k_here, a_here, kappa_here] = rows;
        compute.wkv7_prepare(Wkv7Prepare {
            weights,
            d,
            w: w_here,
            k: k_here,
            a: a_here,
            kappa: kappa_here,
        });
        for (there, here) in there.iter().zip([&w, &k, &a, &kappa]) {
            assert_same(
                &format!("wkv7_prepare of {n_heads} heads of {d}"),
                &values_of(there),
                here,
            );
        }

        let mut out = random.values(n * width, 1.0);
        let mut out_there = on(&gpu, &out);
        let r_k = &weights.k_k;
        let [w_there, k_there, a_there, kappa_there] = there.each_ref().map(|x| x.span());
        let rows = Wkv7Rows {
            r: w_there,
            w: w_there,
            k: k_there,
            v: v_there.span(),
            kappa: kappa_there,
            kappa_a: a_there,
        };
        gpu.wkv7_bonus(Wkv7Bonus { out: out_there.span_mut(), d, rows, r_k });
        let (r, w, k, v) = (&w[..], &w[..], &k[..], &v[..]);
        let rows = Wkv7Rows { r, w, k, v, kappa: &kappa, kappa_a: &a };
        compute.wkv7_bonus(Wkv7Bonus { out: &mut out, d, rows, r_k });
        assert_same(&format!("wkv7_bonus of {n_heads} heads of {d}"), &values_of(&out_there), &out);
    }
}
