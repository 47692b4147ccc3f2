//! The index of sparse attention (DeepSeek-V3.2, section 2.1): it scores all positions before a row cheaply, and the row
//! attends to the best of them only.
//!
//! A score is a sum over the index's heads, each in the order of its elements, so that no bit of it depends on how
//! rows and pages are spread over threads. If positions have the same score, the earlier ones are chosen.
//!
//! In some models it scores pools of consecutive positions instead, which lie side by side from position 0. The last
//! position of a pool has the pool's key in its page ([`Compute::pool_keys`]). A row sees the pools that end at its own
//! position or before it; to the positions behind the last of them it attends in any case.

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::attention::index_scores::IndexTile;
use crate::tiles::attention::paged::AttendPart;
use crate::tiles::out_rows::Rows;
use brigade_ops::PageId;
use brigade_ops::scan::check_disjoint_rows;
use brigade_shapes::PoolSizes;
use brigade_shapes::{KV_PAGE, KvLayout};

/// The rows of a ubatch, and where the keys of their sequences are.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Shape of the pages, which have keys of the index.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: &'a [u8],
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index; they share its keys.
    pub n_head: usize,
    /// Positions of a pool, and pools chosen for a row.
    pub sizes: PoolSizes,
}

/// Rows whose scores are kept at once.
const ROWS_AT_ONCE: usize = 16;

/// Pages that a thread scores in one go, about.
const SPAN_PAGES: usize = 16;

/// A row that sees more than it attends to.
pub(crate) struct FarRow<'a> {
    pub(crate) row: usize,
    pub(crate) pos: usize,
    pub(crate) blocks: &'a [PageId],
}

impl Compute {
    /// The pools that each row attends to, ascending, as whole numbers in `out` `[n_rows, per_row]`: those with the
    /// greatest `Σ_h weights[h] * max(q[h] · key, 0)`. Where a row sees no more than `per_row` pools, it attends to
    /// all positions, and its row of `out` is zeros.
    ///
    /// `q` is `[n_rows, n_head * dim]`, `weights` is `[n_rows, n_head]`, rows as the parts number them. Keys of the
    /// rows themselves, and those of pools that they complete, must be in their pages.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its
    /// blocks or the pool.
    pub fn choose(&self, index: &Index<'_>, q: &[f32], weights: &[f32], out: &mut [f32]) {
        let (n_head, dim, PoolSizes { positions, per_row }) =
            (index.n_head, index.key_dim(), index.sizes);
        let has_sizes = [n_head, dim, positions, per_row].iter().all(|size| *size > 0);
        assert!(has_sizes, "choose: an index without sizes");
        let n_rows = weights.len() / n_head;
        assert_eq!(weights.len(), n_rows * n_head, "choose: weights");
        assert_eq!(q.len(), n_rows * n_head * dim, "choose: length of q");
        assert_eq!(out.len(), n_rows * per_row, "choose: length of out");
        let rows = index.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "choose");
        out.fill(0.0);
        let far: Vec<FarRow<'_>> =
            index.parts.iter().flat_map(|part| far_rows(part, index.sizes)).collect();
        let out = Rows::new(out, per_row);
        for rows in far.chunks(ROWS_AT_ONCE) {
            let (scores, stride) = self.scores(index, rows, q, weights);
            self.pool().run(rows.len(), &|i, _| {
                let FarRow { row, pos, .. } = rows[i];
                // SAFETY: parts have no row in common, so that a row is in the list once, and the pool hands out
                // each place of the list once.
                let out = unsafe { out.rows(row..row + 1) };
                best(&scores[i * stride..][..index.sizes.n_seen(pos)], out);
            });
        }
    }

    /// The scores of all pools that some rows see, each row's `stride` behind the one before.
    fn scores(
        &self,
        index: &Index<'_>,
        rows: &[FarRow<'_>],
        q: &[f32],
        weights: &[f32],
    ) -> (Vec<f32>, usize) {
        let (n_head, dim) = (index.n_head, index.key_dim());
        let vectors = n_head.div_ceil(LANES);
        let mut columns = vec![[0.0; LANES]; rows.len() * dim * vectors];
        let mut padded = vec![[0.0; LANES]; rows.len() * vectors];
        for (i, far) in rows.iter().enumerate() {
            let columns = columns[i * dim * vectors..][..dim * vectors].as_flattened_mut();
            for (h, q) in q[far.row * n_head * dim..][..n_head * dim].chunks_exact(dim).enumerate()
            {
                q.iter().enumerate().for_each(|(j, q)| columns[j * vectors * LANES + h] = *q);
            }
            padded[i * vectors..][..vectors].as_flattened_mut()[..n_head]
                .copy_from_slice(&weights[far.row * n_head..][..n_head]);
        }
        let n_pools = rows.iter().map(|far| index.sizes.n_seen(far.pos)).max().unwrap_or(0);
        let span = (SPAN_PAGES * KV_PAGE / index.sizes.positions).max(1);
        let n_spans = n_pools.div_ceil(span);
        let mut scores = vec![0.0; rows.len() * n_spans * span];
        let of_spans = Rows::new(&mut scores, span);
        self.pool().run(rows.len() * n_spans, &|task, _| {
            let (i, at) = (task / n_spans, task % n_spans);
            let FarRow { pos, blocks, .. } = rows[i];
            let n = index.sizes.n_seen(pos).saturating_sub(at * span).min(span);
            // SAFETY: the pool hands out each span of each row once.
            let out = unsafe { of_spans.rows(task..task + 1) };
            (self.kernels().index_scores)(&mut IndexTile {
                layout: index.layout,
                pool: index.pool,
                blocks,
                first: at * span,
                positions: index.sizes.positions,
                columns: &columns[i * dim * vectors..][..dim * vectors],
                weights: &padded[i * vectors..][..vectors],
                out: &mut out[..n],
            });
        });
        (scores, n_spans * span)
    }
}

impl Index<'_> {
    /// Elements of a query or a key.
    fn key_dim(&self) -> usize {
        self.sizes.key_dim(self.layout.index_dim)
    }
}

/// The rows of a part that see more than they attend to.
pub(crate) fn far_rows<'a>(
    part: &AttendPart<'a>,
    sizes: PoolSizes,
) -> impl Iterator<Item = FarRow<'a>> + use<'a> {
    let AttendPart { pages: blocks, first_pos, n_rows, first_row } = *part;
    (part.n_near(sizes.width())..n_rows).map(move |i| FarRow {
        row: first_row + i,
        pos: first_pos + i,
        blocks,
    })
}

/// The places of the greatest scores, ascending, as many as `out` takes.
fn best(scores: &[f32], out: &mut [f32]) {
    let places = best_places(scores.iter().map(|score| ordered(*score)), out.len());
    for (out, place) in out.iter_mut().zip(places) {
        *out = place as f32;
    }
}

/// The places of the `n` greatest scores, ascending; of equal ones the earlier. There are as many at least.
pub(super) fn best_places(scores: impl Iterator<Item = u32>, n: usize) -> Vec<u32> {
    // One number to compare by: the score, and of equal ones the earlier.
    let key = |(i, score)| u64::from(score) << 32 | u64::from(u32::MAX - i as u32);
    let mut keys: Vec<u64> = scores.enumerate().map(key).collect();
    if n < keys.len() {
        keys.select_nth_unstable_by(n, |a, b| b.cmp(a));
    }
    let mut places: Vec<u32> = keys[..n].iter().map(|key| u32::MAX - *key as u32).collect();
    places.sort_unstable();
    places
}

/// Bits that are ordered as the numbers are.
pub(super) fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}
