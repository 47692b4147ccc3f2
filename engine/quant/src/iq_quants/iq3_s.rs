//! IQ3_S: blocks of 256 values of eight odd magnitudes with signs. A value is `d * (1 + 2 s) * level`. `s` is
//! the scale of 32 values, and `d` the block's factor for scales. The codebook gives the magnitudes of four
//! values at once.

use super::codebook::{Codebook, ScaleRule, bits, decode, nibbles};
use super::codebook_fit::{Code, Encode, Nearest, encode_signed, fit_block, pack_nibbles};
use super::grids::IQ3_S;
use crate::{Block, GgmlType, Quantize};
use half::f16;
use std::sync::LazyLock;

const LEVELS: [i8; 16] = [1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15];
const SIZES: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// 256 values. Four of them, `l`, have a row of the codebook: its low eight bits are `qs[l]`, its ninth
/// the bit `l % 8` of `qh[l / 8]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq3S {
    /// Scale of the scales.
    pub d: f16,
    /// Low bits of the rows.
    pub qs: [u8; 64],
    /// Ninth bits of the rows.
    pub qh: [u8; 8],
    /// Signs, a bit for each value.
    pub signs: [u8; 32],
    /// Scales of each 32 values, a nibble each.
    pub scales: [u8; 4],
}

impl Codebook for BlockIq3S {
    const LEVELS: [i8; 16] = LEVELS;
    const CODE_BITS: u32 = 4;
    const SCALES: usize = 8;
    const RULE: ScaleRule = ScaleRule { offset: 1.0, step: 2.0, factor: 1.0, max: 15 };

    fn d(&self) -> f16 {
        self.d
    }
    #[inline(always)]
    fn scale_nibbles(&self) -> u64 {
        u64::from(u32::from_le_bytes(self.scales))
    }
    #[inline(always)]
    fn codes(&self, group: usize) -> u64 {
        let high = self.qh[group / 4] >> (2 * (group % 4));
        let row =
            |i: usize| IQ3_S[usize::from(self.qs[2 * group + i]) | usize::from(high >> i & 1) << 8];
        nibbles([row(0), row(1)]) | bits(self.signs[group]) << 3
    }
}

impl Block for BlockIq3S {
    const TYPE: GgmlType = GgmlType::IQ3_S;

    fn dequantize(&self, out: &mut [f32]) {
        decode(self, out);
    }
}

static NEAREST: LazyLock<Nearest> = LazyLock::new(|| Nearest::nibbles(&IQ3_S, &SIZES));

impl Encode for BlockIq3S {
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]) {
        encode_signed(&NEAREST, false, values, inv, codes);
    }

    fn build(d: f16, scales: &[u8; 16], codes: &[Code; 32]) -> Self {
        let mut qh = [0; 8];
        for (l, code) in codes.iter().enumerate() {
            for (i, row) in code.rows.iter().enumerate() {
                qh[l / 4] |= ((row >> 8) as u8) << (2 * (l % 4) + i);
            }
        }
        let qs = std::array::from_fn(|i| codes[i / 2].rows[i % 2] as u8);
        Self { d, qs, qh, signs: codes.map(|code| code.signs), scales: pack_nibbles(scales) }
    }
}

impl Quantize for BlockIq3S {
    fn quantize(values: &[f32]) -> Self {
        fit_block(values)
    }
}
