//! IQ4_XS: blocks of 256 values, with 4 bits each, in eight sub-blocks. A value is `d * (sc - 32) * T[q]`.
//! `T` is IQ4_NL's table of levels, `q` the code, `sc` the scale of the sub-block, and `d` the block's factor
//! for that.

use super::iq4_nl::{decode_levels, encode_levels, fit_levels};
use crate::fit::{extreme, inverse, round_clamp};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values. Sub-block `i` has its 6-bit scale in nibble `i` of `scales_l` and bits `2 i` of
/// `scales_h`, its indices in 16 bytes of `qs`, low nibbles first.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scale of the scales.
    pub d: f16,
    /// High two bits of the scales.
    pub scales_h: u16,
    /// Low four bits of the scales.
    pub scales_l: [u8; 4],
    /// Indices into [`IQ4_TABLE`](crate::IQ4_TABLE).
    pub qs: [u8; 128],
}

impl BlockIq4Xs {
    /// The eight scales, in `[-32, 31]`.
    pub fn unpack_scales(&self) -> [i8; 8] {
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (4 * (i % 2)) & 15;
            let high = (self.scales_h >> (2 * i) & 3) as u8;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block for BlockIq4Xs {
    const TYPE: GgmlType = GgmlType::IQ4_XS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let sub_blocks = self.qs.chunks_exact(16).zip(out.chunks_exact_mut(32));
        for (sc, (qs, out)) in self.unpack_scales().into_iter().zip(sub_blocks) {
            decode_levels(d * f32::from(sc), qs, out);
        }
    }
}

impl Quantize for BlockIq4Xs {
    fn quantize(values: &[f32]) -> Self {
        let fits: [f32; 8] = std::array::from_fn(|i| fit_levels(&values[32 * i..][..32]));
        let d = f16::from_f32(extreme(&fits) / -32.0);
        let inv_d = inverse(d.to_f32());
        let mut block = Self { d, scales_h: 0, scales_l: [0; 4], qs: [0; 128] };
        for (i, fit) in fits.iter().enumerate() {
            let sc = round_clamp(fit * inv_d, -32, 31);
            let six = (sc + 32) as u8;
            block.scales_l[i / 2] |= (six & 15) << (4 * (i % 2));
            block.scales_h |= u16::from(six >> 4) << (2 * i);
            let qs = encode_levels(&values[32 * i..][..32], d.to_f32() * sc as f32);
            block.qs[16 * i..][..16].copy_from_slice(&qs);
        }
        block
    }
}
