//! MXFP4: blocks of 32 values in E2M1 (four bits) with a shared power of two. A value is `F[q] * 2^(e -
//! 128)`. `F` has the doubled values of E2M1, `q` is the code, and `e` the block's exponent.

use super::fit::extreme;
use super::{Block, GgmlType, Quantize};

/// Twice the E2M1 values, so that they are whole.
pub const FP4_TABLE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 values. Byte `j` holds value `j` in its low and value `j + 16` in its high nibble.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// Exponent (E8M0).
    pub e: u8,
    /// Indices into [`FP4_TABLE`].
    pub qs: [u8; 16],
}

/// `2^(e - 128)`: half of what E8M0 means, for values that are doubled.
#[inline]
pub fn e8m0_half(e: u8) -> f32 {
    // Below 2^-126 the result is subnormal: one bit of the mantissa.
    f32::from_bits(if e < 2 { 1 << (21 + u32::from(e)) } else { (u32::from(e) - 1) << 23 })
}

impl Block for BlockMxfp4 {
    const TYPE: GgmlType = GgmlType::MXFP4;

    fn dequantize(&self, out: &mut [f32]) {
        let scale = e8m0_half(self.e);
        let (low, high) = out.split_at_mut(16);
        for ((q, low), high) in self.qs.iter().zip(low).zip(high) {
            *low = f32::from(FP4_TABLE[usize::from(q & 15)]) * scale;
            *high = f32::from(FP4_TABLE[usize::from(q >> 4)]) * scale;
        }
    }
}

/// Index of the value nearest to `x` in [`FP4_TABLE`].
pub(super) fn nearest(x: f32) -> u8 {
    let magnitude = x.abs();
    let below = |pair: &&[i8]| magnitude > (f32::from(pair[0]) + f32::from(pair[1])) * 0.5;
    let index = FP4_TABLE[..8].windows(2).filter(below).count() as u8;
    if x < 0.0 { index | 8 } else { index }
}

impl BlockMxfp4 {
    fn with_exponent(values: &[f32], e: u8) -> Self {
        // The inverse of 2^(e - 128) overflows only for e < 1, where all values are next to nothing.
        let inv = (1.0 / e8m0_half(e)).min(f32::MAX);
        let qs =
            std::array::from_fn(|j| nearest(values[j] * inv) | nearest(values[j + 16] * inv) << 4);
        Self { e, qs }
    }

    fn error(&self, values: &[f32]) -> f32 {
        let mut decoded = [0.0; 32];
        self.dequantize(&mut decoded);
        decoded.iter().zip(values).map(|(a, b)| (a - b) * (a - b)).sum()
    }
}

impl Quantize for BlockMxfp4 {
    /// Takes the better of the two exponents that put the largest value near the largest level, 6.
    fn quantize(values: &[f32]) -> Self {
        // Biased exponent of the largest magnitude, less 2 for E2M1's own largest exponent.
        let biased = (extreme(values).to_bits() >> 23 & 0xff) as i32;
        let e = (biased - 2).clamp(0, 253) as u8;
        let (low, high) = (Self::with_exponent(values, e), Self::with_exponent(values, e + 1));
        if low.error(values) <= high.error(values) { low } else { high }
    }
}
