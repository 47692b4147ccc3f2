//! Entries: what is kept of every so many positions of a sequence, a key that is its value too, and a key of an index. Writing
//! them, choosing among them, and attention to them.
//!
//! An entry is complete with the last of its positions, and lies in the page that this one is in. A page here is byte for
//! byte a page of the engine's CPU kernels. An entry's elements lie side by side, filled up to whole vectors, and behind
//! them the scales where there are any; then its key of the index in the same way.

use bytemuck::{Pod, Zeroable};

use super::best::Best;
use super::elementwise::count;
use super::index::{FarRow, Scorer};
use super::index_pages::{IndexKeys, PageLists};
use super::pages::{KV_PAGE, KvType, LANES, PageLayout, PagePart, ValuePlace};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static WRITE: Shader = shader!("write_entries");

/// Bytes of a page are a multiple of this.
const PAGE_UNIT: usize = KV_PAGE;

/// The shape of a layer's pages of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryPages {
    /// Positions of an entry: a divisor or a multiple of [`KV_PAGE`].
    pub every: usize,
    /// Elements of its key.
    pub width: usize,
    /// Elements of its key of an index; 0: there is none.
    pub index_dim: usize,
    /// Element type.
    pub ty: KvType,
}

/// Entries of a sequence that became complete.
#[derive(Clone, Copy, Debug)]
pub struct NewEntries<'a> {
    /// The sequence's pages.
    pub pages: &'a [u32],
    /// The first of them.
    pub first: usize,
    /// How many there are.
    pub n: usize,
}

/// The rows of a ubatch that an index of entries is asked for.
#[derive(Clone, Copy, Debug)]
pub struct EntryIndexSpans<'a> {
    /// Shape of the pages, whose entries have keys of an index.
    pub layout: &'a EntryPages,
    /// The layer's pages of entries one after the other, starting on a multiple of 64 bytes.
    pub pool: Span<'a>,
    /// The rows.
    pub parts: &'a [PagePart<'a>],
    /// Heads of the index, at most 128; they share its keys.
    pub n_head: usize,
    /// Entries that a row attends to at most.
    pub per_row: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    pool: u64,
    places: u64,
    keys: u64,
    index: u64,
    page_bytes: u32,
    n_entries: u32,
    width: u32,
    index_dim: u32,
    key_bytes: u32,
    pad: u32,
}

impl EntryPages {
    /// Bytes of a page; a multiple of [`KV_PAGE`].
    pub fn page_bytes(&self) -> usize {
        let per_page = (KV_PAGE / self.every).max(1);
        (per_page * self.entry_bytes()).next_multiple_of(PAGE_UNIT)
    }

    /// Entries of a sequence's first `len` positions.
    pub(super) fn n_entries(&self, len: usize) -> usize {
        len / self.every
    }

    /// From one entry of a page to the next.
    pub(super) fn entry_bytes(&self) -> usize {
        self.key_bytes() + self.ty.bytes_of(self.index_dim.next_multiple_of(LANES))
    }

    /// Bytes of an entry's key.
    fn key_bytes(&self) -> usize {
        self.ty.bytes_of(self.width.next_multiple_of(LANES))
    }

    /// The keys, as pages of keys have them.
    pub(super) fn keys(&self) -> PageLayout {
        PageLayout {
            n_kv_head: 1,
            head_dim_k: self.width,
            head_dim_v: self.width,
            values: ValuePlace::InKeys,
            index_dim: 0,
            ty: self.ty,
        }
    }

    /// The keys of the index in a pool at an address.
    fn index_keys(&self, pool: u64) -> IndexKeys {
        IndexKeys {
            address: pool + self.key_bytes() as u64,
            page_bytes: count(self.page_bytes()),
            width: count(self.index_dim.next_multiple_of(LANES)),
            entry_bytes: count(self.entry_bytes()),
            constants: [self.ty.code(), 1],
        }
    }

    /// Panics where positions are no such, or a pool of `len` bytes at `address` is no row of pages. Returns how many pages it
    /// has.
    pub(super) fn check_pool(&self, op: &str, (address, len): (u64, usize)) -> usize {
        let every = self.every;
        let fits = every > 0 && (every.is_multiple_of(KV_PAGE) || KV_PAGE.is_multiple_of(every));
        assert!(fits && self.width > 0, "{op}: entries of {every} positions, {} wide", self.width);
        assert!(address.is_multiple_of(64), "{op}: the pool starts on no multiple of 64 bytes");
        let bytes = self.page_bytes();
        assert!(len.is_multiple_of(bytes), "{op}: {len} bytes in pages of {bytes}");
        len / bytes
    }
}

impl Gpu {
    /// Writes entries to their pages, rounded to the type of `layout`: of the sequences of `new` one after the other. `keys`
    /// is `[n, width]`, `index` is `[n, index_dim]`, none without an index.
    ///
    /// # Panics
    /// If shapes disagree, or an entry lies outside its sequence's pages or the pool.
    pub fn write_entries(
        &self,
        layout: &EntryPages,
        pool: SpanMut<'_>,
        new: &[NewEntries<'_>],
        (keys, index): (Span<'_>, Option<Span<'_>>),
    ) {
        let n_pages = layout.check_pool("write_entries", (pool.address(), pool.len()));
        let (every, width, index_dim) = (layout.every, layout.width, layout.index_dim);
        let place = |pages: &[u32], entry: usize| {
            let last = entry * every + every - 1;
            let page = pages[last / KV_PAGE];
            assert!((page as usize) < n_pages, "write_entries: a page outside the pool");
            [page, count(last % KV_PAGE / every * layout.entry_bytes())]
        };
        let mut places = Vec::new();
        for NewEntries { pages, first, n } in new {
            places.extend((*first..first + n).map(|entry| place(pages, entry)));
        }
        let n = places.len();
        let of_index = index.map_or(0, |index| index.values());
        assert_eq!(keys.values(), n * width, "write_entries: keys");
        assert_eq!(of_index, n * index_dim, "write_entries: keys of an index");
        let push = Push {
            pool: pool.address(),
            places: self.upload(bytemuck::cast_slice(&places)).address(),
            keys: keys.address(),
            index: index.map_or(0, |index| index.address()),
            page_bytes: count(layout.page_bytes()),
            n_entries: count(n),
            width: count(width),
            index_dim: count(index_dim),
            key_bytes: count(layout.key_bytes()),
            pad: 0,
        };
        let unit = if layout.ty == KvType::Q8_0 { 32 } else { 4 };
        let units = |n: usize| n.next_multiple_of(LANES).div_ceil(unit);
        let groups = lines(count(n * (units(width) + units(index_dim))).div_ceil(64) as usize);
        // SAFETY: the kernel reads the `n` rows of both keys, and writes entries to their places, which are in pages of the
        // pool (checked).
        unsafe { self.dispatch(Order::After, &WRITE, &[layout.ty.code(), 1], &push, groups) };
    }

    /// Writes the entries that each row attends to which sees more than `per_row`, ascending, as u32 to `out` `[n_far,
    /// per_row]`, rows in their order: those with the greatest `Σ_h weights[h] * max(q[h] · key, 0)`, of equal ones the
    /// earlier.
    ///
    /// `q` is `[n_rows, n_head * index_dim]`, `weights` is `[n_rows, n_head]`, rows as the parts number them. Entries that the
    /// rows complete must be in their pages.
    ///
    /// # Errors
    /// Where there is no room for the scores.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its pages or
    /// the pool.
    pub fn choose_entries(
        &self,
        index: &EntryIndexSpans<'_>,
        q: Span<'_>,
        weights: Span<'_>,
        out: SpanMut<'_>,
    ) -> Result<(), GpuError> {
        let EntryIndexSpans { layout, pool, parts, n_head, per_row } = *index;
        let dim = layout.index_dim;
        assert!(n_head > 0 && dim > 0 && per_row > 0, "choose_entries: an index without sizes");
        let n_rows = weights.values() / n_head;
        assert_eq!(weights.values(), n_rows * n_head, "choose_entries: weights");
        assert_eq!(q.values(), n_rows * n_head * dim, "choose_entries: length of q");
        let n_pages = layout.check_pool("choose_entries", (pool.address(), pool.len()));
        let lists = PageLists::of_pages("choose_entries", n_pages, parts, n_rows);
        let far = far_rows(layout, parts, &lists, per_row);
        assert_eq!(out.values(), far.len() * per_row, "choose_entries: length of out");
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        let keys = layout.index_keys(pool.address());
        let scorer = Scorer { keys, pages, q, weights, n_head, dim, positions: layout.every };
        let best = Best {
            wanted: per_row,
            n_behind: 0,
            copies: 1,
            of_floats: true,
            as_floats: false,
            with_scores: false,
        };
        // Lists lie in the order of their rows, which ascend.
        let rows: Vec<u32> = far.iter().map(|far| far.row).collect();
        let place = |far: &FarRow| {
            let list = rows.binary_search(&far.row).expect("a row of the list");
            (list as u32, 0)
        };
        self.choose_scored(&scorer, &far, best, place, out)
    }
}

/// The rows that see more than `per_row` entries; `lists` are those of the parts' pages.
fn far_rows(
    layout: &EntryPages,
    parts: &[PagePart<'_>],
    lists: &PageLists,
    per_row: usize,
) -> Vec<FarRow> {
    let mut far = Vec::new();
    for (part, pages) in parts.iter().zip(&lists.starts) {
        let n_seen = (0..part.n_rows).map(|i| layout.n_entries(part.first_pos + i + 1));
        let seen = n_seen.enumerate().filter(|(_, n_seen)| *n_seen > per_row);
        far.extend(seen.map(|(i, n_seen)| FarRow {
            row: count(part.first_row + i),
            n_seen: count(n_seen),
            pages: *pages,
        }));
    }
    far
}
