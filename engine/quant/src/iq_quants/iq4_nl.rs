//! IQ4_NL: blocks of 32 values, with 4 bits each and one scale. A value is `d * T[q]`, for the scale `d`, the
//! code `q` and a table `T` of uneven levels.

use crate::fit::{extreme, inverse};
use crate::{Block, GgmlType, Quantize};
use half::f16;

/// The levels, of the format's definition.
pub const IQ4_TABLE: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 32 values. Byte `j` holds value `j` in its low and value `j + 16` in its high nibble.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale.
    pub d: f16,
    /// Indices into [`IQ4_TABLE`].
    pub qs: [u8; 16],
}

/// Decodes 16 bytes of indices into 32 values.
#[inline(always)]
pub(super) fn decode_levels(scale: f32, qs: &[u8], out: &mut [f32]) {
    let (low, high) = out.split_at_mut(16);
    for ((q, low), high) in qs.iter().zip(low).zip(high) {
        *low = scale * f32::from(IQ4_TABLE[usize::from(q & 15)]);
        *high = scale * f32::from(IQ4_TABLE[usize::from(q >> 4)]);
    }
}

/// Index of the level nearest to `x`.
pub(super) fn nearest_level(x: f32) -> u8 {
    let below = |pair: &&[i8]| x > (f32::from(pair[0]) + f32::from(pair[1])) * 0.5;
    IQ4_TABLE.windows(2).filter(below).count() as u8
}

/// Indices of 32 values at `scale`, packed.
pub(super) fn encode_levels(values: &[f32], scale: f32) -> [u8; 16] {
    let inv = inverse(scale);
    std::array::from_fn(|j| {
        nearest_level(values[j] * inv) | nearest_level(values[j + 16] * inv) << 4
    })
}

/// The scale of least squared error for the levels that spread over the range of `values`.
pub(super) fn fit_levels(values: &[f32]) -> f32 {
    let scale = extreme(values) / f32::from(IQ4_TABLE[0]);
    let inv = inverse(scale);
    let (mut xt, mut tt) = (0.0, 0.0);
    for v in values {
        let level = f32::from(IQ4_TABLE[usize::from(nearest_level(v * inv))]);
        xt += v * level;
        tt += level * level;
    }
    if tt > 0.0 { xt / tt } else { scale }
}

impl Block for BlockIq4Nl {
    const TYPE: GgmlType = GgmlType::IQ4_NL;

    fn dequantize(&self, out: &mut [f32]) {
        decode_levels(self.d.to_f32(), &self.qs, out);
    }
}

impl Quantize for BlockIq4Nl {
    fn quantize(values: &[f32]) -> Self {
        let d = f16::from_f32(fit_levels(values));
        Self { d, qs: encode_levels(values, d.to_f32()) }
    }
}
