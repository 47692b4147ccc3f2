//! The index over entries: it scores all that a row sees, and the row attends to the best of them. Scores and choice are
//! those of [`positions`](super::positions), with an entry in the place of a position.

use super::positions::{best_places, ordered};
use crate::compute::Compute;
use crate::ops::kv::entries::index_key_of;
use crate::ops::kv::entries::put_record;
use crate::simd::LANES;
use crate::tiles::attention::index_scores::IndexTile;
use crate::tiles::out_rows::Rows;
use brigade_ops::{AttendPart, ChooseEntries, Host, PageId};
use brigade_shapes::{EntryLayout, KV_PAGE};

/// Rows whose scores are kept at once.
const ROWS_AT_ONCE: usize = 16;

/// Pages of copied keys that a thread scores in one go.
const SPAN_PAGES: usize = 16;

/// A row that sees more entries than it attends to.
struct FarRow<'a> {
    row: usize,
    /// Pages of the row's sequence.
    pages: &'a [PageId],
    n_seen: usize,
}

impl Compute {
    /// Runs the op [`ChooseEntries`].
    ///
    /// # Panics
    /// If shapes disagree, parts have a row in common or are out of order, or an entry lies outside its sequence's pages or the pool.
    pub fn choose_entries(&self, op: ChooseEntries<'_, Host>) {
        op.check();
        let per_row = op.per_row;
        let far: Vec<FarRow<'_>> =
            op.parts.iter().flat_map(|part| far_rows(op.layout, part, per_row)).collect();
        for (i, rows) in far.chunks(ROWS_AT_ONCE).enumerate() {
            let (scores, stride) = self.entry_scores(&op, rows);
            let outs = Rows::new(&mut op.out[i * ROWS_AT_ONCE * per_row..], per_row);
            self.pool().run(rows.len(), &|i, _| {
                let scores = scores[i * stride..][..rows[i].n_seen].iter();
                // SAFETY: the pool hands out each row once.
                let out = unsafe { outs.rows(i..i + 1) };
                let best = best_places(scores.map(|score| ordered(*score)), per_row);
                out.copy_from_slice(&best);
            });
        }
    }

    /// The scores of some rows at all entries they see, each row's `stride` behind the one before.
    fn entry_scores(
        &self,
        index: &ChooseEntries<'_, Host>,
        rows: &[FarRow<'_>],
    ) -> (Vec<f32>, usize) {
        let span = SPAN_PAGES * KV_PAGE;
        let n_spans = rows.iter().map(|row| row.n_seen.div_ceil(span)).max().unwrap_or(0);
        let queries: Vec<HeadColumns> =
            rows.iter().map(|row| HeadColumns::new(index, row.row)).collect();
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
                let key = index_key_of(index.layout, index.pool, row.pages, first + at);
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
    fn new(index: &ChooseEntries<'_, Host>, row: usize) -> Self {
        let (n_head, dim) = (index.n_head, index.layout.index_dim);
        let (q, weights) = (index.q, index.weights);
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

/// The rows of a part that see more entries than they attend to.
fn far_rows<'a>(
    layout: &EntryLayout,
    part: &AttendPart<'a>,
    per_row: usize,
) -> impl Iterator<Item = FarRow<'a>> {
    let AttendPart { pages, first_pos, n_rows, first_row } = *part;
    let row =
        move |i| FarRow { row: first_row + i, pages, n_seen: layout.n_entries(first_pos + i + 1) };
    (0..n_rows).map(row).filter(move |row| row.n_seen > per_row)
}
