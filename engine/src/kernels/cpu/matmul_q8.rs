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

/// Tiles of weights of format `Q`.
pub(super) struct QuantTile<Q>(PhantomData<Q>);

impl<Q: PanelFormat> Tile for QuantTile<Q> {
    #[inline(always)]
    fn tile<S: Simd, const T: usize>(
        s: S,
        chunk: &MatmulChunk<'_>,
        panel: &[u8],
        first: usize,
    ) -> [S::F; T] {
        let x: [&[ActBlock]; T] = std::array::from_fn(|t| chunk.x.row_blocks(first + t));
        let mut scales = Scales::<S> { scale: [s.zero(); MAX_SCALES], min: [s.zero(); MAX_SCALES] };
        let mut sums = [s.zero(); T];
        for (u, record) in panel.chunks_exact(Q::RECORD).enumerate() {
            let (head, planes) = record.split_at(Q::HEAD);
            s.prefetch(head, PREFETCH, Q::HEAD);
            Q::scales(s, head, &mut scales);
            for (b, planes) in planes.chunks_exact(Q::PLANES).enumerate() {
                s.prefetch(planes, PREFETCH, Q::PLANES);
                let codes = Q::codes(s, planes);
                for t in 0..T {
                    let x = &x[t][u * Q::BLOCKS + b];
                    sums[t] = if Q::HALVES {
                        halves::<S, Q>(s, &codes, x, &scales, b, sums[t])
                    } else {
                        whole::<S, Q>(s, &codes, x, &scales, b, sums[t])
                    };
                }
            }
        }
        sums
    }
}

/// `sum` plus block `b`, which has one scale.
#[inline(always)]
fn whole<S: Simd, Q: PanelFormat>(
    s: S,
    codes: &[S::I; VECTORS],
    x: &ActBlock,
    scales: &Scales<S>,
    b: usize,
    mut sum: S::F,
) -> S::F {
    if Q::MINS {
        sum = s.fma(scales.min[b], s.splat(x.d_sum), sum);
    }
    let dot = dot::<S, Q>(s, codes, x, 0..VECTORS, x.neg_sum);
    s.fma(s.mul(s.to_f32(dot), scales.scale[b]), s.splat(x.d), sum)
}

/// `sum` plus block `b`, each half of which has a scale.
#[inline(always)]
fn halves<S: Simd, Q: PanelFormat>(
    s: S,
    codes: &[S::I; VECTORS],
    x: &ActBlock,
    scales: &Scales<S>,
    b: usize,
    mut sum: S::F,
) -> S::F {
    if Q::MINS {
        sum = s.fma(scales.min[2 * b], s.splat(x.d_sum_half[0]), sum);
        sum = s.fma(scales.min[2 * b + 1], s.splat(x.d_sum_half[1]), sum);
    }
    let low = dot::<S, Q>(s, codes, x, 0..VECTORS / 2, x.neg_sum_half[0]);
    let high = dot::<S, Q>(s, codes, x, VECTORS / 2..VECTORS, x.neg_sum_half[1]);
    let low = s.mul(s.to_f32(low), scales.scale[2 * b]);
    let both = s.fma(s.to_f32(high), scales.scale[2 * b + 1], low);
    s.fma(both, s.splat(x.d), sum)
}

/// The integer product of the vectors `range` of a block; `neg_sum` is theirs.
#[inline(always)]
fn dot<S: Simd, Q: PanelFormat>(
    s: S,
    codes: &[S::I; VECTORS],
    x: &ActBlock,
    range: std::ops::Range<usize>,
    neg_sum: i32,
) -> S::I {
    let (quads, _) = x.q.as_chunks::<4>();
    let mut acc = match Q::OFFSET {
        Offset::None => s.splat_i(0),
        Offset::Shift(n) => s.shl_i(s.splat_i(neg_sum), n),
        Offset::Signed => s.signed_start(neg_sum),
    };
    for v in range {
        let x = s.splat_bytes(&quads[v]);
        acc = match Q::OFFSET {
            Offset::Signed => s.dot4_signed(acc, codes[v], x),
            _ => s.dot4(acc, codes[v], x),
        };
    }
    acc
}
