//! The entries that a block keeps of every so many positions: a pool of pages that all sequences share, under the ids of the
//! pages of keys and values.

use super::Sequence;
use crate::batch::PageId;
use crate::device::{Device, Memory, Rows};
use crate::kernels::{EntryLayout, KV_PAGE};
use crate::ops::{NewEntries, WriteEntries};
use crate::spec::{ModelError, StateRoom};

/// Pages of entries of all sequences.
pub struct EntryPages {
    layout: EntryLayout,
    pool: Memory<u8>,
}

impl EntryPages {
    /// Zeroed pages; the system hands out memory as they are first written.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(device: &Device, layout: EntryLayout, room: &StateRoom) -> Result<Self, ModelError> {
        let bytes = layout.page_bytes() as u64 * u64::from(room.n_blocks);
        let pool = usize::try_from(bytes).ok().and_then(|bytes| device.memory(bytes));
        let pool = pool.ok_or(ModelError::OutOfMemory { bytes, what: "pages of entries" })?;
        Ok(Self { layout, pool })
    }

    /// Shape of a page.
    pub fn layout(&self) -> &EntryLayout {
        &self.layout
    }

    /// All pages, one after the other.
    pub fn pool(&self) -> &Memory<u8> {
        &self.pool
    }

    /// Bytes that are reserved.
    pub fn nbytes(&self) -> usize {
        self.pool.len()
    }

    /// Pages of a sequence's first `len` positions.
    pub fn n_kept(&self, len: u32) -> usize {
        (len as usize).div_ceil(KV_PAGE)
    }

    /// Copies one page to another.
    pub fn copy_page(&mut self, src: PageId, dst: PageId) {
        self.pool.copy_part(self.layout.page_bytes(), src.0 as usize, dst.0 as usize);
    }

    /// Writes the bytes of a page.
    pub fn write_page(&mut self, block: PageId, bytes: &[u8]) {
        self.pool.write(block.0 as usize * self.layout.page_bytes(), bytes);
    }

    /// Appends the bytes of pages `first..first + n` of a sequence of `len` positions. All their other bytes are zeros.
    pub fn read_into(
        &self,
        sequence: &Sequence,
        first: usize,
        n: usize,
        len: u32,
        bytes: &mut Vec<u8>,
    ) {
        let nbytes = self.layout.page_bytes();
        for page in first..first + n {
            let start = bytes.len();
            let block = sequence.blocks[page].0 as usize;
            bytes.extend_from_slice(&self.pool.read(block * nbytes..(block + 1) * nbytes));
            self.layout.clear_unwritten(&mut bytes[start..], page, len as usize);
        }
    }

    /// Writes entries that became complete: their keys and those of an index, of all sequences one after the other.
    pub fn write(
        &mut self,
        device: &Device,
        new: &[NewEntries<'_>],
        keys: &Rows,
        index: Option<&Rows>,
    ) {
        device.run(WriteEntries {
            layout: &self.layout,
            pool: self.pool.view_mut(),
            new,
            keys: keys.view(),
            index: index.map(Rows::view),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{KvType, select};

    const ROOM: StateRoom =
        StateRoom { kv_type: KvType::F32, n_slots: 2, n_blocks: 8, max_rows: 64, windows: false };

    fn sequence(len: u32, blocks: &[u32]) -> Sequence {
        let blocks = blocks.iter().map(|&b| PageId(b)).collect();
        let plane = crate::batch::SlotId(0);
        Sequence { len, sure: len, plane, blocks, sampler: None, adapters: [].into() }
    }

    /// A sequence's bytes do not depend on the sequences that had its pages before.
    #[test]
    fn bytes_hold_complete_entries_and_nothing_else() {
        let device = Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap();
        for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
            for (every, n_entries) in [(4, 25), (128, 2)] {
                let layout = EntryLayout { every, width: 20, index_dim: 12, ty };
                let len = (n_entries * every + every / 2) as u32;
                let read = |stale: bool| {
                    let mut pages = EntryPages::new(&device, layout, &ROOM).unwrap();
                    let of = sequence(len, &[5, 2, 7, 0, 3]);
                    if stale {
                        pages.pool.fill(0xa5);
                    }
                    let keys: Vec<f32> = (0..n_entries * 20).map(|i| i as f32 / 64.0).collect();
                    let index: Vec<f32> = (0..n_entries * 12).map(|i| -(i as f32)).collect();
                    let new = NewEntries { pages: &of.blocks, first: 0, n: n_entries };
                    let [keys, index] = [Rows::new(keys, 20), Rows::new(index, 12)];
                    pages.write(&device, &[new], &keys, Some(&index));
                    let mut bytes = Vec::new();
                    pages.read_into(&of, 0, pages.n_kept(len), len, &mut bytes);
                    bytes
                };
                let clean = read(false);
                assert_eq!(clean, read(true), "{ty:?}, entries of {every}");
                assert_eq!(clean.len() % layout.page_bytes(), 0);
                let written = clean.iter().filter(|byte| **byte != 0).count();
                assert!(written > n_entries * 20, "{written} bytes of {}", clean.len());
            }
        }
    }
}
