//! Q2_K: blocks of 256 values, with 2 bits each, in sixteen sub-blocks. A value is `d * sc * q - dmin * mn`.
//! `q` is its code, `sc` and `mn` are scale and minimum of its sub-block, and `d` and `dmin` are the block's
//! factors for these.

use super::q4_k::SubBlocks;
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values. Value `128 n + 32 j + l` (`l < 32`) lies in bits `2 j` of `qs[32 n + l]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// A byte for each 16 values: scale (low nibble) and minimum (high nibble).
    pub scales: [u8; 16],
    /// Two bits a value.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: f16,
    /// Scale of the minima.
    pub dmin: f16,
}

impl Block for BlockQ2K {
    const TYPE: GgmlType = GgmlType::Q2_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[group] & 15);
            let min = dmin * f32::from(self.scales[group] >> 4);
            let (shift, qs) = two_bits(&self.qs, group);
            for (q, out) in qs.iter().zip(out) {
                *out = scale * f32::from(q >> shift & 3) - min;
            }
        }
    }
}

/// Shift and bytes of the `group`th 16 of 256 values of two bits.
#[inline(always)]
pub(crate) fn two_bits(qs: &[u8; 64], group: usize) -> (usize, &[u8]) {
    let (half, j, part) = (group / 8, group / 2 % 4, group % 2);
    (2 * j, &qs[32 * half + 16 * part..][..16])
}

/// The low two bits of 256 values in that order.
pub(crate) fn pack_two_bits(q: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let first = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, j| byte | (q[first + 32 * j] & 3) << (2 * j))
    })
}

impl Quantize for BlockQ2K {
    fn quantize(values: &[f32]) -> Self {
        let SubBlocks { d, dmin, sc, mn, q } = SubBlocks::<16>::fit(values, 3, 15);
        let scales = std::array::from_fn(|j| sc[j] | mn[j] << 4);
        Self { scales, qs: pack_two_bits(&q), d, dmin }
    }
}
