//! Ops over the slots of sequences, and what they have in common: which rows belong to which slot, and operands by columns.
//!
//! States lie in memory as on the CPU, so a slot's bytes can go from one to the other. The rows of a part are walked in
//! order; its bits are the same whether it comes in one piece or in many, alone or beside others.

pub(super) mod conv;
pub(super) mod delta;
pub(super) mod dilated_conv;
pub(super) mod mamba;
pub(super) mod ssd;
pub(super) mod wkv;
pub(super) mod wkv7;

use brigade_ops::{Columns, ScanPart};

use super::rowwise::elementwise::count;
use crate::device::Gpu;
use crate::memory::span::{Span, SpanMut};

/// Lanes of a vector on the CPU, in which states are tiled.
pub(super) const LANES: usize = 16;

/// Columns that a workgroup of `scan.glsl` has.
pub(super) const COLUMNS: usize = 32;

/// A number of which the shaders' FLUSH_EVERY is a divisor: they count positions modulo this.
const POSITIONS: usize = 1 << 16;

/// Slots that a part can name: shaders have half a word for the one that its state is read in.
const MAX_SLOTS: usize = 1 << 16;

/// Methods of [`brigade_ops::Columns`] on a GPU.
pub(super) trait ColumnsHere {
    /// The address of the first row's first wanted column, and the distance of rows, as shaders take them.
    fn place(&self) -> (u64, u32);
}

impl ColumnsHere for Columns<Span<'_>> {
    fn place(&self) -> (u64, u32) {
        count(self.values.values());
        (self.values.address() + 4 * self.first_col as u64, count(self.stride))
    }
}

/// A part as shaders take it.
///
/// # Panics
/// If a slot is beyond those that a part can name.
fn words(part: &ScanPart) -> [u32; 4] {
    let ScanPart { from, slot, first_pos, first_row, n_rows } = *part;
    assert!(from.max(slot) < MAX_SLOTS, "slot {} of at most {MAX_SLOTS}", from.max(slot));
    let place = (from << 16) | (first_pos % POSITIONS);
    [slot, place, first_row, n_rows].map(count)
}

impl Gpu {
    /// Copies slot `from` of `states` (slots of `per_slot` values each) to slot `to`. [`Gpu::fill`] makes one zero.
    ///
    /// # Panics
    /// If there are no such slots.
    pub fn copy_slot(&self, states: SpanMut<'_>, per_slot: usize, from: usize, to: usize) {
        if from == to {
            return;
        }
        let len = 4 * per_slot;
        let (low, high) = (from.min(to), from.max(to));
        let (mut before, mut behind) = states.split_at(high * len);
        let (low, high) = (before.part(low * len..(low + 1) * len), behind.part(0..len));
        let (from, to) = if from < to { (low, high) } else { (high, low) };
        self.copy(from.as_span(), to);
    }

    /// Parts that have rows, where shaders read them: their address and how many there are.
    pub(super) fn upload_parts(&self, parts: impl Iterator<Item = ScanPart>) -> (u64, usize) {
        let words: Vec<_> = parts.filter(|part| part.n_rows > 0).map(|part| words(&part)).collect();
        (self.upload(bytemuck::cast_slice(&words)).address(), words.len())
    }
}

#[cfg(test)]
mod tests {
    use super::{ScanPart, words};

    #[test]
    fn positions_count_for_the_shaders_modulo_the_distance_of_flushes() {
        let far = ScanPart { from: 7, slot: 1, first_pos: (1 << 40) + 63, first_row: 2, n_rows: 3 };
        let [slot, place, first_row, n_rows] = words(&far);
        assert_eq!((slot, place >> 16, place % 64, first_row, n_rows), (1, 7, 63, 2, 3));
    }

    #[test]
    #[should_panic(expected = "slot 65536 of at most 65536")]
    fn a_slot_that_shaders_cannot_name_is_refused() {
        words(&ScanPart::in_place(1 << 16, 0, 0, 1));
    }
}
