//! F16: IEEE half precision. A block is one value.

use super::{Block, GgmlType, Quantize};
use half::f16;

/// A block of one value.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockF16(pub f16);

impl Block for BlockF16 {
    const TYPE: GgmlType = GgmlType::F16;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.0.to_f32();
    }
}

impl Quantize for BlockF16 {
    fn quantize(values: &[f32]) -> Self {
        Self(f16::from_f32(values[0]))
    }
}
