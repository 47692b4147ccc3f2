//! The index of Qwen Sparse Attention: it scores whole blocks of positions by the mean of their keys. A row attends to the
//! best of the blocks that it sees whole, and to all positions behind the last of them. Of blocks with the same score the
//! lower ones are chosen.
//!
//! What pages remember is the key of each position as it was projected. Means are made of them when they are scored.

use brigade_ops::{AttendPart, NO_BLOCK};
use brigade_shapes::RopeLayout;
use brigade_shapes::{BlockSizes, KV_PAGE, KvLayout};
use bytemuck::{Pod, Zeroable};

use super::best::Best;
use super::elementwise::count;
use super::index::{FarRow, Scorer};
use super::index_pages::{IndexKeys, PageLists};
use crate::buffer::GpuBuffer;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static MEANS: Shader = shader!("index_means");

/// What rotates keys of blocks, each as a key at the block's first position.
#[derive(Clone, Copy, Debug)]
pub struct BlockRope<'a> {
    /// `[blocks, n_rot]`, as [`Gpu::rope`] takes it; of all blocks from 0 on that rows see whole.
    pub table: Span<'a>,
    /// Elements that are rotated.
    pub n_rot: usize,
    /// How they are paired.
    pub layout: RopeLayout,
}

/// The rows of a ubatch, and where the keys of their sequences are.
#[derive(Clone, Copy, Debug)]
pub struct MeanIndexSpans<'a> {
    /// Shape of the pages, which have keys of the index.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: Span<'a>,
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index, at most 128; they share its keys.
    pub n_head: usize,
    /// What is chosen: whole blocks, and behind them one that is not whole.
    pub sizes: BlockSizes,
    /// Weight of the norm of a mean, `[index_dim]`.
    pub norm: Span<'a>,
    /// Its epsilon.
    pub eps: f32,
    /// What rotates a normed mean.
    pub rope: Option<BlockRope<'a>>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    pages: u64,
    pool: u64,
    result: u64,
    page_bytes: u32,
    n: u32,
    dim: u32,
    width: u32,
    positions: u32,
    inverse: f32,
}

impl Gpu {
    /// Writes the blocks that each row attends to, ascending, the same for all its heads, as u32 to `out` `[n_rows,
    /// n_kv_head, per_row]`. A block's key is the normed and rotated mean of its keys, its score is `Σ_h max(q[h] · key, 0)`.
    /// The `per_row - 1` whole blocks with the greatest scores are chosen. The last place is for the block behind the last
    /// whole one; it is [`NO_BLOCK`] where the row sees nothing of that. A row that sees no more whole blocks than these
    /// attends to all, and has zeros. `false`: all rows do, and nothing is written.
    ///
    /// `q` is `[n_rows, n_head * index_dim]`, rows as the parts number them. Keys of the rows themselves must be in their
    /// pages.
    ///
    /// # Errors
    /// Where there is no room for the scores.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its pages
    /// or the pool.
    pub fn choose_by_means(
        &self,
        index: &MeanIndexSpans<'_>,
        q: Span<'_>,
        mut out: SpanMut<'_>,
    ) -> Result<bool, GpuError> {
        let MeanIndexSpans { layout, pool, parts, n_head, sizes, norm, .. } = *index;
        let BlockSizes { positions, per_row, newest } = sizes;
        assert!(positions > 0 && per_row > 1 && newest == 1, "choose_by_means: sizes");
        let (n_kv_head, dim) = (layout.n_kv_head, norm.values());
        assert!(dim > 0 && dim == layout.index_dim && n_head > 0, "choose_by_means: keys");
        let n_rows = q.values() / (n_head * dim);
        assert_eq!(count(q.values()) as usize, n_rows * n_head * dim, "choose_by_means: q");
        assert_eq!(out.values(), n_rows * n_kv_head * per_row, "choose_by_means: length of out");
        let keys = IndexKeys::new("choose_by_means", layout, (pool.address(), pool.len()));
        let lists = PageLists::new("choose_by_means", layout, pool.len(), parts, n_rows);
        let is_far = |part: &AttendPart<'_>| index.n_near(part) < part.n_rows;
        if !parts.iter().any(is_far) {
            return Ok(false);
        }

        self.fill(out.again(), 0.0);
        let mut weights = self.buffer(4 * n_rows * n_head, Purpose::Activations)?;
        self.fill(weights.span_mut(), 1.0);
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        let parts = parts.iter().zip(&lists.starts).filter(|(part, _)| is_far(part));
        for (part, start) in parts {
            let pages = pages.part(4 * *start as usize..pages.len());
            let means = self.means(index, part, (keys, pages))?;
            self.choose_of_part(index, part, means.span(), (q, weights.span()), out.again())?;
        }
        Ok(true)
    }

    /// Chooses for a part's rows, given the means of the blocks that they see whole.
    fn choose_of_part(
        &self,
        index: &MeanIndexSpans<'_>,
        part: &AttendPart<'_>,
        means: Span<'_>,
        (q, weights): (Span<'_>, Span<'_>),
        out: SpanMut<'_>,
    ) -> Result<(), GpuError> {
        let (n_head, dim, positions) = (index.n_head, index.norm.values(), index.sizes.positions);
        let n_pages = (means.values() / dim).div_ceil(KV_PAGE);
        let list: Vec<u32> = (0..n_pages as u32).collect();
        let pages = self.upload(bytemuck::cast_slice(&list));
        let keys = IndexKeys::of_rows(means, dim);
        let scorer = Scorer { keys, pages, q, weights, n_head, dim, positions: 1 };
        let seen = |i: usize| part.first_pos + i + 1;
        let far = (index.n_near(part)..part.n_rows).map(|i| FarRow {
            row: (part.first_row + i) as u32,
            n_seen: count(seen(i) / positions),
            pages: 0,
        });
        let best = Best {
            wanted: index.sizes.per_row - 1,
            n_behind: 1,
            copies: index.layout.n_kv_head,
            of_floats: true,
            as_floats: false,
            with_scores: false,
        };
        let place = |far: &FarRow| {
            let seen = seen(far.row as usize - part.first_row);
            (far.row, if seen.is_multiple_of(positions) { NO_BLOCK } else { far.n_seen })
        };
        self.choose_scored(&scorer, &far.collect::<Vec<_>>(), best, place, out)
    }

    /// The normed and rotated means of all blocks that the part's last row sees whole, `[n, index_dim]`.
    fn means(
        &self,
        index: &MeanIndexSpans<'_>,
        part: &AttendPart<'_>,
        (keys, pages): (IndexKeys, Span<'_>),
    ) -> Result<GpuBuffer, GpuError> {
        let (positions, dim) = (index.sizes.positions, index.norm.values());
        let n = (part.first_pos + part.n_rows) / positions;
        let mut means = self.buffer(4 * n * dim, Purpose::Activations)?;
        let push = Push {
            pages: pages.address(),
            pool: keys.address,
            result: means.span_mut().address(),
            page_bytes: keys.page_bytes,
            n: count(n * dim),
            dim: count(dim),
            width: keys.width,
            positions: count(positions),
            inverse: 1.0 / positions as f32,
        };
        let groups = lines((n * dim).div_ceil(64));
        // SAFETY: the kernel reads keys of whole blocks, which lie before the end of the part, in pages that its list names
        // (checked); it writes the `n * dim` values of the buffer.
        unsafe { self.dispatch(Order::After, &MEANS, &keys.constants, &push, groups) };
        self.rms_norm_inplace(means.span_mut(), index.norm, index.eps);
        if let Some(BlockRope { table, n_rot, layout }) = index.rope {
            assert!(table.values() >= n * n_rot, "choose_by_means: angles of {n} blocks");
            self.rope(means.span_mut(), dim, table.part(0..4 * n * n_rot), n_rot, layout);
        }
        Ok(means)
    }
}

impl MeanIndexSpans<'_> {
    /// Rows of a part, the first ones, that attend to all they see: the last of a row's blocks is one that is not whole.
    fn n_near(&self, part: &AttendPart<'_>) -> usize {
        (self.sizes.width() - 1).saturating_sub(part.first_pos).min(part.n_rows)
    }
}
