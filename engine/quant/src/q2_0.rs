//! Q2_0: blocks of 64 values, with two bits each and one scale. A value is `d * (q - 1)`, for the scale `d`
//! and the code `q` from 0 to 3.

use super::tq2_0::ternary;
use super::{Block, GgmlType, Quantize};
use half::f16;

/// 64 values. Field `i % 4` of two bits of `qs[i / 4]` is value `i`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ2_0 {
    /// Scale.
    pub d: f16,
    /// Two bits a value.
    pub qs: [u8; 16],
}

impl Block for BlockQ2_0 {
    const TYPE: GgmlType = GgmlType::Q2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (qs, out) in self.qs.iter().zip(out.chunks_exact_mut(4)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = (i32::from(qs >> (2 * i) & 3) - 1) as f32 * d;
            }
        }
    }
}

impl Quantize for BlockQ2_0 {
    fn quantize(values: &[f32]) -> Self {
        let (d, q) = ternary::<64>(values);
        let qs = std::array::from_fn(|b| (0..4).fold(0, |byte, i| byte | q[4 * b + i] << (2 * i)));
        Self { d, qs }
    }
}
