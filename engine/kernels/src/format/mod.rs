//! Weight formats as the integer kernels read them: panels of sixteen rows, one row in each lane.
//!
//! A panel is a series of records, one for each unit of the source format (32 or 256 columns). A record has a
//! header with the scales of the sixteen rows. Then it has, for each 32 columns, the codes in planes of bits
//! (see [`planes`]). Together they are about as long as the source, or up to half as long again where the
//! source has codebooks.
//!
//! Packing changes the order of bits, never a value. Code times scale plus minimum is the source's number,
//! computed in the same order.

mod basic;
mod codebook;
mod iq;
mod iq1;
mod k_mins;
mod k_quants;
mod planes;
mod ternary;

pub(crate) use basic::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(crate) use codebook::{Iq4Nl, Iq4Xs, Mxfp4, Nvfp4};
pub(crate) use iq::Iq;
pub(crate) use iq1::{Iq1M, Iq1S};
pub(crate) use k_mins::{Q4K, Q5K};
pub(crate) use k_quants::{Q2K, Q3K, Q6K};
pub(crate) use ternary::{Q1_0, Q2_0, Tq1_0, Tq2_0};

use half::f16;

use super::simd::{LANES, Simd};
use brigade_quant::{Block, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs, GgmlType};

/// Columns that share a block of activations.
pub(crate) const BLOCK: usize = 32;

/// Vectors of codes in a block: each holds four columns of sixteen rows.
pub(crate) const VECTORS: usize = BLOCK / 4;

/// Most scales (or minima) that a unit has for one row.
pub(crate) const MAX_SCALES: usize = 16;

/// Conversion of a code to a signed integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offset {
    /// The code is a signed integer already.
    None,
    /// The integer is the code minus `1 << n`.
    Shift(u32),
    /// The integer is the code minus 128: codes use all eight bits.
    Signed,
}

impl Offset {
    /// The number of [`Offset::Shift`], 0 for the others.
    #[inline]
    pub(crate) const fn shift(self) -> u32 {
        match self {
            Self::Shift(n) => n,
            Self::None | Self::Signed => 0,
        }
    }
}

/// Scales and minima of a unit, or of `N` scales' worth of units; one vector (of sixteen rows) each.
pub(crate) struct Scales<S: Simd, const N: usize = MAX_SCALES> {
    /// Factor of block (or half block) `i`.
    pub(crate) scale: [S::F; N],
    /// Added to every element of block (or half block) `i`.
    pub(crate) min: [S::F; N],
}

impl<S: Simd, const N: usize> Scales<S, N> {
    #[inline(always)]
    pub(crate) fn zero(s: S) -> Self {
        Self { scale: [s.zero(); N], min: [s.zero(); N] }
    }
}

/// One weight format. An element is `scale * (code - offset) + min`.
pub(crate) trait PanelFormat: 'static {
    /// The source's block: one unit of one row.
    type Block: Block;
    /// Blocks of 32 columns in a unit.
    const BLOCKS: usize;
    /// Bytes of a record's header.
    const HEAD: usize;
    /// Bytes of the planes of one block.
    const PLANES: usize;
    /// Whether each half of a block has its own scale.
    const HALVES: bool;
    /// Whether there are minima.
    const MINS: bool;
    /// Conversion of codes to integers.
    const OFFSET: Offset;
    /// The greatest code of an element.
    const MAX_CODE: u8;

    /// Bytes of a record.
    const RECORD: usize = Self::HEAD + Self::BLOCKS * Self::PLANES;

    /// Packs one unit of sixteen rows into a record.
    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]);
    /// Expands a header; entries that the format does not use are left alone.
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>);
    /// Expands the planes of one block: vector `v` holds columns `4v..4v+4`.
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS];
}

/// A use of one format, whichever it is; see [`with_format`].
pub(crate) trait FormatVisitor {
    /// Result of the use.
    type Out;
    /// Uses the format `Q`.
    fn visit<Q: PanelFormat>(self) -> Self::Out;
}

/// Calls `visitor` with the integer format of `ty`: the one place where types become code.
#[inline(always)]
pub(crate) fn with_format<V: FormatVisitor>(ty: GgmlType, visitor: V) -> Option<V::Out> {
    Some(match ty {
        GgmlType::IQ2_S => visitor.visit::<Iq<BlockIq2S>>(),
        GgmlType::TQ1_0 => visitor.visit::<Tq1_0>(),
        ty => return with_kernel_format(ty, visitor),
    })
}

/// As [`with_format`], with the format whose kernel multiplies the panels: types that are packed alike share one
/// kernel.
#[inline(always)]
pub(crate) fn with_kernel_format<V: FormatVisitor>(ty: GgmlType, visitor: V) -> Option<V::Out> {
    Some(match ty {
        GgmlType::Q4_0 => visitor.visit::<Q4_0>(),
        GgmlType::Q4_1 => visitor.visit::<Q4_1>(),
        GgmlType::Q5_0 => visitor.visit::<Q5_0>(),
        GgmlType::Q5_1 => visitor.visit::<Q5_1>(),
        GgmlType::Q8_0 => visitor.visit::<Q8_0>(),
        GgmlType::Q2_K => visitor.visit::<Q2K>(),
        GgmlType::Q3_K => visitor.visit::<Q3K>(),
        GgmlType::Q4_K => visitor.visit::<Q4K>(),
        GgmlType::Q5_K => visitor.visit::<Q5K>(),
        GgmlType::Q6_K => visitor.visit::<Q6K>(),
        GgmlType::IQ4_NL => visitor.visit::<Iq4Nl>(),
        GgmlType::IQ4_XS => visitor.visit::<Iq4Xs>(),
        GgmlType::MXFP4 => visitor.visit::<Mxfp4>(),
        GgmlType::NVFP4 => visitor.visit::<Nvfp4>(),
        GgmlType::IQ1_S => visitor.visit::<Iq1S>(),
        GgmlType::IQ1_M => visitor.visit::<Iq1M>(),
        GgmlType::IQ2_XXS => visitor.visit::<Iq<BlockIq2Xxs>>(),
        GgmlType::IQ2_XS | GgmlType::IQ2_S => visitor.visit::<Iq<BlockIq2Xs>>(),
        GgmlType::IQ3_XXS => visitor.visit::<Iq<BlockIq3Xxs>>(),
        GgmlType::IQ3_S => visitor.visit::<Iq<BlockIq3S>>(),
        GgmlType::TQ2_0 | GgmlType::TQ1_0 => visitor.visit::<Tq2_0>(),
        GgmlType::Q1_0 => visitor.visit::<Q1_0>(),
        GgmlType::Q2_0 => visitor.visit::<Q2_0>(),
        _ => return None,
    })
}

/// The `N` bytes at `at`.
#[inline(always)]
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a record is as long as its format says")
}

/// Sixteen half-words at `at`; packed matrices put them on even addresses.
#[inline(always)]
fn halves_at(bytes: &[u8], at: usize) -> &[u16; LANES] {
    bytemuck::from_bytes(bytes_at::<32>(bytes, at))
}

/// Writes one half-word of each row, row after row.
fn put_halves<B>(head: &mut [u8], at: usize, rows: &[B; LANES], half: impl Fn(&B) -> f16) {
    put_words(head, at, rows, |row| half(row).to_le_bytes());
}

/// Writes `N` bytes of each row, row after row.
fn put_words<B, const N: usize>(
    head: &mut [u8],
    at: usize,
    rows: &[B; LANES],
    word: impl Fn(&B) -> [u8; N],
) {
    for (out, row) in head[at..at + N * LANES].chunks_exact_mut(N).zip(rows) {
        out.copy_from_slice(&word(row));
    }
}

/// Four of the source's scale bytes, as they stand.
fn word(bytes: &[u8], index: usize) -> [u8; 4] {
    *bytes_at(bytes, 4 * index)
}
