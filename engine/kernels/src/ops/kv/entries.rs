//! Writing entries: what is kept of every so many positions of a sequence ([`EntryLayout`]).

use std::ops::Range;

use crate::compute::Compute;
use crate::tiles::attention::kv_pages::KvRow;
use brigade_ops::{Host, PageId, WriteEntries};
use brigade_shapes::{EntryLayout, KV_PAGE, KvLayout};

/// Bytes of a scale of [`KvType::Q8_0`].
const SCALE: usize = size_of::<u16>();

/// Bytes of an entry in a pool of pages.
fn range(layout: &EntryLayout, blocks: &[PageId], entry: usize) -> Range<usize> {
    let (page, Range { start, end }) = layout.place(entry);
    let base = blocks[page].0 as usize * layout.page_bytes();
    base + start..base + end
}

/// Bytes of an entry's key.
pub(crate) fn key_of<'a>(
    layout: &EntryLayout,
    pool: &'a [u8],
    blocks: &[PageId],
    entry: usize,
) -> &'a [u8] {
    &pool[range(layout, blocks, entry)][..layout.key_bytes()]
}

/// An entry's key of the index.
pub(crate) fn index_key_of<'a>(
    layout: &EntryLayout,
    pool: &'a [u8],
    blocks: &[PageId],
    entry: usize,
) -> &'a [u8] {
    &pool[range(layout, blocks, entry)][layout.key_bytes()..]
}

impl Compute {
    /// Runs the op [`WriteEntries`].
    ///
    /// # Panics
    /// If shapes disagree, or an entry lies outside its sequence's pages or the pool.
    pub fn write_entries(&self, op: WriteEntries<'_, Host>) {
        op.check();
        let WriteEntries { layout, pool, new, keys, index } = op;
        let (of_keys, of_index) = (layout.keys(), layout.index_keys().of_index());
        let mut page =
            vec![0.0f32; of_keys.page_bytes().max(of_index.page_bytes()) / size_of::<f32>()];
        let page: &mut [u8] = bytemuck::cast_slice_mut(&mut page);
        let entries =
            new.iter().flat_map(|new| (new.first..new.first + new.n).map(move |i| (new, i)));
        for (at, (new, entry)) in entries.enumerate() {
            let entry = &mut pool[range(layout, new.pages, entry)];
            let (of_key, of_index_key) = entry.split_at_mut(layout.key_bytes());
            let key = &keys[at * layout.width..][..layout.width];
            self.write_record(&of_keys, key, page, of_key);
            if let Some(index) = index {
                let key = &index[at * layout.index_dim..][..layout.index_dim];
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
pub(crate) fn put_record(layout: &KvLayout, record: &[u8], page: &mut [u8], at: usize) {
    let [codes, _, scales, _] = layout.planes();
    let row = codes.len() / KV_PAGE;
    let (from_codes, from_scales) = record.split_at(row);
    page[codes][at * row..][..row].copy_from_slice(from_codes);
    let blocks = page[scales].chunks_exact_mut(KV_PAGE * SCALE);
    for (block, scale) in blocks.zip(from_scales.chunks_exact(SCALE)) {
        block[at * SCALE..][..SCALE].copy_from_slice(scale);
    }
}
