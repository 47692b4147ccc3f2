//! IQ1_S: blocks of 256 values of three levels, which are moved up or down by an eighth. A value is
//! `d * (2 s + 1) * (t ± 1/8)`. `t` is the level (-1, 0 or 1), `s` the scale of 32 values, and `d` the block's factor
//! for scales. The codebook gives the levels of eight values at once.

use super::codebook::{Codebook, IQ1_LEVELS, ScaleRule, decode, pairs};
use super::codebook_fit::{Code, Encode, Nearest, encode_shifted, fit_block};
use super::grids::IQ1;
use crate::{Block, GgmlType, Quantize};
use half::f16;
use std::sync::LazyLock;

/// The scales of both IQ1 formats, for levels in eighths.
pub(super) const IQ1_RULE: ScaleRule = ScaleRule { offset: 1.0, step: 2.0, factor: 0.125, max: 7 };

/// 256 values. Eight of them, group `l`, share a row of the codebook. The row's low eight bits are `qs[l]`,
/// its high three the field `l % 4` of `qh[l / 4]`. Bits 12 to 14 of that half-word are the scale of 32
/// values, and bit 15 is their direction.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq1S {
    /// Scale of the scales.
    pub d: f16,
    /// Low bits of the rows.
    pub qs: [u8; 32],
    /// High bits of the rows, scales and directions.
    pub qh: [u16; 8],
}

impl BlockIq1S {
    /// A nibble for each 32 values: the scale's number, and in the top bit whether an eighth is taken away.
    #[inline]
    pub fn scales_and_directions(&self) -> u32 {
        (0..8).fold(0, |all, b| all | u32::from(self.qh[b] >> 12) << (4 * b))
    }
}

impl Codebook for BlockIq1S {
    const LEVELS: [i8; 16] = IQ1_LEVELS;
    const CODE_BITS: u32 = 3;
    const SCALES: usize = 8;
    const RULE: ScaleRule = IQ1_RULE;

    fn d(&self) -> f16 {
        self.d
    }
    #[inline(always)]
    fn scale_nibbles(&self) -> u64 {
        u64::from(self.scales_and_directions() & 0x7777_7777)
    }
    #[inline(always)]
    fn codes(&self, group: usize) -> u64 {
        let h = self.qh[group / 4];
        let row = usize::from(self.qs[group]) | usize::from(h >> (3 * (group % 4)) & 7) << 8;
        pairs(IQ1[row]) | (u64::from(h >> 15) * 0x0404_0404_0404_0404)
    }
}

impl Block for BlockIq1S {
    const TYPE: GgmlType = GgmlType::IQ1_S;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

/// Rows by what is near them, for both IQ1 formats.
pub(super) static NEAREST: LazyLock<Nearest> =
    LazyLock::new(|| Nearest::pairs(&IQ1, &[-8.0, 0.0, 8.0]));

impl Encode for BlockIq1S {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        encode_shifted(&NEAREST, values, inv, codes);
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let qh = std::array::from_fn(|b| {
            let high = |l: usize| (codes[4 * b + l].rows[0] >> 8) << (3 * l);
            let direction = u16::from(codes[4 * b].signs & 1) << 15;
            direction | u16::from(scales[b]) << 12 | high(0) | high(1) | high(2) | high(3)
        });
        Self { d, qs: codes.map(|code| code.rows[0] as u8), qh }
    }
}

impl Quantize for BlockIq1S {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
