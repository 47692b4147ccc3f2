//! Q3_K: blocks of 256 values, with 3 bits each, in sixteen sub-blocks. A value is `d * (sc - 32) * (q - 4)`.
//! `q` is its code, `sc` the scale of its sub-block, and `d` the block's factor for that.

use super::q2_k::{pack_two_bits, two_bits};
use crate::fit::{extreme, inverse, round_clamp, symmetric};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values. Low two bits as in [`BlockQ2K`](crate::BlockQ2K); value `32 j + l` has its third bit in
/// bit `j` of `hmask[l]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Third bits of the values.
    pub hmask: [u8; 32],
    /// Low two bits of the values.
    pub qs: [u8; 64],
    /// Sixteen 6-bit scales, offset by 32: see [`BlockQ3K::unpack_scales`].
    pub scales: [u8; 12],
    /// Scale of the scales.
    pub d: f16,
}

impl BlockQ3K {
    /// The sixteen scales, in `[-32, 31]`.
    pub fn unpack_scales(&self) -> [i8; 16] {
        std::array::from_fn(|k| {
            let low = if k < 8 { self.scales[k] & 15 } else { self.scales[k - 8] >> 4 };
            let high = self.scales[8 + k % 4] >> (2 * (k / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }

    fn pack_scales(sc: &[i8; 16]) -> [u8; 12] {
        let mut packed = [0; 12];
        for (k, sc) in sc.iter().enumerate() {
            let six = (sc + 32) as u8;
            packed[k % 8] |= (six & 15) << (k / 8 * 4);
            packed[8 + k % 4] |= six >> 4 << (2 * (k / 4));
        }
        packed
    }
}

impl Block for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let scales = self.unpack_scales();
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[group]);
            let (shift, qs) = two_bits(&self.qs, group);
            let third = &self.hmask[group % 2 * 16..][..16];
            for ((q, third), out) in qs.iter().zip(third).zip(out) {
                let missing = if third >> (group / 2) & 1 == 1 { 0 } else { 4 };
                *out = scale * (i32::from(q >> shift & 3) - missing) as f32;
            }
        }
    }
}

impl Quantize for BlockQ3K {
    fn quantize(values: &[f32]) -> Self {
        let fits: [f32; 16] = std::array::from_fn(|j| symmetric(&values[j * 16..][..16], 4));
        let d = f16::from_f32(extreme(&fits) / -32.0);
        let inv_d = inverse(d.to_f32());
        let sc = fits.map(|fit| round_clamp(fit * inv_d, -32, 31) as i8);
        let mut q = [0; 256];
        for (j, (q, values)) in q.chunks_exact_mut(16).zip(values.chunks_exact(16)).enumerate() {
            let inv = inverse(d.to_f32() * f32::from(sc[j]));
            for (q, v) in q.iter_mut().zip(values) {
                *q = (round_clamp(v * inv, -4, 3) + 4) as u8;
            }
        }
        let mut hmask = [0; 32];
        for (j, q) in q.chunks_exact(32).enumerate() {
            for (hmask, q) in hmask.iter_mut().zip(q) {
                *hmask |= q >> 2 << j;
            }
        }
        Self { hmask, qs: pack_two_bits(&q), scales: Self::pack_scales(&sc), d }
    }
}
