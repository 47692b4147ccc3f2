//! Q4_0: blocks of 32 values, with 4 bits each and one scale. A value is `d * (q - 8)`, for the scale `d` and
//! the code `q`.

use super::fit::{inverse, round_clamp, symmetric};
use super::{Block, GgmlType, Quantize};
use half::f16;

/// 32 values. Byte `j` holds value `j` in its low and value `j + 16` in its high nibble.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: f16,
    /// Nibbles, offset by 8.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let (low, high) = out.split_at_mut(16);
        for ((q, low), high) in self.qs.iter().zip(low).zip(high) {
            *low = (i32::from(q & 15) - 8) as f32 * d;
            *high = (i32::from(q >> 4) - 8) as f32 * d;
        }
    }
}

impl Quantize for BlockQ4_0 {
    fn quantize(values: &[f32]) -> Self {
        let d = f16::from_f32(symmetric(values, 8));
        let inv = inverse(d.to_f32());
        let q = |v: f32| (round_clamp(v * inv, -8, 7) + 8) as u8;
        let qs = std::array::from_fn(|j| q(values[j]) | q(values[j + 16]) << 4);
        Self { d, qs }
    }
}
