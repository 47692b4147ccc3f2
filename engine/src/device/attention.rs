//! Keys and values of rows to their pages, and attention over pages.

use brigade_gpu::{self as there, AttendPages, ChosenSpans, Gpu, KvSpans};

use super::index::{block_sizes, pool_sizes};
use super::pages::{page_layout, page_parts, with_room};
use super::{Device, Lists, Memory, Rows, Scratch, Values};
use crate::kernels::{
    self, Attend, AttendPart, AttendVariant, BlockSizes, Chosen, ChosenBlocks, KvLayout, PoolSizes,
    Window,
};

/// What rows leave in their pages.
#[derive(Clone, Copy)]
pub struct KvRows<'a> {
    /// Keys, `[n_rows, n_kv_head * head_dim_k]`.
    pub k: &'a Rows,
    /// Values, `[n_rows, n_kv_head * head_dim_v]`; `None` where they are in the keys.
    pub v: Option<&'a Rows>,
    /// Keys of an index, `[n_rows, index_dim]`, with gates behind them where they are pooled.
    pub index: Option<&'a Rows>,
}

/// What is attended to, and how.
pub struct AttendOver<'a> {
    /// Shape of the pages.
    pub layout: &'a KvLayout,
    /// The layer's pages one after the other.
    pub pool: &'a Memory<u8>,
    /// The rows.
    pub parts: &'a [AttendPart<'a>],
    /// Factor on the scores.
    pub scale: f32,
    /// What few models change of the softmax; blocks stand in `blocks`.
    pub variant: AttendVariant<'a>,
    /// The blocks that rows attend to; `None`: all.
    pub blocks: Option<BlocksOver<'a>>,
}

/// The blocks of positions that rows attend to ([`ChosenBlocks`]).
#[derive(Clone, Copy)]
pub struct BlocksOver<'a> {
    /// Of the blocks, and how many a row attends to at most.
    pub sizes: BlockSizes,
    /// Rows that see no more positions than this attend to all they see.
    pub n_near: usize,
    /// `[n_rows, n_kv_head, per_row]`.
    pub lists: &'a Lists,
}

/// The positions, or pools of them, that rows attend to ([`Chosen`]).
#[derive(Clone, Copy)]
pub struct PoolsOver<'a> {
    /// So many for each row that sees more.
    pub sizes: PoolSizes,
    /// `[n_rows, per_row]`.
    pub pools: &'a Rows,
}

impl Device {
    /// Writes keys and values of every row of `parts` into their pages, and their keys of an index.
    ///
    /// # Panics
    /// If shapes disagree, a part lies outside its blocks, or a block outside the pool.
    pub fn kv_write(
        &self,
        layout: &KvLayout,
        pool: &mut Memory<u8>,
        parts: &[AttendPart<'_>],
        rows: &KvRows<'_>,
    ) {
        if let (Some(gpu), Some(pool)) = (&self.gpu, pool.span_mut()) {
            let [v, index] = [rows.v, rows.index].map(|rows| rows.map(|rows| rows.on_gpu(gpu)));
            let rows = KvSpans { k: rows.k.on_gpu(gpu), v, index };
            gpu.kv_write(&page_layout(layout), pool, &page_parts(parts), &rows);
            return;
        }
        let [v, index] = [rows.v, rows.index].map(|rows| rows.map_or(&[][..], |rows| &rows[..]));
        let rows = kernels::KvRows { k: rows.k, v, index };
        self.compute.kv_write(layout, pool, parts, &rows);
    }

    /// Attention of queries `[n_rows, n_head * head_dim_k]` over the pages of their parts; `out` is
    /// `[n_rows, n_head * head_dim_v]`.
    ///
    /// # Panics
    /// If shapes disagree, or a GPU has no memory for it: the stage ends with this as its reason.
    pub fn attend(&self, over: &AttendOver<'_>, q: &Rows, out: &mut Rows) {
        let AttendOver { layout, pool, parts, scale, variant, blocks } = *over;
        let n_head = q.cols() / layout.head_dim_k;
        if let (Some(pool), Some((gpu, out))) = (pool.span(), self.gpu_of(out)) {
            let (layout, parts) = (&page_layout(layout), &page_parts(parts)[..]);
            let variant = on_gpu(&variant, blocks, gpu);
            let over = AttendPages { layout, pool, parts, n_head, scale, variant };
            return with_room("attention", gpu.attend(&over, q.on_gpu(gpu), out));
        }
        let blocks = blocks.map(|BlocksOver { sizes, n_near, lists }| ChosenBlocks {
            sizes,
            n_near,
            blocks: lists.on_host(),
        });
        let variant = AttendVariant { blocks, ..variant };
        self.compute.attend(&Attend { layout, pool, parts, n_head, scale, variant }, q, out);
    }

    /// [`Device::attend`] to the chosen positions ([`Compute::attend_chosen`](crate::kernels::Compute::attend_chosen)).
    ///
    /// # Panics
    /// If values are not in the keys, shapes disagree, or a GPU has no memory for it.
    pub fn attend_chosen(
        &self,
        over: &AttendOver<'_>,
        chosen: PoolsOver<'_>,
        scratch: &Scratch,
        q: &Rows,
        out: &mut Rows,
    ) {
        let AttendOver { layout, pool, parts, scale, variant, .. } = *over;
        let PoolsOver { sizes, pools } = chosen;
        let n_head = q.cols() / layout.head_dim_k;
        if let (Some(pool), Some((gpu, out))) = (pool.span(), self.gpu_of(out)) {
            let (layout, parts) = (&page_layout(layout), &page_parts(parts)[..]);
            let variant = on_gpu(&variant, None, gpu);
            let over = AttendPages { layout, pool, parts, n_head, scale, variant };
            let chosen = ChosenSpans { sizes: pool_sizes(sizes), pools: pools.on_gpu(gpu) };
            let attended = gpu.attend_chosen(&over, &chosen, q.on_gpu(gpu), out);
            return with_room("attention to chosen positions", attended);
        }
        let mut room = scratch.take(1, Chosen::room_len(layout, sizes, q.n_rows()));
        let attend = Attend { layout, pool, parts, n_head, scale, variant };
        self.compute.attend_chosen(&attend, &Chosen { sizes, pools }, &mut room, q, out);
    }
}

fn on_gpu<'a>(
    variant: &AttendVariant<'a>,
    blocks: Option<BlocksOver<'a>>,
    gpu: &'a Gpu,
) -> there::AttendVariant<'a> {
    let window = variant.window.map(|window| match window {
        Window::Sliding(n) => there::Window::Sliding(n),
        Window::Chunk(n) => there::Window::Chunk(n),
        Window::Around(n) => there::Window::Around(n),
    });
    let biases = variant.biases.map(|biases| there::DistanceBiases {
        of_heads: biases.of_heads.on_gpu(gpu),
        reach: biases.reach,
    });
    there::AttendVariant {
        window,
        softcap: variant.softcap,
        sinks: variant.sinks.map(|sinks| sinks.on_gpu(gpu)),
        slopes: variant.slopes.map(|slopes| slopes.on_gpu(gpu)),
        biases,
        both_ways: variant.both_ways,
        blocks: blocks.map(|BlocksOver { sizes, n_near, lists }| there::ChosenBlocks {
            sizes: block_sizes(sizes),
            n_near,
            blocks: lists.on_gpu(gpu),
        }),
    }
}
