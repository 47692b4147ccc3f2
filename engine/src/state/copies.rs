//! Copies of one sequence's state, block by block, as checkpoints take them and put them back.
//!
//! Unlike a snapshot, a copy has only what is new since the one before: full pages never change, so that each is copied
//! once. The parts that do change, the last page, the positions in a window and a recurrent state, are the *rest*,
//! which is valid for one position.

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
        }
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
            (Self::Kv(kv), BlockSource::Bytes { pages, rest }) => {
                let nbytes = kv.layout().page_bytes();
                let full = pages.iter().flat_map(|run| run.chunks_exact(nbytes));
                let n_full = if kv.keeps_all() { len as usize / KV_PAGE } else { 0 };
                let all = full.take(n_full).chain(rest.chunks_exact(nbytes));
                for (block, page) in kv.kept(sequence, len).iter().zip(all) {
                    kv.write_page(*block, page);
                }
            }
            (Self::Entries(entries), BlockSource::InPlace(held)) => {
                for (from, to) in held.iter().zip(sequence.blocks.iter()).take(n_pages) {
                    if from != to {
                        entries.copy_page(*from, *to);
                    }
                }
            }
            (Self::Entries(entries), BlockSource::Bytes { pages, rest }) => {
                let nbytes = entries.layout().page_bytes();
                let full = pages.iter().flat_map(|run| run.chunks_exact(nbytes));
                let all = full.take(len as usize / KV_PAGE).chain(rest.chunks_exact(nbytes));
                for (block, page) in sequence.blocks.iter().zip(all) {
                    entries.write_page(*block, page);
                }
            }
            (Self::Slots(slots), BlockSource::Bytes { rest, .. }) => slots.write(slot, rest),
            (Self::None | Self::Both(_), _) | (Self::Slots(_), BlockSource::InPlace(_)) => {}
        }
    }
}

fn is_full(len: u32) -> bool {
    (len as usize).is_multiple_of(KV_PAGE)
}
