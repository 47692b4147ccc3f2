//! IQ2_XXS: blocks of 256 values of three magnitudes with signs. A value is `d * (0.5 + s) / 4 * level`. `s`
//! is the scale of 32 values, and `d` the block's factor for scales. The codebook gives the magnitudes of
//! eight values at once.

use super::codebook::{Codebook, ScaleRule, bits, decode, even_signs, pairs};
use super::codebook_fit::{Code, Encode, Nearest, encode_signed, fit_block};
use super::grids::IQ2_XXS;
use crate::{Block, GgmlType, Quantize};
use half::f16;
use std::sync::LazyLock;

/// The levels of all IQ2 formats by code: magnitude in the low two bits, then the sign.
pub(super) const IQ2_LEVELS: [i8; 16] = [8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The scales of all IQ2 formats.
pub(super) const IQ2_RULE: ScaleRule = ScaleRule { offset: 0.5, step: 1.0, factor: 0.25, max: 15 };
/// The magnitudes of all IQ2 formats.
pub(super) const IQ2_SIZES: [f32; 3] = [8.0, 25.0, 43.0];

/// 256 values. Each 32 have four half-words: four rows of the codebook, a byte each; then four times
/// seven bits of signs, and the scale in the top four bits.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq2Xxs {
    /// Scale of the scales.
    pub d: f16,
    /// Rows, signs and scales.
    pub qs: [u16; 32],
}

impl BlockIq2Xxs {
    /// Signs and scale of the 32 values `b`.
    fn signs_and_scale(&self, b: usize) -> u32 {
        u32::from(self.qs[4 * b + 2]) | u32::from(self.qs[4 * b + 3]) << 16
    }
}

impl Codebook for BlockIq2Xxs {
    const LEVELS: [i8; 16] = IQ2_LEVELS;
    const CODE_BITS: u32 = 3;
    const SCALES: usize = 8;
    const RULE: ScaleRule = IQ2_RULE;

    fn d(&self) -> f16 {
        self.d
    }
    #[inline(always)]
    fn scale_nibbles(&self) -> u64 {
        (0..8).fold(0, |all, b| all | u64::from(self.signs_and_scale(b) >> 28) << (4 * b))
    }
    #[inline(always)]
    fn codes(&self, group: usize) -> u64 {
        let (b, l) = (group / 4, group % 4);
        let row = self.qs[4 * b + l / 2] >> (8 * (l % 2)) & 255;
        let signs = even_signs((self.signs_and_scale(b) >> (7 * l) & 127) as u8);
        pairs(IQ2_XXS[usize::from(row)]) | bits(signs) << 2
    }
}

impl Block for BlockIq2Xxs {
    const TYPE: GgmlType = GgmlType::IQ2_XXS;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

static NEAREST: LazyLock<Nearest> = LazyLock::new(|| Nearest::pairs(&IQ2_XXS, &IQ2_SIZES));

impl Encode for BlockIq2Xxs {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        encode_signed(&NEAREST, true, values, inv, codes);
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let mut qs = [0; 32];
        for (b, (qs, codes)) in qs.chunks_exact_mut(4).zip(codes.chunks_exact(4)).enumerate() {
            let seven = |l: usize| u32::from(codes[l].signs & 127) << (7 * l);
            let signs = u32::from(scales[b]) << 28 | seven(0) | seven(1) | seven(2) | seven(3);
            qs[0] = codes[0].rows[0] | codes[1].rows[0] << 8;
            qs[1] = codes[2].rows[0] | codes[3].rows[0] << 8;
            (qs[2], qs[3]) = (signs as u16, (signs >> 16) as u16);
        }
        Self { d, qs }
    }
}

impl Quantize for BlockIq2Xxs {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
