//! The bounded gate against f64, and bit equality on all tables and thread counts.

use super::{Rng, close, same_bits_everywhere};
use crate::reference::ops;
use brigade_kernels::GateBounds;

#[test]
fn the_bounded_gate_matches_f64() {
    let mut rng = Rng::new(95);
    for n in [1, 15, 16, 17, 5000] {
        let (x, gates) = (rng.spread(n), rng.spread(n));
        for linear in [None, Some(25.0)] {
            let bounds = GateBounds { gate: 4.0, linear };
            let out = same_bits_everywhere("bounded_gate_mul", |compute| {
                let mut out = x.clone();
                compute.bounded_gate_mul(&mut out, &gates, bounds);
                out
            });
            for ((x, gate), got) in x.iter().zip(&gates).zip(out) {
                let want = ops::bounded_gate_mul(*gate, *x, bounds);
                // Two quotients, two or three exponentials, five products.
                close("bounded_gate_mul", got, want, want.abs() * 2e-6 + 1e-33);
            }
        }
    }
}

#[test]
fn it_stays_within_its_bounds() {
    let ends = [-1e30, -100.0, 100.0, 1e30];
    let bounds = GateBounds { gate: 4.0, linear: Some(25.0) };
    let out = same_bits_everywhere("bounded_gate_mul", |compute| {
        let mut out = vec![-1e30, 1e30, -1e30, 1e30];
        compute.bounded_gate_mul(&mut out, &ends, bounds);
        out
    });
    assert_eq!(out, [0.0, 0.0, -100.0, 100.0]);
}
