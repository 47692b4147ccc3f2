//! IQ3_XXS: blocks of 256 values of eight magnitudes with signs. A value is `d * (0.5 + s) / 2 * level`. `s`
//! is the scale of 32 values, and `d` the block's factor for scales. The codebook gives the magnitudes of
//! four values at once.

use super::codebook::{Codebook, ScaleRule, bits, decode, even_signs, nibbles};
use super::codebook_fit::{Code, Encode, Nearest, encode_signed, fit_block};
use super::grids::IQ3_XXS;
use crate::{Block, GgmlType, Quantize};
use half::f16;
use std::sync::LazyLock;

const LEVELS: [i8; 16] = [4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62];
const SIZES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

/// 256 values. Each four have a row of the codebook; each 32 have a word of four times seven signs and,
/// in its top four bits, the scale.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq3Xxs {
    /// Scale of the scales.
    pub d: f16,
    /// Rows of the codebook, one for each four values.
    pub qs: [u8; 64],
    /// Signs and scales: little-endian words.
    pub signs: [[u8; 4]; 8],
}

impl Codebook for BlockIq3Xxs {
    const LEVELS: [i8; 16] = LEVELS;
    const CODE_BITS: u32 = 4;
    const SCALES: usize = 8;
    const RULE: ScaleRule = ScaleRule { offset: 0.5, step: 1.0, factor: 0.5, max: 15 };

    fn d(&self) -> f16 {
        self.d
    }
    #[inline(always)]
    fn scale_nibbles(&self) -> u64 {
        (0..8).fold(0, |all, b| all | u64::from(self.signs[b][3] >> 4) << (4 * b))
    }
    #[inline(always)]
    fn codes(&self, group: usize) -> u64 {
        let rows = [self.qs[2 * group], self.qs[2 * group + 1]];
        let word = u32::from_le_bytes(self.signs[group / 4]);
        let signs = even_signs((word >> (7 * (group % 4)) & 127) as u8);
        nibbles(rows.map(|row| IQ3_XXS[usize::from(row)])) | bits(signs) << 3
    }
}

impl Block for BlockIq3Xxs {
    const TYPE: GgmlType = GgmlType::IQ3_XXS;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

static NEAREST: LazyLock<Nearest> = LazyLock::new(|| Nearest::nibbles(&IQ3_XXS, &SIZES));

impl Encode for BlockIq3Xxs {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        encode_signed(&NEAREST, true, values, inv, codes);
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let qs = std::array::from_fn(|i| codes[i / 2].rows[i % 2] as u8);
        let signs = std::array::from_fn(|b| {
            let seven = |l: usize| u32::from(codes[4 * b + l].signs & 127) << (7 * l);
            (u32::from(scales[b]) << 28 | seven(0) | seven(1) | seven(2) | seven(3)).to_le_bytes()
        });
        Self { d, qs, signs }
    }
}

impl Quantize for BlockIq3Xxs {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
