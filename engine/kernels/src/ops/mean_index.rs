//! The index of Qwen Sparse Attention: it scores whole blocks of positions by the mean of their keys. A row attends to the
//! best of the blocks that it sees whole, and to all positions behind the last of them.
//!
//! Blocks lie at absolute positions. One is scored for a row only when it ends at the row or before it, and its mean is
//! a sum in the order of positions. So its score has the same bits however a prompt was cut. Neither threads nor the rest
//! of the ubatch change them. Of blocks with the same score the lower ones are chosen.
//!
//! What pages remember is the key of each position as it was projected. Means are made of them when they are scored.

use super::index::Index;
use crate::compute::Compute;
use crate::tiles::attention::AttendPart;
use crate::tiles::chosen_blocks::NO_BLOCK;
use crate::tiles::kv::add_index_key;
use crate::tiles::rope::RopeTable;
use brigade_ops::PageId;
use brigade_ops::scan::check_disjoint_rows;
use brigade_shapes::BlockSizes;
use brigade_shapes::PoolSizes;
use brigade_shapes::{KV_PAGE, KvLayout, KvType, ValuePlace};

/// The rows of a ubatch, and where the keys of their sequences are.
#[derive(Clone, Copy)]
pub struct MeanIndex<'a> {
    /// Shape of the pages, which have keys of the index.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: &'a [u8],
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index; they share its keys.
    pub n_head: usize,
    /// What is chosen: whole blocks, and behind them one that is not whole.
    pub sizes: BlockSizes,
    /// Weight of the norm of a mean, `[index_dim]`.
    pub norm: &'a [f32],
    /// Its epsilon.
    pub eps: f32,
    /// What rotates a normed mean, as a key at its block's first position; its own positions do not matter.
    pub rope: Option<&'a RopeTable>,
}

/// Bytes of a line of the cache: pages start on one.
const LINE: usize = 64;

impl Compute {
    /// The blocks that each row attends to, ascending, the same for all its heads: `[n_rows, n_kv_head, per_row]`. They
    /// are the `per_row - 1` whole ones with the greatest `Σ_h max(q[h] · key, 0)`, where `key` is the normed and rotated
    /// mean of a block's keys, and the one behind the last whole block, if the row sees some of it; else
    /// [`NO_BLOCK`]. Those of a row that sees no more whole blocks are zeros: it attends to all. `None`: all rows do.
    ///
    /// `q` is `[n_rows, n_head * index_dim]`, rows as the parts number them. Keys of the rows themselves must be in
    /// their pages.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its
    /// blocks or the pool.
    pub fn choose_by_means(&self, index: &MeanIndex<'_>, q: &[f32]) -> Option<Vec<u32>> {
        let BlockSizes { positions, per_row, newest } = index.sizes;
        assert!(positions > 0 && per_row > 1 && newest == 1, "choose_by_means: sizes");
        let (n_head, n_kv_head, dim) = (index.n_head, index.layout.n_kv_head, index.norm.len());
        assert!(dim > 0 && dim == index.layout.index_dim, "choose_by_means: width of keys");
        let n_rows = q.len() / (n_head * dim).max(1);
        assert_eq!(q.len(), n_rows * n_head * dim, "choose_by_means: length of q");
        let rows = index.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "choose_by_means");
        let is_far = |part: &&AttendPart<'_>| index.n_near(part) < part.n_rows;
        index.parts.iter().find(is_far)?;
        let mut chosen = vec![0; n_rows * n_kv_head * per_row];
        for part in index.parts.iter().filter(is_far) {
            let of_part = self.choose_of_part(index, part, q);
            let first = index.n_near(part);
            for (i, whole) in of_part.chunks_exact(per_row - 1).enumerate().skip(first) {
                let seen = part.first_pos + i + 1;
                let behind = match seen % positions {
                    0 => NO_BLOCK,
                    _ => (seen / positions) as u32,
                };
                let at = (part.first_row + i) * n_kv_head * per_row;
                for of_head in chosen[at..][..n_kv_head * per_row].chunks_exact_mut(per_row) {
                    of_head.iter_mut().zip(whole).for_each(|(to, block)| *to = *block as u32);
                    of_head[per_row - 1] = behind;
                }
            }
        }
        Some(chosen)
    }

    /// The whole blocks of a part's rows, `[part.n_rows, per_row - 1]`; zeros of rows that attend to all.
    fn choose_of_part(&self, index: &MeanIndex<'_>, part: &AttendPart<'_>, q: &[f32]) -> Vec<f32> {
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
        let far = index.n_near(part)..part.n_rows;
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
        let q = &q[part.first_row * width..][..part.n_rows * width];
        let mut chosen = vec![0.0; part.n_rows * per_row];
        self.choose(&of_means, q, &vec![1.0; part.n_rows * index.n_head], &mut chosen);
        chosen
    }

    /// The normed and rotated means of all blocks that the part's last row sees whole, `[n, index_dim]`.
    fn means(&self, index: &MeanIndex<'_>, part: &AttendPart<'_>) -> Vec<f32> {
        let (size, dim, layout) = (index.sizes.positions, index.norm.len(), index.layout);
        let n = index.sizes.n_whole(part.first_pos + part.n_rows - 1);
        let mut means = vec![0.0; n * dim];
        self.fill_rows(&mut means, dim, &|block, mean| {
            for pos in block * size..(block + 1) * size {
                let page = part.pages[pos / KV_PAGE].0 as usize;
                add_index_key(layout, layout.index(index.pool, page), pos % KV_PAGE, mean);
            }
            mean.iter_mut().for_each(|sum| *sum *= 1.0 / size as f32);
        });
        self.rms_norm_inplace(&mut means, index.norm, index.eps);
        if let Some(rope) = index.rope {
            let starts: Vec<u32> = (0..n).map(|block| (block * size) as u32).collect();
            self.rope(&mut means, dim, &rope.at(self, &starts));
        }
        means
    }
}

impl MeanIndex<'_> {
    /// Rows of a part, the first ones, that attend to all they see.
    fn n_near(&self, part: &AttendPart<'_>) -> usize {
        part.n_near(self.sizes.near_of_means())
    }
}
