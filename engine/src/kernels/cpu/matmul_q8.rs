//! Products with quantised weights: integers within a block of 32 columns, f32 between blocks.
//!
//! For each block: eight four-byte dot products a row (exact), converted once, times the weight
//! scale, and added to the running sum with the activations' scale by one fused step; minima join by
//! another, with the activations' sum. Blocks are taken in order, so a row's sum depends on nothing
//! but its own length.

use std::marker::PhantomData;

use super::matmul::{PREFETCH, Tile};
use crate::kernels::act::ActBlock;
use crate::kernels::format::{MAX_SCALES, Offset, PanelFormat, Scales, VECTORS};
use crate::kernels::matmul::MatmulChunk;
use crate::kernels::simd::Simd;

/// Vectors of half a block.
const HALF: usize = VECTORS / 2;
const WHOLE: &str = "a block has two halves";

/// Tiles of weights of format `Q`.
pub(super) struct QuantTile<Q>(PhantomData<Q>);

impl<Q: PanelFormat> Tile for QuantTile<Q> {
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(
        s: S,
        chunk: &MatmulChunk<'_>,
        panel: &[u8],
        rows: [usize; T],
    ) -> [S::F; T] {
        let x: [&[ActBlock]; T] = std::array::from_fn(|t| chunk.x.row_blocks(rows[t]));
        let mut scales = Scales::<S> { scale: [s.zero(); MAX_SCALES], min: [s.zero(); MAX_SCALES] };
        let mut sums = [s.zero(); T];
        for (u, record) in panel.chunks_exact(Q::RECORD).enumerate() {
            let (head, planes) = record.split_at(Q::HEAD);
            s.prefetch(head, PREFETCH, Q::HEAD);
            Q::scales(s, head, &mut scales);
            for (b, planes) in planes.chunks_exact(Q::PLANES).enumerate() {
                s.prefetch(planes, PREFETCH, Q::PLANES);
                let codes = Q::codes(s, planes);
                let at = u * Q::BLOCKS + b;
                if S::TOGETHER {
                    let x: [&ActBlock; T] = std::array::from_fn(|t| &x[t][at]);
                    sums = block::<S, Q, T>(s, &codes, x, &scales, b, sums);
                } else {
                    for t in 0..T {
                        [sums[t]] = block::<S, Q, 1>(s, &codes, [&x[t][at]], &scales, b, [sums[t]]);
                    }
                }
            }
        }
        sums
    }
}

/// `sums` of `T` rows plus block `b`.
#[inline(always)]
fn block<S: Simd, Q: PanelFormat, const T: usize>(
    s: S,
    codes: &[S::I; VECTORS],
    x: [&ActBlock; T],
    scales: &Scales<S>,
    b: usize,
    sums: [S::F; T],
) -> [S::F; T] {
    if Q::HALVES {
        halves::<S, Q, T>(s, codes, x, scales, b, sums)
    } else {
        whole::<S, Q, T>(s, codes, x, scales, b, sums)
    }
}

/// `sums` plus block `b`, which has one scale.
#[inline(always)]
fn whole<S: Simd, Q: PanelFormat, const T: usize>(
    s: S,
    codes: &[S::I; VECTORS],
    x: [&ActBlock; T],
    scales: &Scales<S>,
    b: usize,
    mut sums: [S::F; T],
) -> [S::F; T] {
    let dots = dots::<S, Q, T, VECTORS>(s, codes, x, 0, x.map(|x| x.neg_sum));
    for t in 0..T {
        if Q::MINS {
            sums[t] = s.fma(scales.min[b], s.splat(x[t].d_sum), sums[t]);
        }
        let dot = s.mul(s.to_f32(dots[t]), scales.scale[b]);
        sums[t] = s.fma(dot, s.splat(x[t].d), sums[t]);
    }
    sums
}

/// `sums` plus block `b`, each half of which has a scale.
#[inline(always)]
fn halves<S: Simd, Q: PanelFormat, const T: usize>(
    s: S,
    codes: &[S::I; VECTORS],
    x: [&ActBlock; T],
    scales: &Scales<S>,
    b: usize,
    mut sums: [S::F; T],
) -> [S::F; T] {
    let (low, high) = codes.split_at(HALF);
    let (low, high) = (low.first_chunk().expect(WHOLE), high.first_chunk().expect(WHOLE));
    let low = dots::<S, Q, T, HALF>(s, low, x, 0, x.map(|x| x.neg_sum_half[0]));
    let high = dots::<S, Q, T, HALF>(s, high, x, HALF, x.map(|x| x.neg_sum_half[1]));
    for t in 0..T {
        if Q::MINS {
            sums[t] = s.fma(scales.min[2 * b], s.splat(x[t].d_sum_half[0]), sums[t]);
            sums[t] = s.fma(scales.min[2 * b + 1], s.splat(x[t].d_sum_half[1]), sums[t]);
        }
        let low = s.mul(s.to_f32(low[t]), scales.scale[2 * b]);
        let both = s.fma(s.to_f32(high[t]), scales.scale[2 * b + 1], low);
        sums[t] = s.fma(both, s.splat(x[t].d), sums[t]);
    }
    sums
}

/// The integer products of the `N` vectors `codes` of a block, which are its vectors `first ..`, with `T`
/// rows; `neg_sums` are those of the rows' values there.
#[inline(always)]
fn dots<S: Simd, Q: PanelFormat, const T: usize, const N: usize>(
    s: S,
    codes: &[S::I; N],
    x: [&ActBlock; T],
    first: usize,
    neg_sums: [i32; T],
) -> [S::I; T] {
    let mut acc = [s.splat_i(0); T];
    let mut quads = [&[[0; 4]; N]; T];
    // Plain loops: the closures of array functions are not always inlined, which costs every register.
    for t in 0..T {
        quads[t] = x[t].quads(first);
        match Q::OFFSET {
            Offset::None => {}
            Offset::Shift(n) => acc[t] = s.splat_i(neg_sums[t] << n),
            Offset::Signed => acc[t] = s.signed_start(neg_sums[t]),
        }
    }
    match Q::OFFSET {
        Offset::Signed => s.dots_signed(acc, codes, &quads),
        Offset::None | Offset::Shift(_) => s.dots(acc, codes, Q::MAX_CODE, &quads),
    }
}
