//! The formats of 32 columns with one f16 scale: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

use super::planes::{self, Codes, bits_at, codes_of, each_word, spread, word_at};
use super::{BLOCK, Offset, PanelFormat, Scales, VECTORS, halves_at, put_halves};
use crate::simd::{LANES, Simd};
use brigade_quant::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};

/// Bytes of sixteen f16.
const HALVES: usize = 2 * LANES;

/// Nibbles of the usual order: low nibbles are columns 0..16, high ones 16..32.
#[inline(always)]
pub(super) fn nibbles_of(qs: &[u8; 16]) -> [u32; VECTORS] {
    each_word(|v| bits_at(word_at(qs, v % 4), 4 * (v / 4), 15))
}

/// Five-bit codes: nibbles with bit `i` of `qh` on top of column `i`.
#[inline(always)]
fn fives_of(qh: &[u8; 4], qs: &[u8; 16]) -> [u32; VECTORS] {
    let (low, high) = (nibbles_of(qs), u32::from_le_bytes(*qh));
    each_word(|v| low[v] | spread(high >> (4 * v)) << 4)
}

#[inline(always)]
fn scale<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
    out.scale[0] = s.load_f16(halves_at(head, 0));
}

#[inline(always)]
fn scale_and_min<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
    scale(s, head, out);
    out.min[0] = s.load_f16(halves_at(head, HALVES));
}

/// `d * (q - 8)`.
pub(crate) struct Q4_0;

impl PanelFormat for Q4_0 {
    type Block = BlockQ4_0;
    const BLOCKS: usize = 1;
    const HEAD: usize = HALVES;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Shift(3);
    const MAX_CODE: u8 = 15;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        planes::pack_nibbles(&codes_of(rows, |row| nibbles_of(&row.qs)), planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        scale(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::nibbles(s, planes, 0)
    }
}

/// `d * q + m`.
pub(crate) struct Q4_1;

impl PanelFormat for Q4_1 {
    type Block = BlockQ4_1;
    const BLOCKS: usize = 1;
    const HEAD: usize = 2 * HALVES;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = false;
    const MINS: bool = true;
    const OFFSET: Offset = Offset::None;
    const MAX_CODE: u8 = 15;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        put_halves(head, HALVES, rows, |row| row.m);
        planes::pack_nibbles(&codes_of(rows, |row| nibbles_of(&row.qs)), planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        scale_and_min(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::nibbles(s, planes, 0)
    }
}

/// `d * (q - 16)`.
pub(crate) struct Q5_0;

impl PanelFormat for Q5_0 {
    type Block = BlockQ5_0;
    const BLOCKS: usize = 1;
    const HEAD: usize = HALVES;
    const PLANES: usize = planes::NIBBLES + planes::BITS;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Shift(4);
    const MAX_CODE: u8 = 31;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        pack_fives(&codes_of(rows, |row| fives_of(&row.qh, &row.qs)), planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        scale(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        fives(s, planes)
    }
}

/// `d * q + m`.
pub(crate) struct Q5_1;

impl PanelFormat for Q5_1 {
    type Block = BlockQ5_1;
    const BLOCKS: usize = 1;
    const HEAD: usize = 2 * HALVES;
    const PLANES: usize = planes::NIBBLES + planes::BITS;
    const HALVES: bool = false;
    const MINS: bool = true;
    const OFFSET: Offset = Offset::None;
    const MAX_CODE: u8 = 31;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        put_halves(head, HALVES, rows, |row| row.m);
        pack_fives(&codes_of(rows, |row| fives_of(&row.qh, &row.qs)), planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        scale_and_min(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        fives(s, planes)
    }
}

/// Planes of five-bit codes: nibbles, then the fifth bits.
pub(super) fn pack_fives(codes: &Codes, planes: &mut [u8]) {
    let (nibbles, bits) = planes.split_at_mut(planes::NIBBLES);
    planes::pack_nibbles(codes, nibbles);
    planes::pack_bits(codes, 4, bits);
}

/// Codes of [`pack_fives`].
#[inline(always)]
pub(super) fn fives<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
    let low = planes::nibbles(s, planes, 0);
    planes::or_bits(s, planes, planes::NIBBLES, 4, low)
}

/// `d * q`, stored with 128 added.
pub(crate) struct Q8_0;

impl PanelFormat for Q8_0 {
    type Block = BlockQ8_0;
    const BLOCKS: usize = 1;
    const HEAD: usize = HALVES;
    const PLANES: usize = planes::BYTES;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Signed;
    const MAX_CODE: u8 = 255;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        let codes = codes_of(rows, |row| {
            let qs: &[u8; BLOCK] = bytemuck::cast_ref(&row.qs);
            each_word(|v| word_at(qs, v) ^ 0x8080_8080)
        });
        planes::pack_bytes(&codes, planes);
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        scale(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::bytes(s, planes, 0)
    }
}
