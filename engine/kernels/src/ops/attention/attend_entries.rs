//! Attention of rows to entries and to the positions right before them, side by side in one softmax.
//!
//! The keys that a row attends to are copied to pages of its own: the entries in their order, then the positions in
//! theirs. The row attends to these pages as to a sequence of its own. So the order of sums depends on the row's
//! position alone.

use std::ops::Range;

use super::copied_keys::with_room;
use crate::compute::Compute;
use crate::ops::kv::entries::{key_of, put_record};
use crate::tiles::attention::kv_pages::KvRow;
use crate::tiles::attention::paged::{Attend, AttendPart, AttendVariant};
use crate::tiles::out_rows::Rows;
use brigade_ops::{AttendEntries, Host, PageId, n_before};
use brigade_shapes::{EntryLayout, KV_PAGE};

/// Pages of keys that are copied at once, at least those of one row.
const PAGES_AT_ONCE: usize = 256;

/// Bytes of a line of the cache: pages start on one.
const LINE: usize = 64;

/// Entries that a row attends to.
#[derive(Clone, Copy)]
enum Entries<'a> {
    /// The first so many of its sequence.
    First(usize),
    /// The chosen entries, ascending.
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

/// Entries and keys that one row attends to.
struct EntryRow<'a> {
    row: usize,
    /// Pages of the row's sequence.
    pages: &'a [PageId],
    entries: Entries<'a>,
    /// Keys of the last positions that it sees, its own the last of them: `[n, width]`, at least one.
    near: &'a [f32],
    /// Number of entries and keys together.
    n_keys: usize,
}

impl EntryRow<'_> {
    /// Pages that its keys take.
    fn n_pages(&self) -> usize {
        self.n_keys.div_ceil(KV_PAGE)
    }
}

/// Rows whose keys are copied together, and the pages that these take.
type Batch = (Range<usize>, usize);

impl Compute {
    /// Runs the op [`AttendEntries`].
    ///
    /// # Panics
    /// If shapes disagree, parts have a row in common or are out of order, or an entry lies outside its sequence's pages or the pool.
    pub fn attend_entries(&self, op: AttendEntries<'_, Host>) {
        op.check();
        let rows = rows(&op);
        let batches = batches(&rows);
        let (layout, pool) = (op.layout.keys(), op.pool.unwrap_or_default());
        let most = batches.iter().map(|(_, pages)| *pages).max().unwrap_or(0);
        let variant = AttendVariant { sinks: op.sinks, ..AttendVariant::default() };
        let len = (most * layout.page_bytes() + LINE).div_ceil(size_of::<f32>());
        with_room(len, |room| {
            let room: &mut [u8] = bytemuck::cast_slice_mut(room);
            let start = room.as_ptr().align_offset(LINE);
            for (batch, pages) in batches {
                let room = &mut room[start..][..pages * layout.page_bytes()];
                let rows = &rows[batch];
                let pages: Vec<PageId> = (0..pages as u32).map(PageId).collect();
                let parts = &own_parts(rows, &pages)[..];
                self.copy_row_keys(op.layout, pool, rows, parts, room);
                let (pool, n_head, scale) = (&*room, op.n_head, op.scale);
                let over = Attend { layout: &layout, pool, parts, n_head, scale, variant };
                self.attend(&over, op.q, op.out);
            }
        });
    }

    /// Copies what each row attends to to pages of its own: `parts` are the rows'.
    fn copy_row_keys(
        &self,
        entries: &EntryLayout,
        from: &[u8],
        rows: &[EntryRow<'_>],
        parts: &[AttendPart<'_>],
        to: &mut [u8],
    ) {
        let layout = &entries.keys();
        let (write, page_bytes) = (self.kernels().kv_write, layout.page_bytes());
        let to = Rows::new(to, page_bytes);
        self.pool().run(parts.len(), &|i, _| {
            let (row, own) = (&rows[i], parts[i].pages);
            let first = own[0].0 as usize;
            // SAFETY: each part has pages of its own, and the pool hands out each part once.
            let own = unsafe { to.rows(first..first + own.len()) };
            let n_entries = row.entries.len();
            for at in 0..n_entries {
                let key = key_of(entries, from, row.pages, row.entries.get(at));
                put_record(layout, key, page_of(own, page_bytes, at), at % KV_PAGE);
            }
            for (i, k) in row.near.chunks_exact(layout.head_dim_k).enumerate() {
                let at = n_entries + i;
                let to = page_of(own, page_bytes, at);
                write(&mut KvRow { layout, pos: at % KV_PAGE, k, v: &[], to });
            }
        });
    }
}

/// For each row, the entries and keys that it attends to.
fn rows<'a>(op: &AttendEntries<'a, Host>) -> Vec<EntryRow<'a>> {
    let (width, window) = (op.layout.width, op.window);
    let (per_row, lists) = op.chosen.map_or((usize::MAX, &[][..]), |c| (c.per_row, c.lists));
    let mut lists = lists.chunks_exact(per_row.max(1));
    let mut rows = Vec::with_capacity(op.parts.iter().map(|part| part.n_rows).sum());
    let mut start = 0;
    for part in op.parts {
        let n_before = n_before(part, window);
        for i in 0..part.n_rows {
            let pos = part.first_pos + i;
            let n_seen = op.pool.map_or(0, |_| op.layout.n_entries(pos + 1));
            let entries = if n_seen > per_row {
                Entries::Chosen(lists.next().expect("a list for each such row"))
            } else {
                Entries::First(n_seen)
            };
            let (end, n_near) = (start + n_before + i + 1, window.min(pos + 1));
            let near = &op.near[(end - n_near) * width..end * width];
            let (row, n_keys) = (part.first_row + i, entries.len() + n_near);
            rows.push(EntryRow { row, pages: part.pages, entries, near, n_keys });
        }
        start += n_before + part.n_rows;
    }
    rows
}

/// Cuts the rows into batches.
fn batches(rows: &[EntryRow<'_>]) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let n = row.n_pages();
        match batches.last_mut() {
            Some((rows, pages)) if *pages + n <= PAGES_AT_ONCE => {
                (rows.end, *pages) = (i + 1, *pages + n);
            }
            _ => batches.push((i..i + 1, n)),
        }
    }
    batches
}

/// Each row as a sequence of its own, whose pages are the next of `pages`.
fn own_parts<'a>(rows: &[EntryRow<'_>], mut pages: &'a [PageId]) -> Vec<AttendPart<'a>> {
    let part = |row: &EntryRow<'_>| {
        let (own, others) = pages.split_at(row.n_pages());
        pages = others;
        AttendPart { pages: own, first_pos: row.n_keys - 1, n_rows: 1, first_row: row.row }
    };
    rows.iter().map(part).collect()
}

/// The page that place `at` of a row's keys is in.
fn page_of(pages: &mut [u8], page_bytes: usize, at: usize) -> &mut [u8] {
    &mut pages[at / KV_PAGE * page_bytes..][..page_bytes]
}
