//! The formats of one scale and whole numbers from -1 to 2: TQ1_0, TQ2_0, Q2_0 and Q1_0.
//!
//! The header is d (f16) for sixteen rows.

use super::k_quants::pairs_of;
use super::planes::{self, codes_of, each_word, spread, word_at};
use super::{Offset, PanelFormat, Scales, VECTORS, halves_at, put_halves};
use crate::simd::{LANES, Simd};
use brigade_quant::{BlockQ1_0, BlockQ2_0, BlockTq1_0, BlockTq2_0};

/// Bytes of the header.
const HEAD: usize = 2 * LANES;
/// The number that code 0 stands for is -1.
const OFFSET: Offset = Offset::Shift(0);

/// `d` for each of the unit's `N` blocks.
#[inline(always)]
fn one_scale<S: Simd, const N: usize>(s: S, head: &[u8], out: &mut Scales<S>) {
    let d = s.load_f16(halves_at(head, 0));
    for scale in &mut out.scale[..N] {
        *scale = d;
    }
}

/// `d * (q - 1)` for 256 columns, two bits a column.
pub(crate) struct Tq2_0;

impl PanelFormat for Tq2_0 {
    type Block = BlockTq2_0;
    const BLOCKS: usize = 8;
    const HEAD: usize = HEAD;
    const PLANES: usize = planes::PAIRS;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = OFFSET;
    const MAX_CODE: u8 = 3;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(HEAD);
        put_halves(head, 0, rows, |row| row.d);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            planes::pack_pairs(&codes_of(rows, |row| pairs_of(&row.qs, b)), 0, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        one_scale::<S, 8>(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::pairs(s, planes, 0)
    }
}

/// TQ1_0, packed as [`Tq2_0`]: digits in base three take too long to read.
pub(crate) struct Tq1_0;

impl PanelFormat for Tq1_0 {
    type Block = BlockTq1_0;
    const BLOCKS: usize = Tq2_0::BLOCKS;
    const HEAD: usize = Tq2_0::HEAD;
    const PLANES: usize = Tq2_0::PLANES;
    const HALVES: bool = Tq2_0::HALVES;
    const MINS: bool = Tq2_0::MINS;
    const OFFSET: Offset = Tq2_0::OFFSET;
    const MAX_CODE: u8 = Tq2_0::MAX_CODE;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(HEAD);
        put_halves(head, 0, rows, |row| row.d);
        let trits = rows.each_ref().map(BlockTq1_0::trits);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let codes = codes_of(&trits, |row| each_word(|v| word_at(row, VECTORS * b + v)));
            planes::pack_pairs(&codes, 0, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        Tq2_0::scales(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        Tq2_0::codes(s, planes)
    }
}

/// `d * (q - 1)` for 64 columns, two bits a column.
pub(crate) struct Q2_0;

impl PanelFormat for Q2_0 {
    type Block = BlockQ2_0;
    const BLOCKS: usize = 2;
    const HEAD: usize = HEAD;
    const PLANES: usize = planes::PAIRS;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = OFFSET;
    const MAX_CODE: u8 = 3;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(HEAD);
        put_halves(head, 0, rows, |row| row.d);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            // A byte of the source is a vector of four columns.
            let codes = codes_of(rows, |row| {
                each_word(|v| {
                    let byte = u32::from(row.qs[VECTORS * b + v]);
                    (0..4).fold(0, |word, i| word | (byte >> (2 * i) & 3) << (8 * i))
                })
            });
            planes::pack_pairs(&codes, 0, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        one_scale::<S, 2>(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::pairs(s, planes, 0)
    }
}

/// `d * (2 q - 1)` for 128 columns, a bit a column.
pub(crate) struct Q1_0;

impl PanelFormat for Q1_0 {
    type Block = BlockQ1_0;
    const BLOCKS: usize = 4;
    const HEAD: usize = HEAD;
    const PLANES: usize = planes::BITS;
    const HALVES: bool = false;
    const MINS: bool = false;
    const OFFSET: Offset = OFFSET;
    const MAX_CODE: u8 = 2;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(HEAD);
        put_halves(head, 0, rows, |row| row.d);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let codes = codes_of(rows, |row| {
                let bits = word_at(&row.qs, b);
                each_word(|v| spread(bits >> (4 * v)))
            });
            planes::pack_bits(&codes, 0, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        one_scale::<S, 4>(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::or_bits(s, planes, 0, 1, [s.splat_i(0); VECTORS])
    }
}
