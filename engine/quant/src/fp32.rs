//! F32: IEEE single precision. A block is one value.

use super::{Block, GgmlType, Quantize};

/// A block of one value.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockF32(pub f32);

impl Block for BlockF32 {
    const TYPE: GgmlType = GgmlType::F32;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.0;
    }
}

impl Quantize for BlockF32 {
    fn quantize(values: &[f32]) -> Self {
        Self(values[0])
    }
}
