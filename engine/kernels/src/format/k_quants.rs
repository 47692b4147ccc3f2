//! The formats Q2_K, Q3_K and Q6_K: 256 columns, and a scale for each 16 of them.

use super::planes::{self, bits_at, codes_of, each_word, word_at};
use super::{
    Offset, PanelFormat, Scales, VECTORS, bytes_at, halves_at, put_halves, put_words, word,
};
use crate::simd::{LANES, Simd};
use brigade_quant::{BlockQ2K, BlockQ3K, BlockQ6K};

/// Scales of a row.
const SCALES: usize = 16;

/// The two-bit codes of block `b`: 32 bytes hold four blocks, two bits each.
#[inline(always)]
pub(super) fn pairs_of(qs: &[u8; 64], b: usize) -> [u32; VECTORS] {
    each_word(|v| bits_at(word_at(qs, VECTORS * (b / 4) + v), 2 * (b % 4), 3))
}

/// Writes sixteen scale bytes of each row, scale after scale.
fn put_scale_bytes<B>(
    head: &mut [u8],
    at: usize,
    rows: &[B; LANES],
    scales: impl Fn(&B) -> [u8; SCALES],
) {
    for (r, row) in rows.iter().enumerate() {
        for (i, scale) in scales(row).iter().enumerate() {
            head[at + LANES * i + r] = *scale;
        }
    }
}

/// `d * sc * q - dmin * mn`. Header: d, dmin (f16), then sixteen bytes `sc | mn << 4` for each scale.
pub(crate) struct Q2K;

impl PanelFormat for Q2K {
    type Block = BlockQ2K;
    const BLOCKS: usize = 8;
    const HEAD: usize = 4 * LANES + SCALES * LANES;
    const PLANES: usize = planes::PAIRS;
    const HALVES: bool = true;
    const MINS: bool = true;
    const OFFSET: Offset = Offset::None;
    const MAX_CODE: u8 = 3;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        put_halves(head, 2 * LANES, rows, |row| row.dmin);
        put_scale_bytes(head, 4 * LANES, rows, |row| row.scales);
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            planes::pack_pairs(&codes_of(rows, |row| pairs_of(&row.qs, b)), 0, planes);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.load_f16(halves_at(head, 0));
        let neg_dmin = s.sub(s.zero(), s.load_f16(halves_at(head, 2 * LANES)));
        for i in 0..SCALES {
            let both = s.load_u8(bytes_at(head, 4 * LANES + LANES * i));
            out.scale[i] = s.mul(d, s.to_f32(s.and_i(both, s.splat_i(15))));
            out.min[i] = s.mul(neg_dmin, s.to_f32(s.shr_i(both, 4)));
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        planes::pairs(s, planes, 0)
    }
}

/// `d * (sc - 32) * (q - 4)`. Header: d (f16), then the twelve scale bytes of the source as three
/// words: low nibbles of scales 0..4 and 8..12, of 4..8 and 12..16, and all high pairs.
pub(crate) struct Q3K;

impl PanelFormat for Q3K {
    type Block = BlockQ3K;
    const BLOCKS: usize = 8;
    const HEAD: usize = 14 * LANES;
    const PLANES: usize = planes::PAIRS + planes::BITS;
    const HALVES: bool = true;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Shift(2);
    const MAX_CODE: u8 = 7;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        for i in 0..3 {
            put_words(head, 2 * LANES + 4 * LANES * i, rows, |row| word(&row.scales, i));
        }
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let codes = codes_of(rows, |row| {
                let low = pairs_of(&row.qs, b);
                each_word(|v| low[v] | bits_at(word_at(&row.hmask, v), b, 1) << 2)
            });
            let (pairs, bits) = planes.split_at_mut(planes::PAIRS);
            planes::pack_pairs(&codes, 0, pairs);
            planes::pack_bits(&codes, 2, bits);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.load_f16(halves_at(head, 0));
        let low =
            [s.load_bytes(bytes_at(head, 2 * LANES)), s.load_bytes(bytes_at(head, 6 * LANES))];
        let high = s.load_bytes(bytes_at(head, 10 * LANES));
        for i in 0..SCALES {
            let low = s.shr_i(low[i % 8 / 4], (8 * (i % 4) + 4 * (i / 8)) as u32);
            let high = s.shr_i(high, (8 * (i % 4) + 2 * (i / 4)) as u32);
            let low = s.and_i(low, s.splat_i(15));
            let high = s.shl_i(s.and_i(high, s.splat_i(3)), 4);
            let scale = s.add_i(s.or_i(low, high), s.splat_i(-32));
            out.scale[i] = s.mul(d, s.to_f32(scale));
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        let low = planes::pairs(s, planes, 0);
        planes::or_bits(s, planes, planes::PAIRS, 2, low)
    }
}

/// `d * sc * (q - 32)`. Header: d (f16), then sixteen signed bytes for each scale.
pub(crate) struct Q6K;

/// The six-bit codes of block `b` of the source's two halves of four blocks.
#[inline(always)]
fn sixes_of(ql: &[u8; 128], qh: &[u8; 64], b: usize) -> [u32; VECTORS] {
    let (half, quarter) = (b / 4, b % 4);
    each_word(|v| {
        let low = word_at(ql, 2 * VECTORS * half + VECTORS * (quarter % 2) + v);
        let high = word_at(qh, VECTORS * half + v);
        bits_at(low, 4 * (quarter / 2), 15) | bits_at(high, 2 * quarter, 3) << 4
    })
}

impl PanelFormat for Q6K {
    type Block = BlockQ6K;
    const BLOCKS: usize = 8;
    const HEAD: usize = 2 * LANES + SCALES * LANES;
    const PLANES: usize = planes::NIBBLES + planes::PAIRS;
    const HALVES: bool = true;
    const MINS: bool = false;
    const OFFSET: Offset = Offset::Shift(5);
    const MAX_CODE: u8 = 63;

    fn pack(rows: &[Self::Block; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d);
        put_scale_bytes(head, 2 * LANES, rows, |row| bytemuck::cast(row.scales));
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let codes = codes_of(rows, |row| sixes_of(&row.ql, &row.qh, b));
            let (nibbles, pairs) = planes.split_at_mut(planes::NIBBLES);
            planes::pack_nibbles(&codes, nibbles);
            planes::pack_pairs(&codes, 4, pairs);
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.load_f16(halves_at(head, 0));
        for i in 0..SCALES {
            let scale = s.load_i8(bytes_at(head, 2 * LANES + LANES * i));
            out.scale[i] = s.mul(d, s.to_f32(scale));
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        let low = planes::nibbles(s, planes, 0);
        planes::or_pairs(s, planes, planes::NIBBLES, 4, low)
    }
}
