//! Pools of rows by a gate, one pool at a time. Lanes are columns: each has a softmax of its own over the rows, in their
//! order.

use std::marker::PhantomData;

use super::kv_pages::{PageType, Q8};
use crate::cpu::exp::exp;
use crate::cpu::products::matmul_f32::{F16, F32, Float};
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::attention::pooling::{GatedPool, GatedRow, PoolTile};
use brigade_shapes::KvType;

/// See [`PoolGated`](brigade_ops::PoolGated).
pub(crate) fn pool_gated<S: Simd>(pool: GatedPool<'_>) {
    run::<S, _>(pool);
}

/// See [`Compute::pool_keys`](crate::Compute::pool_keys).
pub(crate) fn pool_keys<S: Simd>(tile: &mut PoolTile<'_>) {
    match tile.rows.ty {
        KvType::F32 => run::<S, _>(Keys::<F32>(tile, PhantomData)),
        KvType::F16 => run::<S, _>(Keys::<F16>(tile, PhantomData)),
        KvType::Q8_0 => run::<S, _>(Keys::<Q8>(tile, PhantomData)),
    }
}

impl Op for GatedPool<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        for (i, out) in self.out.chunks_mut(LANES).enumerate() {
            let columns = i * LANES..i * LANES + out.len();
            let mut most = s.splat(f32::NEG_INFINITY);
            for row in self.rows {
                most = s.max(s.load_part(&row.gates[columns.clone()]), most);
            }
            let (mut weights, mut sum) = (s.zero(), s.zero());
            for row in self.rows {
                let gate = s.load_part(&row.gates[columns.clone()]);
                let weight = exp(s, s.sub(gate, most));
                weights = s.add(weights, weight);
                sum = s.fma(weight, s.load_part(&row.values[columns.clone()]), sum);
            }
            s.store_part(s.div(sum, weights), out);
        }
    }
}

struct Keys<'a, 'b, T>(&'a mut PoolTile<'b>, PhantomData<T>);

impl<T: PageType> Op for Keys<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let (stride, dim) = (tile.rows.k_stride(), tile.out.len());
        let mut kept = vec![0.0; tile.members.len() * stride];
        let mut wide = Vec::new();
        let members = tile.members.iter().zip(tile.bias.chunks_exact(dim));
        for (kept, ((page, place), bias)) in kept.chunks_exact_mut(stride).zip(members) {
            let rows = T::head(s, tile.rows, page, place + 1, &mut wide).as_chunks().0;
            let rows = &rows[place * stride / LANES..];
            for (kept, row) in kept.as_chunks_mut().0.iter_mut().zip(rows) {
                s.store(<T::Read as Float>::load(s, row), kept);
            }
            kept[dim..2 * dim].iter_mut().zip(bias).for_each(|(gate, bias)| *gate += bias);
        }
        let parts = kept.chunks_exact(stride).map(|kept| kept[..2 * dim].split_at(dim));
        let rows: Vec<_> = parts.map(|(values, gates)| GatedRow { values, gates }).collect();
        GatedPool { rows: &rows, out: tile.out }.eval(s);
    }
}
