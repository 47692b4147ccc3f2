//! Rotates the heads of one row: `y0 = x0 cos - x1 sin`, `y1 = x1 cos + x0 sin`. Each is one product and one
//! fused step, the same for both layouts of pairs.

use super::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::rope::RopeRow;
use brigade_shapes::RopeLayout;

struct Rotate<'a, 'b>(&'a mut RopeRow<'b>);

/// Rotates every head of the row in place.
pub(crate) fn rotate<S: Simd>(row: &mut RopeRow<'_>) {
    run::<S, _>(Rotate(row));
}

impl Op for Rotate<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let (cos, sin) = (self.0.cos, self.0.sin);
        for head in self.0.x.chunks_exact_mut(self.0.head_dim) {
            match self.0.layout {
                RopeLayout::Norm => norm(s, &mut head[..cos.len()], cos, sin),
                RopeLayout::Neox => {
                    let (x0, rest) = head.split_at_mut(cos.len());
                    neox(s, x0, &mut rest[..cos.len()], cos, sin);
                }
            }
        }
    }
}

/// Pairs side by side; `sin` holds `-sin, sin` for each.
#[inline(always)]
fn norm<S: Simd>(s: S, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let turn = |x: S::F, cos: S::F, sin: S::F| s.fma(x, cos, s.mul(s.swap_pairs(x), sin));
    let (x, x_tail) = x.as_chunks_mut::<LANES>();
    let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks::<LANES>(), sin.as_chunks::<LANES>());
    for ((x, cos), sin) in x.iter_mut().zip(cos).zip(sin) {
        let y = turn(s.load(x), s.load(cos), s.load(sin));
        s.store(y, x);
    }
    let y = turn(s.load_part(x_tail), s.load_part(cos_tail), s.load_part(sin_tail));
    s.store_part(y, x_tail);
}

/// Pairs half a head apart.
#[inline(always)]
fn neox<S: Simd>(s: S, x0: &mut [f32], x1: &mut [f32], cos: &[f32], sin: &[f32]) {
    let turn = |x0: S::F, x1: S::F, cos: S::F, sin: S::F| {
        let minus = s.sub(s.zero(), sin);
        (s.fma(x0, cos, s.mul(x1, minus)), s.fma(x1, cos, s.mul(x0, sin)))
    };
    let ((x0, x0_tail), (x1, x1_tail)) = (x0.as_chunks_mut::<LANES>(), x1.as_chunks_mut::<LANES>());
    let ((cos, cos_tail), (sin, sin_tail)) = (cos.as_chunks::<LANES>(), sin.as_chunks::<LANES>());
    for (((x0, x1), cos), sin) in x0.iter_mut().zip(x1.iter_mut()).zip(cos).zip(sin) {
        let (y0, y1) = turn(s.load(x0), s.load(x1), s.load(cos), s.load(sin));
        s.store(y0, x0);
        s.store(y1, x1);
    }
    let (cos, sin) = (s.load_part(cos_tail), s.load_part(sin_tail));
    let (y0, y1) = turn(s.load_part(x0_tail), s.load_part(x1_tail), cos, sin);
    s.store_part(y0, x0_tail);
    s.store_part(y1, x1_tail);
}
