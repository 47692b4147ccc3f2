//! Quantises one row of activations to 8 bits, by the rule in [`crate::tiles::products::activations`].

use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::products::activations::{ACT_BLOCK, ActBlock};

/// Below this a block counts as zero: its reciprocal scale would not be finite.
pub(crate) const SMALLEST_AMAX: f32 = 1e-30;

struct Quantize<'a> {
    x: &'a [f32],
    out: &'a mut [ActBlock],
}

/// Quantises `x`, whole blocks, into `out`.
pub(crate) fn quantize<S: Simd>(x: &[f32], out: &mut [ActBlock]) {
    assert_eq!(x.len(), out.len() * ACT_BLOCK, "quantize: values and blocks");
    run::<S, _>(Quantize { x, out });
}

impl Op for Quantize<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let (halves, _) = self.x.as_chunks::<LANES>();
        let (blocks, _) = halves.as_chunks::<2>();
        for ([low, high], out) in blocks.iter().zip(self.out) {
            *out = block(s, s.load(low), s.load(high));
        }
    }
}

/// One block of two vectors.
#[inline(always)]
fn block<S: Simd>(s: S, low: S::F, high: S::F) -> ActBlock {
    let abs = |x: S::F| s.max(x, s.sub(s.zero(), x));
    let amax = s.max_lane(s.max(abs(low), abs(high)));
    // Zero, or NaN where anything is infinite or NaN.
    let poison = s.sum(s.mul(s.add(s.mul(low, s.zero()), s.mul(high, s.zero())), s.zero()));
    if amax < SMALLEST_AMAX {
        return ActBlock::new([0; ACT_BLOCK], poison, [0; 2]);
    }
    let inverse = s.splat(127.0 / amax);
    let q = [s.round_i32(s.mul(low, inverse)), s.round_i32(s.mul(high, inverse))];
    let mut bytes = [0i8; ACT_BLOCK];
    let (halves, _) = bytes.as_chunks_mut::<LANES>();
    s.store_low_bytes(q[0], &mut halves[0]);
    s.store_low_bytes(q[1], &mut halves[1]);
    ActBlock::new(bytes, amax / 127.0 + poison, [s.sum_i(q[0]), s.sum_i(q[1])])
}
