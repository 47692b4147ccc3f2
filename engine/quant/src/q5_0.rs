//! Q5_0: blocks of 32 values, with 5 bits each and one scale. A value is `d * (q - 16)`, for the scale `d`
//! and the code `q`.

use super::fit::{inverse, round_clamp, symmetric};
use super::{Block, GgmlType, Quantize};
use half::f16;

/// 32 values. Byte `j` of `qs` holds the low four bits of values `j` (low nibble) and `j + 16`
/// (high nibble); bit `i` of `qh`, a little-endian u32, is the fifth bit of value `i`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale.
    pub d: f16,
    /// Fifth bits.
    pub qh: [u8; 4],
    /// Low nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let qh = u32::from_le_bytes(self.qh);
        let (low, high) = out.split_at_mut(16);
        for (j, ((q, low), high)) in self.qs.iter().zip(low).zip(high).enumerate() {
            *low = (i32::from(q & 15 | fifth_bit(qh, j)) - 16) as f32 * d;
            *high = (i32::from(q >> 4 | fifth_bit(qh, j + 16)) - 16) as f32 * d;
        }
    }
}

/// Bit `i` of `qh` in its place, 0 or 16.
#[inline(always)]
pub(super) fn fifth_bit(qh: u32, i: usize) -> u8 {
    (((qh >> i) & 1) << 4) as u8
}

/// Splits 32 five-bit values into `(qh, qs)`.
pub(super) fn pack_five_bits(q: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let qh = q.iter().enumerate().fold(0, |qh, (i, q)| qh | u32::from(q >> 4) << i);
    (qh.to_le_bytes(), std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4))
}

impl Quantize for BlockQ5_0 {
    fn quantize(values: &[f32]) -> Self {
        let d = f16::from_f32(symmetric(values, 16));
        let inv = inverse(d.to_f32());
        let q = std::array::from_fn(|j| (round_clamp(values[j] * inv, -16, 15) + 16) as u8);
        let (qh, qs) = pack_five_bits(&q);
        Self { d, qh, qs }
    }
}
