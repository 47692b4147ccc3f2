//! The common code of the IQ1, IQ2 and IQ3 formats. A block has 256 values, and a value is a scale times a level.
//! Neighbouring values share a row of a codebook, which says the levels of all of them.
//!
//! A value's code is the index of its level in [`Codebook::LEVELS`]. Negative levels lie in its upper half.

use crate::Block;
use half::f16;

/// The levels of both IQ1 formats by code, in eighths: -1, 0 or 1 in the low two bits, then whether an
/// eighth is taken away instead of added.
pub(super) const IQ1_LEVELS: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Values in a block of these formats.
const BLOCK: usize = 256;
/// Values of a group, whose codes are handed out together.
pub const GROUP: usize = 8;
/// Groups of a block.
pub const GROUPS: usize = BLOCK / GROUP;

/// Rule from a scale's small whole number `s` to the scale: `d * (offset + step * s) * factor`, each operation in f32
/// and in this order.
#[derive(Clone, Copy, Debug)]
pub struct ScaleRule {
    /// Added to the steps.
    pub offset: f32,
    /// Weight of `s` in the sum.
    pub step: f32,
    /// A power of two.
    pub factor: f32,
    /// The greatest value of `s`.
    pub max: u8,
}

impl ScaleRule {
    /// The scale of `s`.
    #[inline]
    pub fn scale(&self, d: f32, s: u8) -> f32 {
        d * (self.offset + self.step * f32::from(s)) * self.factor
    }
}

/// A block of one of these formats.
pub trait Codebook: Block {
    /// Levels of the codes; entries that no code has are 0.
    const LEVELS: [i8; 16];
    /// Bits of a code.
    const CODE_BITS: u32;
    /// Scales of a block: 8, of 32 values each, or 16.
    const SCALES: usize;
    /// Rule by which scales are made.
    const RULE: ScaleRule;

    /// Scale of the scales.
    fn d(&self) -> f16;
    /// The scales' numbers, a nibble each from the lowest on.
    fn scale_nibbles(&self) -> u64;
    /// The codes of the eight values of group `group`, a byte each.
    fn codes(&self, group: usize) -> u64;
}

/// Decodes a block to its 256 values.
pub(super) fn decode<B: Codebook>(block: &B, out: &mut [f32]) {
    let (d, nibbles) = (block.d().to_f32(), block.scale_nibbles());
    for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let s = nibbles >> (4 * (group * B::SCALES / GROUPS)) & 15;
        let scale = B::RULE.scale(d, s as u8);
        for (code, out) in block.codes(group).to_le_bytes().into_iter().zip(out) {
            *out = scale * f32::from(B::LEVELS[usize::from(code)]);
        }
    }
}

/// The eight fields of two bits of a codebook's row, a byte each.
#[inline(always)]
pub(super) fn pairs(row: u16) -> u64 {
    let x = u64::from(row);
    let x = (x | x << 24) & 0x0000_00ff_0000_00ff;
    let x = (x | x << 12) & 0x000f_000f_000f_000f;
    (x | x << 6) & 0x0303_0303_0303_0303
}

/// The four nibbles of each of two rows, a byte each.
#[inline(always)]
pub(super) fn nibbles(rows: [u16; 2]) -> u64 {
    let x = u64::from(rows[0]) | u64::from(rows[1]) << 32;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// The bits of `bits`, a byte each.
#[inline(always)]
pub(super) fn bits(bits: u8) -> u64 {
    // Bit k alone in byte k, then moved to the byte's lowest: no byte overflows.
    let alone = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    (alone + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101
}

/// The signs of eight values from the seven bits that are stored: their number is even.
#[inline(always)]
pub(super) fn even_signs(seven: u8) -> u8 {
    seven | (seven.count_ones() as u8 & 1) << 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_land_in_their_bytes() {
        assert_eq!(pairs(0b11_10_01_00_00_01_10_11), 0x0302_0100_0001_0203);
        assert_eq!(nibbles([0x7531, 0x0246]), 0x0002_0406_0705_0301);
        for byte in 0..=255_u8 {
            let spread = bits(byte).to_le_bytes();
            assert_eq!(spread, std::array::from_fn(|k| byte >> k & 1), "{byte}");
            assert_eq!(even_signs(byte & 127).count_ones() % 2, 0);
        }
    }
}
