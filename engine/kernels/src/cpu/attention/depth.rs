//! The kernel of attention over depth, for one row: the scores of its sources, their softmax, and the
//! weighted sum.

use crate::cpu::rowwise::elementwise::Softmax;
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::attention::depth::DepthRow;

/// See [`Compute::attend_depth`](crate::Compute::attend_depth).
pub(crate) fn attend_depth<S: Simd>(row: DepthRow<'_>) {
    run::<S, _>(row);
}

impl Op for DepthRow<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        for (weight, source) in self.weights.iter_mut().zip(self.sources) {
            *weight = score(s, source, self.score, self.eps);
        }
        Softmax(self.weights).eval(s);
        let (whole, tail) = self.out.as_chunks_mut::<LANES>();
        let first_of_tail = whole.len() * LANES;
        for (i, out) in whole.iter_mut().enumerate() {
            let mut sum = s.zero();
            for (source, weight) in self.sources.iter().zip(&*self.weights) {
                sum = s.fma(s.load(&source.as_chunks().0[i]), s.splat(*weight), sum);
            }
            s.store(sum, out);
        }
        let mut sum = s.zero();
        for (source, weight) in self.sources.iter().zip(&*self.weights) {
            sum = s.fma(s.load_part(&source[first_of_tail..]), s.splat(*weight), sum);
        }
        s.store_part(sum, tail);
    }
}

/// `Σ w x / sqrt(mean(x²) + eps)`.
#[inline(always)]
fn score<S: Simd>(s: S, x: &[f32], w: &[f32], eps: f32) -> f32 {
    let (x_whole, x_tail) = x.as_chunks::<LANES>();
    let (w_whole, w_tail) = w.as_chunks::<LANES>();
    let (mut squares, mut products) = (s.zero(), s.zero());
    for (x, w) in x_whole.iter().zip(w_whole) {
        let x = s.load(x);
        squares = s.fma(x, x, squares);
        products = s.fma(x, s.load(w), products);
    }
    let last = s.load_part(x_tail);
    squares = s.fma(last, last, squares);
    products = s.fma(last, s.load_part(w_tail), products);
    let mean = s.sum(squares) / x.len() as f32;
    s.sum(products) / (mean + eps).sqrt()
}
