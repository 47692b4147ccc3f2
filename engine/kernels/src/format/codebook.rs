//! Formats whose 4-bit codes index a table of values: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
//!
//! A byte shuffle looks the codes up. An offset is added to the table's entries, so that they are unsigned
//! like all codes.

use super::basic::nibbles_of;
use super::planes::{self, bits_at, codes_of, each_word, word_at};
use super::{Offset, PanelFormat, Scales, VECTORS, bytes_at, halves_at, put_halves, put_words};
use crate::simd::{LANES, Simd};
use brigade_quant::{
    BlockIq4Nl, BlockIq4Xs, BlockMxfp4, BlockNvfp4, FP4_TABLE, IQ4_TABLE, NO_SCALE,
};

/// Added to the entries of [`FP4_TABLE`].
const E2M1_SHIFT: u32 = 4;

/// A table with `offset` added to each entry, as unsigned bytes.
const fn raised(table: [i8; 16], offset: i16) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (table[i] as i16 + offset) as u8;
        i += 1;
    }
    out
}

const IQ4_RAISED: [u8; 16] = raised(IQ4_TABLE, 128);
const E2M1_RAISED: [u8; 16] = raised(FP4_TABLE, 1 << E2M1_SHIFT);

#[inline(always)]
fn looked_up<S: Simd>(s: S, planes: &[u8], table: &[u8; 16]) -> [S::I; VECTORS] {
    let mut codes = planes::nibbles(s, planes, 0);
    for code in &mut codes {
        *code = s.lookup(table, *code);
    }
    codes
}

/// `d * T[q]`, one f16 scale for 32 columns.
pub(crate) struct Iq4Nl;

impl PanelFormat for Iq4Nl {
    type Block = BlockIq4Nl;
    const BLOCKS: usize = 1;
    const HEAD: usize = 2 * LANES;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Signed;
    const MAX_CODE: u8 = 255;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        planes::pack_nibbles(&codes_of(rows, |row| nibbles_of(&row.qs)), planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        out.scale[0] = s.load_f16(halves_at(head, 0));
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        looked_up(s, planes, &IQ4_RAISED)
    }
}

/// `d * (ls - 32) * T[q]`, a six-bit scale for each 32 of 256 columns.
/// Header: d (f16), the scales' high bits (u16), their low nibbles (u32), sixteen rows each.
pub(crate) struct Iq4Xs;

impl PanelFormat for Iq4Xs {
    type Block = BlockIq4Xs;
    const BLOCKS: usize = 8;
    const HEAD: usize = 8 * LANES;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Signed;
    const MAX_CODE: u8 = 255;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        put_words(head, 2 * LANES, rows, |row| row.scales_h.to_le_bytes());
        put_words(head, 4 * LANES, rows, |row| row.scales_l);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            planes::pack_nibbles(
                &codes_of(rows, |row| nibbles_of(bytes_at(&row.qs, 16 * b))),
                planes,
            );
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.load_f16(halves_at(head, 0));
        let high = s.load_u16(halves_at(head, 2 * LANES));
        let low = s.load_bytes(bytes_at(head, 4 * LANES));
        for b in 0..Self::BLOCKS {
            let low = s.and_i(s.shr_i(low, 4 * b as u32), s.splat_i(15));
            let high = s.and_i(s.shr_i(high, 2 * b as u32), s.splat_i(3));
            let ls = s.add_i(s.or_i(low, s.shl_i(high, 4)), s.splat_i(-32));
            out.scale[b] = s.mul(d, s.to_f32(ls));
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        looked_up(s, planes, &IQ4_RAISED)
    }
}

/// `2^(e - 128) * F[q]` with doubled E2M1 values. Header: e, sixteen rows.
pub(crate) struct Mxfp4;

impl PanelFormat for Mxfp4 {
    type Block = BlockMxfp4;
    const BLOCKS: usize = 1;
    const HEAD: usize = LANES;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Shift(E2M1_SHIFT);
    const MAX_CODE: u8 = 28;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        for (e, row) in head.iter_mut().zip(rows) {
            *e = row.e;
        }
        planes::pack_nibbles(&codes_of(rows, |row| nibbles_of(&row.qs)), planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        // 2^(e - 127) from its exponent bits; e = 0 has none, and is the subnormal 2^-127.
        let bits = s.shl_i(s.load_u8(bytes_at(head, 0)), 23);
        let power = s.max(s.bits_f32(bits), s.bits_f32(s.splat_i(0x0040_0000)));
        out.scale[0] = s.mul(power, s.splat(0.5));
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        looked_up(s, planes, &E2M1_RAISED)
    }
}

/// `e4m3(d) / 2 * F[q]` with doubled E2M1 values. Header: sixteen bytes d for each of four scales.
pub(crate) struct Nvfp4;

impl PanelFormat for Nvfp4 {
    type Block = BlockNvfp4;
    const BLOCKS: usize = 2;
    const HEAD: usize = 4 * LANES;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = true;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Shift(E2M1_SHIFT);
    const MAX_CODE: u8 = 28;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        for (i, head) in head.chunks_exact_mut(LANES).enumerate() {
            for (d, row) in head.iter_mut().zip(rows) {
                // What means zero is zero from here on, and all others are numbers.
                *d = if row.d[i] == NO_SCALE { 0 } else { row.d[i] & 0x7f };
            }
        }
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            // Sixteen columns have eight bytes: low nibbles, then high ones.
            let codes = codes_of(rows, |row| {
                each_word(|v| {
                    let word = word_at(&row.qs, VECTORS / 2 * b + v / 4 * 2 + v % 2);
                    bits_at(word, v / 2 % 2 * 4, 15)
                })
            });
            planes::pack_nibbles(&codes, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        // Exponent and mantissa in their places of an f32, 2^120 below; half of that.
        let raise = s.splat(2f32.powi(119));
        for i in 0..4 {
            let bits = s.shl_i(s.load_u8(bytes_at(head, LANES * i)), 20);
            out.scale[i] = s.mul(s.bits_f32(bits), raise);
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        looked_up(s, planes, &E2M1_RAISED)
    }
}
