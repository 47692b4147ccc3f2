//! Entries: what is kept of every so many positions of a sequence, a key that is its value too, and a key of an index.
//!
//! An entry is complete with the last of its positions, and lies in the page that this one is in. Beside that, pages are as
//! those of [`KvLayout`](super::KvLayout): they hold no pointers and no positions, so that a byte copy of a page is a copy of
//! its content. An entry's elements lie side by side, and behind them in `Q8_0` its scales. Nothing computes on entries
//! where they lie: they are copied to pages of keys first, some at a time.

use std::ops::Range;

use crate::BlockId;
use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::kv::{KV_PAGE, KvLayout, KvRow, KvType, ValuePlace};

/// Bytes of a page are a multiple of this, so that they can be said of each position.
const PAGE_UNIT: usize = KV_PAGE;

/// Bytes of a scale of [`KvType::Q8_0`].
const SCALE: usize = size_of::<u16>();

/// The shape of a layer's pages of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryLayout {
    /// Positions of an entry: a divisor or a multiple of [`KV_PAGE`].
    pub every: usize,
    /// Elements of its key.
    pub width: usize,
    /// Elements of its key of an index; 0: there is none.
    pub index_dim: usize,
    /// Element type.
    pub ty: KvType,
}

impl EntryLayout {
    /// Bytes of a page; a multiple of [`KV_PAGE`].
    pub fn page_bytes(&self) -> usize {
        (self.per_page() * self.entry_bytes()).next_multiple_of(PAGE_UNIT)
    }

    /// Entries that a page has room for.
    fn per_page(&self) -> usize {
        (KV_PAGE / self.every).max(1)
    }

    /// Entries of a sequence's first `len` positions.
    pub fn n_entries(&self, len: usize) -> usize {
        len / self.every
    }

    /// The keys, as pages of keys have them.
    pub(super) fn keys(&self) -> KvLayout {
        KvLayout {
            n_kv_head: 1,
            head_dim_k: self.width,
            head_dim_v: self.width,
            values: ValuePlace::InKeys,
            index_dim: 0,
            ty: self.ty,
        }
    }

    /// Pages that have nothing but the keys of the index.
    pub(super) fn index_keys(&self) -> KvLayout {
        let none = KvLayout { n_kv_head: 0, head_dim_k: 0, head_dim_v: 0, ..self.keys() };
        KvLayout { index_dim: self.index_dim, ..none }
    }

    /// Bytes of an entry's key.
    fn key_bytes(&self) -> usize {
        record_bytes(self.ty, self.width)
    }

    fn entry_bytes(&self) -> usize {
        self.key_bytes() + record_bytes(self.ty, self.index_dim)
    }

    /// Which of a sequence's pages entry `entry` lies in, and where in it.
    fn place(&self, entry: usize) -> (usize, Range<usize>) {
        let last = entry * self.every + self.every - 1;
        let start = last % KV_PAGE / self.every * self.entry_bytes();
        (last / KV_PAGE, start..start + self.entry_bytes())
    }

    /// Bytes of an entry in a pool of pages.
    fn range(&self, blocks: &[BlockId], entry: usize) -> Range<usize> {
        let (page, Range { start, end }) = self.place(entry);
        let base = blocks[page].0 as usize * self.page_bytes();
        base + start..base + end
    }

    /// An entry's key.
    pub(super) fn key<'a>(&self, pool: &'a [u8], blocks: &[BlockId], entry: usize) -> &'a [u8] {
        &pool[self.range(blocks, entry)][..self.key_bytes()]
    }

    /// An entry's key of the index.
    pub(super) fn index<'a>(&self, pool: &'a [u8], blocks: &[BlockId], entry: usize) -> &'a [u8] {
        &pool[self.range(blocks, entry)][self.key_bytes()..]
    }

    /// Makes all of page `page` of a sequence zero but the entries of its first `len` positions: what is there is nobody's,
    /// or an earlier sequence's.
    pub fn clear_unwritten(&self, bytes: &mut [u8], page: usize, len: usize) {
        let first = page * KV_PAGE / self.every;
        let mut end = 0;
        for entry in first..self.n_entries(len) {
            let (of, range) = self.place(entry);
            match of.cmp(&page) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => end = range.end,
                std::cmp::Ordering::Greater => break,
            }
        }
        bytes[end..].fill(0);
    }
}

/// Entries of a sequence that became complete.
#[derive(Clone, Copy, Debug)]
pub struct NewEntries<'a> {
    /// The sequence's pages.
    pub blocks: &'a [BlockId],
    /// The first of them; the others follow.
    pub first: usize,
    /// Keys, `[n, width]`.
    pub keys: &'a [f32],
    /// Keys of the index, `[n, index_dim]`.
    pub index: &'a [f32],
}

impl Compute {
    /// Writes entries to their pages, rounded to the type of `layout`.
    ///
    /// # Panics
    /// If shapes disagree, or an entry lies outside its sequence's pages or the pool.
    pub fn write_entries(&self, layout: &EntryLayout, pool: &mut [u8], new: &NewEntries<'_>) {
        let NewEntries { blocks, first, keys, index } = *new;
        let (width, index_dim) = (layout.width, layout.index_dim);
        assert_eq!(keys.len() * index_dim, index.len() * width, "write_entries: rows of both keys");
        let (of_keys, of_index) = (layout.keys(), layout.index_keys().of_index());
        let mut page =
            vec![0.0f32; of_keys.page_bytes().max(of_index.page_bytes()) / size_of::<f32>()];
        let page: &mut [u8] = bytemuck::cast_slice_mut(&mut page);
        for (i, key) in keys.chunks_exact(width).enumerate() {
            let entry = &mut pool[layout.range(blocks, first + i)];
            let (of_key, of_index_key) = entry.split_at_mut(layout.key_bytes());
            self.write_record(&of_keys, key, page, of_key);
            if index_dim > 0 {
                let key = &index[i * index_dim..][..index_dim];
                self.write_record(&of_index, key, page, of_index_key);
            }
        }
    }

    /// Rounds a key to a record; `page` is room for a page.
    fn write_record(&self, layout: &KvLayout, key: &[f32], page: &mut [u8], record: &mut [u8]) {
        let page = &mut page[..layout.page_bytes()];
        (self.kernels().kv_write)(&mut KvRow { layout, pos: 0, k: key, v: &[], to: page });
        let [codes, _, scales, _] = layout.planes();
        let (to_codes, to_scales) = record.split_at_mut(codes.len() / KV_PAGE);
        to_codes.copy_from_slice(&page[codes][..to_codes.len()]);
        let blocks = page[scales].chunks_exact(KV_PAGE * SCALE);
        for (block, scale) in blocks.zip(to_scales.chunks_exact_mut(SCALE)) {
            scale.copy_from_slice(&block[..SCALE]);
        }
    }
}

/// Bytes of a key of `n` elements, which is filled up to whole lanes.
fn record_bytes(ty: KvType, n: usize) -> usize {
    ty.bytes_of(n.next_multiple_of(LANES))
}

/// Copies a record to place `at` of a page of keys.
pub(super) fn put_record(layout: &KvLayout, record: &[u8], page: &mut [u8], at: usize) {
    let [codes, _, scales, _] = layout.planes();
    let row = codes.len() / KV_PAGE;
    let (from_codes, from_scales) = record.split_at(row);
    page[codes][at * row..][..row].copy_from_slice(from_codes);
    let blocks = page[scales].chunks_exact_mut(KV_PAGE * SCALE);
    for (block, scale) in blocks.zip(from_scales.chunks_exact(SCALE)) {
        block[at * SCALE..][..SCALE].copy_from_slice(scale);
    }
}
