//! The formats Q4_K and Q5_K: 256 columns, and for each 32 of them a six-bit scale and a six-bit minimum.
//!
//! The header is d and dmin (f16), then the twelve scale bytes of the source as three words A, B and C, for
//! sixteen rows each. For j < 4, the low six bits of byte j of A and B are scale j and minimum j. Their high
//! two bits belong to scale and minimum j + 4. Byte j of C has the low four bits of these two.

use half::f16;

use super::basic::{fives, pack_fives};
use super::planes::{self, bits_at, codes_of, each_word, word_at};
use super::{
    Offset, PanelFormat, Scales, VECTORS, bytes_at, halves_at, put_halves, put_words, word,
};
use crate::simd::{LANES, Simd};
use brigade_quant::{BlockQ4K, BlockQ5K};

/// d, dmin and three words.
const HEAD: usize = 16 * LANES;
/// Offset of the words in a panel.
const WORDS: usize = 4 * LANES;
const WORD: usize = 4 * LANES;

fn pack_head<B>(
    rows: &[B; LANES],
    head: &mut [u8],
    d: impl Fn(&B) -> f16,
    dmin: impl Fn(&B) -> f16,
    scales: impl Fn(&B) -> [u8; 12],
) {
    put_halves(head, 0, rows, d);
    put_halves(head, 2 * LANES, rows, dmin);
    for i in 0..3 {
        put_words(head, WORDS + WORD * i, rows, |row| word(&scales(row), i));
    }
}

/// The nibbles of block `b`: low ones of an even block, high ones of an odd, from the same 32 bytes.
#[inline(always)]
fn nibbles_of(qs: &[u8; 128], b: usize) -> [u32; VECTORS] {
    each_word(|v| bits_at(word_at(qs, VECTORS * (b / 2) + v), 4 * (b % 2), 15))
}

/// Byte `j` of each lane.
#[inline(always)]
fn byte<S: Simd>(s: S, lanes: S::I, j: u32) -> S::I {
    let moved = if j == 0 { lanes } else { s.shr_i(lanes, 8 * j) };
    if j == 3 { moved } else { s.and_i(moved, s.splat_i(0xff)) }
}

/// Bits 6 and 7 of each byte of `high` above four bits of `low`, whose others are zero.
#[inline(always)]
fn on_top<S: Simd>(s: S, low: S::I, high: S::I) -> S::I {
    s.or_i(low, s.and_i(s.shr_i(high, 2), s.splat_i(0x3030_3030)))
}

#[inline(always)]
fn expand<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
    let d = s.load_f16(halves_at(head, 0));
    let neg_dmin = s.sub(s.zero(), s.load_f16(halves_at(head, 2 * LANES)));
    let a = s.load_bytes(bytes_at(head, WORDS));
    let b = s.load_bytes(bytes_at(head, WORDS + WORD));
    let c = s.load_bytes(bytes_at(head, WORDS + 2 * WORD));
    // All four bytes of a word at once, before each becomes a lane.
    let (sixes, fours) = (s.splat_i(0x3f3f_3f3f), s.splat_i(0x0f0f_0f0f));
    let scales = [s.and_i(a, sixes), on_top(s, s.and_i(c, fours), a)];
    let mins = [s.and_i(b, sixes), on_top(s, s.and_i(s.shr_i(c, 4), fours), b)];
    for j in 0..8 {
        let (scale, min) = (scales[j / 4], mins[j / 4]);
        out.scale[j] = s.mul(d, s.to_f32(byte(s, scale, j as u32 % 4)));
        out.min[j] = s.mul(neg_dmin, s.to_f32(byte(s, min, j as u32 % 4)));
    }
}

/// `d * sc * q - dmin * mn`, four-bit codes.
pub(crate) struct Q4K;

impl PanelFormat for Q4K {
    type Block = BlockQ4K;
    const BLOCKS: usize = 8;
    const HEAD: usize = HEAD;
    const PLANES: usize = planes::NIBBLES;
    const HALVES: bool = false;
    const MINS: bool = true;
    const OFFSET: Offset = Offset::None;
    const MAX_CODE: u8 = 15;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        pack_head(rows, head, |row| row.d, |row| row.dmin, |row| row.scales);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            planes::pack_nibbles(&codes_of(rows, |row| nibbles_of(&row.qs, b)), planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        expand(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::nibbles(s, planes, 0)
    }
}

/// [`Q4K`] with a fifth bit from `qh`, whose bit `b` belongs to block `b`.
pub(crate) struct Q5K;

impl PanelFormat for Q5K {
    type Block = BlockQ5K;
    const BLOCKS: usize = 8;
    const HEAD: usize = HEAD;
    const PLANES: usize = planes::NIBBLES + planes::BITS;
    const HALVES: bool = false;
    const MINS: bool = true;
    const OFFSET: Offset = Offset::None;
    const MAX_CODE: u8 = 31;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        pack_head(rows, head, |row| row.d, |row| row.dmin, |row| row.scales);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let codes = codes_of(rows, |row| {
                let low = nibbles_of(&row.qs, b);
                each_word(|v| low[v] | bits_at(word_at(&row.qh, v), b, 1) << 4)
            });
            pack_fives(&codes, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        expand(s, head, out);
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        fives(s, planes)
    }
}
