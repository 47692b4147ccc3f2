//! The kernel of gated pools, for one pool. Lanes are columns.

use super::exp::exp;
use super::run;
use crate::kernels::pooled::GatedPool;
use crate::kernels::simd::{LANES, Op, Simd};

/// See [`Compute::pool_gated`](crate::kernels::Compute::pool_gated).
pub(crate) fn pool_gated<S: Simd>(pool: GatedPool<'_>) {
    run::<S, _>(pool);
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
