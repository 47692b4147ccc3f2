//! Attention of rows to entries and to the positions right before them, side by side in one softmax.
//!
//! What a row attends to is copied to pages of its own, the entries in their order and then the positions in theirs, and
//! attended to as a sequence of its own. So the order of sums depends on the row's position alone.

use super::entries::key_of;
use std::ops::Range;

use super::entries::put_record;
use crate::compute::Compute;
use crate::tiles::attention::{Attend, AttendPart, AttendVariant};
use crate::tiles::kv::KvRow;
use crate::tiles::out_rows::Rows;
use brigade_ops::PageId;
use brigade_ops::Vector;
use brigade_shapes::EntryLayout;
use brigade_shapes::{KV_PAGE, KvLayout};

/// Pages of keys that are copied at once, at least those of one row.
const PAGES_AT_ONCE: usize = 256;

/// Bytes of a line of the cache: pages start on one.
const LINE: usize = 64;

/// Which entries a row attends to.
#[derive(Clone, Copy, Debug)]
pub enum Entries<'a> {
    /// The first so many of its sequence.
    First(usize),
    /// These, ascending.
    Chosen(&'a [u32]),
}

impl Entries<'_> {
    fn len(&self) -> usize {
        match self {
            Self::First(n) => *n,
            Self::Chosen(entries) => entries.len(),
        }
    }

    fn get(&self, at: usize) -> usize {
        match self {
            Self::First(_) => at,
            Self::Chosen(entries) => entries[at] as usize,
        }
    }
}

/// What one row attends to.
#[derive(Clone, Copy, Debug)]
pub struct EntryRow<'a> {
    /// Its sequence's pages.
    pub blocks: &'a [PageId],
    /// The entries.
    pub entries: Entries<'a>,
    /// Keys of the last positions that it sees, its own the last of them: `[n, width]`, at least one.
    pub near: &'a [f32],
}

/// One layer's attention over all rows of a ubatch.
#[derive(Clone, Copy, Debug)]
pub struct AttendEntries<'a> {
    /// Shape of the pages. Its type is that in which near keys are attended to as well.
    pub layout: &'a EntryLayout,
    /// The layer's pages of entries one after the other.
    pub pool: &'a [u8],
    /// The rows, in order.
    pub rows: &'a [EntryRow<'a>],
    /// Query heads; they share the keys, which are the values too.
    pub n_head: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// For each head a score without a value.
    pub sinks: Option<&'a Vector>,
}

impl AttendEntries<'_> {
    /// Pages of keys that row `row` takes.
    fn n_pages(&self, row: usize) -> usize {
        let EntryRow { entries, near, .. } = &self.rows[row];
        (entries.len() + near.len() / self.layout.width).div_ceil(KV_PAGE)
    }

    /// Rows whose keys are copied together, and their pages.
    fn batches(&self) -> Vec<(Range<usize>, usize)> {
        let mut batches: Vec<(Range<usize>, usize)> = Vec::new();
        for row in 0..self.rows.len() {
            let n = self.n_pages(row);
            match batches.last_mut() {
                Some((rows, pages)) if *pages + n <= PAGES_AT_ONCE => {
                    (rows.end, *pages) = (row + 1, *pages + n);
                }
                _ => batches.push((row..row + 1, n)),
            }
        }
        batches
    }

    /// Values of the room for copied keys that [`Compute::attend_entries`] needs.
    pub fn room_len(&self) -> usize {
        let pages = self.batches().iter().map(|(_, pages)| *pages).max().unwrap_or(0);
        (pages * self.layout.keys().page_bytes() + LINE).div_ceil(size_of::<f32>())
    }
}

impl Compute {
    /// Attention: `q` and `out` are `[n_rows, n_head * width]`. `room` has [`AttendEntries::room_len`] values; what is in it
    /// does not matter.
    ///
    /// # Panics
    /// If shapes disagree, the room is too small, or an entry lies outside its sequence's pages or the pool.
    pub fn attend_entries(
        &self,
        attend: &AttendEntries<'_>,
        room: &mut [f32],
        q: &[f32],
        out: &mut [f32],
    ) {
        let layout = attend.layout.keys();
        let page_bytes = layout.page_bytes();
        let room: &mut [u8] = bytemuck::cast_slice_mut(room);
        let start = room.as_ptr().align_offset(LINE);
        let variant = AttendVariant { sinks: attend.sinks, ..AttendVariant::default() };
        for (rows, pages) in attend.batches() {
            let pool = &mut room[start..][..pages * page_bytes];
            let blocks: Vec<PageId> = (0..pages as u32).map(PageId).collect();
            let mut parts = Vec::with_capacity(rows.len());
            let mut first_page = 0;
            for row in rows.clone() {
                let n_keys = attend.rows[row].n_keys(attend.layout.width);
                let blocks = &blocks[first_page..][..attend.n_pages(row)];
                parts.push(AttendPart {
                    pages: blocks,
                    first_pos: n_keys - 1,
                    n_rows: 1,
                    first_row: row,
                });
                first_page += blocks.len();
            }
            self.copy_row_keys(attend, &layout, &parts, pool);
            let (parts, n_head, scale) = (&parts[..], attend.n_head, attend.scale);
            self.attend(&Attend { layout: &layout, pool, parts, n_head, scale, variant }, q, out);
        }
    }

    /// Copies what each row attends to to pages of its own.
    fn copy_row_keys(
        &self,
        attend: &AttendEntries<'_>,
        layout: &KvLayout,
        parts: &[AttendPart<'_>],
        pool: &mut [u8],
    ) {
        let (write, page_bytes) = (self.kernels().kv_write, layout.page_bytes());
        let pages = Rows::new(pool, page_bytes);
        self.pool().run(parts.len(), &|i, _| {
            let AttendPart { pages: blocks, first_row, .. } = parts[i];
            let first = blocks[0].0 as usize;
            // SAFETY: each part has pages of its own, and the pool hands out each part once.
            let pages = unsafe { pages.rows(first..first + blocks.len()) };
            let EntryRow { blocks, entries, near } = attend.rows[first_row];
            for at in 0..entries.len() {
                let key = key_of(attend.layout, attend.pool, blocks, entries.get(at));
                put_record(layout, key, page_of(pages, page_bytes, at), at % KV_PAGE);
            }
            for (i, k) in near.chunks_exact(layout.head_dim_k).enumerate() {
                let at = entries.len() + i;
                let to = page_of(pages, page_bytes, at);
                write(&mut KvRow { layout, pos: at % KV_PAGE, k, v: &[], to });
            }
        });
    }
}

/// The page that place `at` of a row's keys is in.
fn page_of(pages: &mut [u8], page_bytes: usize, at: usize) -> &mut [u8] {
    &mut pages[at / KV_PAGE * page_bytes..][..page_bytes]
}

impl EntryRow<'_> {
    fn n_keys(&self, width: usize) -> usize {
        assert!(
            !self.near.is_empty() && self.near.len().is_multiple_of(width),
            "attend_entries: near keys of {width}"
        );
        self.entries.len() + self.near.len() / width
    }
}
