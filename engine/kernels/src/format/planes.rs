//! The codes of one block (32 columns of sixteen rows) as planes of bits.
//!
//! In every plane, the byte `4r + j` of a 64-byte vector belongs to row `r`, and to column `4v + j` of each
//! vector `v` that it serves. That is the order in which a four-byte dot product wants its operands. A plane
//! of `b` bits keeps `8 / b` vectors in one.

use super::{VECTORS, bytes_at};
use crate::simd::{LANES, Simd};

/// Bytes of one vector.
pub(super) const VECTOR: usize = 64;
/// Bytes of a plane of whole bytes.
pub(super) const BYTES: usize = 8 * VECTOR;
/// Bytes of a plane of nibbles.
pub(super) const NIBBLES: usize = 4 * VECTOR;
/// Bytes of a plane of two bits.
pub(super) const PAIRS: usize = 2 * VECTOR;
/// Bytes of a plane of single bits.
pub(super) const BITS: usize = VECTOR;

/// Codes of a block by row, four columns (bytes) to a word.
pub(super) type Codes = [[u32; VECTORS]; LANES];

/// The codes of sixteen rows. Plain loops, here and in [`each_word`]: they must inline.
#[inline(always)]
pub(super) fn codes_of<B>(rows: &[B; LANES], code: impl Fn(&B) -> [u32; VECTORS]) -> Codes {
    let mut codes = [[0; VECTORS]; LANES];
    for (codes, row) in codes.iter_mut().zip(rows) {
        *codes = code(row);
    }
    codes
}

/// A row's codes, word by word.
#[inline(always)]
pub(super) fn each_word(word: impl Fn(usize) -> u32) -> [u32; VECTORS] {
    let mut words = [0; VECTORS];
    for (v, out) in words.iter_mut().enumerate() {
        *out = word(v);
    }
    words
}

/// `bits` in each byte of a word.
const fn in_each_byte(bits: u32) -> u32 {
    bits * 0x0101_0101
}

/// Packs bits `shift..shift + BITS` of every code. Field `f` of a plane's vector `p` belongs to
/// vector `p + f * planes` for nibbles, and to `p * fields + f` for narrower fields.
#[inline(always)]
fn pack<const BITS: usize>(codes: &Codes, shift: u32, out: &mut [u8]) {
    let fields = 8 / BITS;
    let n_planes = VECTORS / fields;
    let mask = in_each_byte((1 << BITS) - 1);
    for (p, plane) in out.chunks_exact_mut(VECTOR).enumerate().take(n_planes) {
        for (row, out) in codes.iter().zip(plane.chunks_exact_mut(4)) {
            let mut word = 0;
            for f in 0..fields {
                let v = if BITS == 4 { p + f * n_planes } else { p * fields + f };
                word |= ((row[v] >> shift) & mask) << (f * BITS);
            }
            out.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Codes as whole bytes.
#[inline]
pub(super) fn pack_bytes(codes: &Codes, out: &mut [u8]) {
    pack::<8>(codes, 0, out);
}

/// The low four bits of the codes, two to a byte.
#[inline]
pub(super) fn pack_nibbles(codes: &Codes, out: &mut [u8]) {
    pack::<4>(codes, 0, out);
}

/// Two bits from `shift` on.
#[inline]
pub(super) fn pack_pairs(codes: &Codes, shift: u32, out: &mut [u8]) {
    pack::<2>(codes, shift, out);
}

/// The bit at `shift`.
#[inline]
pub(super) fn pack_bits(codes: &Codes, shift: u32, out: &mut [u8]) {
    pack::<1>(codes, shift, out);
}

/// Word `i` of the source's codes.
#[inline(always)]
pub(super) fn word_at(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(*bytes_at(bytes, 4 * i))
}

/// The bits `mask` of each byte of `word`, from bit `from` on.
#[inline(always)]
pub(super) fn bits_at(word: u32, from: usize, mask: u32) -> u32 {
    (word >> from) & in_each_byte(mask)
}

/// The low four bits of `bits`, one to a byte.
#[inline(always)]
pub(super) fn spread(bits: u32) -> u32 {
    ((bits & 15) * 0x0020_4081) & in_each_byte(1)
}

/// The vectors of a plane of bytes at `at`.
#[inline(always)]
pub(super) fn bytes<S: Simd>(s: S, planes: &[u8], at: usize) -> [S::I; VECTORS] {
    let mut codes = [s.splat_i(0); VECTORS];
    for (v, code) in codes.iter_mut().enumerate() {
        *code = vector(s, planes, at, v);
    }
    codes
}

/// The vectors of a plane of nibbles at `at`.
#[inline(always)]
pub(super) fn nibbles<S: Simd>(s: S, planes: &[u8], at: usize) -> [S::I; VECTORS] {
    let mask = s.splat_i(0x0f0f_0f0f);
    let mut codes = [mask; VECTORS];
    for p in 0..VECTORS / 2 {
        let packed = vector(s, planes, at, p);
        codes[p] = s.and_i(packed, mask);
        codes[p + VECTORS / 2] = s.and_i(s.shr_i(packed, 4), mask);
    }
    codes
}

/// The vectors of a plane of two bits at `at`.
#[inline(always)]
pub(super) fn pairs<S: Simd>(s: S, planes: &[u8], at: usize) -> [S::I; VECTORS] {
    or_pairs(s, planes, at, 0, [s.splat_i(0); VECTORS])
}

/// Adds a plane of two bits at `at` to `codes`, as their bits `to` and `to + 1`.
#[inline(always)]
pub(super) fn or_pairs<S: Simd>(
    s: S,
    planes: &[u8],
    at: usize,
    to: u32,
    mut codes: [S::I; VECTORS],
) -> [S::I; VECTORS] {
    let mask = s.splat_i(0x0303_0303 << to);
    for p in 0..2 {
        let packed = vector(s, planes, at, p);
        for f in 0..4 {
            let code = &mut codes[4 * p + f];
            *code = s.or_i(*code, field(s, packed, 2 * f as u32, to, mask));
        }
    }
    codes
}

/// Adds a plane of single bits at `at` to `codes`, as their bit `to`.
#[inline(always)]
pub(super) fn or_bits<S: Simd>(
    s: S,
    planes: &[u8],
    at: usize,
    to: u32,
    mut codes: [S::I; VECTORS],
) -> [S::I; VECTORS] {
    let mask = s.splat_i(0x0101_0101 << to);
    let packed = vector(s, planes, at, 0);
    for (v, code) in codes.iter_mut().enumerate() {
        *code = s.or_i(*code, field(s, packed, v as u32, to, mask));
    }
    codes
}

/// Vector `v` of the plane at `at`.
#[inline(always)]
fn vector<S: Simd>(s: S, planes: &[u8], at: usize, v: usize) -> S::I {
    s.load_bytes(bytes_at(planes, at + v * VECTOR))
}

/// The bits `mask` of `packed` moved from bit `from` of their bytes to bit `to`.
#[inline(always)]
fn field<S: Simd>(s: S, packed: S::I, from: u32, to: u32, mask: S::I) -> S::I {
    let moved = if from >= to { s.shr_i(packed, from - to) } else { s.shl_i(packed, to - from) };
    s.and_i(moved, mask)
}
