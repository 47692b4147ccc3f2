//! Attention to blocks of positions: what is read of a sequence is the pages that chosen blocks lie in, where they
//! lie. In a page that holds other positions too, those have no weight. Only the device knows which blocks these are,
//! so a kernel lists their pages.

use brigade_ops::{AttendPart, ChosenBlocks};
use brigade_shapes::{BlockSizes, KV_PAGE};
use bytemuck::{Pod, Zeroable};

use super::tiling::Listed;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::Span;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};
use crate::transfer::buffer::GpuBuffer;

static LIST: Shader = shader!("list_pages");

/// Address of the lists of pages, and the most pages of a list.
#[derive(Clone, Copy)]
pub(super) struct PageList {
    pub(super) address: u64,
    pub(super) most: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    rows: u64,
    blocks: u64,
    lists: u64,
    n_lists: u32,
    n_kv_head: u32,
    per_row: u32,
    positions: u32,
    most: u32,
    pad: u32,
}

impl PageList {
    /// No lists: all rows read all pages.
    pub(super) const NONE: Self = Self { address: 0, most: 0 };
}

/// Sizes of the lists by which rows of `parts` read chosen blocks.
pub(super) fn listed(blocks: &ChosenBlocks<Span<'_>>, parts: &[AttendPart<'_>]) -> Listed {
    let BlockSizes { positions, per_row, .. } = blocks.sizes;
    // A block that begins in a page's last position reaches the farthest.
    let of_block = match (positions.is_multiple_of(KV_PAGE), KV_PAGE.is_multiple_of(positions)) {
        (true, _) => positions / KV_PAGE,
        (_, true) => 1,
        _ => (positions + 2 * KV_PAGE - 2) / KV_PAGE,
    };
    let of_part = |part: &AttendPart<'_>| (part.first_pos + part.n_rows).div_ceil(KV_PAGE);
    let all = parts.iter().map(of_part).max().unwrap_or(0);
    Listed { n_near: blocks.n_near, most: all.min(per_row.saturating_mul(of_block)) }
}

impl Gpu {
    /// Lists the pages of each head of some rows. Returns the lists, and the pages that one has room for.
    ///
    /// # Errors
    /// Where there is no room for the lists.
    pub(super) fn list_pages(
        &self,
        blocks: &ChosenBlocks<Span<'_>>,
        listed: Listed,
        far_rows: &[[u32; 2]],
        n_kv_head: usize,
    ) -> Result<(GpuBuffer, u32), GpuError> {
        let n_lists = far_rows.len() * n_kv_head;
        let list_bytes = (1 + 3 * listed.most) * size_of::<u32>();
        let mut lists = self.buffer(n_lists * list_bytes, Purpose::Activations)?;
        let push = Push {
            rows: self.upload(bytemuck::cast_slice(far_rows)).address(),
            blocks: blocks.blocks.address(),
            lists: lists.span_mut().address(),
            n_lists: count(n_lists),
            n_kv_head: count(n_kv_head),
            per_row: count(blocks.sizes.per_row),
            positions: count(blocks.sizes.positions),
            most: count(listed.most),
            pad: 0,
        };
        // SAFETY: the kernel reads the blocks of each of the rows' heads (`check`), and writes their lists, each no longer
        // than there is room for. It lists no page behind a row's last position, and no more pages than are before it,
        // whatever the blocks are.
        unsafe { self.dispatch(Order::After, &LIST, &[], &push, lines(n_lists.div_ceil(64))) };
        Ok((lists, count(listed.most)))
    }
}
