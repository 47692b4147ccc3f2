//! Writing entries: what is kept of every so many positions of a sequence ([`EntryLayout`]).

use std::ops::Range;

use crate::BlockId;
use crate::compute::Compute;
use crate::tiles::kv::KvRow;
use brigade_shapes::{EntryLayout, KV_PAGE, KvLayout};

/// Bytes of a scale of [`KvType::Q8_0`].
const SCALE: usize = size_of::<u16>();

/// Bytes of an entry in a pool of pages.
fn range(layout: &EntryLayout, blocks: &[BlockId], entry: usize) -> Range<usize> {
    let (page, Range { start, end }) = layout.place(entry);
    let base = blocks[page].0 as usize * layout.page_bytes();
    base + start..base + end
}

/// An entry's key.
pub(super) fn key_of<'a>(
    layout: &EntryLayout,
    pool: &'a [u8],
    blocks: &[BlockId],
    entry: usize,
) -> &'a [u8] {
    &pool[range(layout, blocks, entry)][..layout.key_bytes()]
}

/// An entry's key of the index.
pub(super) fn index_key_of<'a>(
    layout: &EntryLayout,
    pool: &'a [u8],
    blocks: &[BlockId],
    entry: usize,
) -> &'a [u8] {
    &pool[range(layout, blocks, entry)][layout.key_bytes()..]
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
            let entry = &mut pool[range(layout, blocks, first + i)];
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
