//! Indexes of sparse attention: the choice of pools and blocks, and the keys it is made by.

use brigade_shapes::{BlockSizes, KvLayout, PoolSizes, ValuePlace};

use crate::carry::carried;
use crate::pages::AttendPart;
use crate::place::Place;
use crate::rope::Angles;
use crate::scan::check_disjoint_rows;
use crate::vector::Vector;

/// The pools that each row attends to, ascending, as whole numbers: those with the greatest `Σ_h weights[h] * max(q[h] · key, 0)`
/// (DeepSeek-V3.2, section 2.1). Where a row sees no more than `per_row` pools, it attends to all positions, and its row of `out` is
/// zeros. Keys of the rows themselves, and those of pools that they complete, must be in their pages.
pub struct Choose<'a, P: Place> {
    /// Shape of the pages, which have keys of the index.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Read<'a, u8>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index; they share its keys.
    pub n_head: usize,
    /// Positions of a pool, and pools chosen for a row.
    pub sizes: PoolSizes,
    /// `[n_rows, n_head * dim]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_head]`: weight of each head's score.
    pub weights: P::Read<'a, f32>,
    /// `[n_rows, per_row]`.
    pub out: P::Write<'a, f32>,
}

/// The blocks that each head of each row attends to, ascending: those with the greatest product of a query and a key,
/// and the newest. A row that sees no more than `per_row` blocks attends to all, and its numbers are zeros. Keys of the
/// rows themselves must be in their pages.
pub struct ChooseBlocks<'a, P: Place> {
    /// Shape of the pages, which have keys of the index. The index has a query for each of their heads.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Read<'a, u8>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Positions of a block, and blocks chosen for a row.
    pub sizes: BlockSizes,
    /// `[n_rows, n_kv_head * index_dim]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_kv_head, per_row]`.
    pub out: P::Write<'a, u32>,
}

/// The blocks that each row attends to, ascending, the same for all its heads. Chosen are the `per_row - 1` whole
/// blocks with the greatest `Σ_h max(q[h] · key, 0)`, where `key` is the normed and rotated mean of a block's keys.
/// Behind them stands the block after the last whole one, or [`NO_BLOCK`](crate::NO_BLOCK) if the row sees nothing of
/// that. A row that sees no more whole blocks attends to all, and its numbers are zeros. If blocks have the same
/// score, the lower ones are chosen. Keys of the rows themselves must be in their pages.
pub struct ChooseByMeans<'a, P: Place> {
    /// Shape of the pages, which have keys of the index.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Read<'a, u8>,
    /// The rows that choose, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Heads of the index; they share its keys.
    pub n_head: usize,
    /// Positions of a block, and blocks chosen for a row: whole ones, and one behind them that is not whole.
    pub sizes: BlockSizes,
    /// Weight of the norm of a mean, `[index_dim]`.
    pub norm: P::Read<'a, f32>,
    /// Epsilon of that norm.
    pub eps: f32,
    /// Rotation of a normed mean: angles `i` are those of the first position of block `i`, for all blocks that a row
    /// sees whole.
    pub rope: Option<Angles<P::Read<'a, f32>>>,
    /// `[n_rows, n_head * index_dim]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_kv_head, per_row]`.
    pub out: P::Write<'a, u32>,
}

/// Makes the key of each pool that the parts' rows complete: `Σ_i p_i * key_i`, element by element, over its positions
/// `i`, with `p = softmax_i(gate_i + bias_i)`. The rows' own keys and gates must be in their pages; in the page of the
/// pool's last position its key takes their place, with zeros behind it.
pub struct PoolKeys<'a, P: Place> {
    /// Shape of the pages, which have keys and gates of the index as rows.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Write<'a, u8>,
    /// The rows whose pools become complete, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Positions of a pool, at least 2; pools lie side by side from position 0.
    pub positions: usize,
    /// `[positions, dim]`: added to the gate of each position.
    pub bias: &'a Vector,
}

carried!(Choose {
    layout: same,
    pool: read,
    parts: same,
    n_head: same,
    sizes: same,
    q: read,
    weights: read,
    out: write,
});
carried!(ChooseBlocks { layout: same, pool: read, parts: same, sizes: same, q: read, out: write });
carried!(ChooseByMeans {
    layout: same,
    pool: read,
    parts: same,
    n_head: same,
    sizes: same,
    norm: read,
    eps: same,
    rope: some_rows,
    q: read,
    out: write,
});
carried!(PoolKeys { layout: same, pool: write, parts: same, positions: same, bias: same });

impl<P: Place> Choose<'_, P> {
    /// Panics if shapes disagree, or parts share a row. Gives the number of rows.
    pub fn check(&self) -> usize {
        let (n_head, PoolSizes { positions, per_row }) = (self.n_head, self.sizes);
        assert!(positions > 0, "choose: pools without positions");
        let dim = self.sizes.key_dim(self.layout.index_dim);
        let has_sizes = [n_head, dim, per_row].iter().all(|size| *size > 0);
        assert!(has_sizes, "choose: an index without sizes");
        let n = P::len(&self.weights);
        let n_rows = n / n_head;
        assert_eq!(n, n_rows * n_head, "choose: weights");
        assert_eq!(P::len(&self.q), n_rows * n_head * dim, "choose: length of q");
        assert_eq!(P::len_mut(&self.out), n_rows * per_row, "choose: length of out");
        let rows = self.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "choose");
        n_rows
    }
}

impl<P: Place> ChooseBlocks<'_, P> {
    /// Panics if shapes disagree, or parts share a row. Gives the number of rows.
    pub fn check(&self) -> usize {
        let BlockSizes { positions, per_row, newest } = self.sizes;
        assert!(positions > 0 && per_row > 0 && newest <= per_row, "choose_blocks: sizes");
        let KvLayout { n_kv_head, index_dim, values, .. } = *self.layout;
        assert!(n_kv_head > 0 && index_dim > 0, "choose_blocks: pages without keys of an index");
        assert_eq!(values, ValuePlace::Apart, "choose_blocks: keys that are rows");
        let n = P::len(&self.q);
        let n_rows = n / (n_kv_head * index_dim);
        assert_eq!(n, n_rows * n_kv_head * index_dim, "choose_blocks: length of q");
        let n_out = n_rows * n_kv_head * per_row;
        assert_eq!(P::len_mut(&self.out), n_out, "choose_blocks: length of out");
        let rows = self.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "choose_blocks");
        n_rows
    }
}

/// Whether a row of `parts` sees more blocks than it attends to, so that there is something to choose.
pub fn sees_more_blocks(parts: &[AttendPart<'_>], sizes: BlockSizes) -> bool {
    let last = |part: &AttendPart<'_>| part.first_pos + part.n_rows.saturating_sub(1);
    parts.iter().any(|part| part.n_rows > 0 && sizes.n_seen(last(part)) > sizes.per_row)
}

impl<P: Place> ChooseByMeans<'_, P> {
    /// Panics if shapes disagree, parts share a row, or there are angles of too few blocks. Gives the number of rows.
    pub fn check(&self) -> usize {
        let BlockSizes { positions, per_row, newest } = self.sizes;
        assert!(positions > 0 && per_row > 1 && newest == 1, "choose_by_means: sizes");
        let (n_head, dim) = (self.n_head, self.layout.index_dim);
        let of_row = n_head * dim;
        assert!(of_row > 0 && P::len(&self.norm) == dim, "choose_by_means: width of keys");
        let n = P::len(&self.q);
        let n_rows = n / of_row;
        assert_eq!(n, n_rows * of_row, "choose_by_means: length of q");
        let n_out = n_rows * self.layout.n_kv_head * per_row;
        assert_eq!(P::len_mut(&self.out), n_out, "choose_by_means: length of out");
        let rows = self.parts.iter().map(|part| (part.first_row, part.n_rows));
        check_disjoint_rows(rows, n_rows, "choose_by_means");
        if let Some(Angles { by_pair, n_rot, .. }) = &self.rope {
            let far = self.parts.iter().filter(|part| sees_more_whole(part, self.sizes));
            let most = far.map(|part| self.n_whole(part)).max().unwrap_or(0);
            assert!(P::len(by_pair) >= most * n_rot, "choose_by_means: angles of {most} blocks");
        }
        n_rows
    }

    /// Blocks that the last row of a part sees whole.
    pub fn n_whole(&self, part: &AttendPart<'_>) -> usize {
        (part.first_pos + part.n_rows) / self.sizes.positions
    }
}

/// Whether a row of a part sees more whole blocks than it attends to.
fn sees_more_whole(part: &AttendPart<'_>, sizes: BlockSizes) -> bool {
    part.n_near(sizes.near_of_means()) < part.n_rows
}

/// Whether a row of `parts` sees more whole blocks than it attends to, so that there is something to choose by means.
pub fn sees_more_whole_blocks(parts: &[AttendPart<'_>], sizes: BlockSizes) -> bool {
    parts.iter().any(|part| sees_more_whole(part, sizes))
}

impl<P: Place> PoolKeys<'_, P> {
    /// Panics if shapes disagree.
    pub fn check(&self) {
        let (positions, kept) = (self.positions, self.layout.index_dim);
        assert_eq!(self.layout.values, ValuePlace::InKeys, "pool_keys: keys that are no rows");
        assert!(positions > 1 && kept > 0, "pool_keys: {positions} positions, {kept} values");
        assert_eq!(self.bias.len() * 2, positions * kept, "pool_keys: length of the bias");
    }
}
