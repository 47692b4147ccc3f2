//! Pools of rows by a learned gate. A pool becomes a mean of its rows, in which each column has weights of its own: a
//! softmax of the rows' gates.
//!
//! DeepSeek-V4 makes its compressed keys so, of rows that are at hand ([`Compute::pool_gated`]). GLM 5 makes the keys
//! of an index so, of positions in pages ([`Compute::pool_keys`]). There each position leaves its key, and behind it
//! its gate. The key of a pool takes the place of what its last position left. That is not needed any more: taking a
//! sequence back to a position within the pool takes the last position away. So a pool's key needs no memory, and it is
//! made once.

use crate::compute::Compute;
use crate::tiles::attention::kv_pages::KvRow;
use crate::tiles::attention::paged::AttendPart;
use crate::tiles::attention::pooling::{GatedPool, PoolTile};
use crate::tiles::out_rows::Rows;
use brigade_ops::{Host, PageId, PoolGated};
use brigade_shapes::{KV_PAGE, KvLayout, ValuePlace};

/// Sizes and biases by which the keys of a pool's positions become one.
#[derive(Clone, Copy, Debug)]
pub struct Pooling<'a> {
    /// Positions of a pool, at least 2; pools lie side by side from position 0.
    pub positions: usize,
    /// `[positions, dim]`: added to the gate of each position.
    pub bias: &'a [f32],
}

/// A position that completes a pool, and its sequence's pages.
struct Completed<'a> {
    pos: usize,
    blocks: &'a [PageId],
}

impl Compute {
    /// Runs the op [`PoolGated`].
    ///
    /// # Panics
    /// If a pool has no rows or one that is not as wide as the others, or `out` is not as long as it should be.
    pub fn pool_gated(&self, op: PoolGated<'_, Host>) {
        op.check();
        let PoolGated { pools, width, out } = op;
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

    /// Makes the key of each pool that the parts' rows complete: `Σ_i p_i * key_i`, element by element, over its positions
    /// `i`, with `p = softmax_i(gate_i + bias_i)`. The rows' own keys and gates must be in their pages; in the page of the
    /// pool's last position its key takes their place, with zeros behind it.
    ///
    /// # Panics
    /// If pages have no rows of keys and gates, shapes disagree, or a part's positions lie outside its blocks or the pool.
    pub fn pool_keys(
        &self,
        layout: &KvLayout,
        pool: &mut [u8],
        parts: &[AttendPart<'_>],
        pooling: Pooling<'_>,
    ) {
        let Pooling { positions, bias } = pooling;
        let (rows, kept) = (layout.of_index(), layout.index_dim);
        assert_eq!(layout.values, ValuePlace::InKeys, "pool_keys: keys that are no rows");
        assert!(
            positions > 1 && kept > 0,
            "pool_keys: {positions} positions, {kept} values of each"
        );
        assert_eq!(bias.len() * 2, positions * kept, "pool_keys: length of the bias");
        let completed: Vec<Completed<'_>> =
            parts.iter().flat_map(|part| completed(part, positions)).collect();
        let mut keys = vec![0.0; completed.len() * kept];
        let from = &*pool;
        self.each_row(&mut keys, kept, "pool_keys", &|i, key| {
            let Completed { pos, blocks } = completed[i];
            let member = |pos: usize| {
                let page = blocks[pos / KV_PAGE].0 as usize;
                (layout.index(from, page), pos % KV_PAGE)
            };
            let members: Vec<_> = (pos + 1 - positions..pos + 1).map(member).collect();
            let out = &mut key[..kept / 2];
            (self.kernels().pool_keys)(&mut PoolTile { rows: &rows, members: &members, bias, out });
        });
        for (Completed { pos, blocks }, key) in completed.iter().zip(keys.chunks_exact(kept)) {
            let page = blocks[pos / KV_PAGE].0 as usize;
            let to = &mut pool[layout.head_range(page, layout.n_kv_head)];
            let pos = pos % KV_PAGE;
            (self.kernels().kv_write)(&mut KvRow { layout: &rows, pos, k: key, v: &[], to });
        }
    }
}

/// The rows of a part that are the last of a pool.
fn completed<'a>(part: &AttendPart<'a>, positions: usize) -> impl Iterator<Item = Completed<'a>> {
    let AttendPart { pages: blocks, first_pos, n_rows, .. } = *part;
    let rows = first_pos..first_pos + n_rows;
    rows.filter(move |pos| (pos + 1).is_multiple_of(positions))
        .map(move |pos| Completed { pos, blocks })
}
