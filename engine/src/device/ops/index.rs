//! Indexes of sparse attention: the choice of pools and blocks, and the keys it is made by.

use crate::device::{Device, Lists, Memory, Rows};
use crate::kernels::{AttendPart, BlockSizes, KernelError, KvLayout, PoolSizes, RopeTable, Vector};
use crate::ops::{
    Choose, ChooseBlocks, ChooseByMeans, PoolKeys, View, sees_more_blocks, sees_more_whole_blocks,
};

/// The rows that an index is asked for, and where its keys are.
#[derive(Clone, Copy)]
pub struct IndexOver<'a> {
    /// Shape of the pages, which have keys of the index.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other.
    pub pool: &'a Memory<u8>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
}

/// Sizes and weights of an index of means: see [`ChooseByMeans`].
#[derive(Clone, Copy)]
pub struct IndexOfMeans<'a> {
    /// Number of heads.
    pub n_head: usize,
    /// Positions of a block, and blocks chosen for a row.
    pub sizes: BlockSizes,
    /// Weight of the norm of a mean, `[index_dim]`.
    pub norm: &'a Vector,
    /// Epsilon of that norm.
    pub eps: f32,
    /// Sines and cosines for the means.
    pub rope: Option<&'a RopeTable>,
}

/// Sizes and biases by which the keys of a pool's positions become one.
#[derive(Clone, Copy)]
pub struct PoolingBy<'a> {
    /// Positions of a pool, at least 2.
    pub positions: usize,
    /// `[positions, dim]`: added to the gate of each position.
    pub bias: &'a Vector,
}

impl Device {
    /// Refuses an index of more heads than ops here take.
    ///
    /// # Errors
    /// [`KernelError::IndexHeads`].
    pub fn check_index(&self, heads: usize) -> Result<(), KernelError> {
        let most = self.there.as_ref().map_or(usize::MAX, |there| there.facts().most_index_heads);
        if heads > most { Err(KernelError::IndexHeads { heads, most }) } else { Ok(()) }
    }

    /// The pools of each row, `[n_rows, sizes.per_row]` ([`Choose`]). `q` is
    /// `[n_rows, n_head * dim]`, `weights` is `[n_rows, n_head]`.
    ///
    /// # Panics
    /// If shapes disagree, or a GPU has no memory for it.
    pub fn choose(
        &self,
        over: &IndexOver<'_>,
        sizes: PoolSizes,
        q: &Rows,
        weights: &Rows,
        out: &mut Rows,
    ) {
        let IndexOver { layout, pool, parts } = *over;
        self.run(Choose {
            layout,
            pool: pool.view(),
            parts,
            n_head: weights.cols(),
            sizes,
            q: q.view(),
            weights: weights.view(),
            out: out.view_mut(),
        });
    }

    /// The blocks of each head of each row ([`ChooseBlocks`]); `None`: all rows attend to all. `q` is
    /// `[n_rows, n_kv_head * index_dim]`.
    ///
    /// # Panics
    /// If shapes disagree, or a GPU has no memory for it.
    pub fn choose_blocks(
        &self,
        over: &IndexOver<'_>,
        sizes: BlockSizes,
        q: &Rows,
    ) -> Option<Lists> {
        let IndexOver { layout, pool, parts } = *over;
        if !sees_more_blocks(parts, sizes) {
            return None;
        }
        let mut lists = self.lists(q.n_rows() * layout.n_kv_head * sizes.per_row);
        let (pool, q, out) = (pool.view(), q.view(), lists.view_mut());
        self.run(ChooseBlocks { layout, pool, parts, sizes, q, out });
        Some(lists)
    }

    /// The blocks of each row ([`ChooseByMeans`]); `None`: all rows attend to all. `q` is `[n_rows, n_head * index_dim]`.
    ///
    /// # Panics
    /// If shapes disagree, or a GPU has no memory for it.
    pub fn choose_by_means(
        &self,
        over: &IndexOver<'_>,
        index: &IndexOfMeans<'_>,
        q: &Rows,
    ) -> Option<Lists> {
        let IndexOver { layout, pool, parts } = *over;
        let IndexOfMeans { n_head, sizes, norm, eps, rope } = *index;
        if !sees_more_whole_blocks(parts, sizes) {
            return None;
        }
        let mut lists = self.lists(q.n_rows() * layout.n_kv_head * sizes.per_row);
        let rope = rope.map(|rope| rope.at(&self.compute, &starts(parts, sizes)));
        self.run(ChooseByMeans {
            layout,
            pool: pool.view(),
            parts,
            n_head,
            sizes,
            norm: norm.view(),
            eps,
            rope: rope.as_ref().map(|rope| rope.angles().map(|values| View::Host(values))),
            q: q.view(),
            out: lists.view_mut(),
        });
        Some(lists)
    }

    /// Makes the key of each pool that the parts' rows complete
    /// ([`PoolKeys`]).
    ///
    /// # Panics
    /// If shapes disagree, or a GPU has no memory for it.
    pub fn pool_keys(
        &self,
        layout: &KvLayout,
        pool: &mut Memory<u8>,
        parts: &[AttendPart<'_>],
        pooling: PoolingBy<'_>,
    ) {
        let PoolingBy { positions, bias } = pooling;
        self.run(PoolKeys { layout, pool: pool.view_mut(), parts, positions, bias });
    }
}

/// The first positions of all blocks that a row sees whole.
fn starts(parts: &[AttendPart<'_>], sizes: BlockSizes) -> Vec<u32> {
    let n_whole = |part: &AttendPart<'_>| (part.first_pos + part.n_rows) / sizes.positions;
    let most = parts.iter().map(n_whole).max().unwrap_or(0);
    (0..most).map(|block| (block * sizes.positions) as u32).collect()
}
