//! Pooled keys of an index. Lanes are elements: each has a softmax of its own over the positions of the pool, in their
//! order.

use std::marker::PhantomData;

use super::exp::exp;
use super::kv::{PageType, Q8};
use super::matmul_f32::{F16, F32, Float};
use super::run;
use crate::kernels::kv::KvType;
use crate::kernels::pooling::PoolTile;
use crate::kernels::simd::{LANES, Op, Simd};

/// See [`Compute::pool_keys`](crate::kernels::Compute::pool_keys).
pub(crate) fn pool_keys<S: Simd>(tile: &mut PoolTile<'_>) {
    match tile.rows.ty {
        KvType::F32 => run::<S, _>(Pool::<F32>(tile, PhantomData)),
        KvType::F16 => run::<S, _>(Pool::<F16>(tile, PhantomData)),
        KvType::Q8_0 => run::<S, _>(Pool::<Q8>(tile, PhantomData)),
    }
}

struct Pool<'a, 'b, T>(&'a mut PoolTile<'b>, PhantomData<T>);

impl<T: PageType> Op for Pool<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let stride = tile.rows.k_stride() / LANES;
        let mut kept = vec![[0.0; LANES]; tile.members.len() * stride];
        let mut wide = Vec::new();
        for (kept, (page, place)) in kept.chunks_exact_mut(stride).zip(tile.members) {
            let rows = T::head(s, tile.rows, page, place + 1, &mut wide).as_chunks().0;
            for (kept, row) in kept.iter_mut().zip(&rows[place * stride..]) {
                s.store(<T::Read as Float>::load(s, row), kept);
            }
        }
        let dim = tile.out.len();
        let positions = || kept.chunks_exact(stride).zip(tile.bias.chunks_exact(dim));
        for (g, out) in tile.out.chunks_mut(LANES).enumerate() {
            let lanes = g * LANES..g * LANES + out.len();
            // A position's key, and its gate with the bias.
            let read = |(kept, bias): (&[[f32; LANES]], &[f32])| {
                let (key, gate) = kept.as_flattened()[..2 * dim].split_at(dim);
                let [key, gate, bias] =
                    [key, gate, bias].map(|part| s.load_part(&part[lanes.clone()]));
                (key, s.add(gate, bias))
            };
            let start = s.splat(f32::NEG_INFINITY);
            let highest = positions().map(read).fold(start, |most, (_, gate)| s.max(gate, most));
            let (mut sum, mut total) = (s.zero(), s.zero());
            for (key, gate) in positions().map(read) {
                let weight = exp(s, s.sub(gate, highest));
                sum = s.fma(weight, key, sum);
                total = s.add(total, weight);
            }
            s.store_part(s.div(sum, total), out);
        }
    }
}
