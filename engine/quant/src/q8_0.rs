//! Q8_0: blocks of 32 values, with 8 bits each and one scale. A value is `d * q`, for the scale `d` and the
//! code `q`.

use super::fit::{extreme, inverse, round_clamp};
use super::{Block, GgmlType, Quantize};
use half::f16;

/// 32 values.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: f16,
    /// Values.
    pub qs: [i8; 32],
}

impl Block for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (q, out) in self.qs.iter().zip(out) {
            *out = f32::from(*q) * d;
        }
    }
}

impl Quantize for BlockQ8_0 {
    fn quantize(values: &[f32]) -> Self {
        let d = f16::from_f32(extreme(values).abs() / 127.0);
        let inv = inverse(d.to_f32());
        Self { d, qs: std::array::from_fn(|j| round_clamp(values[j] * inv, -127, 127) as i8) }
    }
}
