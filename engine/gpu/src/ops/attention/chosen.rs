//! Attention of rows to some of the positions before them. Each row's keys are copied side by side, in the order of
//! their positions, and attended to as a sequence of their own. The cost of a row does not grow with its context.

use brigade_ops::{AttendChosen, AttendPart, PageId};
use brigade_shapes::{KV_PAGE, KvLayout, PoolSizes};
use bytemuck::{Pod, Zeroable};

use super::paged::AttendPages;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::ops::kv::index_pages::PageLists;
use crate::ops::kv::pages::{check_pool, code_of};
use crate::ops::rowwise::elementwise::count;
use crate::ops::scan::LANES;
use crate::pipelines::shader::{Shader, shader};

static COPY: Shader = shader!("copy_keys");

/// Bytes of copied keys that are kept at once, about.
pub(super) const ROOM_BYTES: usize = 64 << 20;

/// Bytes that an invocation copies.
const LINE: usize = 16;

/// Positions that rows attend to.
#[derive(Clone, Copy, Debug)]
struct ChosenSpans<'a> {
    /// Positions of a pool, and the pools chosen for a row. Rows that see no more pools attend to all they see.
    sizes: PoolSizes,
    /// `[n_rows, per_row]`: the pools, ascending, as whole numbers in f32. Where a pool is one position, these are
    /// positions. One behind its row stands for the row's own position.
    pools: Span<'a>,
}

/// Source of the keys that are copied for rows.
struct CopyFrom<'a> {
    over: &'a AttendPages<'a>,
    chosen: &'a ChosenSpans<'a>,
    /// The lists of the parts' pages.
    pages: Span<'a>,
}

/// A row whose keys are copied to pages of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedRow {
    /// Number of the row among the queries.
    pub(super) row: usize,
    /// The first of its pages.
    pub(super) first_page: usize,
    /// Keys, at least one.
    pub(super) n_keys: usize,
}

/// A row that sees more than it attends to, as the shader takes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Row {
    row: u32,
    pos: u32,
    pages: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    rows: u64,
    pages: u64,
    pools: u64,
    from: u64,
    to: u64,
    from_bytes: u32,
    to_bytes: u32,
    n_rows: u32,
    row_pages: u32,
    n_places: u32,
    positions: u32,
    per_row: u32,
    dk: u32,
}

impl Gpu {
    /// Records the op [`AttendChosen`].
    ///
    /// # Errors
    /// Where there is no room for the copied keys or the sums of spans.
    ///
    /// # Panics
    /// As [`Gpu::attend`]; if values are not in the keys of one head, blocks are chosen too, or pools are not as many as they
    /// should be.
    pub fn attend_chosen(&self, op: AttendChosen<'_, OnGpu>) -> Result<(), GpuError> {
        let n_rows = op.check();
        let AttendChosen { over, sizes, pools, q, mut out } = op;
        let (over, chosen) = (&over, &ChosenSpans { sizes, pools });
        let AttendPages { layout, pool, parts, .. } = *over;
        assert_eq!(layout.n_kv_head, 1, "attend_chosen: keys of several heads");
        assert!(sizes.positions > 0 && sizes.per_row > 0, "attend_chosen: pools without sizes");
        check_pool(layout, "attend_chosen", pool.address(), pool.len());
        let lists = PageLists::new("attend_chosen", layout, pool.len(), parts, n_rows);
        let near: Vec<AttendPart<'_>> = parts
            .iter()
            .map(|part| AttendPart { n_rows: part.n_near(sizes.width()), ..*part })
            .collect();
        if near.iter().any(|part| part.n_rows > 0) {
            self.attend(&AttendPages { parts: &near, ..*over }, q, out.again())?;
        }

        let of_part = |(part, pages): (&AttendPart<'_>, &u32)| {
            let (first_row, first_pos, pages) = (part.first_row, part.first_pos, *pages);
            let far = part.n_near(sizes.width())..part.n_rows;
            far.map(move |i| Row { row: count(first_row + i), pos: count(first_pos + i), pages })
        };
        let far: Vec<Row> = parts.iter().zip(&lists.starts).flat_map(of_part).collect();
        if far.is_empty() {
            return Ok(());
        }
        let copied = without_index(layout);
        let row_pages = sizes.width().div_ceil(KV_PAGE);
        let of_row = row_pages * copied.page_bytes();
        let at_once = (ROOM_BYTES / of_row).clamp(1, far.len());
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        let mut room = self.buffer(of_row * at_once, Purpose::Activations)?;
        let from = CopyFrom { over, chosen, pages };
        for rows in far.chunks(at_once) {
            self.copy_keys(&from, rows, row_pages, room.span_mut());
            let rows: Vec<CopiedRow> = rows
                .iter()
                .enumerate()
                .map(|(i, row)| CopiedRow {
                    row: row.row as usize,
                    first_page: i * row_pages,
                    n_keys: sizes.n_attended(row.pos as usize),
                })
                .collect();
            let over = AttendPages { layout: &copied, pool: room.span(), ..*over };
            self.attend_copied(&over, &rows, q, out.again())?;
        }
        Ok(())
    }

    /// Attention of rows to keys in pages of their own; those that `over` names are not read.
    ///
    /// # Errors
    /// Where there is no room for the sums of spans.
    pub(super) fn attend_copied(
        &self,
        over: &AttendPages<'_>,
        rows: &[CopiedRow],
        q: Span<'_>,
        out: SpanMut<'_>,
    ) -> Result<(), GpuError> {
        let n_pages = over.pool.len() / over.layout.page_bytes();
        let pages: Vec<PageId> = (0..count(n_pages)).map(PageId).collect();
        let part = |row: &CopiedRow| AttendPart {
            pages: &pages[row.first_page..],
            first_pos: row.n_keys - 1,
            n_rows: 1,
            first_row: row.row,
        };
        let parts: Vec<AttendPart<'_>> = rows.iter().map(part).collect();
        self.attend(&AttendPages { parts: &parts, ..*over }, q, out)
    }

    /// Copies the keys of each row's positions to pages of its own, one row's behind the other's.
    fn copy_keys(&self, from: &CopyFrom<'_>, rows: &[Row], row_pages: usize, room: SpanMut<'_>) {
        let CopyFrom { over, chosen, pages } = *from;
        let layout = over.layout;
        let n_places = chosen.sizes.width();
        let of_key = layout.head_dim_k.next_multiple_of(LANES) * layout.ty.code_bytes() / LINE;
        let push = Push {
            rows: self.upload(bytemuck::cast_slice(rows)).address(),
            pages: pages.address(),
            pools: chosen.pools.address(),
            from: over.pool.address(),
            to: room.address(),
            from_bytes: count(layout.page_bytes()),
            to_bytes: count(without_index(layout).page_bytes()),
            n_rows: count(rows.len()),
            row_pages: count(row_pages),
            n_places: count(n_places),
            positions: count(chosen.sizes.positions),
            per_row: count(chosen.sizes.per_row),
            dk: count(layout.head_dim_k),
        };
        let constants = [code_of(layout.ty), 1];
        let groups = lines(count(rows.len() * n_places * of_key).div_ceil(64) as usize);
        // SAFETY: the kernel reads pools of the rows, which are as many as they should be (checked), and keys at positions no
        // farther than the rows' own, in pages that their lists name (checked). It writes keys to the rows' pages, for which
        // there is room: no place is behind the last.
        unsafe { self.dispatch(Order::After, &COPY, &constants, &push, groups) };
    }
}

/// The pages that keys are copied to: an index has no keys there.
fn without_index(layout: &KvLayout) -> KvLayout {
    KvLayout { index_dim: 0, ..*layout }
}
