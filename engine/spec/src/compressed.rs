//! Attention to a window and to compressed positions behind it, as data.

use super::Rotation;
use crate::state::StateSpec;

/// Attention to the last positions, and beside them to entries that stand for several positions each (DeepSeek-V4). A
/// position has one key for all heads, which is its value too. Its last elements are rotated, and those of what a head gives
/// are rotated back.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedSpec {
    /// Number of query heads.
    pub n_head: usize,
    /// Width of a head, and of a key.
    pub head_dim: usize,
    /// Elements of it, the last ones, that are rotated.
    pub n_rot: usize,
    /// Width through which queries are made.
    pub q_rank: usize,
    /// The last positions that a row attends to, its own included; at least 1.
    pub window: usize,
    /// Keys that it remembers besides those that a row sees: so many of the last positions can be taken back.
    pub spare: usize,
    /// Groups of heads, each of which has a matrix of its own on the way back.
    pub n_group: usize,
    /// Width of what such a matrix gives.
    pub group_rank: usize,
    /// Rotary embedding of the block, one of the model's.
    pub rotation: Rotation,
    /// Epsilon of its norms.
    pub eps: f32,
    /// Compressed entries behind the window; `None`: the block attends to the window alone.
    pub entries: Option<EntriesSpec>,
}

/// Rule by which entries are made of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntriesSpec {
    /// Positions from one entry to the next. Entry `i` is complete with position `(i + 1) * every - 1`.
    pub every: usize,
    /// Whether an entry is made of the positions of the one before it too.
    pub overlaps: bool,
    /// Index that chooses the entries that a row attends to; `None`: it attends to all.
    pub index: Option<EntryIndexSpec>,
}

/// An index of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryIndexSpec {
    /// Heads, which share its keys.
    pub n_head: usize,
    /// Width of its queries and keys. As many elements of them are rotated as of the block's own, the last ones.
    pub head_dim: usize,
    /// Entries that a row attends to at most.
    pub per_row: usize,
}

impl EntriesSpec {
    /// Values that a position contributes to entries of `width` elements: twice as many where it goes into two entries.
    #[inline]
    pub fn input_width(&self, width: usize) -> usize {
        if self.overlaps { 2 * width } else { width }
    }

    /// Positions whose inputs are remembered: those that the next entry is made of.
    #[inline]
    pub fn n_recent(&self) -> usize {
        if self.overlaps { 2 * self.every } else { self.every }
    }

    /// Elements of an entry's key of the index.
    #[inline]
    pub fn index_dim(&self) -> usize {
        self.index.map_or(0, |index| index.head_dim)
    }

    /// Values and gates of one position, of the entry and of its key of the index.
    fn input_values(&self, width: usize) -> usize {
        2 * (self.input_width(width) + self.input_width(self.index_dim()))
    }
}

impl CompressedSpec {
    /// Keys of positions before a row that it sees: it adds its own.
    #[inline]
    pub fn n_near(&self) -> usize {
        self.window - 1
    }

    /// Keys of positions that it remembers.
    #[inline]
    pub fn n_remembered(&self) -> usize {
        self.n_near() + self.spare
    }

    /// Scalars that it remembers of a sequence's last positions.
    pub fn recent_len(&self) -> usize {
        let of_entries = self.entries.map_or(0, |e| e.n_recent() * e.input_values(self.head_dim));
        self.n_remembered() * self.head_dim + of_entries
    }

    /// Sizes of the block's state of a sequence.
    pub fn state(&self) -> StateSpec {
        let recent = self.recent_len();
        match self.entries {
            None => StateSpec::Slot { conv: recent, scan: 0 },
            Some(entries) => StateSpec::Entries {
                every: entries.every,
                width: self.head_dim,
                index: entries.index_dim(),
                recent,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_shapes::KvType;

    /// The sizes of DeepSeek-V4-Flash.
    #[test]
    fn entries_take_a_fraction_of_what_positions_would() {
        let index = Some(EntryIndexSpec { n_head: 64, head_dim: 128, per_row: 512 });
        let of = |entries| CompressedSpec {
            n_head: 64,
            head_dim: 512,
            n_rot: 64,
            q_rank: 1024,
            window: 128,
            spare: 0,
            n_group: 8,
            group_rank: 1024,
            rotation: Rotation::Model,
            eps: 1e-6,
            entries,
        };
        let fine = of(Some(EntriesSpec { every: 4, overlaps: true, index })).state();
        assert_eq!(fine.bytes_per_token(KvType::F16), (512 + 128) * 2 / 4);
        assert_eq!(fine.bytes_per_token(KvType::Q8_0), (512 + 128 + 20 * 2) / 4);
        assert_eq!(fine.bytes_per_sequence(), 4 * (127 * 512 + 8 * 4 * (512 + 128)));
        let coarse = of(Some(EntriesSpec { every: 128, overlaps: false, index: None })).state();
        // One of two pages has an entry.
        assert_eq!(coarse.bytes_per_token(KvType::F16), 512 * 2 / 64);
        assert_eq!(coarse.bytes_per_sequence(), 4 * (127 * 512 + 128 * 2 * 512));
        assert_eq!(of(None).state(), StateSpec::Slot { conv: 127 * 512, scan: 0 });
    }
}
