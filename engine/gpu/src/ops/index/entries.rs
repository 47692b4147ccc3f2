//! Entries: what is kept of every so many positions of a sequence, a key that is its value too, and a key of an index. Writing
//! them, choosing among them, and attention to them.
//!
//! An entry is complete with the last of its positions, and lies in the page that this one is in. A page here is byte for
//! byte a page of the engine's CPU kernels. An entry's elements lie side by side, filled up to whole vectors, and behind
//! them the scales where there are any; then its key of the index in the same way.

use brigade_ops::{AttendPart, ChooseEntries, NewEntries, PageId, WriteEntries};
use brigade_shapes::{EntryLayout, KV_PAGE, KvType};
use bytemuck::{Pod, Zeroable};

use super::positions::{FarRow, Scorer};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::operands::OnGpu;
use crate::ops::kv::index_pages::{IndexKeys, PageLists};
use crate::ops::kv::pages::{LANES, code_of};
use crate::ops::rowwise::best_scores::Best;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static WRITE: Shader = shader!("write_entries");

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

/// The keys of the index in a pool at an address.
fn index_keys(layout: &EntryLayout, pool: u64) -> IndexKeys {
    IndexKeys {
        address: pool + layout.key_bytes() as u64,
        page_bytes: count(layout.page_bytes()),
        width: count(layout.index_dim.next_multiple_of(LANES)),
        entry_bytes: count(layout.entry_bytes()),
        constants: [code_of(layout.ty), 1],
    }
}

/// Number of pages in a pool of `len` bytes at `address`.
///
/// # Panics
/// If positions of entries are no such, or it is no row of pages.
pub(crate) fn check_entries(layout: &EntryLayout, op: &str, address: u64, len: usize) -> usize {
    let EntryLayout { every, width, .. } = *layout;
    let fits = every > 0 && (every.is_multiple_of(KV_PAGE) || KV_PAGE.is_multiple_of(every));
    assert!(fits && width > 0, "{op}: entries of {every} positions, {width} wide");
    assert!(address.is_multiple_of(64), "{op}: the pool starts on no multiple of 64 bytes");
    let bytes = layout.page_bytes();
    assert!(len.is_multiple_of(bytes), "{op}: {len} bytes in pages of {bytes}");
    len / bytes
}

impl Gpu {
    /// Records the op [`WriteEntries`].
    ///
    /// # Panics
    /// If shapes disagree, or an entry lies outside its sequence's pages or the pool.
    pub fn write_entries(&self, op: WriteEntries<'_, OnGpu>) {
        op.check();
        let WriteEntries { layout, pool, new, keys, index } = op;
        let EntryLayout { every, width, index_dim, .. } = *layout;
        let n_pages = check_entries(layout, "write_entries", pool.address(), pool.len());
        let place = |pages: &[PageId], entry: usize| {
            let last = entry * every + every - 1;
            let page = pages[last / KV_PAGE].0;
            assert!((page as usize) < n_pages, "write_entries: a page outside the pool");
            [page, count(last % KV_PAGE / every * layout.entry_bytes())]
        };
        let mut places = Vec::new();
        for NewEntries { pages, first, n } in new {
            places.extend((*first..first + n).map(|entry| place(pages, entry)));
        }
        let n = places.len();
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
        unsafe { self.dispatch(Order::After, &WRITE, &[code_of(layout.ty), 1], &push, groups) };
    }

    /// Records the op [`ChooseEntries`]. There are at most [`MAX_INDEX_HEADS`](crate::ops::MAX_INDEX_HEADS).
    ///
    /// # Errors
    /// Where there is no room for the scores.
    ///
    /// # Panics
    /// If shapes disagree, two parts have a row in common or are out of order, or a part's positions lie outside its pages or
    /// the pool.
    pub fn choose_entries(&self, op: ChooseEntries<'_, OnGpu>) -> Result<(), GpuError> {
        let n_rows = op.check();
        let ChooseEntries { layout, pool, parts, n_head, per_row, q, weights, out } = op;
        let dim = layout.index_dim;
        let n_pages = check_entries(layout, "choose_entries", pool.address(), pool.len());
        let lists = PageLists::of_pages("choose_entries", n_pages, parts, n_rows);
        let far = far_rows(layout, parts, &lists, per_row);
        let pages = self.upload(bytemuck::cast_slice(&lists.pages));
        let keys = index_keys(layout, pool.address());
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
    layout: &EntryLayout,
    parts: &[AttendPart<'_>],
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
