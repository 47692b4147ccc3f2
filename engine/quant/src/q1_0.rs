//! Q1_0: blocks of 128 values, with a sign each and one scale. A value is `d` or `-d`, for the scale `d`.

use super::{Block, GgmlType, Quantize};
use half::f16;

/// 128 values. Bit `i % 8` of `qs[i / 8]` is set where value `i` is `d`, clear where it is `-d`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ1_0 {
    /// Scale.
    pub d: f16,
    /// Signs of the values.
    pub qs: [u8; 16],
}

impl Block for BlockQ1_0 {
    const TYPE: GgmlType = GgmlType::Q1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (qs, out) in self.qs.iter().zip(out.chunks_exact_mut(8)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = if qs >> i & 1 == 1 { d } else { -d };
            }
        }
    }
}

impl Quantize for BlockQ1_0 {
    /// The mean magnitude, which has the least squared error.
    fn quantize(values: &[f32]) -> Self {
        let sum: f32 = values.iter().map(|v| v.abs()).sum();
        let bit = |i: usize| u8::from(values[i] >= 0.0);
        Self {
            d: f16::from_f32(sum / values.len() as f32),
            qs: std::array::from_fn(|b| (0..8).fold(0, |byte, i| byte | bit(8 * b + i) << i)),
        }
    }
}
