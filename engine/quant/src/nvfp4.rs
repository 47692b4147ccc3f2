//! NVFP4: blocks of 64 values in E2M1 (four bits), with a scale in E4M3 (eight bits) for each 16. A value is
//! `F[q] * e4m3(d) / 2`. `F` has the doubled values of E2M1, `q` is the code, and `d` the scale's code.

use super::fit::inverse;
use super::mxfp4::{FP4_TABLE, nearest};
use super::{Block, GgmlType, Quantize};

/// The scale that stands for 0, as it would be a NaN.
pub const NO_SCALE: u8 = 0x7f;
/// The largest scale, in E4M3.
const MAX_SCALE: u8 = 0x7e;
/// Values that share a scale.
const SUB: usize = 16;

/// 64 values. Sub-block `s` has eight bytes of `qs`, low nibbles first.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockNvfp4 {
    /// Scales: E4M3, the sign ignored.
    pub d: [u8; 4],
    /// Indices into [`FP4_TABLE`].
    pub qs: [u8; 32],
}

/// Half of what the scale means, for values that are doubled.
#[inline]
pub fn e4m3_half(d: u8) -> f32 {
    if d == NO_SCALE {
        return 0.0;
    }
    // Exponent and mantissa in their places of an f32: 2^120 below, subnormals too. All is exact.
    f32::from_bits(u32::from(d & 0x7f) << 20) * 2f32.powi(119)
}

impl Block for BlockNvfp4 {
    const TYPE: GgmlType = GgmlType::NVFP4;

    fn dequantize(&self, out: &mut [f32]) {
        let subs = self.d.iter().zip(self.qs.chunks_exact(SUB / 2));
        for ((d, qs), out) in subs.zip(out.chunks_exact_mut(SUB)) {
            let d = e4m3_half(*d);
            let (low, high) = out.split_at_mut(SUB / 2);
            for ((q, low), high) in qs.iter().zip(low).zip(high) {
                *low = f32::from(FP4_TABLE[usize::from(q & 15)]) * d;
                *high = f32::from(FP4_TABLE[usize::from(q >> 4)]) * d;
            }
        }
    }
}

/// The scale at or below `half`, which is half of what it means: they rise with their number.
fn scale_below(half: f32) -> u8 {
    let (mut below, mut above) = (0, MAX_SCALE + 1);
    while above - below > 1 {
        let middle = (below + above) / 2;
        if e4m3_half(middle) <= half { below = middle } else { above = middle }
    }
    below
}

fn encode(values: &[f32], d: u8) -> ([u8; SUB / 2], f32) {
    let (scale, inv) = (e4m3_half(d), inverse(e4m3_half(d)));
    let q: [u8; SUB] = std::array::from_fn(|j| nearest(values[j] * inv));
    let off = |j: usize| values[j] - f32::from(FP4_TABLE[usize::from(q[j])]) * scale;
    let error = (0..SUB).map(|j| off(j) * off(j)).sum();
    (std::array::from_fn(|j| q[j] | q[j + SUB / 2] << 4), error)
}

impl Quantize for BlockNvfp4 {
    /// Takes the best of the scales that put the largest value near one of the largest levels.
    fn quantize(values: &[f32]) -> Self {
        let mut block = Self { d: [0; 4], qs: [0; 32] };
        let subs = block.d.iter_mut().zip(block.qs.chunks_exact_mut(SUB / 2));
        for ((best, qs), values) in subs.zip(values.chunks_exact(SUB)) {
            let largest = values.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
            let mut least = f32::INFINITY;
            for level in [12.0, 8.0, 6.0, 4.0] {
                let below = scale_below(largest / level);
                for d in [below, (below + 1).min(MAX_SCALE)] {
                    let (q, error) = encode(values, d);
                    if error < least {
                        (*best, least) = (d, error);
                        qs.copy_from_slice(&q);
                    }
                }
            }
        }
        block
    }
}
