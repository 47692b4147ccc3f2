//! Q4_1: blocks of 32 values, with 4 bits each, a scale and a minimum. A value is `d * q + m`, for the scale
//! `d`, the code `q` and the minimum `m`.

use super::fit::{affine, inverse, round_clamp};
use super::{Block, GgmlType, Quantize};
use half::f16;

/// 32 values. Byte `j` holds value `j` in its low and value `j + 16` in its high nibble.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: f16,
    /// Minimum.
    pub m: f16,
    /// Nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        let (low, high) = out.split_at_mut(16);
        for ((q, low), high) in self.qs.iter().zip(low).zip(high) {
            *low = f32::from(q & 15) * d + m;
            *high = f32::from(q >> 4) * d + m;
        }
    }
}

impl Quantize for BlockQ4_1 {
    fn quantize(values: &[f32]) -> Self {
        let (scale, min) = affine(values, 15);
        let (d, m) = (f16::from_f32(scale), f16::from_f32(min));
        let (inv, min) = (inverse(d.to_f32()), m.to_f32());
        let q = |v: f32| round_clamp((v - min) * inv, 0, 15) as u8;
        let qs = std::array::from_fn(|j| q(values[j]) | q(values[j + 16]) << 4);
        Self { d, m, qs }
    }
}
