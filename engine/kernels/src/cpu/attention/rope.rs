//! Rotates the heads of one row: `y0 = x0 cos - x1 sin`, `y1 = x1 cos + x0 sin`. Each is one product and one
//! fused step, the same for both layouts of pairs.

use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::attention::rope::RopeRow;
use brigade_shapes::RopeLayout;

struct Rotate<'a, 'b>(&'a mut RopeRow<'b>);

/// Elements of a head whose cosines and sines are laid out at a time: whole vectors.
const AT_ONCE: usize = 8 * LANES;

/// Rotates every head of the row in place.
pub(crate) fn rotate<S: Simd>(row: &mut RopeRow<'_>) {
    run::<S, _>(Rotate(row));
}

impl Op for Rotate<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let RopeRow { layout, x, head_dim, cos, sin } = self.0;
        match layout {
            RopeLayout::Norm => {
                let (mut each, mut signed) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
                let pairs = cos.chunks(AT_ONCE / 2).zip(sin.chunks(AT_ONCE / 2));
                for (i, (cos, sin)) in pairs.enumerate() {
                    let (first, n) = (i * AT_ONCE, 2 * cos.len());
                    beside_pairs(cos, sin, &mut each, &mut signed);
                    for head in x.chunks_exact_mut(*head_dim) {
                        norm(s, &mut head[first..first + n], &each[..n], &signed[..n]);
                    }
                }
            }
            RopeLayout::Neox => {
                for head in x.chunks_exact_mut(*head_dim) {
                    let (x0, rest) = head.split_at_mut(cos.len());
                    neox(s, x0, &mut rest[..cos.len()], cos, sin);
                }
            }
        }
    }
}

/// Each cosine twice, and `-sin, sin` of each sine: what stands beside pairs side by side.
#[inline(always)]
fn beside_pairs(cos: &[f32], sin: &[f32], each: &mut [f32; AT_ONCE], signed: &mut [f32; AT_ONCE]) {
    let to = each.as_chunks_mut().0.iter_mut().zip(signed.as_chunks_mut().0);
    for ((each, signed), (cos, sin)) in to.zip(cos.iter().zip(sin)) {
        (*each, *signed) = ([*cos, *cos], [-*sin, *sin]);
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
