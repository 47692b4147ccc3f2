//! The index of Qwen Sparse Attention: it scores whole blocks of positions by the mean of their keys. A row attends to the
//! best of the blocks that it sees whole, and to all positions behind the last of them.
//!
//! Blocks lie at absolute positions. One is scored for a row only when it ends at the row or before it, and its mean
//! is a sum in the order of positions. So its score has the same bits however a prompt was cut. Neither threads nor
//! the rest of the ubatch change them. If blocks have the same score, the lower ones are chosen.
//!
//! Pages hold the key of each position as it was projected. Means are made of them when they are scored.

use super::positions::Index;
use crate::compute::Compute;
use crate::tiles::attention::chosen_blocks::NO_BLOCK;
use crate::tiles::attention::kv_pages::add_index_key;
use crate::tiles::attention::paged::AttendPart;
use brigade_ops::{Angles, ChooseByMeans, Host, PageId, Rope};
use brigade_shapes::{BlockSizes, KV_PAGE, KvLayout, KvType, PoolSizes, ValuePlace};

/// Bytes of a line of the cache: pages start on one.
const LINE: usize = 64;

impl Compute {
    /// Runs the op [`ChooseByMeans`].
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, there are angles of too few blocks, or a part's
    /// positions lie outside its blocks or the pool.
    pub fn choose_by_means(&self, op: ChooseByMeans<'_, Host>) {
        op.check();
        let BlockSizes { positions, per_row, .. } = op.sizes;
        let near = op.sizes.near_of_means();
        let of_row = op.layout.n_kv_head * per_row;
        op.out.fill(0);
        for part in op.parts.iter().filter(|part| part.n_near(near) < part.n_rows) {
            let of_part = self.choose_of_part(&op, part);
            let whole = of_part.chunks_exact(per_row - 1).enumerate();
            for (i, whole) in whole.skip(part.n_near(near)) {
                let seen = part.first_pos + i + 1;
                let behind = match seen % positions {
                    0 => NO_BLOCK,
                    _ => (seen / positions) as u32,
                };
                let chosen = &mut op.out[(part.first_row + i) * of_row..][..of_row];
                for of_head in chosen.chunks_exact_mut(per_row) {
                    of_head.iter_mut().zip(whole).for_each(|(to, block)| *to = *block as u32);
                    of_head[per_row - 1] = behind;
                }
            }
        }
    }

    /// The whole blocks of a part's rows, `[part.n_rows, per_row - 1]`; zeros of rows that attend to all.
    fn choose_of_part(&self, index: &ChooseByMeans<'_, Host>, part: &AttendPart<'_>) -> Vec<f32> {
        let (dim, per_row) = (index.norm.len(), index.sizes.per_row - 1);
        let means = self.means(index, part);
        // Blocks stand for positions here, so that the means lie in pages as keys of an index do.
        let layout = KvLayout {
            n_kv_head: 0,
            head_dim_k: dim,
            head_dim_v: 0,
            values: ValuePlace::InKeys,
            index_dim: dim,
            ty: KvType::F32,
        };
        let n_pages = (means.len() / dim).div_ceil(KV_PAGE);
        let mut room = vec![0f32; (n_pages * layout.page_bytes() + LINE) / size_of::<f32>()];
        let start = bytemuck::cast_slice::<_, u8>(&room).as_ptr().align_offset(LINE);
        let pages = &mut room[start / size_of::<f32>()..];
        for (page, mean) in pages.chunks_exact_mut(layout.k_stride()).zip(means.chunks_exact(dim)) {
            page[..dim].copy_from_slice(mean);
        }
        let blocks: Vec<PageId> = (0..n_pages as u32).map(PageId).collect();
        let far = part.n_near(index.sizes.near_of_means())..part.n_rows;
        let parts: Vec<AttendPart<'_>> = far
            .map(|i| AttendPart {
                pages: &blocks,
                first_pos: index.sizes.n_whole(part.first_pos + i) - 1,
                n_rows: 1,
                first_row: i,
            })
            .collect();
        let pool = &bytemuck::cast_slice(&room)[start..];
        let sizes = PoolSizes::single(per_row);
        let of_means = Index { layout: &layout, pool, parts: &parts, n_head: index.n_head, sizes };
        let width = index.n_head * dim;
        let q = &index.q[part.first_row * width..][..part.n_rows * width];
        let mut chosen = vec![0.0; part.n_rows * per_row];
        self.choose(&of_means, q, &vec![1.0; part.n_rows * index.n_head], &mut chosen);
        chosen
    }

    /// The normed and rotated means of all blocks that the part's last row sees whole, `[n, index_dim]`.
    fn means(&self, index: &ChooseByMeans<'_, Host>, part: &AttendPart<'_>) -> Vec<f32> {
        let (size, dim, layout) = (index.sizes.positions, index.norm.len(), index.layout);
        let n = index.n_whole(part);
        let mut means = vec![0.0; n * dim];
        self.fill_rows(&mut means, dim, &|block, mean| {
            for pos in block * size..(block + 1) * size {
                let page = part.pages[pos / KV_PAGE].0 as usize;
                add_index_key(layout, layout.index(index.pool, page), pos % KV_PAGE, mean);
            }
            mean.iter_mut().for_each(|sum| *sum *= 1.0 / size as f32);
        });
        self.rms_norm_inplace(&mut means, index.norm, index.eps);
        if let Some(Angles { by_pair, n_rot, layout }) = index.rope {
            let angles = Angles { by_pair: &by_pair[..n * n_rot], n_rot, layout };
            self.rotate(Rope { x: &mut means, head_dim: dim, angles });
        }
        means
    }
}
