//! IQ2_XS: as IQ2_XXS, but with a larger codebook, and a scale for each 16 values. A value is `d * (0.5 + s)
//! / 4 * level`, for the block's factor `d` and the scale `s`.

use super::codebook::{Codebook, ScaleRule, bits, decode, even_signs, pairs};
use super::codebook_fit::{Code, Encode, Nearest, encode_signed, fit_block, pack_nibbles};
use super::grids::IQ2_XS;
use super::iq2_xxs::{IQ2_LEVELS, IQ2_RULE, IQ2_SIZES};
use crate::{Block, GgmlType, Quantize};
use half::f16;
use std::sync::LazyLock;

/// 256 values. A half-word for each eight: their row of the codebook in nine bits, then seven signs.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq2Xs {
    /// Scale of the scales.
    pub d: f16,
    /// Rows of the codebook and signs.
    pub qs: [u16; 32],
    /// Scales, a nibble each.
    pub scales: [u8; 8],
}

impl Codebook for BlockIq2Xs {
    const LEVELS: [i8; 16] = IQ2_LEVELS;
    const CODE_BITS: u32 = 3;
    const SCALES: usize = 16;
    const RULE: ScaleRule = IQ2_RULE;

    fn d(&self) -> f16 {
        self.d
    }
    #[inline(always)]
    fn scale_nibbles(&self) -> u64 {
        u64::from_le_bytes(self.scales)
    }
    #[inline(always)]
    fn codes(&self, group: usize) -> u64 {
        let q = self.qs[group];
        pairs(IQ2_XS[usize::from(q & 511)]) | bits(even_signs((q >> 9) as u8)) << 2
    }
}

impl Block for BlockIq2Xs {
    const TYPE: GgmlType = GgmlType::IQ2_XS;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

static NEAREST: LazyLock<Nearest> = LazyLock::new(|| Nearest::pairs(&IQ2_XS, &IQ2_SIZES));

impl Encode for BlockIq2Xs {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        encode_signed(&NEAREST, true, values, inv, codes);
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let qs = codes.map(|code| code.rows[0] | u16::from(code.signs & 127) << 9);
        Self { d, qs, scales: pack_nibbles(scales) }
    }
}

impl Quantize for BlockIq2Xs {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
