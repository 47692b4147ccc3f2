//! Q5_K: blocks of 256 values, with 5 bits each, in eight sub-blocks. A value is `d * sc * q - dmin * mn`.
//! `q` is its code, `sc` and `mn` are scale and minimum of its sub-block, and `d` and `dmin` are the block's
//! factors for these.

use super::q4_k::{SubBlocks, nibble_pair};
use super::scales::{pack_k_scales, unpack_k_scales};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values. `qs` as in [`BlockQ4K`](crate::BlockQ4K); bit `j` of `qh[l]` is the fifth bit of
/// value `l` of sub-block `j`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the sub-blocks' scales.
    pub d: f16,
    /// Scale of the sub-blocks' minima.
    pub dmin: f16,
    /// Scales and minima, see [`unpack_k_scales`].
    pub scales: [u8; 12],
    /// Fifth bits of the values.
    pub qh: [u8; 32],
    /// Low four bits of the values.
    pub qs: [u8; 128],
}

impl Block for BlockQ5K {
    const TYPE: GgmlType = GgmlType::Q5_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (sc, mn) = unpack_k_scales(&self.scales);
        for (p, (qs, out)) in self.qs.chunks_exact(32).zip(out.chunks_exact_mut(64)).enumerate() {
            let (scale_low, scale_high) = (d * f32::from(sc[2 * p]), d * f32::from(sc[2 * p + 1]));
            let (min_low, min_high) =
                (dmin * f32::from(mn[2 * p]), dmin * f32::from(mn[2 * p + 1]));
            let (low, high) = out.split_at_mut(32);
            for (((q, qh), low), high) in qs.iter().zip(&self.qh).zip(low).zip(high) {
                let (fifth_low, fifth_high) =
                    ((qh >> (2 * p) & 1) << 4, (qh >> (2 * p + 1) & 1) << 4);
                *low = scale_low * f32::from(q & 15 | fifth_low) - min_low;
                *high = scale_high * f32::from(q >> 4 | fifth_high) - min_high;
            }
        }
    }
}

impl Quantize for BlockQ5K {
    fn quantize(values: &[f32]) -> Self {
        let SubBlocks { d, dmin, sc, mn, q } = SubBlocks::<8>::fit(values, 31, 63);
        let qs = std::array::from_fn(|i| nibble_pair(&q, i));
        let mut qh = [0; 32];
        for (j, q) in q.chunks_exact(32).enumerate() {
            for (qh, q) in qh.iter_mut().zip(q) {
                *qh |= q >> 4 << j;
            }
        }
        Self { d, dmin, scales: pack_k_scales(&sc, &mn), qh, qs }
    }
}
