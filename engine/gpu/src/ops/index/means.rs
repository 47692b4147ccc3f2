//! The index of Qwen Sparse Attention: it scores whole blocks of positions by the mean of their keys. A row attends
//! to the best of the blocks that it sees whole, and to all positions behind the last of them. If blocks have the
//! same score, the lower ones are chosen.
//!
//! Pages hold the key of each position as it was projected. Means are made of them when they are scored.

use brigade_ops::{Angles, AttendPart, ChooseByMeans, NO_BLOCK, Rope};
use brigade_shapes::{BlockSizes, KV_PAGE};
use bytemuck::{Pod, Zeroable};

use super::positions::{FarRow, Scorer};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::Span;
use crate::operands::OnGpu;
use crate::ops::kv::index_pages::{IndexKeys, PageLists};
use crate::ops::rowwise::best_scores::Best;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};
use crate::transfer::buffer::GpuBuffer;

static MEANS: Shader = shader!("index_means");

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
    /// Records the op [`ChooseByMeans`].
    ///
    /// # Errors
    /// Where there is no room for the scores.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, there are angles of too few blocks, or a part's
    /// positions lie outside its pages or the pool.
    pub fn choose_by_means(&self, mut op: ChooseByMeans<'_, OnGpu>) -> Result<(), GpuError> {
        let n_rows = op.check();
        let (layout, pool, parts) = (op.layout, op.pool, op.parts);
        let keys = IndexKeys::new("choose_by_means", layout, pool.address(), pool.len());
        let lists = PageLists::new("choose_by_means", layout, pool.len(), parts, n_rows);
        self.fill(op.out.again(), 0.0);
        let mut weights = self.buffer(4 * n_rows * op.n_head, Purpose::Activations)?;
        self.fill(weights.span_mut(), 1.0);
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        let near = op.sizes.near_of_means();
        let parts = parts.iter().zip(&lists.starts);
        for (part, start) in parts.filter(|(part, _)| part.n_near(near) < part.n_rows) {
            let pages = pages.part(4 * *start as usize..pages.len());
            let means = self.means(&op, part, keys, pages)?;
            self.choose_of_part(&mut op, part, means.span(), weights.span())?;
        }
        Ok(())
    }

    /// Chooses for a part's rows, given the means of the blocks that they see whole.
    fn choose_of_part(
        &self,
        op: &mut ChooseByMeans<'_, OnGpu>,
        part: &AttendPart<'_>,
        means: Span<'_>,
        weights: Span<'_>,
    ) -> Result<(), GpuError> {
        let BlockSizes { positions, per_row, .. } = op.sizes;
        let (n_head, dim) = (op.n_head, op.layout.index_dim);
        let n_pages = (means.values() / dim).div_ceil(KV_PAGE);
        let list: Vec<u32> = (0..n_pages as u32).collect();
        let pages = self.upload(bytemuck::cast_slice(&list));
        let keys = IndexKeys::of_rows(means, dim);
        let scorer = Scorer { keys, pages, q: op.q, weights, n_head, dim, positions: 1 };
        let seen = |i: usize| part.first_pos + i + 1;
        let far = part.n_near(op.sizes.near_of_means())..part.n_rows;
        let far = far.map(|i| FarRow {
            row: (part.first_row + i) as u32,
            n_seen: count(seen(i) / positions),
            pages: 0,
        });
        let best = Best {
            wanted: per_row - 1,
            n_behind: 1,
            copies: op.layout.n_kv_head,
            of_floats: true,
            as_floats: false,
            with_scores: false,
        };
        let place = |far: &FarRow| {
            let seen = seen(far.row as usize - part.first_row);
            (far.row, if seen.is_multiple_of(positions) { NO_BLOCK } else { far.n_seen })
        };
        self.choose_scored(&scorer, &far.collect::<Vec<_>>(), best, place, op.out.again())
    }

    /// The normed and rotated means of all blocks that the part's last row sees whole, `[n, index_dim]`.
    fn means(
        &self,
        op: &ChooseByMeans<'_, OnGpu>,
        part: &AttendPart<'_>,
        keys: IndexKeys,
        pages: Span<'_>,
    ) -> Result<GpuBuffer, GpuError> {
        let (positions, dim, n) = (op.sizes.positions, op.layout.index_dim, op.n_whole(part));
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
        self.rms_norm_inplace(means.span_mut(), op.norm, op.eps);
        if let Some(Angles { by_pair, n_rot, layout }) = op.rope {
            let angles = Angles { by_pair: by_pair.part(0..4 * n * n_rot), n_rot, layout };
            self.rope(Rope { x: means.span_mut(), head_dim: dim, angles });
        }
        Ok(means)
    }
}
