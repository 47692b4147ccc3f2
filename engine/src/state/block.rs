//! The state of one block. Whatever its kind, it is zeroed, copied, read and written in the same way.

use super::{EntryPages, KvCache, Sequence, SlotStates, StateCopy};
use crate::batch::SlotId;
use crate::device::Device;
use crate::kernels::{KvLayout, KvType, ValuePlace};
use crate::spec::{BlockKind, ModelError, StateRoom, StateSpec, SwitchRouterSpec};

/// State that one loaded block keeps of all sequences.
pub enum BlockState {
    /// The block keeps no state.
    None,
    /// Keys and values in pages.
    Kv(KvCache),
    /// Recurrent state in slots.
    Slots(SlotStates),
    /// Compressed entries in pages.
    Entries(EntryPages),
    /// Two states that are kept apart: what [`Self::parts`] has of it is read, written and copied, each by itself.
    Both(Box<[BlockState; 2]>),
}

impl BlockState {
    /// Room for what `kind` remembers.
    ///
    /// # Errors
    /// The system has not that much memory.
    pub fn new(device: &Device, kind: &BlockKind, room: &StateRoom) -> Result<Self, ModelError> {
        let n_slots = room.n_slots as usize;
        Ok(match (kind.state(), kv_layout(kind, room.kv_type)) {
            (StateSpec::Paged { window, .. }, Some(layout)) => {
                // The host needs to know which adapters rows use.
                let of_host = matches!(kind, BlockKind::Switch(_));
                let window = window.filter(|_| room.windows);
                Self::Kv(KvCache::new(device, layout, of_host, room, window)?)
            }
            (StateSpec::Paged { .. }, None) => unreachable!("pages of {kind:?} have no layout"),
            (StateSpec::Slot { conv, scan }, _) => {
                // The host makes rows of a table's of the last tokens.
                let of_host = matches!(kind, BlockKind::Ngram(_));
                Self::Slots(SlotStates::new(device, n_slots, conv, scan, of_host)?)
            }
            (spec @ StateSpec::Entries { recent, .. }, _) => {
                let layout = spec.entry_layout(room.kv_type);
                let layout = layout.expect("entries have a layout");
                let entries = Self::Entries(EntryPages::new(device, layout, room)?);
                let recent = Self::Slots(SlotStates::new(device, n_slots, recent, 0, false)?);
                Self::Both(Box::new([entries, recent]))
            }
            (StateSpec::None, _) => Self::None,
        })
    }

    /// The states that it is made of: itself, unless there are two.
    pub fn parts(&self) -> &[BlockState] {
        match self {
            Self::Both(both) => &both[..],
            other => std::slice::from_ref(other),
        }
    }

    /// As [`Self::parts`], mutable.
    pub fn parts_mut(&mut self) -> &mut [BlockState] {
        match self {
            Self::Both(both) => &mut both[..],
            other => std::slice::from_mut(other),
        }
    }

    /// Keys and values of an attention block.
    ///
    /// # Panics
    /// If the block is another one.
    pub fn kv(&mut self) -> &mut KvCache {
        match self {
            Self::Kv(kv) => kv,
            Self::None | Self::Slots(_) | Self::Entries(_) | Self::Both(_) => {
                unreachable!("the stage gives every attention its cache")
            }
        }
    }

    /// The recurrent states of a block that has some.
    ///
    /// # Panics
    /// If the block is another one.
    pub fn slots(&mut self) -> &mut SlotStates {
        match self {
            Self::Slots(slots) => slots,
            Self::None | Self::Kv(_) | Self::Entries(_) | Self::Both(_) => {
                unreachable!("the stage gives every recurrent block its slots")
            }
        }
    }

    /// Bytes that are reserved.
    pub fn nbytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Kv(kv) => kv.nbytes() as u64,
            Self::Slots(slots) => slots.nbytes() as u64,
            Self::Entries(entries) => entries.nbytes() as u64,
            Self::Both(both) => both.iter().map(Self::nbytes).sum(),
        }
    }

    /// Starts a sequence from nothing. Pages need none of it: positions beyond a sequence's length
    /// are never read.
    pub fn zero(&mut self, slot: SlotId) {
        match self {
            Self::None | Self::Kv(_) | Self::Entries(_) => {}
            Self::Slots(slots) => slots.zero(slot),
            Self::Both(both) => both.iter_mut().for_each(|state| state.zero(slot)),
        }
    }

    /// Forgets the states of all sequences.
    pub fn clear(&mut self) {
        match self {
            Self::None | Self::Slots(_) | Self::Entries(_) => {}
            Self::Kv(kv) => kv.clear(),
            Self::Both(both) => both.iter_mut().for_each(Self::clear),
        }
    }

    /// Gives a slot's place the recurrent state of another's.
    pub fn copy_slot(&mut self, from: SlotId, to: SlotId) {
        match self {
            Self::None | Self::Kv(_) | Self::Entries(_) => {}
            Self::Slots(slots) => slots.copy(from, to),
            Self::Both(both) => both.iter_mut().for_each(|state| state.copy_slot(from, to)),
        }
    }

    /// Starts a sequence as a copy of another.
    pub fn copy(&mut self, copy: &StateCopy) {
        match self {
            Self::None => {}
            Self::Kv(kv) => {
                for (src, dst) in copy.src_blocks.iter().zip(&copy.dst_blocks) {
                    kv.copy_page(*src, *dst);
                }
            }
            // A copy reads its source's place until it has rows of its own.
            Self::Slots(_) => {}
            Self::Entries(entries) => {
                for (src, dst) in copy.src_blocks.iter().zip(&copy.dst_blocks) {
                    entries.copy_page(*src, *dst);
                }
            }
            Self::Both(both) => both.iter_mut().for_each(|state| state.copy(copy)),
        }
    }

    /// Bytes that [`Self::read`] returns for a sequence; 0 for a block without state.
    pub fn n_bytes_of(&self, sequence: &Sequence) -> usize {
        match self {
            Self::None => 0,
            Self::Kv(kv) => kv.n_kept(sequence.len) * kv.layout().page_bytes(),
            Self::Slots(slots) => slots.slot_bytes(),
            Self::Entries(entries) => entries.n_kept(sequence.len) * entries.layout().page_bytes(),
            Self::Both(both) => both.iter().map(|state| state.n_bytes_of(sequence)).sum(),
        }
    }

    /// A sequence's state as bytes, which depend on nothing else: what its last page holds beyond it
    /// is zeros here. `None` for a block without state.
    pub fn read(&self, sequence: &Sequence) -> Option<Vec<u8>> {
        match self {
            Self::None => None,
            Self::Kv(kv) => {
                let mut bytes = Vec::with_capacity(self.n_bytes_of(sequence));
                kv.read_into(kv.kept(sequence, sequence.len), sequence.len, &mut bytes);
                Some(bytes)
            }
            Self::Slots(slots) => Some(slots.read(sequence.plane)),
            Self::Entries(entries) => {
                let mut bytes = Vec::with_capacity(self.n_bytes_of(sequence));
                let n_pages = entries.n_kept(sequence.len);
                entries.read_into(sequence, 0, n_pages, sequence.len, &mut bytes);
                Some(bytes)
            }
            Self::Both(both) => {
                Some(both.iter().filter_map(|state| state.read(sequence)).flatten().collect())
            }
        }
    }

    /// Puts back what [`Self::read`] returned for a sequence of the same length.
    pub fn write(&mut self, slot: SlotId, sequence: &Sequence, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Kv(kv) => {
                let pages = bytes.chunks_exact(kv.layout().page_bytes());
                for (block, page) in kv.kept(sequence, sequence.len).iter().zip(pages) {
                    kv.write_page(*block, page);
                }
            }
            Self::Slots(slots) => slots.write(slot, bytes),
            Self::Entries(entries) => {
                let pages = bytes.chunks_exact(entries.layout().page_bytes());
                for (block, page) in sequence.blocks.iter().zip(pages) {
                    entries.write_page(*block, page);
                }
            }
            Self::Both(both) => {
                let mut left = bytes;
                for state in both.iter_mut() {
                    let (mine, rest) = left.split_at(state.n_bytes_of(sequence));
                    state.write(slot, sequence, mine);
                    left = rest;
                }
            }
        }
    }
}

/// Shape of the pages of a block that remembers position by position.
fn kv_layout(kind: &BlockKind, ty: KvType) -> Option<KvLayout> {
    match kind {
        BlockKind::Attention(spec) => Some(KvLayout {
            n_kv_head: spec.n_kv_head,
            head_dim_k: spec.head_dim_k,
            head_dim_v: spec.head_dim_v,
            values: ValuePlace::Apart,
            index_dim: spec.index_dim(),
            ty,
        }),
        BlockKind::Mla(spec) => Some(KvLayout {
            n_kv_head: 1,
            head_dim_k: spec.key_width(),
            head_dim_v: spec.kv_rank,
            values: ValuePlace::InKeys,
            index_dim: spec.index_dim(),
            ty,
        }),
        BlockKind::Switch(_) => Some(KvLayout {
            n_kv_head: 1,
            head_dim_k: SwitchRouterSpec::WIDTH,
            head_dim_v: SwitchRouterSpec::WIDTH,
            values: ValuePlace::Apart,
            index_dim: 0,
            ty,
        }),
        _ => None,
    }
}
