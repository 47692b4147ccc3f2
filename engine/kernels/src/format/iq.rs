//! The IQ2 and IQ3 formats. Their codebooks are looked up once, when a matrix is packed; a packed matrix has
//! levels.
//!
//! A code is a level and a sign, in three bits (IQ2) or four (IQ3). A byte shuffle makes a weight of it. That
//! takes more memory than rows of a codebook do in the file (half as much again for IQ2_XXS). But rows would
//! have to be looked up lane by lane for every product.
//!
//! A unit's header is d (f16), then the nibbles of its scales, for sixteen rows each.

use std::marker::PhantomData;

use super::planes::{self, codes_of, each_word};
use super::{Offset, PanelFormat, Scales, VECTORS, bytes_at, halves_at, put_halves, put_words};
use crate::simd::{LANES, Simd};
use brigade_quant::Codebook;

/// Codes of a block of 32 columns from its four groups.
#[inline(always)]
pub(super) fn codes_of_block<B: Codebook>(row: &B, b: usize) -> [u32; VECTORS] {
    let groups: [u64; 4] = [0, 1, 2, 3].map(|l| row.codes(4 * b + l));
    each_word(|v| (groups[v / 2] >> (32 * (v % 2))) as u32)
}

/// The power of two that is added to make levels unsigned.
const fn shift(levels: [i8; 16]) -> u32 {
    let (mut n, mut i) = (0, 0);
    while i < 16 {
        while levels[i] < 0 && levels[i].unsigned_abs() > 1 << n {
            n += 1;
        }
        i += 1;
    }
    n
}

/// Levels with that added.
pub(super) const fn raised(levels: [i8; 16]) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (levels[i] as i16 + (1 << shift(levels))) as u8;
        i += 1;
    }
    out
}

/// The offset of raised levels.
pub(super) const fn offset(levels: [i8; 16]) -> Offset {
    Offset::Shift(shift(levels))
}

/// The greatest raised level.
pub(super) const fn greatest(levels: [i8; 16]) -> u8 {
    let (levels, mut most, mut i) = (raised(levels), 0, 0);
    while i < 16 {
        if levels[i] > most {
            most = levels[i];
        }
        i += 1;
    }
    assert!(most <= 127, "what a four-byte dot product takes");
    most
}

/// Weights that `B` describes: a level times a scale of 32 or 16 columns.
pub(crate) struct Iq<B>(PhantomData<B>);

impl<B: Codebook> Iq<B> {
    const RAISED: [u8; 16] = raised(B::LEVELS);
    /// Whether the level's bits lie beside the signs', in one plane.
    const ONE_PLANE: bool = B::CODE_BITS == 4;
}

impl<B: Codebook> PanelFormat for Iq<B> {
    type Block = B;
    const BLOCKS: usize = 8;
    const HEAD: usize = 2 * LANES + B::SCALES / 2 * LANES;
    const PLANES: usize =
        if Self::ONE_PLANE { planes::NIBBLES } else { planes::PAIRS + planes::BITS };
    const HALVES: bool = B::SCALES == 16;
    const MINS: bool = false;
    const OFFSET: Offset = offset(B::LEVELS);
    const MAX_CODE: u8 = greatest(B::LEVELS);

    fn pack(rows: &[B; LANES], record: &mut [u8]) {
        let (head, planes) = record.split_at_mut(Self::HEAD);
        put_halves(head, 0, rows, |row| row.d());
        for word in 0..B::SCALES / 8 {
            put_words(head, 2 * LANES + 4 * LANES * word, rows, |row| {
                ((row.scale_nibbles() >> (32 * word)) as u32).to_le_bytes()
            });
        }
        for (b, planes) in planes.chunks_exact_mut(Self::PLANES).enumerate() {
            let codes = codes_of(rows, |row| codes_of_block(row, b));
            if Self::ONE_PLANE {
                planes::pack_nibbles(&codes, planes);
            } else {
                let (pairs, bits) = planes.split_at_mut(planes::PAIRS);
                planes::pack_pairs(&codes, 0, pairs);
                planes::pack_bits(&codes, 2, bits);
            }
        }
    }
    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &[u8], out: &mut Scales<S>) {
        let d = s.load_f16(halves_at(head, 0));
        for word in 0..B::SCALES / 8 {
            let nibbles = s.load_bytes(bytes_at(head, 2 * LANES + 4 * LANES * word));
            for i in 0..8 {
                let nibble = s.and_i(s.shr_i(nibbles, 4 * i as u32), s.splat_i(15));
                let steps = s.mul(s.to_f32(nibble), s.splat(B::RULE.step));
                let scale = s.mul(d, s.add(s.splat(B::RULE.offset), steps));
                out.scale[8 * word + i] = s.mul(scale, s.splat(B::RULE.factor));
            }
        }
    }
    #[inline(always)]
    fn codes<S: Simd>(s: S, planes: &[u8]) -> [S::I; VECTORS] {
        let mut codes = if Self::ONE_PLANE {
            planes::nibbles(s, planes, 0)
        } else {
            planes::or_bits(s, planes, planes::PAIRS, 2, planes::pairs(s, planes, 0))
        };
        for code in &mut codes {
            *code = s.lookup(&Self::RAISED, *code);
        }
        codes
    }
}
