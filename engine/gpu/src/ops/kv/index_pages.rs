//! Keys of an index in pages, as its shaders see them.

use super::pages::{check_pool, code_of};
use crate::memory::span::Span;
use crate::ops::rowwise::elementwise::count;
use crate::ops::scan::LANES;
use brigade_ops::AttendPart;
use brigade_shapes::{KV_PAGE, KvLayout, KvType, ValuePlace};

/// The keys of an index in all pages of a pool.
#[derive(Clone, Copy)]
pub(crate) struct IndexKeys {
    /// Address of those in the first page.
    pub(crate) address: u64,
    /// From one page to the next.
    pub(crate) page_bytes: u32,
    /// Elements that a page has of a key.
    pub(crate) width: u32,
    /// From one entry of a page to the next, where keys are those of entries; else 0.
    pub(crate) entry_bytes: u32,
    /// Type of the elements, and whether keys are rows: the first constants of the shaders.
    pub(crate) constants: [u32; 2],
}

/// Lists of the pages of some parts.
pub(crate) struct PageLists {
    /// All lists, one behind the other.
    pub(crate) pages: Vec<u32>,
    /// For each part, the start of its list.
    pub(crate) starts: Vec<u32>,
}

impl IndexKeys {
    /// Index keys in a pool of so many bytes at `address`.
    ///
    /// # Panics
    /// If pages have no keys of an index, or the pool is no row of pages.
    pub(crate) fn new(op: &str, layout: &KvLayout, address: u64, len: usize) -> Self {
        check_pool(layout, op, address, len);
        assert!(layout.index_dim > 0, "{op}: pages without keys of an index");
        let heads = KvLayout { index_dim: 0, ..*layout }.page_bytes();
        let in_keys = layout.values == ValuePlace::InKeys;
        let dim = layout.index_dim;
        Self {
            address: address + heads as u64,
            page_bytes: count(layout.page_bytes()),
            width: count(if in_keys { dim.next_multiple_of(LANES) } else { dim }),
            entry_bytes: 0,
            constants: [code_of(layout.ty), u32::from(in_keys)],
        }
    }

    /// Rows of `width` f32 each, which lie as those of pages do: sixty-four are a page.
    pub(crate) fn of_rows(rows: Span<'_>, width: usize) -> Self {
        let page_bytes = count(4 * KV_PAGE * width);
        let constants = [code_of(KvType::F32), 1];
        Self { address: rows.address(), page_bytes, width: width as u32, entry_bytes: 0, constants }
    }
}

impl PageLists {
    /// The pages of `parts`, up to the last that each uses, of a pool of so many bytes.
    ///
    /// # Panics
    /// If rows are out of order, in two parts or beyond `n_rows`, or a part lies outside its pages or a page outside the
    /// pool.
    pub(crate) fn new(
        op: &str,
        layout: &KvLayout,
        pool_bytes: usize,
        parts: &[AttendPart<'_>],
        n_rows: usize,
    ) -> Self {
        Self::of_pages(op, pool_bytes / layout.page_bytes(), parts, n_rows)
    }

    /// As [`Self::new`], for a pool of so many pages.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub(crate) fn of_pages(
        op: &str,
        n_pages: usize,
        parts: &[AttendPart<'_>],
        n_rows: usize,
    ) -> Self {
        let (mut pages, mut starts, mut end) = (Vec::new(), Vec::new(), 0);
        for part in parts {
            let used = part.used(op, 0, n_pages);
            assert!(part.first_row >= end, "{op}: rows out of order");
            end = part.first_row + part.n_rows;
            assert!(end <= n_rows, "{op}: rows up to {end} of {n_rows}");
            starts.push(count(pages.len()));
            pages.extend(used.iter().map(|page| page.0));
        }
        Self { pages, starts }
    }
}
