//! Scores of an index. Lanes are heads: a query meets an element of a key in all heads at once, and only the sum over
//! heads crosses lanes. Keys are widened to f32 first, a few positions at a time.

use std::marker::PhantomData;

use super::kv::{PageType, Q8};
use super::matmul_f32::{F16, F32, Float};
use super::run;
use crate::kernels::KV_PAGE;
use crate::kernels::index::IndexTile;
use crate::kernels::kv::KvType;
use crate::kernels::simd::{LANES, Op, Simd};

/// See [`Compute::choose`](crate::kernels::Compute::choose).
pub(crate) fn index_scores<S: Simd>(tile: &mut IndexTile<'_>) {
    match tile.layout.ty {
        KvType::F32 => run::<S, _>(Scores::<F32>(tile, PhantomData)),
        KvType::F16 => run::<S, _>(Scores::<F16>(tile, PhantomData)),
        KvType::Q8_0 => run::<S, _>(Scores::<Q8>(tile, PhantomData)),
    }
}

struct Scores<'a, 'b, T>(&'a mut IndexTile<'b>, PhantomData<T>);

impl<T: PageType> Op for Scores<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let stride = tile.layout.index_stride() / LANES;
        let mut keys = vec![[0.0; LANES]; KV_PAGE * stride];
        let mut wide = Vec::new();
        for (page, out) in tile.pages.clone().zip(tile.out.chunks_mut(KV_PAGE)) {
            let block = tile.blocks[page].0 as usize;
            let head = tile.layout.head(tile.pool, block, 0);
            let rows = T::index(s, tile.layout, head, out.len(), &mut wide).as_chunks().0;
            for (key, row) in keys.iter_mut().zip(rows).take(out.len() * stride) {
                s.store(<T::Read as Float>::load(s, row), key);
            }
            let row =
                Row { columns: tile.columns, weights: tile.weights, dim: tile.layout.index_dim };
            let mut at = 0;
            while at < out.len() {
                let (keys, out) = (&keys[at * stride..], &mut out[at..]);
                // As many sums as the registers hold, with no effect on any.
                at += match (out.len(), S::TILE) {
                    (8.., 8..) => row.score::<S, 8>(s, keys, stride, out),
                    (4.., _) => row.score::<S, 4>(s, keys, stride, out),
                    _ => row.score::<S, 1>(s, keys, stride, out),
                };
            }
        }
    }
}

/// One row's queries and weights.
struct Row<'a> {
    /// `[dim][n_vectors]`.
    columns: &'a [[f32; LANES]],
    /// `[n_vectors]`.
    weights: &'a [[f32; LANES]],
    dim: usize,
}

impl Row<'_> {
    /// The scores of the first `P` keys, of `stride` vectors each. Returns `P`.
    #[inline(always)]
    fn score<S: Simd, const P: usize>(
        &self,
        s: S,
        keys: &[[f32; LANES]],
        stride: usize,
        out: &mut [f32],
    ) -> usize {
        let mut of_positions = [&[][..]; P];
        for (p, key) in of_positions.iter_mut().enumerate() {
            *key = &keys[p * stride..][..stride].as_flattened()[..self.dim];
        }
        let n = self.weights.len();
        let mut totals = [s.zero(); P];
        for (g, weight) in self.weights.iter().enumerate() {
            let mut sums = [s.zero(); P];
            for (j, column) in self.columns.chunks_exact(n).enumerate() {
                let q = s.load(&column[g]);
                for p in 0..P {
                    sums[p] = s.fma(q, s.splat(of_positions[p][j]), sums[p]);
                }
            }
            let weight = s.load(weight);
            for p in 0..P {
                totals[p] = s.fma(s.max(sums[p], s.zero()), weight, totals[p]);
            }
        }
        for p in 0..P {
            out[p] = s.sum(totals[p]);
        }
        P
    }
}
