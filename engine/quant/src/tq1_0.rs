//! TQ1_0: blocks of 256 values that are -1, 0 or 1 times one scale, five of them to a byte. A value is `d *
//! (q - 1)`, for the scale `d` and the code `q`.

use super::tq2_0::ternary;
use super::{Block, GgmlType, Quantize};
use half::f16;

/// Powers of three, by which digits are taken.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// 256 values in three parts: the first 32 bytes of `qs` (160 values), its last 16 (80) and `qh` (16). A byte
/// `b` is a fraction `b / 256` in base three, whose digit `n` after the point is value `n * bytes + i` of its
/// part, `i` the byte's place there.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTq1_0 {
    /// Five values a byte.
    pub qs: [u8; 48],
    /// Four values a byte.
    pub qh: [u8; 4],
    /// Scale.
    pub d: f16,
}

impl BlockTq1_0 {
    /// The values plus one.
    pub fn trits(&self) -> [u8; 256] {
        let mut trits = [0; 256];
        let mut left = &mut trits[..];
        for (bytes, n_digits) in [(&self.qs[..32], 5), (&self.qs[32..], 5), (&self.qh[..], 4)] {
            for power in &POWERS[..n_digits] {
                let (out, rest) = left.split_at_mut(bytes.len());
                left = rest;
                for (out, byte) in out.iter_mut().zip(bytes) {
                    *out = ((u16::from(byte.wrapping_mul(*power)) * 3) >> 8) as u8;
                }
            }
        }
        trits
    }
}

impl Block for BlockTq1_0 {
    const TYPE: GgmlType = GgmlType::TQ1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (q, out) in self.trits().into_iter().zip(out) {
            *out = (i32::from(q) - 1) as f32 * d;
        }
    }
}

/// Bytes of one part of a block.
fn encode(trits: &[u8], bytes: &mut [u8]) {
    let n_bytes = bytes.len();
    for (i, byte) in bytes.iter_mut().enumerate() {
        // Five digits as a whole number; a fifth that is missing is 0.
        let digit = |n: usize| trits.get(n * n_bytes + i).map_or(0, |q| u16::from(*q));
        let number = (0..5).fold(0, |number, n| 3 * number + digit(n));
        // The least byte that is no smaller a fraction than `number / 243`.
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

impl Quantize for BlockTq1_0 {
    fn quantize(values: &[f32]) -> Self {
        let (d, trits) = ternary::<256>(values);
        let mut block = Self { qs: [0; 48], qh: [0; 4], d };
        encode(&trits[..160], &mut block.qs[..32]);
        encode(&trits[160..240], &mut block.qs[32..]);
        encode(&trits[240..], &mut block.qh);
        block
    }
}
