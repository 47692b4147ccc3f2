//! Attention of rows to entries and to the positions right before them, side by side in one softmax.
//!
//! The keys that a row attends to are copied to pages of its own: the entries in their order, then the positions in
//! theirs. The row attends to these pages as to a sequence of its own. So the order of sums depends on the row's
//! position alone.

use brigade_ops::{AttendEntries, n_before};
use brigade_shapes::{KV_PAGE, KvType};
use bytemuck::{Pod, Zeroable};

use super::chosen::{CopiedRow, ROOM_BYTES};
use super::paged::{AttendPages, AttendVariant};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::ops::index::entries::check_entries;
use crate::ops::kv::index_pages::PageLists;
use crate::ops::kv::pages::{LANES, code_of};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static COPY: Shader = shader!("entry_keys");

/// Stands for the list of a row that attends to the first entries.
const NO_LIST: u32 = u32::MAX;

/// Entries and keys that a row attends to, in the layout of the shader.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
struct Row {
    pages: u32,
    n_seen: u32,
    list: u32,
    n_entries: u32,
    near: u32,
    n_near: u32,
    own_page: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    rows: u64,
    pages: u64,
    lists: u64,
    near: u64,
    from: u64,
    to: u64,
    from_bytes: u32,
    to_bytes: u32,
    entry_bytes: u32,
    n_rows: u32,
    n_places: u32,
    every: u32,
    per_row: u32,
    width: u32,
}

/// Rows whose keys are copied together.
struct Batch {
    rows: Vec<Row>,
    copied: Vec<CopiedRow>,
    n_pages: usize,
}

impl Gpu {
    /// Records the op [`AttendEntries`]. A chosen entry that its row does not see stands for the last that it sees.
    ///
    /// # Errors
    /// Where there is no room for the copied keys or the sums of spans.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, a part's positions lie outside its pages or the
    /// pool, or there are not as many near keys or lists as there should be.
    pub fn attend_entries(&self, mut op: AttendEntries<'_, OnGpu>) -> Result<(), GpuError> {
        let n_rows = op.check();
        let (layout, parts, n_head) = (op.layout, op.parts, op.n_head);
        let lists = page_lists(&op, n_rows);
        let keys = layout.keys();
        let batches = batches(&op, &lists, (ROOM_BYTES / keys.page_bytes()).max(1));
        let most = batches.iter().map(|batch| batch.n_pages).max().unwrap_or(0);
        if most == 0 {
            return Ok(());
        }
        let mut room = self.buffer(most * keys.page_bytes(), Purpose::Activations)?;
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        for batch in &batches {
            self.entry_keys(&op, pages, batch, room.span_mut());
            let variant = AttendVariant { sinks: op.sinks, ..AttendVariant::default() };
            let (layout, pool, scale) = (&keys, room.span(), op.scale);
            let over = AttendPages { layout, pool, parts, n_head, scale, variant };
            self.attend_copied(&over, &batch.copied, op.q, op.out.again())?;
        }
        Ok(())
    }

    /// Brings the keys of a batch's rows to pages of their own.
    fn entry_keys(
        &self,
        op: &AttendEntries<'_, OnGpu>,
        pages: Span<'_>,
        batch: &Batch,
        room: SpanMut<'_>,
    ) {
        let layout = op.layout;
        let n_places = batch.copied.iter().map(|row| row.n_keys).max().unwrap_or(0);
        let push = Push {
            rows: self.upload(bytemuck::cast_slice(&batch.rows)).address(),
            pages: pages.address(),
            lists: op.chosen.map_or(0, |chosen| chosen.lists.address()),
            near: op.near.address(),
            from: op.pool.map_or(0, |pool| pool.address()),
            to: room.address(),
            from_bytes: count(layout.page_bytes()),
            to_bytes: count(layout.keys().page_bytes()),
            entry_bytes: count(layout.entry_bytes()),
            n_rows: count(batch.rows.len()),
            n_places: count(n_places),
            every: count(layout.every),
            per_row: count(op.chosen.map_or(0, |chosen| chosen.per_row)),
            width: count(layout.width),
        };
        let unit = if layout.ty == KvType::Q8_0 { 32 } else { 4 };
        let of_key = layout.width.next_multiple_of(LANES).div_ceil(unit);
        let n = count(batch.rows.len() * n_places * of_key);
        let groups = lines(n.div_ceil(64) as usize);
        // SAFETY: the kernel reads near keys and lists, of which there are as many as rows name (checked), and entries that their
        // rows see, in pages that their lists name (`page_lists`). It writes keys to the rows' own pages: each row has as many
        // as its keys take.
        unsafe { self.dispatch(Order::After, &COPY, &[code_of(layout.ty), 1], &push, groups) };
    }
}

/// The lists of the parts' pages; of no use where there are no entries.
fn page_lists(op: &AttendEntries<'_, OnGpu>, n_rows: usize) -> PageLists {
    const OP: &str = "attend_entries";
    let (address, len) = op.pool.map_or((0, 0), |pool| (pool.address(), pool.len()));
    let n_pages = check_entries(op.layout, OP, address, len);
    match op.pool {
        Some(_) => PageLists::of_pages(OP, n_pages, op.parts, n_rows),
        None => PageLists { pages: Vec::new(), starts: vec![0; op.parts.len()] },
    }
}

/// Cuts the rows into batches whose keys take about so many pages, at least those of one row.
fn batches(op: &AttendEntries<'_, OnGpu>, lists: &PageLists, pages_at_once: usize) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut near_of_part, mut n_lists) = (0, 0);
    for (part, pages) in op.parts.iter().zip(&lists.starts) {
        let n_before = n_before(part, op.window);
        for i in 0..part.n_rows {
            let pos = part.first_pos + i;
            let n_seen = op.pool.map_or(0, |_| op.layout.n_entries(pos + 1));
            let (list, n_entries) = match op.chosen.filter(|c| n_seen > c.per_row) {
                Some(chosen) => (n_lists, chosen.per_row),
                None => (NO_LIST, n_seen),
            };
            n_lists += u32::from(list != NO_LIST);
            let n_near = op.window.min(pos + 1);
            let near = near_of_part + n_before + i + 1 - n_near;
            let n_keys = n_entries + n_near;
            let n_pages = n_keys.div_ceil(KV_PAGE);
            let is_full = |batch: &Batch| batch.n_pages + n_pages > pages_at_once;
            if batches.last().is_none_or(is_full) {
                batches.push(Batch { rows: Vec::new(), copied: Vec::new(), n_pages: 0 });
            }
            let batch = batches.last_mut().expect("one was added");
            let (row, first_page) = (part.first_row + i, batch.n_pages);
            batch.copied.push(CopiedRow { row, first_page, n_keys });
            batch.rows.push(Row {
                pages: *pages,
                n_seen: count(n_seen),
                list,
                n_entries: count(n_entries),
                near: count(near),
                n_near: count(n_near),
                own_page: count(first_page),
            });
            batch.n_pages += n_pages;
        }
        near_of_part += n_before + part.n_rows;
    }
    batches
}
