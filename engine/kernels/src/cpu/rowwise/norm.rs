//! RMS, L2 and layer norm of one row. Each has sixteen running sums, which are folded by the fixed tree of
//! [`Simd::sum`](crate::simd::Simd::sum).

use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};

struct RmsNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

/// `x = x / sqrt(mean(x²) + eps) * weight`.
pub(crate) fn rms_norm<S: Simd>(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "rms_norm: lengths of row and weight");
    run::<S, _>(RmsNorm { x, weight, eps });
}

impl Op for RmsNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let n = self.x.len();
        let (whole, tail) = self.x.as_chunks_mut::<LANES>();
        let (w_whole, w_tail) = self.weight.as_chunks::<LANES>();
        let mut squares = s.zero();
        for x in whole.iter() {
            let x = s.load(x);
            squares = s.fma(x, x, squares);
        }
        let last = s.load_part(tail);
        squares = s.fma(last, last, squares);
        let mean = s.sum(squares) / n as f32;
        let factor = s.splat(1.0 / (mean + self.eps).sqrt());
        for (x, w) in whole.iter_mut().zip(w_whole) {
            let y = s.mul(s.mul(s.load(x), factor), s.load(w));
            s.store(y, x);
        }
        let y = s.mul(s.mul(last, factor), s.load_part(w_tail));
        s.store_part(y, tail);
    }
}

struct L2Norm<'a> {
    x: &'a mut [f32],
    eps: f32,
}

/// `x = x / sqrt(sum(x²) + eps)`.
pub(crate) fn l2_norm<S: Simd>(x: &mut [f32], eps: f32) {
    run::<S, _>(L2Norm { x, eps });
}

impl Op for L2Norm<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let (whole, tail) = self.x.as_chunks_mut::<LANES>();
        let mut squares = s.zero();
        for x in whole.iter() {
            let x = s.load(x);
            squares = s.fma(x, x, squares);
        }
        let last = s.load_part(tail);
        squares = s.fma(last, last, squares);
        let factor = s.splat(1.0 / (s.sum(squares) + self.eps).sqrt());
        for x in whole {
            let y = s.mul(s.load(x), factor);
            s.store(y, x);
        }
        s.store_part(s.mul(last, factor), tail);
    }
}

struct LayerNorm<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
}

/// `x = (x - mean) / sqrt(variance + eps) * weight + bias`.
pub(crate) fn layer_norm<S: Simd>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    assert!(x.len() == weight.len() && x.len() == bias.len(), "layer_norm: lengths");
    run::<S, _>(LayerNorm { x, weight, bias, eps });
}

impl Op for LayerNorm<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let n = self.x.len() as f32;
        let (whole, tail) = self.x.as_chunks_mut::<LANES>();
        let sum = whole.iter().fold(s.load_part(tail), |sum, x| s.add(sum, s.load(x)));
        let mean = s.splat(s.sum(sum) / n);
        let mut squares = s.zero();
        for x in whole.iter_mut() {
            let x0 = s.sub(s.load(x), mean);
            squares = s.fma(x0, x0, squares);
            s.store(x0, x);
        }
        s.store_part(s.sub(s.load_part(tail), mean), tail);
        // Read back, so that lanes beyond the end count nothing.
        let last = s.load_part(tail);
        squares = s.fma(last, last, squares);
        let factor = s.splat(1.0 / (s.sum(squares) / n + self.eps).sqrt());
        let (w_whole, w_tail) = self.weight.as_chunks::<LANES>();
        let (b_whole, b_tail) = self.bias.as_chunks::<LANES>();
        for ((x, w), b) in whole.iter_mut().zip(w_whole).zip(b_whole) {
            let y = s.fma(s.mul(s.load(x), factor), s.load(w), s.load(b));
            s.store(y, x);
        }
        let y = s.fma(s.mul(last, factor), s.load_part(w_tail), s.load_part(b_tail));
        s.store_part(y, tail);
    }
}
