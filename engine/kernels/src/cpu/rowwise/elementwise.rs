//! Elementwise ops and softmax over slices. A tail that is shorter than the lanes is computed with zeros
//! beyond its end. So a value's result does not depend on where it stands.

use crate::cpu::exp::{
    exp, sigmoid as sigmoid_of, silu as silu_of, softplus as softplus_of, tanh as tanh_of,
};
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};

/// Applies `f` to sixteen values at a time of `out` and `x`.
#[inline(always)]
pub(super) fn zip<S: Simd>(s: S, out: &mut [f32], x: &[f32], f: impl Fn(S::F, S::F) -> S::F) {
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
pub(super) fn map<S: Simd>(s: S, x: &mut [f32], f: impl Fn(S::F) -> S::F) {
    let (whole, tail) = x.as_chunks_mut::<LANES>();
    for x in whole {
        let y = f(s.load(x));
        s.store(y, x);
    }
    let y = f(s.load_part(tail));
    s.store_part(y, tail);
}

/// An op that changes `x` value by value.
macro_rules! unary {
    ($(#[$doc:meta])* $name:ident, |$s:ident, $x:ident| $y:expr) => {
        $(#[$doc])*
        pub(crate) fn $name<S: Simd>(x: &mut [f32]) {
            struct Body<'a>(&'a mut [f32]);
            impl Op for Body<'_> {
                type Out = ();
                #[inline(always)]
                fn eval<S: Simd>(self, $s: S) {
                    map(
                        $s,
                        self.0,
                        #[inline(always)]
                        |$x| $y,
                    );
                }
            }
            run::<S, _>(Body(x));
        }
    };
}

/// An op that changes `out` value by value with those of `x`.
macro_rules! binary {
    ($(#[$doc:meta])* $name:ident, |$s:ident, $out:ident, $x:ident| $y:expr) => {
        $(#[$doc])*
        pub(crate) fn $name<S: Simd>(out: &mut [f32], x: &[f32]) {
            struct Body<'a>(&'a mut [f32], &'a [f32]);
            impl Op for Body<'_> {
                type Out = ();
                #[inline(always)]
                fn eval<S: Simd>(self, $s: S) {
                    zip(
                        $s,
                        self.0,
                        self.1,
                        #[inline(always)]
                        |$out, $x| $y,
                    );
                }
            }
            run::<S, _>(Body(out, x));
        }
    };
}

binary! {
    /// `out += x`.
    add, |s, out, x| s.add(out, x)
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

binary! {
    /// `x *= y`.
    mul, |s, x, y| s.mul(x, y)
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

unary! {
    /// `x = tanh(x)`.
    tanh, |s, x| tanh_of(s, x)
}

binary! {
    /// `x *= silu(gate)`.
    silu_mul, |s, x, gate| s.mul(silu_of(s, gate), x)
}

binary! {
    /// `x *= sigmoid(gate)`.
    sigmoid_mul, |s, x, gate| s.mul(sigmoid_of(s, gate), x)
}

unary! {
    /// `x = silu(x)`.
    silu, |s, x| silu_of(s, x)
}

unary! {
    /// `x = sigmoid(x)`.
    sigmoid, |s, x| sigmoid_of(s, x)
}

unary! {
    /// `x = ln(1 + e^x)`.
    softplus, |s, x| softplus_of(s, x)
}

unary! {
    /// `x = max(x, 0)²`.
    relu_squared, |s, x| {
        let positive = s.max(x, s.zero());
        s.mul(positive, positive)
    }
}

/// Softmax of a row, in place.
pub(crate) fn softmax<S: Simd>(x: &mut [f32]) {
    run::<S, _>(Softmax(x));
}

/// [`softmax`] within another op.
pub(crate) struct Softmax<'a>(pub(crate) &'a mut [f32]);

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
