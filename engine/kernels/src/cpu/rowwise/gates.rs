//! The kernels of GELU, of the clamped SwiGLU, and of bounds on values.

use super::elementwise::{map, zip};
use crate::cpu::exp::{exp, sigmoid, silu, tanh};
use crate::cpu::run;
use crate::simd::{Op, Simd};
use crate::tiles::gates::{GELU_CUBIC, GELU_LINEAR};
use brigade_shapes::{GateBound, SwiGluClamp, SwiGluLimit, Xielu};

/// See [`Compute::gelu`](crate::Compute::gelu).
pub(crate) fn gelu<S: Simd>(x: &mut [f32]) {
    struct Gelu<'a>(&'a mut [f32]);
    impl Op for Gelu<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            map(
                s,
                self.0,
                #[inline(always)]
                |x| gelu_of(s, x),
            );
        }
    }
    run::<S, _>(Gelu(x));
}

/// See [`Compute::gelu_mul`](crate::Compute::gelu_mul).
pub(crate) fn gelu_mul<S: Simd>(x: &mut [f32], gates: &[f32]) {
    struct GeluMul<'a>(&'a mut [f32], &'a [f32]);
    impl Op for GeluMul<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            zip(
                s,
                self.0,
                self.1,
                #[inline(always)]
                |x, g| s.mul(gelu_of(s, g), x),
            );
        }
    }
    run::<S, _>(GeluMul(x, gates));
}

/// See [`Compute::clamped_swiglu_mul`](crate::Compute::clamped_swiglu_mul).
pub(crate) fn clamped_swiglu_mul<S: Simd>(x: &mut [f32], gates: &[f32], clamp: SwiGluClamp) {
    struct Clamped<'a>(&'a mut [f32], &'a [f32], SwiGluClamp);
    impl Op for Clamped<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let (alpha, limit) = (s.splat(self.2.alpha), s.splat(self.2.limit));
            zip(
                s,
                self.0,
                self.1,
                #[inline(always)]
                |x, g| {
                    let g = s.select_gt(g, limit, limit, g);
                    let x = s.add(bounded(s, x, limit), s.splat(1.0));
                    s.mul(s.mul(g, sigmoid(s, s.mul(g, alpha))), x)
                },
            );
        }
    }
    run::<S, _>(Clamped(x, gates, clamp));
}

/// See [`Compute::limited_swiglu_mul`](crate::Compute::limited_swiglu_mul).
pub(crate) fn limited_swiglu_mul<S: Simd>(x: &mut [f32], gates: &[f32], limit: SwiGluLimit) {
    struct Limited<'a>(&'a mut [f32], &'a [f32], SwiGluLimit);
    impl Op for Limited<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let limit = s.splat(self.2.limit);
            match self.2.gate {
                GateBound::Before => zip(
                    s,
                    self.0,
                    self.1,
                    #[inline(always)]
                    |x, g| s.mul(silu(s, s.select_gt(g, limit, limit, g)), bounded(s, x, limit)),
                ),
                GateBound::After => zip(
                    s,
                    self.0,
                    self.1,
                    #[inline(always)]
                    |x, g| {
                        let g = silu(s, g);
                        s.mul(s.select_gt(g, limit, limit, g), bounded(s, x, limit))
                    },
                ),
            }
        }
    }
    run::<S, _>(Limited(x, gates, limit));
}

/// See [`Compute::xielu`](crate::Compute::xielu). `exp(x) - 1` is `tanh(x / 2) (exp(x) + 1)`, which loses nothing
/// near 0.
pub(crate) fn xielu<S: Simd>(x: &mut [f32], shape: Xielu) {
    struct XieluOp<'a>(&'a mut [f32], Xielu);
    impl Op for XieluOp<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let Xielu { alpha_n, alpha_p, beta, eps } = self.1;
            let (alpha_n, alpha_p) = (s.splat(alpha_n), s.splat(alpha_p));
            let (beta, eps) = (s.splat(beta), s.splat(eps));
            map(
                s,
                self.0,
                #[inline(always)]
                |x| {
                    let above = s.mul(x, s.fma(x, alpha_p, beta));
                    let low = s.select_gt(x, eps, eps, x);
                    let half = tanh(s, s.mul(low, s.splat(0.5)));
                    let less_one = s.mul(half, s.add(exp(s, low), s.splat(1.0)));
                    let below = s.fma(s.sub(less_one, x), alpha_n, s.mul(x, beta));
                    s.select_gt(x, s.zero(), above, below)
                },
            );
        }
    }
    run::<S, _>(XieluOp(x, shape));
}

/// See [`Compute::softcap`](crate::Compute::softcap).
pub(crate) fn softcap<S: Simd>(x: &mut [f32], cap: f32) {
    struct Softcap<'a>(&'a mut [f32], f32);
    impl Op for Softcap<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let (cap, inverse) = (s.splat(self.1), s.splat(1.0 / self.1));
            map(
                s,
                self.0,
                #[inline(always)]
                |x| s.mul(tanh(s, s.mul(x, inverse)), cap),
            );
        }
    }
    run::<S, _>(Softcap(x, cap));
}

/// See [`Compute::clamp`](crate::Compute::clamp).
pub(crate) fn clamp<S: Simd>(x: &mut [f32], bound: f32) {
    struct Clamp<'a>(&'a mut [f32], f32);
    impl Op for Clamp<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let bound = s.splat(self.1);
            map(
                s,
                self.0,
                #[inline(always)]
                |x| bounded(s, x, bound),
            );
        }
    }
    run::<S, _>(Clamp(x, bound));
}

#[inline(always)]
fn gelu_of<S: Simd>(s: S, x: S::F) -> S::F {
    let square = s.mul(x, x);
    let slope = s.fma(square, s.splat(GELU_CUBIC), s.splat(GELU_LINEAR));
    s.mul(x, sigmoid(s, s.mul(x, slope)))
}

/// `x` within `-bound..=bound`; NaN stays NaN.
#[inline(always)]
fn bounded<S: Simd>(s: S, x: S::F, bound: S::F) -> S::F {
    let least = s.sub(s.zero(), bound);
    let x = s.select_gt(x, bound, bound, x);
    s.select_gt(least, x, least, x)
}
