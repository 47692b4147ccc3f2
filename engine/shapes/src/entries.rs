//! Entries: what is kept of every so many positions of a sequence, a key that is its value too, and a key of an index.
//!
//! An entry is complete with the last of its positions, and lies in the page that this one is in. Beside that, pages are as
//! those of [`KvLayout`](crate::KvLayout): they hold no pointers and no positions, so that a byte copy of a page is a copy of
//! its content. An entry's elements lie side by side, and behind them in `Q8_0` its scales. Nothing computes on entries
//! where they lie: they are copied to pages of keys first, some at a time.

use std::ops::Range;

use super::LANES;
use super::pages::{KV_PAGE, KvLayout, KvType, ValuePlace};

/// Bytes of a page are a multiple of this, so that they can be said of each position.
const PAGE_UNIT: usize = KV_PAGE;

/// The shape of a layer's pages of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryLayout {
    /// Positions of an entry: a divisor or a multiple of [`KV_PAGE`].
    pub every: usize,
    /// Elements of its key.
    pub width: usize,
    /// Elements of its key of an index; 0: there is none.
    pub index_dim: usize,
    /// Type of the keys' elements.
    pub ty: KvType,
}

impl EntryLayout {
    /// Bytes of a page; a multiple of [`KV_PAGE`].
    #[inline]
    pub fn page_bytes(&self) -> usize {
        (self.per_page() * self.entry_bytes()).next_multiple_of(PAGE_UNIT)
    }

    /// Entries that a page has room for.
    fn per_page(&self) -> usize {
        (KV_PAGE / self.every).max(1)
    }

    /// Entries of a sequence's first `len` positions.
    #[inline]
    pub fn n_entries(&self, len: usize) -> usize {
        len / self.every
    }

    /// The keys, as pages of keys have them.
    #[inline]
    pub fn keys(&self) -> KvLayout {
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
    #[inline]
    pub fn index_keys(&self) -> KvLayout {
        let none = KvLayout { n_kv_head: 0, head_dim_k: 0, head_dim_v: 0, ..self.keys() };
        KvLayout { index_dim: self.index_dim, ..none }
    }

    /// Bytes of an entry's key.
    #[inline]
    pub fn key_bytes(&self) -> usize {
        record_bytes(self.ty, self.width)
    }

    /// Bytes of an entry: its key, and that of the index.
    #[inline]
    pub fn entry_bytes(&self) -> usize {
        self.key_bytes() + record_bytes(self.ty, self.index_dim)
    }

    /// Page of a sequence that holds entry `entry`, and the byte range of the entry there.
    #[inline]
    pub fn place(&self, entry: usize) -> (usize, Range<usize>) {
        let last = entry * self.every + self.every - 1;
        let start = last % KV_PAGE / self.every * self.entry_bytes();
        (last / KV_PAGE, start..start + self.entry_bytes())
    }

    /// Makes all of page `page` of a sequence zero but the entries of its first `len` positions: the other bytes belong
    /// to no sequence, or to an earlier one.
    #[inline]
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

/// Bytes of a key of `n` elements, which is filled up to whole lanes.
fn record_bytes(ty: KvType, n: usize) -> usize {
    ty.bytes_of(n.next_multiple_of(LANES))
}
