//! IQ1_M: as IQ1_S, but with a scale for each 16 values, and a direction (an eighth up or down) for each 8.

use super::codebook::{Codebook, IQ1_LEVELS, ScaleRule, decode, pairs};
use super::codebook_fit::{Code, Encode, encode_shifted, fit_block};
use super::grids::IQ1;
use super::iq1_s::{IQ1_RULE, NEAREST};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// 256 values. Eight of them, group `l`, have a row of the codebook: its low eight bits are `qs[l]`, its
/// high three the low bits of nibble `l` of `qh`, whose highest is their direction.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq1M {
    /// Low bits of the rows.
    pub qs: [u8; 32],
    /// High bits of the rows, and directions.
    pub qh: [u8; 16],
    /// Little-endian half-words: four scales of three bits each from the lowest on, and on top four
    /// bits of the scale of the scales.
    pub scales: [[u8; 2]; 4],
}

impl BlockIq1M {
    fn word(&self, i: usize) -> u16 {
        u16::from_le_bytes(self.scales[i])
    }

    /// Nibble `group` of `qh`.
    fn high(&self, group: usize) -> u8 {
        self.qh[group / 2] >> (4 * (group % 2)) & 15
    }

    /// Whether an eighth is taken away: bit `l` of the four groups `l` of 32 values.
    #[inline]
    pub fn directions(&self, b: usize) -> u8 {
        (0..4).fold(0, |all, l| all | self.high(4 * b + l) >> 3 << l)
    }
}

impl Codebook for BlockIq1M {
    const LEVELS: [i8; 16] = IQ1_LEVELS;
    const CODE_BITS: u32 = 3;
    const SCALES: usize = 16;
    const RULE: ScaleRule = IQ1_RULE;

    fn d(&self) -> f16 {
        f16::from_bits((0..4).fold(0, |d, i| d | self.word(i) >> 12 << (4 * i)))
    }
    #[inline(always)]
    fn scale_nibbles(&self) -> u64 {
        let scale = |i: usize| u64::from(self.word(i / 4) >> (3 * (i % 4)) & 7);
        (0..16).fold(0, |all, i| all | scale(i) << (4 * i))
    }
    #[inline(always)]
    fn codes(&self, group: usize) -> u64 {
        let high = self.high(group);
        let row = usize::from(self.qs[group]) | usize::from(high & 7) << 8;
        pairs(IQ1[row]) | (u64::from(high >> 3) * 0x0404_0404_0404_0404)
    }
}

impl Block for BlockIq1M {
    const TYPE: GgmlType = GgmlType::IQ1_M;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

impl Encode for BlockIq1M {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        for (values, code) in values.chunks_exact(8).zip(codes.chunks_exact_mut(1)) {
            encode_shifted(&NEAREST, values, inv, code);
        }
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let high = |l: usize| (codes[l].rows[0] >> 8) as u8 | (codes[l].signs & 1) << 3;
        let words = std::array::from_fn(|i: usize| {
            let scale = |k: usize| u16::from(scales[4 * i + k]) << (3 * k);
            let top = (d.to_bits() >> (4 * i) & 15) << 12;
            (top | scale(0) | scale(1) | scale(2) | scale(3)).to_le_bytes()
        });
        Self {
            qs: codes.map(|code| code.rows[0] as u8),
            qh: std::array::from_fn(|i| high(2 * i) | high(2 * i + 1) << 4),
            scales: words,
        }
    }
}

impl Quantize for BlockIq1M {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
