//! The index of sparse attention (DeepSeek-V3.2, section 2.1): it scores all positions before a row cheaply, and the
//! row attends to the best of them only. If positions have the same score, the earlier ones are chosen.
//!
//! In some models it scores pools of consecutive positions instead, which lie side by side from position 0. The last
//! position of a pool has the pool's key in its page ([`Gpu::pool_keys`]). A row sees the pools that end at its own
//! position or before it; to the positions behind the last of them it attends in any case.

use brigade_ops::AttendPart;
use brigade_shapes::{KvLayout, PoolSizes, ValuePlace};
use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::ops::kv::index_pages::{IndexKeys, PageLists};
use crate::ops::rowwise::best_scores::{Best, Line, at_once};
use crate::ops::rowwise::elementwise::count;
use crate::ops::scan::LANES;
use crate::pipelines::shader::{Shader, shader};

static SCORES: Shader = shader!("index_scores");

/// Pools of a workgroup.
const POOLS: usize = 64;

/// Most heads of an index: a workgroup has their queries in shared memory.
pub const MAX_INDEX_HEADS: usize = 128;

/// The rows of a ubatch, and where the keys of their sequences are.
#[derive(Clone, Copy, Debug)]
pub struct IndexSpans<'a> {
    /// Shape of the pages, which have keys of the index as rows.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: Span<'a>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index, at most 128; they share its keys.
    pub n_head: usize,
    /// Positions of a pool, and pools chosen for a row.
    pub sizes: PoolSizes,
}

/// Queries, weights and keys by which pools are scored for rows.
pub(super) struct Scorer<'a> {
    pub(super) keys: IndexKeys,
    /// The lists of pages that rows name.
    pub(super) pages: Span<'a>,
    /// `[n_rows, n_head * dim]`.
    pub(super) q: Span<'a>,
    /// `[n_rows, n_head]`.
    pub(super) weights: Span<'a>,
    pub(super) n_head: usize,
    /// Elements of a query or a key.
    pub(super) dim: usize,
    /// Positions of a pool.
    pub(super) positions: usize,
}

/// A row that sees more than it attends to.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct FarRow {
    /// Number of the row among the queries.
    pub(crate) row: u32,
    /// Pools that it sees.
    pub(super) n_seen: u32,
    /// Start of its sequence's pages in the lists.
    pub(super) pages: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    rows: u64,
    pages: u64,
    pool: u64,
    q: u64,
    weights: u64,
    scores: u64,
    page_bytes: u32,
    n_units: u32,
    stride: u32,
    n_head: u32,
    dim: u32,
    width: u32,
    positions: u32,
    entry_bytes: u32,
}

impl Gpu {
    /// The pools that each row attends to, ascending, as whole numbers in f32, in `out` `[n_rows, per_row]`: those with the
    /// greatest `Σ_h weights[h] * max(q[h] · key, 0)`. Where a row sees no more than `per_row` pools, it attends to all
    /// positions, and its row of `out` is zeros.
    ///
    /// `q` is `[n_rows, n_head * dim]`, `weights` is `[n_rows, n_head]`, rows as the parts number them. Keys of the rows
    /// themselves, and those of pools that they complete, must be in their pages.
    ///
    /// # Errors
    /// Where there is no room for the scores.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its pages
    /// or the pool.
    pub fn choose(
        &self,
        index: &IndexSpans<'_>,
        q: Span<'_>,
        weights: Span<'_>,
        mut out: SpanMut<'_>,
    ) -> Result<(), GpuError> {
        let IndexSpans { layout, pool, parts, n_head, sizes } = *index;
        let (positions, per_row) = (sizes.positions, sizes.per_row);
        let dim = sizes.key_dim(layout.index_dim);
        let has_sizes = [n_head, dim, positions, per_row].iter().all(|size| *size > 0);
        assert!(has_sizes, "choose: an index without sizes");
        assert_eq!(layout.values, ValuePlace::InKeys, "choose: keys that are no rows");
        let n_rows = weights.values() / n_head;
        assert_eq!(count(weights.values()) as usize, n_rows * n_head, "choose: weights");
        assert_eq!(q.values(), n_rows * n_head * dim, "choose: length of q");
        assert_eq!(out.values(), n_rows * per_row, "choose: length of out");
        let keys = IndexKeys::new("choose", layout, pool.address(), pool.len());
        let lists = PageLists::new("choose", layout, pool.len(), parts, n_rows);
        self.fill(out.again(), 0.0);

        let far = parts.iter().zip(&lists.starts).flat_map(|(part, pages)| {
            let near = sizes.width().saturating_sub(part.first_pos).min(part.n_rows);
            (near..part.n_rows).map(|i| FarRow {
                row: (part.first_row + i) as u32,
                n_seen: count((part.first_pos + i + 1) / positions),
                pages: *pages,
            })
        });
        let far: Vec<FarRow> = far.collect();
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        let scorer = Scorer { keys, pages, q, weights, n_head, dim, positions };
        let best = Best {
            wanted: per_row,
            n_behind: 0,
            copies: 1,
            of_floats: true,
            as_floats: true,
            with_scores: false,
        };
        self.choose_scored(&scorer, &far, best, |row| (row.row, 0), out)
    }

    /// Scores the pools that rows see, and writes the best of each. `place` says which row of `out` is a row's, and what
    /// stands behind its places.
    pub(super) fn choose_scored(
        &self,
        scorer: &Scorer<'_>,
        far: &[FarRow],
        best: Best,
        place: impl Fn(&FarRow) -> (u32, u32),
        mut out: SpanMut<'_>,
    ) -> Result<(), GpuError> {
        let Some(most) = far.iter().map(|row| row.n_seen as usize).max() else { return Ok(()) };
        let stride = most.next_multiple_of(POOLS);
        let at_once = at_once(far.len(), 1, stride);
        let mut scores = self.buffer(4 * stride * at_once, Purpose::Activations)?;
        for rows in far.chunks(at_once) {
            self.scores(scorer, rows, stride, scores.span_mut());
            let lines: Vec<Line> = rows
                .iter()
                .map(|far| {
                    let (row, behind) = place(far);
                    Line { n: far.n_seen, row, behind }
                })
                .collect();
            self.best(best, &lines, scores.span(), stride, out.again());
        }
        Ok(())
    }

    /// The scores of all pools that some rows see, `[rows, stride]`.
    fn scores(&self, scorer: &Scorer<'_>, rows: &[FarRow], stride: usize, scores: SpanMut<'_>) {
        let Scorer { keys, n_head, .. } = *scorer;
        assert!(n_head <= MAX_INDEX_HEADS, "an index of {n_head} heads");
        let n_units = rows.len() * (stride / POOLS);
        let push = Push {
            rows: self.upload(bytemuck::cast_slice(rows)).address(),
            pages: scorer.pages.address(),
            pool: keys.address,
            q: scorer.q.address(),
            weights: scorer.weights.address(),
            scores: scores.address(),
            page_bytes: keys.page_bytes,
            n_units: count(n_units),
            stride: count(stride),
            n_head: n_head as u32,
            dim: count(scorer.dim),
            width: keys.width,
            positions: count(scorer.positions),
            entry_bytes: keys.entry_bytes,
        };
        let [ty, in_keys] = keys.constants;
        let of_entries = u32::from(keys.entry_bytes > 0);
        let constants = [ty, in_keys, n_head.div_ceil(LANES) as u32, of_entries];
        // SAFETY: the kernel reads the rows' queries and weights, and keys of the pools that they see, in pages that their
        // lists name; it writes a score for each pool that a row sees to the row's line. Callers have checked that these
        // are there.
        unsafe { self.dispatch(Order::After, &SCORES, &constants, &push, lines(n_units)) };
    }
}
