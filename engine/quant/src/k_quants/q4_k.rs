//! Q4_K: blocks of 256 values, with 4 bits each, in eight sub-blocks. A value is `d * sc * q - dmin * mn`.
//! `q` is its code, `sc` and `mn` are scale and minimum of its sub-block, and `d` and `dmin` are the block's
//! factors for these.

use super::scales::{pack_k_scales, unpack_k_scales};
use crate::fit::{affine_below_zero, inverse, round_clamp};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values. Each 32 bytes of `qs` hold two sub-blocks of 32, low nibbles first.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the sub-blocks' scales.
    pub d: f16,
    /// Scale of the sub-blocks' minima.
    pub dmin: f16,
    /// Scales and minima, see [`unpack_k_scales`].
    pub scales: [u8; 12],
    /// Low and high nibbles: two values to a byte.
    pub qs: [u8; 128],
}

impl Block for BlockQ4K {
    const TYPE: GgmlType = GgmlType::Q4_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (sc, mn) = unpack_k_scales(&self.scales);
        for (p, (qs, out)) in self.qs.chunks_exact(32).zip(out.chunks_exact_mut(64)).enumerate() {
            let (scale_low, scale_high) = (d * f32::from(sc[2 * p]), d * f32::from(sc[2 * p + 1]));
            let (min_low, min_high) =
                (dmin * f32::from(mn[2 * p]), dmin * f32::from(mn[2 * p + 1]));
            let (low, high) = out.split_at_mut(32);
            for ((q, low), high) in qs.iter().zip(low).zip(high) {
                *low = scale_low * f32::from(q & 15) - min_low;
                *high = scale_high * f32::from(q >> 4) - min_high;
            }
        }
    }
}

/// Scales and levels of a block whose sub-blocks have scale and minimum.
pub(super) struct SubBlocks<const N: usize> {
    pub d: f16,
    pub dmin: f16,
    pub sc: [u8; N],
    pub mn: [u8; N],
    pub q: [u8; 256],
}

impl<const N: usize> SubBlocks<N> {
    /// Fits `N` sub-blocks of `values` with `levels + 1` levels; scales and minima go up to `max_scale`.
    pub fn fit(values: &[f32], levels: i32, max_scale: i32) -> Self {
        let size = 256 / N;
        let fits: [_; N] =
            std::array::from_fn(|j| affine_below_zero(&values[j * size..][..size], levels));
        let largest =
            fits.iter().fold((0.0_f32, 0.0_f32), |max, f| (max.0.max(f.0), max.1.max(f.1)));
        let d = f16::from_f32(largest.0 / max_scale as f32);
        let dmin = f16::from_f32(largest.1 / max_scale as f32);
        let (inv_d, inv_dmin) = (inverse(d.to_f32()), inverse(dmin.to_f32()));
        let sc = fits.map(|fit| round_clamp(fit.0 * inv_d, 0, max_scale) as u8);
        let mn = fits.map(|fit| round_clamp(fit.1 * inv_dmin, 0, max_scale) as u8);
        let mut q = [0; 256];
        for (j, (q, values)) in q.chunks_exact_mut(size).zip(values.chunks_exact(size)).enumerate()
        {
            let inv = inverse(d.to_f32() * f32::from(sc[j]));
            let min = dmin.to_f32() * f32::from(mn[j]);
            for (q, v) in q.iter_mut().zip(values) {
                *q = round_clamp((v + min) * inv, 0, levels) as u8;
            }
        }
        Self { d, dmin, sc, mn, q }
    }
}

/// Byte `i` of the nibbles of 256 values in pairs of 32.
#[inline(always)]
pub(super) fn nibble_pair(q: &[u8; 256], i: usize) -> u8 {
    let first = i / 32 * 64 + i % 32;
    q[first] & 15 | q[first + 32] << 4
}

impl Quantize for BlockQ4K {
    fn quantize(values: &[f32]) -> Self {
        let SubBlocks { d, dmin, sc, mn, q } = SubBlocks::<8>::fit(values, 15, 63);
        let qs = std::array::from_fn(|i| nibble_pair(&q, i));
        Self { d, dmin, scales: pack_k_scales(&sc, &mn), qs }
    }
}
