//! The kernel of the bounded gate in Kimi K3's FFNs.

use super::elementwise::zip;
use crate::cpu::exp::{sigmoid, tanh};
use crate::cpu::run;
use crate::simd::{Op, Simd};
use brigade_shapes::GateBounds;

/// See [`Compute::bounded_gate_mul`](crate::Compute::bounded_gate_mul).
pub(crate) fn bounded_gate_mul<S: Simd>(x: &mut [f32], gates: &[f32], bounds: GateBounds) {
    run::<S, _>(BoundedGate { x, gates, bounds });
}

struct BoundedGate<'a> {
    x: &'a mut [f32],
    gates: &'a [f32],
    bounds: GateBounds,
}

impl Op for BoundedGate<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let GateBounds { gate, linear } = self.bounds;
        match linear {
            Some(linear) => zip(
                s,
                self.x,
                self.gates,
                #[inline(always)]
                |x, g| s.mul(gated(s, g, gate), bounded(s, x, linear)),
            ),
            None => zip(
                s,
                self.x,
                self.gates,
                #[inline(always)]
                |x, g| s.mul(gated(s, g, gate), x),
            ),
        }
    }
}

/// `bound * tanh(g / bound) * sigmoid(g)`.
#[inline(always)]
fn gated<S: Simd>(s: S, g: S::F, bound: f32) -> S::F {
    s.mul(bounded(s, g, bound), sigmoid(s, g))
}

/// `bound * tanh(x / bound)`.
#[inline(always)]
fn bounded<S: Simd>(s: S, x: S::F, bound: f32) -> S::F {
    s.mul(tanh(s, s.mul(x, s.splat(1.0 / bound))), s.splat(bound))
}
