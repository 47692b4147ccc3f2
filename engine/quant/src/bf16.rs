//! BF16: the high half of an f32. A block is one value.

use super::{Block, GgmlType, Quantize};
use half::bf16;

/// A block of one value.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct BlockBf16(pub bf16);

impl Block for BlockBf16 {
    const TYPE: GgmlType = GgmlType::BF16;

    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(self.0.to_bits()) << 16);
    }
}

impl Quantize for BlockBf16 {
    fn quantize(values: &[f32]) -> Self {
        Self(bf16::from_f32(values[0]))
    }
}
