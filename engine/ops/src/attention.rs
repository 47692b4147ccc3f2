//! Keys and values of rows to their pages, and attention over pages.

use brigade_shapes::{BlockSizes, KvLayout, PoolSizes, ValuePlace, Window};

use crate::carry::{Carry, carried};
use crate::pages::{AttendPart, KvRows};
use crate::place::{Anywhere, Place};
use crate::scan::check_disjoint_rows;
use crate::vector::Vector;

/// Writes keys and values of every row of `parts` into its page, and the row's key of an index, where the layer has one. The
/// parts say which rows of the operands are theirs.
pub struct KvWrite<'a, P: Place> {
    /// Shape of the pages.
    pub layout: &'a KvLayout,
    /// A layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: P::Write<'a, u8>,
    /// The rows, with the pages that they go to.
    pub parts: &'a [AttendPart<'a>],
    /// Keys and values to write.
    pub rows: KvRows<P::Read<'a, f32>>,
}

/// One layer's pages, and the rows that attend to them. Each row sees its own position and those before; in an encoder all of its
/// part. `B` are bytes, `L` are lists of numbers.
#[derive(Clone, Copy, Debug)]
pub struct AttendOver<'a, B, L> {
    /// Shape of the pages.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other, starting on a multiple of 64 bytes.
    pub pool: B,
    /// The rows that attend, with their sequences' pages.
    pub parts: &'a [AttendPart<'a>],
    /// Query heads, a multiple of the layout's heads; consecutive ones share a head.
    pub n_head: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim_k)`.
    pub scale: f32,
    /// Changes to the softmax that only some models have.
    pub variant: AttendVariant<'a, L>,
}

/// Changes to a layer's attention that only some models have. The default changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct AttendVariant<'a, L> {
    /// Window of earlier positions that a row sees; `None`: all of them.
    pub window: Option<Window>,
    /// Bound of the scores: `cap * tanh(score / cap)` after the scale.
    pub softcap: Option<f32>,
    /// For each query head a score without a value: `exp` of it joins the sum of the weights.
    pub sinks: Option<&'a Vector>,
    /// For each query head what a score loses for every position between it and its row (ALiBi, arXiv
    /// 2108.12409): after the scale and the bound.
    pub slopes: Option<&'a Vector>,
    /// Added to the scores by distance; `None`: nothing.
    pub biases: Option<DistanceBiases<'a>>,
    /// Whether a row sees the positions of its part that come after its own. The part is all of its sequence.
    pub both_ways: bool,
    /// The blocks that a row's heads see of the positions before it; `None`: all. Not beside a window, nor where rows see
    /// those after them.
    pub blocks: Option<ChosenBlocks<L>>,
}

impl<L> Default for AttendVariant<'_, L> {
    fn default() -> Self {
        Self {
            window: None,
            softcap: None,
            sinks: None,
            slopes: None,
            biases: None,
            both_ways: false,
            blocks: None,
        }
    }
}

/// Biases that a score gains by the distance of its position ahead of the row's own (T5, arXiv 1910.10683, section
/// 2.1). They are added after the scale and the bound.
#[derive(Clone, Copy, Debug)]
pub struct DistanceBiases<'a> {
    /// `[n_head, 2 * reach + 1]`: of the distances `-reach..=reach`. Farther ones count as the farthest.
    pub of_heads: &'a Vector,
    /// The farthest distance with a bias of its own.
    pub reach: usize,
}

impl<'a> DistanceBiases<'a> {
    /// Biases of one head, `[2 * reach + 1]`.
    #[inline]
    pub fn of(&self, head: usize) -> &'a [f32] {
        let n = 2 * self.reach + 1;
        &self.of_heads[head * n..][..n]
    }
}

/// Blocks that rows attend to.
#[derive(Clone, Copy, Debug)]
pub struct ChosenBlocks<L> {
    /// Positions of a block, and most blocks that a row attends to.
    pub sizes: BlockSizes,
    /// Rows that see no more positions than this attend to all they see.
    pub n_near: usize,
    /// `[n_rows, n_kv_head, per_row]`: the blocks of each head of keys and values, ascending, none twice. Where a row
    /// attends to fewer, [`NO_BLOCK`] stands behind the last. The list ends at the first block that begins after the row: that and
    /// what follows it in the list are not attended to.
    pub blocks: L,
}

/// Stands for no block.
pub const NO_BLOCK: u32 = u32::MAX;

/// Attention of query rows to their pages. Keys and values of the rows themselves must be in their pages.
pub struct Attend<'a, P: Place> {
    /// Pages, rows and softmax of the attention.
    pub over: AttendOver<'a, P::Read<'a, u8>, P::Read<'a, u32>>,
    /// `[n_rows, n_head * head_dim_k]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_head * head_dim_v]`.
    pub out: P::Write<'a, f32>,
}

/// [`Attend`] to chosen positions alone, whose values are in their keys.
pub struct AttendChosen<'a, P: Place> {
    /// Pages, rows and softmax of the attention.
    pub over: AttendOver<'a, P::Read<'a, u8>, P::Read<'a, u32>>,
    /// Positions of a pool, and the pools chosen for a row. Rows that see no more pools attend to all they see.
    pub sizes: PoolSizes,
    /// `[n_rows, per_row]`: the pools, ascending, as whole numbers. Where a pool is one position, these are positions.
    pub pools: P::Read<'a, f32>,
    /// `[n_rows, n_head * head_dim_k]`.
    pub q: P::Read<'a, f32>,
    /// `[n_rows, n_head * head_dim_v]`.
    pub out: P::Write<'a, f32>,
}

carried!(KvWrite { layout: same, pool: write, parts: same, rows: rows });

/// The same attention with operands at another place.
fn over<'a: 'b, 'b, A: Place, B: Place>(
    over: AttendOver<'a, A::Read<'a, u8>, A::Read<'a, u32>>,
    by: &mut impl Carry<'a, 'b, A, B>,
) -> AttendOver<'b, B::Read<'b, u8>, B::Read<'b, u32>> {
    let AttendOver { layout, pool, parts, n_head, scale, variant } = over;
    let AttendVariant { window, softcap, sinks, slopes, biases, both_ways, blocks } = variant;
    let blocks = blocks.map(|ChosenBlocks { sizes, n_near, blocks }| ChosenBlocks {
        sizes,
        n_near,
        blocks: by.read(blocks),
    });
    let variant = AttendVariant { window, softcap, sinks, slopes, biases, both_ways, blocks };
    AttendOver { layout, pool: by.read(pool), parts, n_head, scale, variant }
}

impl<'a, A: Place> Attend<'a, A> {
    /// The same at another place.
    pub fn carried<'b, B: Place>(self, by: &mut impl Carry<'a, 'b, A, B>) -> Attend<'b, B>
    where
        'a: 'b,
    {
        Attend { over: over(self.over, by), q: by.read(self.q), out: by.write(self.out) }
    }

    /// Panics if shapes disagree, or parts share a row. Gives the number of rows.
    pub fn check(&self) -> usize {
        check_over::<A>("attend", &self.over, A::len(&self.q), A::len_mut(&self.out))
    }
}

impl<'a, A: Place> AttendChosen<'a, A> {
    /// The same at another place.
    pub fn carried<'b, B: Place>(self, by: &mut impl Carry<'a, 'b, A, B>) -> AttendChosen<'b, B>
    where
        'a: 'b,
    {
        let (over, sizes, pools) = (over(self.over, by), self.sizes, by.read(self.pools));
        AttendChosen { over, sizes, pools, q: by.read(self.q), out: by.write(self.out) }
    }

    /// Panics if values are not in the keys, shapes disagree, or parts share a row. Gives the number of rows.
    pub fn check(&self) -> usize {
        let (over, op) = (&self.over, "attend_chosen");
        assert_eq!(over.layout.values, ValuePlace::InKeys, "{op}: values apart");
        assert!(over.variant.blocks.is_none(), "{op}: blocks are chosen too");
        let n_rows = check_over::<A>(op, over, A::len(&self.q), A::len_mut(&self.out));
        assert_eq!(A::len(&self.pools), n_rows * self.sizes.per_row, "{op}: pools of each row");
        n_rows
    }
}

impl Attend<'_, Anywhere> {
    /// Whether all that is written lies with a device.
    pub fn writes_with_device(&self) -> bool {
        self.out.is_with_device()
    }
}

impl AttendChosen<'_, Anywhere> {
    /// Whether all that is written lies with a device.
    pub fn writes_with_device(&self) -> bool {
        self.out.is_with_device()
    }
}

/// Panics where shapes of so many queries and outputs disagree, or parts share a row. Gives the number of rows.
pub fn check_over<P: Place>(
    op: &str,
    over: &AttendOver<'_, P::Read<'_, u8>, P::Read<'_, u32>>,
    n_q: usize,
    n_out: usize,
) -> usize {
    let AttendOver { layout, parts, n_head, variant, .. } = over;
    let KvLayout { n_kv_head, head_dim_k, head_dim_v, .. } = **layout;
    assert!(
        layout.values == ValuePlace::Apart || head_dim_v <= head_dim_k,
        "{op}: values of {head_dim_v} in keys of {head_dim_k}"
    );
    assert!(
        n_kv_head > 0 && *n_head > 0 && n_head.is_multiple_of(n_kv_head),
        "{op}: {n_head} query heads over {n_kv_head} heads"
    );
    assert!(head_dim_k > 0, "{op}: keys without elements");
    let n_rows = n_q / (n_head * head_dim_k);
    assert_eq!(n_q, n_rows * n_head * head_dim_k, "{op}: length of q");
    assert_eq!(n_out, n_rows * n_head * head_dim_v, "{op}: length of out");
    let of_heads = |x: Option<&Vector>, n: usize| x.is_none_or(|x| x.len() == n_head * n);
    assert!(of_heads(variant.sinks, 1), "{op}: a sink for each query head");
    assert!(of_heads(variant.slopes, 1), "{op}: a slope for each query head");
    let reach = variant.biases.map_or(0, |biases| biases.reach);
    let biases = variant.biases.map(|biases| biases.of_heads);
    assert!(of_heads(biases, 2 * reach + 1), "{op}: biases for each query head");
    if let Some(ChosenBlocks { sizes, blocks, .. }) = &variant.blocks {
        let sees_before = variant.window.is_none() && !variant.both_ways;
        let n = n_rows * n_kv_head * sizes.per_row;
        assert!(
            sees_before && P::len(blocks) == n,
            "{op}: chosen blocks for each head, of all positions before a row"
        );
        assert!(sizes.positions > 0 && sizes.per_row > 0, "{op}: blocks without sizes");
    }
    let rows = parts.iter().map(|part| (part.first_row, part.n_rows));
    check_disjoint_rows(rows, n_rows, op);
    n_rows
}
