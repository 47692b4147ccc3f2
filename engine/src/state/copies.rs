//! Copies of one sequence's state, block by block, as checkpoints take them and put them back.
//!
//! Unlike a snapshot, a copy has only what is new since the one before: full pages never change, so that each is copied
//! once. The parts that do change, the last page, the positions in a window and a recurrent state, are the *rest*,
//! which is valid for one position.

use std::ops::Range;

use super::{BlockState, LayerPrint, Sequence};
use crate::batch::{PageId, SlotId};
use crate::kernels::KV_PAGE;

/// Room for a copy.
#[derive(Clone, Copy)]
pub struct CopyRoom<'a> {
    /// Bytes that it may take.
    pub max_bytes: usize,
    /// An empty buffer with room for so many of them.
    pub buffer: &'a dyn Fn(usize) -> Vec<u8>,
}

impl CopyRoom<'static> {
    /// Room of so many bytes in fresh memory.
    pub fn fresh(max_bytes: usize) -> Self {
        Self { max_bytes, buffer: &Vec::with_capacity }
    }
}

/// The new state of a sequence on a stage, since the last copy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageCopy {
    /// Weights of the stage's layers.
    pub prints: Vec<LayerPrint>,
    /// Full pages before those that are here.
    pub first_page: u32,
    /// Full pages in each block that has any.
    pub n_pages: u32,
    /// Whether, with the pages before, it is the whole state at the position asked for; else the bytes allowed did
    /// not suffice, there is no rest, and the next copy goes on.
    pub complete: bool,
    /// One entry for each block with state.
    pub blocks: Vec<BlockCopy>,
}

impl StageCopy {
    /// Bytes of state in the copy.
    pub fn nbytes(&self) -> usize {
        self.blocks.iter().map(|b| b.pages.len() + b.rest.len()).sum()
    }
}

/// The new state of a sequence in one block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockCopy {
    /// Layer of the model.
    pub layer: u32,
    /// Place within the layer.
    pub block: u32,
    /// Whether it has pages.
    pub paged: bool,
    /// Full pages, one after the other.
    pub pages: Vec<u8>,
    /// The page that is not full, empty where the position is at a page's end; or what a window sees; or the recurrent
    /// state.
    pub rest: Vec<u8>,
}

/// Bytes of a block's state at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Layer of the model.
    pub layer: u32,
    /// Place within the layer.
    pub block: u32,
    /// Whether it has pages.
    pub paged: bool,
    /// Bytes of a full page; 0 where there are none.
    pub page_bytes: usize,
    /// Bytes of the rest.
    pub rest_bytes: usize,
}

/// A part of a sequence's state that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOf {
    /// Layers of the model.
    pub layers: Range<u32>,
    /// Full pages; they may be none.
    pub pages: Range<u32>,
    /// Whether the rest is wanted.
    pub rest: bool,
}

/// Source from which a block's state is put back.
#[derive(Clone, Debug)]
pub enum BlockSource<'a> {
    /// The pages are in the stage's memory, under these ids in position order.
    InPlace(&'a [PageId]),
    /// Full pages and the rest, as they were copied.
    Bytes {
        /// Runs of full pages, in order.
        pages: Vec<&'a [u8]>,
        /// Bytes of the rest, as in [`BlockCopy::rest`].
        rest: &'a [u8],
    },
    /// It was written in parts before.
    Written(Written),
}

/// How much of a block's state was written in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Full pages, from the first on.
    pub pages: u32,
    /// Bytes of the rest.
    pub rest: usize,
}

/// A part of a block's state, as it was copied.
#[derive(Clone, Debug, Default)]
pub struct BlockPart<'a> {
    /// Full pages before those that are here.
    pub first_page: u32,
    /// Runs of full pages, in order.
    pub pages: Vec<&'a [u8]>,
    /// Bytes of the rest, as in [`BlockCopy::rest`]; empty: it is not in this part.
    pub rest: &'a [u8],
}

impl BlockPart<'_> {
    fn page_bytes(&self) -> usize {
        self.pages.iter().map(|run| run.len()).sum()
    }

    /// What is written with it, of pages with so many bytes each.
    fn written(&self, page_bytes: usize) -> Written {
        let pages = self.page_bytes().checked_div(page_bytes).unwrap_or(0);
        Written { pages: self.first_page + pages as u32, rest: self.rest.len() }
    }
}

impl BlockState {
    /// Whether it has pages that stay; `None` for a block without state. The positions in a window are all rest. This
    /// and what follows is asked of each of the [`Self::parts`].
    pub(crate) fn paged(&self) -> Option<bool> {
        match self {
            Self::None | Self::Both(_) => None,
            Self::Kv(kv) => Some(kv.keeps_all()),
            Self::Entries(_) => Some(true),
            Self::Slots(_) => Some(false),
        }
    }

    /// Bytes of one page that stays; 0 where there are none.
    pub(crate) fn page_bytes(&self) -> usize {
        match self {
            Self::Kv(kv) if kv.keeps_all() => kv.layout().page_bytes(),
            Self::Entries(entries) => entries.layout().page_bytes(),
            Self::None | Self::Both(_) | Self::Kv(_) | Self::Slots(_) => 0,
        }
    }

    /// Bytes of the rest at position `len`.
    pub(crate) fn rest_bytes(&self, len: u32) -> usize {
        match self {
            Self::None | Self::Both(_) => 0,
            Self::Entries(_) if is_full(len) => 0,
            Self::Entries(_) => self.page_bytes(),
            Self::Kv(kv) if !kv.keeps_all() => kv.n_kept(len) * kv.layout().page_bytes(),
            Self::Kv(_) if is_full(len) => 0,
            Self::Kv(kv) => kv.layout().page_bytes(),
            Self::Slots(slots) => slots.slot_bytes(),
        }
    }

    /// Full pages `first..first + n` of a sequence, one after the other.
    pub(crate) fn copy_pages(
        &self,
        sequence: &Sequence,
        first: u32,
        n: u32,
        room: CopyRoom<'_>,
    ) -> Vec<u8> {
        let take = || (room.buffer)(n as usize * self.page_bytes());
        match self {
            Self::Kv(kv) if kv.keeps_all() => {
                let mut bytes = take();
                for block in &sequence.blocks[first as usize..(first + n) as usize] {
                    bytes.extend_from_slice(&kv.page(*block));
                }
                bytes
            }
            Self::Entries(entries) => {
                let (mut bytes, len) = (take(), (first + n) * KV_PAGE as u32);
                entries.read_into(sequence, first as usize, n as usize, len, &mut bytes);
                bytes
            }
            Self::None | Self::Both(_) | Self::Kv(_) | Self::Slots(_) => Vec::new(),
        }
    }

    /// The rest at position `len`. Nothing of a page beyond that is copied.
    pub(crate) fn copy_rest(&self, sequence: &Sequence, len: u32, room: CopyRoom<'_>) -> Vec<u8> {
        match self {
            Self::None | Self::Both(_) => Vec::new(),
            Self::Kv(_) | Self::Entries(_) if self.rest_bytes(len) == 0 => Vec::new(),
            Self::Entries(entries) => {
                let mut page = (room.buffer)(self.rest_bytes(len));
                entries.read_into(sequence, len as usize / KV_PAGE, 1, len, &mut page);
                page
            }
            Self::Kv(kv) => {
                let mut pages = (room.buffer)(self.rest_bytes(len));
                let kept = kv.kept(sequence, len);
                let n_rest = self.rest_bytes(len) / kv.layout().page_bytes();
                kv.read_into(&kept[kept.len() - n_rest..], len, &mut pages);
                pages
            }
            Self::Slots(slots) => {
                let mut state = (room.buffer)(slots.slot_bytes());
                slots.read_into(sequence.plane, &mut state);
                state
            }
        }
    }

    /// Whether `source` has as many bytes as position `len` takes, or as many pages.
    pub(crate) fn fits(&self, source: &BlockSource<'_>, len: u32) -> bool {
        match (self, source) {
            (Self::None | Self::Both(_), _) => true,
            (Self::Entries(entries), BlockSource::InPlace(blocks)) => {
                blocks.len() >= entries.n_kept(len)
            }
            (Self::Kv(kv), BlockSource::InPlace(blocks)) => {
                kv.keeps_all() && blocks.len() >= (len as usize).div_ceil(KV_PAGE)
            }
            (Self::Slots(_), BlockSource::InPlace(_)) => false,
            (_, BlockSource::Bytes { pages, rest }) => {
                let full = len as usize / KV_PAGE * self.page_bytes();
                pages.iter().map(|run| run.len()).sum::<usize>() >= full
                    && rest.len() == self.rest_bytes(len)
            }
            (_, BlockSource::Written(written)) => {
                let has_pages = self.page_bytes() > 0;
                (!has_pages || written.pages as usize >= len as usize / KV_PAGE)
                    && written.rest == self.rest_bytes(len)
            }
        }
    }

    /// Whether a part is of whole pages that position `len` has, and of its whole rest if of any.
    pub(crate) fn fits_part(&self, part: &BlockPart<'_>, len: u32) -> bool {
        let (page_bytes, nbytes) = (self.page_bytes(), part.page_bytes());
        let end = part.written(page_bytes).pages as usize;
        let whole = nbytes == 0 || (page_bytes > 0 && nbytes.is_multiple_of(page_bytes));
        whole
            && (nbytes == 0 || end <= len as usize / KV_PAGE)
            && (part.rest.is_empty() || part.rest.len() == self.rest_bytes(len))
    }

    /// Writes a part of the state of a sequence's first `len` positions, which [`Self::fits_part`]. Returns how much is
    /// written then.
    pub(crate) fn put_part(
        &mut self,
        slot: SlotId,
        sequence: &Sequence,
        part: &BlockPart<'_>,
        len: u32,
    ) -> Written {
        let page_bytes = self.page_bytes();
        let (first, full) = (part.first_page as usize, len as usize / KV_PAGE);
        let pages = part.pages.iter().flat_map(|run| run.chunks_exact(page_bytes.max(1)));
        // A layer with a window has no pages that stay.
        let stay = if page_bytes > 0 { full } else { 0 };
        let blocks = sequence.blocks.iter().take(stay).skip(first);
        match self {
            Self::Kv(kv) => {
                let nbytes = kv.layout().page_bytes();
                blocks.zip(pages).for_each(|(block, page)| kv.write_page(*block, page));
                let rest = kv.kept(sequence, len).iter().skip(stay);
                let bytes = part.rest.chunks_exact(nbytes);
                rest.zip(bytes).for_each(|(block, page)| kv.write_page(*block, page));
            }
            Self::Entries(entries) => {
                blocks.zip(pages).for_each(|(block, page)| entries.write_page(*block, page));
                let rest = sequence.blocks.iter().skip(full);
                let bytes = part.rest.chunks_exact(page_bytes);
                rest.zip(bytes).for_each(|(block, page)| entries.write_page(*block, page));
            }
            Self::Slots(slots) if !part.rest.is_empty() => slots.write(slot, part.rest),
            Self::None | Self::Both(_) | Self::Slots(_) => {}
        }
        part.written(page_bytes)
    }

    /// Gives a sequence the state of its first `len` positions, from a source that [`Self::fits`].
    pub(crate) fn put_back(
        &mut self,
        slot: SlotId,
        sequence: &Sequence,
        source: &BlockSource<'_>,
        len: u32,
    ) {
        let n_pages = (len as usize).div_ceil(KV_PAGE);
        match (self, source) {
            (Self::Kv(kv), BlockSource::InPlace(held)) => {
                for (from, to) in held.iter().zip(sequence.blocks.iter()).take(n_pages) {
                    if from != to {
                        kv.copy_page(*from, *to);
                    }
                }
            }
            (Self::Entries(entries), BlockSource::InPlace(held)) => {
                for (from, to) in held.iter().zip(sequence.blocks.iter()).take(n_pages) {
                    if from != to {
                        entries.copy_page(*from, *to);
                    }
                }
            }
            (state, BlockSource::Bytes { pages, rest }) => {
                let part = BlockPart { first_page: 0, pages: pages.clone(), rest };
                state.put_part(slot, sequence, &part, len);
            }
            (_, BlockSource::Written(_)) => {}
            (Self::None | Self::Both(_) | Self::Slots(_), BlockSource::InPlace(_)) => {}
        }
    }
}

fn is_full(len: u32) -> bool {
    (len as usize).is_multiple_of(KV_PAGE)
}
