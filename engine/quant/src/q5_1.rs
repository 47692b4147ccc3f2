//! Q5_1: blocks of 32 values, with 5 bits each, a scale and a minimum. A value is `d * q + m`, for the scale
//! `d`, the code `q` and the minimum `m`.

use super::fit::{affine, inverse, round_clamp};
use super::q5_0::{fifth_bit, pack_five_bits};
use super::{Block, GgmlType, Quantize};
use half::f16;

/// 32 values, their bits placed as in [`BlockQ5_0`](super::BlockQ5_0).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: f16,
    /// Minimum.
    pub m: f16,
    /// Fifth bits.
    pub qh: [u8; 4],
    /// Low nibbles.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        let qh = u32::from_le_bytes(self.qh);
        let (low, high) = out.split_at_mut(16);
        for (j, ((q, low), high)) in self.qs.iter().zip(low).zip(high).enumerate() {
            *low = f32::from(q & 15 | fifth_bit(qh, j)) * d + m;
            *high = f32::from(q >> 4 | fifth_bit(qh, j + 16)) * d + m;
        }
    }
}

impl Quantize for BlockQ5_1 {
    fn quantize(values: &[f32]) -> Self {
        let (scale, min) = affine(values, 31);
        let (d, m) = (f16::from_f32(scale), f16::from_f32(min));
        let (inv, min) = (inverse(d.to_f32()), m.to_f32());
        let q = std::array::from_fn(|j| round_clamp((values[j] - min) * inv, 0, 31) as u8);
        let (qh, qs) = pack_five_bits(&q);
        Self { d, m, qh, qs }
    }
}
