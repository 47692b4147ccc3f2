//! Elementwise ops and softmax over slices. A tail shorter than the lanes is computed on zeros
//! beyond its end, so a value's result does not depend on where it stands.

use super::exp::{
    exp, sigmoid as sigmoid_of, silu as silu_of, softplus as softplus_of, tanh as tanh_of,
};
use super::run;
use crate::kernels::simd::{LANES, Op, Simd};

/// Applies `f` to sixteen values at a time of `out` and `x`.
#[inline(always)]
fn zip<S: Simd>(s: S, out: &mut [f32], x: &[f32], f: impl Fn(S::F, S::F) -> S::F) {
    assert_eq!(out.len(), x.len(), "operands of an elementwise op");
    let (out_whole, out_tail) = out.as_chunks_mut::<LANES>();
    let (x_whole, x_tail) = x.as_chunks::<LANES>();
    for (out, x) in out_whole.iter_mut().zip(x_whole) {
        let y = f(s.load(out), s.load(x));
        s.store(y, out);
    }
    let y = f(s.load_part(out_tail), s.load_part(x_tail));
    s.store_part(y, out_tail);
}

/// Applies `f` to sixteen values at a time of `x`.
#[inline(always)]
fn map<S: Simd>(s: S, x: &mut [f32], f: impl Fn(S::F) -> S::F) {
    let (whole, tail) = x.as_chunks_mut::<LANES>();
    for x in whole {
        let y = f(s.load(x));
        s.store(y, x);
    }
    let y = f(s.load_part(tail));
    s.store_part(y, tail);
}

/// `out += x`.
pub(crate) fn add<S: Simd>(out: &mut [f32], x: &[f32]) {
    struct Add<'a>(&'a mut [f32], &'a [f32]);
    impl Op for Add<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            zip(s, self.0, self.1, |out, x| s.add(out, x));
        }
    }
    run::<S, _>(Add(out, x));
}

/// `out += x * factor`.
pub(crate) fn add_scaled<S: Simd>(out: &mut [f32], x: &[f32], factor: f32) {
    struct AddScaled<'a>(&'a mut [f32], &'a [f32], f32);
    impl Op for AddScaled<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let factor = s.splat(self.2);
            zip(s, self.0, self.1, |out, x| s.fma(x, factor, out));
        }
    }
    run::<S, _>(AddScaled(out, x, factor));
}

/// `x *= factor`.
pub(crate) fn scale<S: Simd>(x: &mut [f32], factor: f32) {
    struct Scale<'a>(&'a mut [f32], f32);
    impl Op for Scale<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let factor = s.splat(self.1);
            map(s, self.0, |x| s.mul(x, factor));
        }
    }
    run::<S, _>(Scale(x, factor));
}

/// `x *= y`.
pub(crate) fn mul<S: Simd>(x: &mut [f32], y: &[f32]) {
    struct Mul<'a>(&'a mut [f32], &'a [f32]);
    impl Op for Mul<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            zip(
                s,
                self.0,
                self.1,
                #[inline(always)]
                |x, y| s.mul(x, y),
            );
        }
    }
    run::<S, _>(Mul(x, y));
}

/// `x += (to - x) * share`.
pub(crate) fn lerp<S: Simd>(x: &mut [f32], to: &[f32], share: &[f32]) {
    struct Lerp<'a>(&'a mut [f32], &'a [f32], &'a [f32]);
    impl Op for Lerp<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            let (x, x_tail) = self.0.as_chunks_mut::<LANES>();
            let (to, to_tail) = self.1.as_chunks::<LANES>();
            let (share, share_tail) = self.2.as_chunks::<LANES>();
            for ((x, to), share) in x.iter_mut().zip(to).zip(share) {
                let from = s.load(x);
                s.store(s.fma(s.sub(s.load(to), from), s.load(share), from), x);
            }
            let from = s.load_part(x_tail);
            let step = s.sub(s.load_part(to_tail), from);
            s.store_part(s.fma(step, s.load_part(share_tail), from), x_tail);
        }
    }
    assert!(x.len() == to.len() && x.len() == share.len(), "operands of lerp");
    run::<S, _>(Lerp(x, to, share));
}

/// `x = tanh(x)`.
pub(crate) fn tanh<S: Simd>(x: &mut [f32]) {
    struct Tanh<'a>(&'a mut [f32]);
    impl Op for Tanh<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            map(
                s,
                self.0,
                #[inline(always)]
                |x| tanh_of(s, x),
            );
        }
    }
    run::<S, _>(Tanh(x));
}

/// `x *= silu(gate)`.
pub(crate) fn silu_mul<S: Simd>(x: &mut [f32], gate: &[f32]) {
    struct SiluMul<'a>(&'a mut [f32], &'a [f32]);
    impl Op for SiluMul<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            zip(
                s,
                self.0,
                self.1,
                #[inline(always)]
                |x, gate| s.mul(silu_of(s, gate), x),
            );
        }
    }
    run::<S, _>(SiluMul(x, gate));
}

/// `x *= sigmoid(gate)`.
pub(crate) fn sigmoid_mul<S: Simd>(x: &mut [f32], gate: &[f32]) {
    struct SigmoidMul<'a>(&'a mut [f32], &'a [f32]);
    impl Op for SigmoidMul<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            zip(
                s,
                self.0,
                self.1,
                #[inline(always)]
                |x, gate| s.mul(sigmoid_of(s, gate), x),
            );
        }
    }
    run::<S, _>(SigmoidMul(x, gate));
}

/// `x = silu(x)`.
pub(crate) fn silu<S: Simd>(x: &mut [f32]) {
    struct Silu<'a>(&'a mut [f32]);
    impl Op for Silu<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            map(
                s,
                self.0,
                #[inline(always)]
                |x| silu_of(s, x),
            );
        }
    }
    run::<S, _>(Silu(x));
}

/// `x = sigmoid(x)`.
pub(crate) fn sigmoid<S: Simd>(x: &mut [f32]) {
    struct Sigmoid<'a>(&'a mut [f32]);
    impl Op for Sigmoid<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            map(
                s,
                self.0,
                #[inline(always)]
                |x| sigmoid_of(s, x),
            );
        }
    }
    run::<S, _>(Sigmoid(x));
}

/// `x = ln(1 + e^x)`.
pub(crate) fn softplus<S: Simd>(x: &mut [f32]) {
    struct Softplus<'a>(&'a mut [f32]);
    impl Op for Softplus<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            map(
                s,
                self.0,
                #[inline(always)]
                |x| softplus_of(s, x),
            );
        }
    }
    run::<S, _>(Softplus(x));
}

/// `x = max(x, 0)²`.
pub(crate) fn relu_squared<S: Simd>(x: &mut [f32]) {
    struct ReluSquared<'a>(&'a mut [f32]);
    impl Op for ReluSquared<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) {
            map(
                s,
                self.0,
                #[inline(always)]
                |x| {
                    let positive = s.max(x, s.zero());
                    s.mul(positive, positive)
                },
            );
        }
    }
    run::<S, _>(ReluSquared(x));
}

/// Softmax of a row, in place.
pub(crate) fn softmax<S: Simd>(x: &mut [f32]) {
    run::<S, _>(Softmax(x));
}

struct Softmax<'a>(&'a mut [f32]);

impl Op for Softmax<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let highest = s.splat(highest(s, self.0));
        let mut total = s.zero();
        let (whole, tail) = self.0.as_chunks_mut::<LANES>();
        for x in whole {
            let e = exp(s, s.sub(s.load(x), highest));
            s.store(e, x);
            total = s.add(total, e);
        }
        if !tail.is_empty() {
            let e = exp(s, s.sub(s.load_part(tail), highest));
            s.store_part(e, tail);
            // Read back, so that lanes beyond the end count nothing.
            total = s.add(total, s.load_part(tail));
        }
        let total = s.splat(s.sum(total));
        map(s, self.0, |e| s.div(e, total));
    }
}

/// The greatest value of a row.
#[inline(always)]
fn highest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (whole, tail) = x.as_chunks::<LANES>();
    let lanes = whole.iter().fold(s.splat(f32::NEG_INFINITY), |m, x| s.max(s.load(x), m));
    tail.iter().fold(s.max_lane(lanes), |m, &x| if x > m { x } else { m })
}
