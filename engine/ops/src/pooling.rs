//! Pools of rows by a learned gate.

use crate::carry::{carried, mapped};
use crate::place::Place;

/// Makes one row of `out` from the rows of each pool: `out[j] = Σ_i a_i[j] values_i[j]` with `a[j]` the softmax of the `gates_i[j]` over the
/// rows `i`. Rows are summed in their order.
pub struct PoolGated<'a, P: Place> {
    /// The rows of each pool, at least one.
    pub pools: Vec<Vec<GatedRow<P::Read<'a, f32>>>>,
    /// Values of a row.
    pub width: usize,
    /// `[n_pools, width]`.
    pub out: P::Write<'a, f32>,
}

/// One row that goes into a pool.
#[derive(Clone, Copy, Debug)]
pub struct GatedRow<V> {
    /// Values that are averaged, `[width]`.
    pub values: V,
    /// Logits of the weights in the softmax over the pool's rows, `[width]`.
    pub gates: V,
}

mapped!(GatedRow { values: read, gates: read });
carried!(PoolGated { pools: lists, width: same, out: write });

impl<P: Place> PoolGated<'_, P> {
    /// Panics if a pool has no rows or one that has not `width` values, if `width` is 0, or if `out` has not a row for each pool.
    pub fn check(&self) {
        let Self { pools, width, out } = self;
        assert_eq!(P::len_mut(out), pools.len() * width, "pool_gated: length of out");
        let fits = |row: &GatedRow<P::Read<'_, f32>>| {
            P::len(&row.values) == *width && P::len(&row.gates) == *width
        };
        let all_fit = pools.iter().all(|rows| !rows.is_empty() && rows.iter().all(fits));
        assert!(all_fit && *width > 0, "pool_gated: rows of {width}");
    }
}
