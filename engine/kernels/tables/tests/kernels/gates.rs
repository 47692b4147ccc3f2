//! GELU, bounded SwiGLUs and bounds against f64, and bit equality on all tables and thread counts.

use super::{Rng, close, same_bits_everywhere};
use crate::reference::ops;
use brigade_kernels::{Compute, GateBound, SwiGluClamp, SwiGluLimit, Xielu};

/// An op of a row and its gates.
type GatedOp = dyn Fn(&Compute, &mut [f32], &[f32]);

const CLAMP: SwiGluClamp = SwiGluClamp { alpha: 1.702, limit: 7.0 };

/// `op` on `n` values beside others, and what it should give value by value.
fn check(what: &str, op: &GatedOp, want: &dyn Fn(f32, f32) -> f64, error: f64) {
    check_within(what, op, want, error, 1e-12);
}

/// As [`check`], with a relative and an absolute bound on the error.
fn check_within(
    what: &str,
    op: &GatedOp,
    want: &dyn Fn(f32, f32) -> f64,
    relative: f64,
    absolute: f64,
) {
    let mut rng = Rng::new(16);
    for n in [1, 15, 16, 17, 5000] {
        let scaled = |values: Vec<f32>| -> Vec<f32> { values.iter().map(|x| x * 9.0).collect() };
        let (x, gates) = (scaled(rng.values(n)), scaled(rng.values(n)));
        let out = same_bits_everywhere(what, |compute| {
            let mut out = x.clone();
            op(compute, &mut out, &gates);
            out
        });
        for ((x, gate), got) in x.iter().zip(&gates).zip(out) {
            let want = want(*x, *gate);
            close(what, got, want, want.abs() * relative + absolute);
        }
    }
}

#[test]
fn gates_match_f64() {
    // An exponential of up to 60 carries the error of its argument.
    check("gelu", &|c, x, _| c.gelu(x), &|x, _| ops::gelu(f64::from(x)), 2e-5);
    let gated = |x: f32, g: f32| ops::gelu(f64::from(g)) * f64::from(x);
    check("gelu_mul", &|c, x, g| c.gelu_mul(x, g), &gated, 2e-5);
    let clamped = |x, g| ops::clamped_swiglu_mul(g, x, CLAMP);
    check("clamped_swiglu_mul", &|c, x, g| c.clamped_swiglu_mul(x, g, CLAMP), &clamped, 2e-6);
    for gate in [GateBound::Before, GateBound::After] {
        let limit = SwiGluLimit { limit: 7.0, gate };
        let op = move |c: &Compute, x: &mut [f32], g: &[f32]| c.limited_swiglu_mul(x, g, limit);
        let limited = |x, g| ops::limited_swiglu_mul(g, x, limit);
        check("limited_swiglu_mul", &op, &limited, 2e-6);
    }
    let shape = Xielu { alpha_n: 1.3, alpha_p: 0.9, beta: 0.5, eps: -1e-6 };
    // Below 0, its parts may cancel each other.
    let xielu = |x: f32, _| ops::xielu(x, shape);
    check_within("xielu", &move |c, x, _| c.xielu(x, shape), &xielu, 2e-6, 4e-6);
    let capped = |x: f32, _| 3.0 * (f64::from(x) / 3.0).tanh();
    check("softcap", &|c, x, _| c.softcap(x, 3.0), &capped, 1e-6);
    check("clamp", &|c, x, _| c.clamp(x, 4.0), &|x, _| f64::from(x.clamp(-4.0, 4.0)), 0.0);
}

#[test]
fn ends_are_what_they_tend_to() {
    let out = same_bits_everywhere("gelu", |compute| {
        let mut out = vec![-100.0, -0.0, 0.0, 100.0];
        compute.gelu(&mut out);
        out
    });
    assert_eq!(out, [0.0, 0.0, 0.0, 100.0]);
    let out = same_bits_everywhere("clamped_swiglu_mul", |compute| {
        let mut out = vec![1e30, -1e30, 1e30];
        compute.clamped_swiglu_mul(&mut out, &[-1e30, 1e30, 1e30], CLAMP);
        out
    });
    let top = 7.0 / (1.0 + (-1.702f32 * 7.0).exp());
    assert_eq!(out[0], 0.0);
    assert!((out[1] + 6.0 * top).abs() < 1e-4 && (out[2] - 8.0 * top).abs() < 1e-4, "{out:?}");
}
