//! IQ2_S: as IQ2_XS, but with a larger codebook, and a sign bit for every value. A value is `d * (0.5 + s) /
//! 4 * level`, for the block's factor `d` and the scale `s`.

use super::codebook::{Codebook, ScaleRule, bits, decode, pairs};
use super::codebook_fit::{Code, Encode, Nearest, encode_signed, fit_block, pack_nibbles};
use super::grids::IQ2_S;
use super::iq2_xxs::{IQ2_LEVELS, IQ2_RULE, IQ2_SIZES};
use crate::{Block, GgmlType, Quantize};
use half::f16;
use std::sync::LazyLock;

/// 256 values. Eight of them, group `l`, have a row of the codebook: its low eight bits are `qs[l]`, its
/// high two the field `l % 4` of `qh[l / 4]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq2S {
    /// Scale of the scales.
    pub d: f16,
    /// Low bits of the rows.
    pub qs: [u8; 32],
    /// Signs, a bit for each value.
    pub signs: [u8; 32],
    /// High bits of the rows.
    pub qh: [u8; 8],
    /// Scales, a nibble each.
    pub scales: [u8; 8],
}

impl Codebook for BlockIq2S {
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
        let high = usize::from(self.qh[group / 4] >> (2 * (group % 4)) & 3);
        let row = IQ2_S[usize::from(self.qs[group]) | high << 8];
        pairs(row) | bits(self.signs[group]) << 2
    }
}

impl Block for BlockIq2S {
    const TYPE: GgmlType = GgmlType::IQ2_S;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

static NEAREST: LazyLock<Nearest> = LazyLock::new(|| Nearest::pairs(&IQ2_S, &IQ2_SIZES));

impl Encode for BlockIq2S {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        encode_signed(&NEAREST, false, values, inv, codes);
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let mut qh = [0; 8];
        for (l, code) in codes.iter().enumerate() {
            qh[l / 4] |= ((code.rows[0] >> 8) as u8) << (2 * (l % 4));
        }
        let (qs, signs) = (codes.map(|code| code.rows[0] as u8), codes.map(|code| code.signs));
        Self { d, qs, signs, qh, scales: pack_nibbles(scales) }
    }
}

impl Quantize for BlockIq2S {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
