//! Block formats of weights. Each has its own file (K and IQ formats in folders), with the block as a struct and its scalar reference.
//!
//! Dequantisation is exact: f32 products in the written order, so that any two implementations agree bit for
//! bit. Quantisers make their own error small and promise no particular bits. Nothing here knows more of
//! tensors than rows, or anything of SIMD.

mod bf16;
mod fit;
mod fp16;
mod fp32;
mod ggml_type;
mod iq_quants;
mod k_quants;
mod kernel_error;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q4_0;
mod q4_1;
mod q5_0;
mod q5_1;
mod q8_0;
mod tq1_0;
mod tq2_0;

pub use bf16::BlockBf16;
pub use fp16::BlockF16;
pub use fp32::BlockF32;
pub use ggml_type::GgmlType;
pub use iq_quants::iq1_m::BlockIq1M;
pub use iq_quants::iq1_s::BlockIq1S;
pub use iq_quants::iq2_s::BlockIq2S;
pub use iq_quants::iq2_xs::BlockIq2Xs;
pub use iq_quants::iq2_xxs::BlockIq2Xxs;
pub use iq_quants::iq3_s::BlockIq3S;
pub use iq_quants::iq3_xxs::BlockIq3Xxs;
pub use iq_quants::iq4_nl::{BlockIq4Nl, IQ4_TABLE};
pub use iq_quants::iq4_xs::BlockIq4Xs;
pub use k_quants::q2_k::BlockQ2K;
pub use k_quants::q3_k::BlockQ3K;
pub use k_quants::q4_k::BlockQ4K;
pub use k_quants::q5_k::BlockQ5K;
pub use k_quants::q6_k::BlockQ6K;
pub use k_quants::scales::{pack_k_scales, unpack_k_scales};
pub use kernel_error::{DeviceError, DeviceFault, KernelError};
pub use mxfp4::{BlockMxfp4, FP4_TABLE, e8m0_half};
pub use nvfp4::BlockNvfp4;
pub use q1_0::BlockQ1_0;
pub use q2_0::BlockQ2_0;
pub use q4_0::BlockQ4_0;
pub use q4_1::BlockQ4_1;
pub use q5_0::BlockQ5_0;
pub use q5_1::BlockQ5_1;
pub use q8_0::BlockQ8_0;
pub use tq1_0::BlockTq1_0;
pub use tq2_0::BlockTq2_0;

pub use iq_quants::codebook::{Codebook, ScaleRule};
pub use nvfp4::{NO_SCALE, e4m3_half};

#[cfg(target_endian = "big")]
compile_error!("block formats are little-endian and are read in place");

/// Decodes as many blocks as both sides hold.
type Decode = fn(bytes: &[u8], out: &mut [f32]);
/// Encodes as many blocks as both sides hold.
type Encode = fn(values: &[f32], out: &mut [u8]);

/// A block format that this crate computes with.
pub struct Format {
    /// Type of the tensors in this format.
    pub ty: GgmlType,
    dequantize: Decode,
    /// `None` where only reading is offered.
    quantize: Option<Encode>,
}

/// Errors of calls of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// No code for the type. Choose a model in another one.
    #[error("not supported yet: {ty} in {tensor}")]
    Unsupported {
        /// Type of the tensor.
        ty: GgmlType,
        /// The tensor that has it.
        tensor: String,
    },
    /// The type can be read but not written. Choose another one.
    #[error("not supported yet: quantising to {0}")]
    NoQuantizer(GgmlType),
    /// Bytes and values do not describe the same row.
    #[error("{ty}: {bytes} bytes do not hold {values} values")]
    Length {
        /// Type of the values.
        ty: GgmlType,
        /// Length of the bytes that were given.
        bytes: usize,
        /// Number of the values that were given.
        values: usize,
    },
}

/// One block of a format, laid out as in the file.
pub trait Block: bytemuck::Pod {
    /// Type of such blocks. `size_of::<Self>()` is the type's block size.
    const TYPE: GgmlType;

    /// Decodes the block into `out`, of the type's block elements.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that can be made from values.
pub trait Quantize: Block {
    /// Encodes `values`, of the type's block elements.
    fn quantize(values: &[f32]) -> Self;
}

/// Formats that are read and written.
macro_rules! formats {
    (read_write: $($rw:ty),*; read_only: $($ro:ty),*;) => {
        /// Every supported format: all can be decoded, and most encoded.
        pub static FORMATS: &[Format] = &[
            $(Format { ty: <$rw>::TYPE, dequantize: blocks::<$rw>, quantize: Some(to_blocks::<$rw>) },)*
            $(Format { ty: <$ro>::TYPE, dequantize: blocks::<$ro>, quantize: None },)*
        ];
        // The struct of each format is as long as its type says.
        $(const _: () = assert!(size_of::<$rw>() == <$rw>::TYPE.block_bytes());)*
        $(const _: () = assert!(size_of::<$ro>() == <$ro>::TYPE.block_bytes());)*
    };
}

formats! {
    read_write: BlockF32, BlockF16, BlockBf16, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0,
        BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, BlockIq4Nl, BlockIq4Xs, BlockMxfp4,
        BlockIq1S, BlockIq1M, BlockIq2Xxs, BlockIq2Xs, BlockIq2S, BlockIq3Xxs, BlockIq3S, BlockTq1_0,
        BlockTq2_0, BlockNvfp4, BlockQ1_0, BlockQ2_0;
    read_only: ;
}

fn blocks<B: Block>(bytes: &[u8], out: &mut [f32]) {
    let out = out.chunks_exact_mut(B::TYPE.block_elems());
    for (block, out) in bytes.chunks_exact(size_of::<B>()).zip(out) {
        bytemuck::pod_read_unaligned::<B>(block).dequantize(out);
    }
}

fn to_blocks<B: Quantize>(values: &[f32], out: &mut [u8]) {
    let out = out.chunks_exact_mut(size_of::<B>());
    for (values, out) in values.chunks_exact(B::TYPE.block_elems()).zip(out) {
        out.copy_from_slice(bytemuck::bytes_of(&B::quantize(values)));
    }
}

/// The format of `ty`; `None` when this crate does not compute with it.
pub fn format(ty: GgmlType) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.ty == ty)
}

/// As [`format`], with an error that names the tensor.
///
/// # Errors
/// The type is not supported.
pub fn require_format(ty: GgmlType, tensor: &str) -> Result<&'static Format, QuantError> {
    format(ty).ok_or_else(|| QuantError::Unsupported { ty, tensor: tensor.to_owned() })
}

impl Format {
    fn check(&self, bytes: usize, values: usize) -> Result<(), QuantError> {
        if self.ty.row_bytes(values) == Some(bytes) {
            return Ok(());
        }
        Err(QuantError::Length { ty: self.ty, bytes, values })
    }

    /// Decodes a row: `out` is `[n]`, `bytes` exactly its blocks, at any address.
    ///
    /// # Errors
    /// The lengths do not fit together.
    pub fn dequantize_row(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
        self.check(bytes.len(), out.len())?;
        (self.dequantize)(bytes, out);
        Ok(())
    }

    /// Encodes a row: `values` is `[n]`, `out` exactly its blocks.
    ///
    /// # Errors
    /// The lengths do not fit together, or the format is read only.
    pub fn quantize_row(&self, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
        self.check(out.len(), values.len())?;
        self.quantize.ok_or(QuantError::NoQuantizer(self.ty))?(values, out);
        Ok(())
    }
}

/// Decodes a row of type `ty`; `tensor` is for the message when the type is not supported.
///
/// # Errors
/// As [`require_format`] and [`Format::dequantize_row`].
pub fn dequantize_row(
    ty: GgmlType,
    tensor: &str,
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), QuantError> {
    require_format(ty, tensor)?.dequantize_row(bytes, out)
}

/// Encodes a row as type `ty`.
///
/// # Errors
/// The type cannot be written, or the lengths do not fit together.
pub fn quantize_row(ty: GgmlType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    format(ty).ok_or(QuantError::NoQuantizer(ty))?.quantize_row(values, out)
}
