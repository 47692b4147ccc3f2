//! Sizes of the state that blocks keep of a sequence, as the blocks declare them, and the pages and bytes that these
//! take.

use brigade_shapes::{EntryLayout, KV_PAGE, KvType, Window};

/// Positions at which a copy of a sequence may end, so that another sequence can go on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefixes {
    /// After any position: keys and values are kept for each position by itself.
    All,
    /// After the last position only. A recurrent state ([`StateSpec::Slot`]) holds the sum of all positions, and cannot
    /// be taken back to an earlier one. Nor can a window whose pages are kept no longer than rows see them.
    Whole,
    /// Nowhere: the state of a position depends on later positions too, as in encoders. Sequences are computed whole.
    None,
}

/// Kind and sizes of the state that one block keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSpec {
    /// No state.
    None,
    /// Grows with the sequence, kept in pages of [`brigade_shapes::KV_PAGE`] positions.
    Paged {
        /// Heads of keys and values.
        n_head: usize,
        /// Scalars a token adds to each head: of its key, and of a value apart from it.
        per_head: [usize; 2],
        /// Scalars a token adds for all heads together: its key of an index.
        index: usize,
        /// Window of positions that a row sees; `None`: all of them.
        window: Option<Window>,
    },
    /// An entry of every so many positions, kept in pages, beside a fixed size in f32.
    Entries {
        /// Positions of an entry.
        every: usize,
        /// Scalars of an entry.
        width: usize,
        /// Scalars of its key of an index.
        index: usize,
        /// Scalars that a sequence remembers besides: of its last positions.
        recent: usize,
    },
    /// A fixed size, in f32.
    Slot {
        /// Scalars that a sequence's convolutions remember.
        conv: usize,
        /// Scalars that its scan carries on.
        scan: usize,
    },
}

/// Sizes for which a stage reserves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRoom {
    /// Type of keys and values.
    pub kv_type: KvType,
    /// Most sequences.
    pub n_slots: u32,
    /// KV pages of all of them.
    pub n_blocks: u32,
    /// Most rows of a ubatch.
    pub max_rows: u32,
    /// Whether layers with a window keep only the pages that rows to come see.
    pub windows: bool,
}

impl StateSpec {
    /// Bytes that a block takes with this room.
    pub fn bytes(&self, room: &StateRoom) -> u64 {
        let pages = match self {
            Self::Paged { window: Some(window), .. } if room.windows => {
                pages_kept(window.width(), room.n_slots, room.max_rows, room.n_blocks)
            }
            _ => room.n_blocks,
        };
        let page = (KV_PAGE * self.bytes_per_token(room.kv_type)) as u64;
        u64::from(pages) * page + u64::from(room.n_slots) * self.bytes_per_sequence() as u64
    }

    /// Bytes that a token adds.
    pub fn bytes_per_token(&self, kv: KvType) -> usize {
        match self {
            Self::Paged { n_head, per_head, index, .. } => {
                let of_head: usize = per_head.map(|n| kv.bytes_of(n)).iter().sum();
                n_head * of_head + kv.bytes_of(*index)
            }
            // A page's bytes are a multiple of its positions.
            Self::Entries { .. } => {
                self.entry_layout(kv).map_or(0, |layout| layout.page_bytes() / KV_PAGE)
            }
            _ => 0,
        }
    }

    /// Shape of the pages of entries.
    pub fn entry_layout(&self, ty: KvType) -> Option<EntryLayout> {
        match *self {
            Self::Entries { every, width, index, .. } => {
                Some(EntryLayout { every, width, index_dim: index, ty })
            }
            _ => None,
        }
    }

    /// Bytes that a sequence takes whatever its length.
    pub fn bytes_per_sequence(&self) -> usize {
        self.conv_bytes() + self.scan_bytes()
    }

    /// The part of [`Self::bytes_per_sequence`] that convolutions remember, and others of the last positions.
    pub fn conv_bytes(&self) -> usize {
        match self {
            Self::Entries { recent, .. } => recent * size_of::<f32>(),
            Self::Slot { conv, .. } => conv * size_of::<f32>(),
            _ => 0,
        }
    }

    /// The part of [`Self::bytes_per_sequence`] that the scan carries on.
    pub fn scan_bytes(&self) -> usize {
        match self {
            Self::Slot { scan, .. } => scan * size_of::<f32>(),
            _ => 0,
        }
    }
}

/// Pages that a layer comes to at most whose rows see `width` positions, of `n_blocks`, with `n_slots` sequences and
/// `max_rows` rows in a ubatch.
pub fn pages_kept(width: u32, n_slots: u32, max_rows: u32, n_blocks: u32) -> u32 {
    let of_all = n_slots.saturating_mul(pages_of_each(width));
    n_blocks.min(of_all.saturating_add(pages_of_rows(max_rows)))
}

/// Pages that a layer with a window keeps for each sequence. They hold the positions that the first row of a ubatch
/// sees, which may begin within a page, and the page that a copy of the sequence begins with.
pub fn pages_of_each(width: u32) -> u32 {
    width.saturating_sub(1).div_ceil(KV_PAGE as u32).saturating_add(2)
}

/// Pages that the rows of a ubatch need, whichever sequences they belong to.
pub fn pages_of_rows(max_rows: u32) -> u32 {
    max_rows.div_ceil(KV_PAGE as u32).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_kept_do_not_grow_with_the_context() {
        assert_eq!(pages_kept(128, 4, 512, 100_000), 4 * 4 + 9);
        assert_eq!(pages_kept(1, 1, 1, 100), 2 + 2);
        assert_eq!(pages_kept(4096, 4, 512, 60), 60);
        assert_eq!(pages_kept(u32::MAX, u32::MAX, 512, 60), 60);
    }
}
