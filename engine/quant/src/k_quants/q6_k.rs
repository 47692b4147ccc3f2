//! Q6_K: blocks of 256 values, with 6 bits each, in sixteen sub-blocks. A value is `d * sc * (q - 32)`. `q`
//! is its code, `sc` the scale of its sub-block, and `d` the block's factor for that.

use crate::fit::{extreme, inverse, round_clamp, symmetric};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values in two halves of 128. In a half, value `32 k + l` (`l < 32`) has its low four bits in `ql[32 (k
/// % 2) + l]`: in the low nibble for `k < 2`, else in the high one. Its high two bits are bits `2 k` of
/// `qh[l]` and the next.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Low four bits of the values.
    pub ql: [u8; 128],
    /// High two bits of the values.
    pub qh: [u8; 64],
    /// Scales of each 16 values.
    pub scales: [i8; 16],
    /// Scale of the scales.
    pub d: f16,
}

impl Block for BlockQ6K {
    const TYPE: GgmlType = GgmlType::Q6_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let halves = self.ql.chunks_exact(64).zip(self.qh.chunks_exact(32));
        for (half, ((ql, qh), out)) in halves.zip(out.chunks_exact_mut(128)).enumerate() {
            for (k, out) in out.chunks_exact_mut(32).enumerate() {
                let ql = &ql[32 * (k % 2)..][..32];
                for (l, ((ql, qh), out)) in ql.iter().zip(qh).zip(out).enumerate() {
                    let q = ql >> (k / 2 * 4) & 15 | (qh >> (2 * k) & 3) << 4;
                    let scale = d * f32::from(self.scales[8 * half + 2 * k + l / 16]);
                    *out = scale * (i32::from(q) - 32) as f32;
                }
            }
        }
    }
}

impl Quantize for BlockQ6K {
    fn quantize(values: &[f32]) -> Self {
        let fits: [f32; 16] = std::array::from_fn(|j| symmetric(&values[j * 16..][..16], 32));
        let d = f16::from_f32(extreme(&fits) / -128.0);
        let inv_d = inverse(d.to_f32());
        let scales = fits.map(|fit| round_clamp(fit * inv_d, -128, 127) as i8);
        let mut q = [0_u8; 256];
        for (j, (q, values)) in q.chunks_exact_mut(16).zip(values.chunks_exact(16)).enumerate() {
            let inv = inverse(d.to_f32() * f32::from(scales[j]));
            for (q, v) in q.iter_mut().zip(values) {
                *q = (round_clamp(v * inv, -32, 31) + 32) as u8;
            }
        }
        let ql = std::array::from_fn(|i| {
            let first = i / 64 * 128 + i % 64;
            q[first] & 15 | q[first + 64] << 4
        });
        let qh = std::array::from_fn(|i| {
            let first = i / 32 * 128 + i % 32;
            (0..4).fold(0, |byte, k| byte | q[first + 32 * k] >> 4 << (2 * k))
        });
        Self { ql, qh, scales, d }
    }
}
