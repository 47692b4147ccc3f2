//! Pools of rows by a learned gate: each column of what is made of some rows is a mean of that column, weighted by a softmax
//! of the rows' gates. (DeepSeek-V4 makes its compressed keys so.)

use super::compute::Compute;
use super::ops::Rows;

/// One row that goes into a pool.
#[derive(Clone, Copy, Debug)]
pub struct GatedRow<'a> {
    /// What is averaged, `[width]`.
    pub values: &'a [f32],
    /// How much it counts, before the softmax over the pool's rows, `[width]`.
    pub gates: &'a [f32],
}

/// One pool of [`Compute::pool_gated`].
pub(super) struct GatedPool<'a> {
    pub(super) rows: &'a [GatedRow<'a>],
    /// `[width]`.
    pub(super) out: &'a mut [f32],
}

impl Compute {
    /// Makes a row of `out` `[n_pools, width]` of each pool's rows: `out[j] = Σ_i a_i[j] values_i[j]` with `a[j]` the
    /// softmax of the `gates_i[j]` over the rows `i`. Rows are summed in their order.
    ///
    /// # Panics
    /// If a pool has no rows or one that is not as wide as the others, or `out` is not as long as it should be.
    pub fn pool_gated(&self, pools: &[Vec<GatedRow<'_>>], width: usize, out: &mut [f32]) {
        assert_eq!(out.len(), pools.len() * width, "pool_gated: length of out");
        let fits = |row: &GatedRow<'_>| row.values.len() == width && row.gates.len() == width;
        let all_fit = pools.iter().all(|rows| !rows.is_empty() && rows.iter().all(fits));
        assert!(all_fit && width > 0, "pool_gated: rows of {width}");
        let pool = self.kernels().pool_gated;
        let outs = Rows::new(out, width);
        let most = pools.iter().map(Vec::len).max().unwrap_or(0);
        self.for_rows(pools.len(), 2 * most * width, &|range| {
            for p in range {
                // SAFETY: `for_rows` hands out each pool once.
                let out = unsafe { outs.rows(p..p + 1) };
                pool(GatedPool { rows: &pools[p], out });
            }
        });
    }
}
