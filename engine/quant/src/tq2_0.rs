//! TQ2_0: blocks of 256 values, with two bits each and one scale. A value is `d * (q - 1)`, for the scale `d`
//! and the code `q` from 0 to 3.

use super::fit::{inverse, round_clamp};
use super::{Block, GgmlType, Quantize};
use crate::k_quants::q2_k::{pack_two_bits, two_bits};
use half::f16;

/// 256 values, their bits placed as in [`BlockQ2K`](super::BlockQ2K).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTq2_0 {
    /// Two bits a value.
    pub qs: [u8; 64],
    /// Scale.
    pub d: f16,
}

impl Block for BlockTq2_0 {
    const TYPE: GgmlType = GgmlType::TQ2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (group, out) in out.chunks_exact_mut(16).enumerate() {
            let (shift, qs) = two_bits(&self.qs, group);
            for (q, out) in qs.iter().zip(out) {
                *out = (i32::from(q >> shift & 3) - 1) as f32 * d;
            }
        }
    }
}

/// Rounds of choosing levels and moving the scale to where their squared error is least.
const ROUNDS: usize = 3;

/// Scale and codes 0, 1 or 2 of values that are to become -1, 0 or 1 times the scale.
pub(super) fn ternary<const N: usize>(values: &[f32]) -> (f16, [u8; N]) {
    let level = |v: f32, inv: f32| round_clamp(v * inv, -1, 1);
    // Where the mean magnitude still rounds to one.
    let mut scale = values.iter().map(|v| v.abs()).sum::<f32>() / N as f32 * 1.5;
    for _ in 0..ROUNDS {
        let inv = inverse(scale);
        let (mut sum, mut n) = (0.0, 0.0);
        for v in values {
            let q = level(*v, inv) as f32;
            sum += v * q;
            n += q * q;
        }
        scale = if n > 0.0 { sum / n } else { scale };
    }
    let d = f16::from_f32(scale);
    let inv = inverse(d.to_f32());
    (d, std::array::from_fn(|i| (level(values[i], inv) + 1) as u8))
}

impl Quantize for BlockTq2_0 {
    fn quantize(values: &[f32]) -> Self {
        let (d, q) = ternary(values);
        Self { qs: pack_two_bits(&q), d }
    }
}
