//! The index over entries: it scores all that a row sees, and the row attends to the best of them. Scores and choice are
//! those of [`index`](super::index), with an entry in the place of a position.

use super::entries::index_key_of;
use super::entries::put_record;
use super::index::{best_places, ordered};
use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::index::IndexTile;
use crate::tiles::out_rows::Rows;
use brigade_ops::PageId;
use brigade_shapes::EntryLayout;
use brigade_shapes::KV_PAGE;

/// Rows whose scores are kept at once.
const ROWS_AT_ONCE: usize = 16;

/// Pages of copied keys that a thread scores in one go.
const SPAN_PAGES: usize = 16;

/// A row that sees more entries than it attends to.
#[derive(Clone, Copy, Debug)]
pub struct IndexedRow<'a> {
    /// Its number.
    pub row: usize,
    /// Its sequence's pages.
    pub blocks: &'a [PageId],
    /// Entries that it sees.
    pub n_seen: usize,
}

/// The rows of a ubatch that an index is asked for, and where their entries are.
#[derive(Clone, Copy, Debug)]
pub struct EntryIndex<'a> {
    /// Shape of the pages, whose entries have keys of an index.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other.
    pub pool: &'a [u8],
    /// The rows.
    pub rows: &'a [IndexedRow<'a>],
    /// Heads of the index; they share its keys.
    pub n_head: usize,
    /// Entries that a row attends to.
    pub per_row: usize,
}

impl Compute {
    /// The entries that each of the index's rows attends to, ascending: the `per_row` with the greatest
    /// `Σ_h weights[h] * max(q[h] · key, 0)`, of equal ones the earlier.
    ///
    /// `q` is `[n_rows, n_head * index_dim]`, `weights` is `[n_rows, n_head]`.
    ///
    /// # Panics
    /// If shapes disagree, a row sees no more than `per_row` entries, or an entry lies outside its sequence's pages or the
    /// pool.
    pub fn choose_entries(
        &self,
        index: &EntryIndex<'_>,
        q: &[f32],
        weights: &[f32],
    ) -> Vec<Vec<u32>> {
        let (n_head, dim) = (index.n_head, index.layout.index_dim);
        assert!(n_head > 0 && dim > 0, "choose_entries: an index without sizes");
        assert_eq!(q.len(), weights.len() * dim, "choose_entries: length of q");
        let is_far = |row: &IndexedRow<'_>| row.n_seen > index.per_row;
        assert!(index.rows.iter().all(is_far), "choose_entries: a row that sees all");
        let mut chosen = Vec::with_capacity(index.rows.len());
        for rows in index.rows.chunks(ROWS_AT_ONCE) {
            let (scores, stride) = self.entry_scores(index, rows, q, weights);
            let mut of_rows = vec![Vec::new(); rows.len()];
            let outs = Rows::new(&mut of_rows, 1);
            self.pool().run(rows.len(), &|i, _| {
                let scores = scores[i * stride..][..rows[i].n_seen].iter();
                // SAFETY: the pool hands out each row once.
                let out = unsafe { outs.rows(i..i + 1) };
                out[0] = best_places(scores.map(|score| ordered(*score)), index.per_row);
            });
            chosen.extend(of_rows);
        }
        chosen
    }

    /// The scores of some rows at all entries they see, each row's `stride` behind the one before.
    fn entry_scores(
        &self,
        index: &EntryIndex<'_>,
        rows: &[IndexedRow<'_>],
        q: &[f32],
        weights: &[f32],
    ) -> (Vec<f32>, usize) {
        let span = SPAN_PAGES * KV_PAGE;
        let n_spans = rows.iter().map(|row| row.n_seen.div_ceil(span)).max().unwrap_or(0);
        let queries: Vec<HeadColumns> =
            rows.iter().map(|row| HeadColumns::new(index, row.row, q, weights)).collect();
        let layout = index.layout.index_keys();
        let blocks: Vec<PageId> = (0..SPAN_PAGES as u32).map(PageId).collect();
        let mut scores = vec![0.0; rows.len() * n_spans * span];
        let of_spans = Rows::new(&mut scores, span);
        self.pool().run(rows.len() * n_spans, &|task, _| {
            let (i, first) = (task / n_spans, task % n_spans * span);
            let row = &rows[i];
            let n = row.n_seen.saturating_sub(first).min(span);
            if n == 0 {
                return;
            }
            let pages = n.div_ceil(KV_PAGE);
            let mut copied = vec![0.0f32; pages * layout.page_bytes() / size_of::<f32>()];
            let pool: &mut [u8] = bytemuck::cast_slice_mut(&mut copied);
            for at in 0..n {
                let key = index_key_of(index.layout, index.pool, row.blocks, first + at);
                let page = &mut pool[at / KV_PAGE * layout.page_bytes()..][..layout.page_bytes()];
                put_record(&layout.of_index(), key, page, at % KV_PAGE);
            }
            // SAFETY: the pool hands out each span of each row once.
            let out = unsafe { of_spans.rows(task..task + 1) };
            (self.kernels().index_scores)(&mut IndexTile {
                layout: &layout,
                pool,
                blocks: &blocks,
                first: 0,
                positions: 1,
                columns: &queries[i].columns,
                weights: &queries[i].weights,
                out: &mut out[..n],
            });
        });
        (scores, n_spans * span)
    }
}

/// One row's queries and weights with heads side by side, as the kernel takes them.
struct HeadColumns {
    columns: Vec<[f32; LANES]>,
    weights: Vec<[f32; LANES]>,
}

impl HeadColumns {
    fn new(index: &EntryIndex<'_>, row: usize, q: &[f32], weights: &[f32]) -> Self {
        let (n_head, dim) = (index.n_head, index.layout.index_dim);
        let vectors = n_head.div_ceil(LANES);
        let mut columns = vec![[0.0; LANES]; dim * vectors];
        let flat = columns.as_flattened_mut();
        for (h, q) in q[row * n_head * dim..][..n_head * dim].chunks_exact(dim).enumerate() {
            q.iter().enumerate().for_each(|(j, q)| flat[j * vectors * LANES + h] = *q);
        }
        let mut padded = vec![[0.0; LANES]; vectors];
        padded.as_flattened_mut()[..n_head].copy_from_slice(&weights[row * n_head..][..n_head]);
        Self { columns, weights: padded }
    }
}
