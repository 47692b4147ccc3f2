//! The formats IQ1_S and IQ1_M: three levels, which are moved up or down by an eighth.

use super::iq::{codes_of_block, greatest, offset, raised};
use super::planes::{self, codes_of};
use super::{Offset, PanelFormat, Scales, VECTORS, bytes_at, halves_at, put_halves, put_words};
use crate::simd::{LANES, Simd};
use brigade_quant::{BlockIq1M, BlockIq1S, Codebook};

/// The bits of 1/8 as f32.
const EIGHTH: i32 = 0x3e00_0000;

/// `scale * t + min`, `t` of -1, 0 and 1: the eighth of 32 columns is their minimum.
/// Header: d (f16), then a nibble for each 32 columns: the scale's three bits, and the direction on top.
pub(crate) struct Iq1S;

impl PanelFormat for Iq1S {
    type Block = BlockIq1S;
    const BLOCKS: usize = 8;
    const HEAD: usize = 6 * LANES;
    const PLANES: usize = planes::PAIRS;
    const HALVES: bool = false;
    const MINS: bool = true;
    const OFFSET: Offset = Offset::Shift(0);
    const MAX_CODE: u8 = 2;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        put_words(head, 2 * LANES, rows, |row| row.scales_and_directions().to_le_bytes());
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            planes::pack_pairs(&codes_of(rows, |row| codes_of_block(row, b)), 0, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.load_f16(halves_at(head, 0));
        let nibbles = s.load_bytes(bytes_at(head, 2 * LANES));
        for b in 0..Self::BLOCKS {
            let nibble = s.shr_i(nibbles, 4 * b as u32);
            let odd = s.or_i(s.shl_i(s.and_i(nibble, s.splat_i(7)), 1), s.splat_i(1));
            let sign = s.and_i(s.shl_i(nibble, 28), s.splat_i(i32::MIN));
            out.scale[b] = s.mul(d, s.to_f32(odd));
            out.min[b] = s.mul(out.scale[b], s.bits_f32(s.or_i(sign, s.splat_i(EIGHTH))));
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::pairs(s, planes, 0)
    }
}

/// `scale / 8 * level`, levels in eighths.
/// Header: d (f16), then a nibble with the scale's three bits for each 16 columns. Behind the planes of a
/// block a byte a row has the directions, a bit for each 8 columns.
pub(crate) struct Iq1M;

const RAISED: [u8; 16] = raised(BlockIq1M::LEVELS);

impl PanelFormat for Iq1M {
    type Block = BlockIq1M;
    const BLOCKS: usize = 8;
    const HEAD: usize = 10 * LANES;
    const PLANES: usize = planes::PAIRS + LANES;
    const HALVES: bool = true;
    const MINS: bool = false;
    const OFFSET: Offset = offset(BlockIq1M::LEVELS);
    const MAX_CODE: u8 = greatest(BlockIq1M::LEVELS);

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d());
        put_words(head, 2 * LANES, rows, |row| (row.scale_nibbles() as u32).to_le_bytes());
        put_words(head, 6 * LANES, rows, |row| ((row.scale_nibbles() >> 32) as u32).to_le_bytes());
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let (pairs, directions) = planes.split_at_mut(planes::PAIRS);
            planes::pack_pairs(&codes_of(rows, |row| codes_of_block(row, b)), 0, pairs);
            put_words(directions, 0, rows, |row| [row.directions(b)]);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.mul(s.load_f16(halves_at(head, 0)), s.splat(BlockIq1M::RULE.factor));
        for word in 0..2 {
            let nibbles = s.load_bytes(bytes_at(head, 2 * LANES + 4 * LANES * word));
            for i in 0..8 {
                let three = s.and_i(s.shr_i(nibbles, 4 * i as u32), s.splat_i(7));
                let odd = s.or_i(s.shl_i(three, 1), s.splat_i(1));
                out.scale[8 * word + i] = s.mul(d, s.to_f32(odd));
            }
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        let mut codes = planes::pairs(s, planes, 0);
        let directions = s.load_u8(bytes_at(planes, planes::PAIRS));
        let directions = s.or_i(directions, s.shl_i(directions, 8));
        let directions = s.or_i(directions, s.shl_i(directions, 16));
        let mask = s.splat_i(0x0404_0404);
        for group in 0..4 {
            let bit = s.and_i(s.shr_i(s.shl_i(directions, 2), group as u32), mask);
            for code in &mut codes[2 * group..2 * group + 2] {
                *code = s.lookup(&RAISED, s.or_i(*code, bit));
            }
        }
        codes
    }
}
