//! The quantiser of the formats of [`super::codebook`]: it chooses scales and rows of the codebook.
//!
//! A row is found in two steps. Each value goes to its nearest level, and a table then has the row that is
//! nearest to these levels. Scales are tried around the range of the values, and moved to where the squared
//! error is least. No value counts more than another, as there are no measured importances; models for real
//! use deserve a quantiser that has them.

use super::codebook::{Codebook, GROUP, GROUPS, IQ1_LEVELS, bits, nibbles, pairs};
use crate::fit::{inverse, round_clamp};
use half::f16;

/// Keys of a table of nearest rows: levels as a codebook's row has them.
const KEYS: usize = 1 << 16;
/// Ranges tried for the scale of neighbours: their largest magnitude over that of the levels.
const RANGES: [f32; 7] = [0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 1.9];
/// Signs that exist for the IQ1 formats: an eighth more, an eighth less.
const DIRECTIONS: [f32; 2] = [1.0, -1.0];

/// Eight encoded values: row, signs and direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Code {
    /// Rows of the codebook: one, or two of four values each.
    pub rows: [u16; 2],
    /// Signs; of the IQ1 formats 0 or 1, the direction.
    pub signs: u8,
    /// Codes that [`Codebook::codes`] will return.
    codes: u64,
}

/// A block that can be made of rows and scales.
pub(super) trait Encode: Codebook {
    /// The best codes of values that share a scale, whose inverse is `inv`.
    fn encode(values: &[f32], inv: f32, codes: &mut [Code]);
    /// The block of these.
    fn build(d: f16, scales: &[u8; 16], codes: &[Code; GROUPS]) -> Self;
}

/// The row of a codebook that is nearest to any levels.
pub(super) struct Nearest {
    sizes: Vec<f32>,
    field_bits: usize,
    /// By the levels, packed like a row.
    rows: Vec<u16>,
    book: &'static [u16],
}

impl Nearest {
    /// Builds the search for a codebook whose rows are eight pairs of bits that stand for `sizes`.
    pub fn pairs(book: &'static [u16], sizes: &[f32]) -> Self {
        Self::new(book, sizes, 2)
    }

    /// Builds the search for a codebook whose rows are four nibbles that stand for `sizes`.
    pub fn nibbles(book: &'static [u16], sizes: &[f32]) -> Self {
        Self::new(book, sizes, 4)
    }

    fn new(book: &'static [u16], sizes: &[f32], field_bits: usize) -> Self {
        let n = 16 / field_bits;
        let field = |row: usize, i: usize| row >> (field_bits * i) & ((1 << field_bits) - 1);
        let points: Vec<[f32; GROUP]> = book
            .iter()
            .map(|row| {
                std::array::from_fn(
                    |i| if i < n { sizes[field(usize::from(*row), i)] } else { 0.0 },
                )
            })
            .collect();
        let nearest = |key: usize| -> u16 {
            let mut at = [0.0; GROUP];
            for (i, at) in at.iter_mut().enumerate().take(n) {
                // No value is given such a level.
                let Some(size) = sizes.get(field(key, i)) else { return 0 };
                *at = *size;
            }
            let distance = |point: &[f32; GROUP]| -> f32 {
                point.iter().zip(&at).map(|(a, b)| (a - b) * (a - b)).sum()
            };
            let (mut best, mut least) = (0, f32::INFINITY);
            for (row, point) in points.iter().enumerate() {
                let distance = distance(point);
                if distance < least {
                    (best, least) = (row as u16, distance);
                }
            }
            best
        };
        Self { sizes: sizes.to_vec(), field_bits, rows: (0..KEYS).map(nearest).collect(), book }
    }

    /// Rows, and their levels a byte each, nearest to eight values in units of the levels.
    fn rows(&self, values: &[f32; GROUP]) -> ([u16; 2], u64) {
        let level = |v: f32| {
            let above = |pair: &&[f32]| v > (pair[0] + pair[1]) * 0.5;
            self.sizes.windows(2).filter(above).count()
        };
        let per_row = 16 / self.field_bits;
        let mut rows = [0; 2];
        for (row, values) in rows.iter_mut().zip(values.chunks_exact(per_row)) {
            let fields = values.iter().enumerate();
            let key = fields.fold(0, |key, (i, v)| key | level(*v) << (self.field_bits * i));
            *row = self.rows[key];
        }
        let fields = rows.map(|row| self.book[usize::from(row)]);
        let levels = if per_row == GROUP { pairs(fields[0]) } else { nibbles(fields) };
        (rows, levels)
    }
}

/// Encodes magnitudes and signs, of which an even number are negative in each eight if `even`.
pub(super) fn encode_signed(
    nearest: &Nearest,
    even: bool,
    values: &[f32],
    inv: f32,
    codes: &mut [Code],
) {
    let sign_bit = if nearest.field_bits == 2 { 2 } else { 3 };
    for (values, code) in values.chunks_exact(GROUP).zip(codes) {
        let mut sizes: [f32; GROUP] = std::array::from_fn(|i| values[i].abs() * inv);
        let mut signs =
            values.iter().enumerate().fold(0, |all, (i, v)| all | u8::from(*v < 0.0) << i);
        if even && signs.count_ones() % 2 == 1 {
            // The smallest value takes the wrong sign.
            let least =
                (1..GROUP).fold(0, |least, i| if sizes[i] < sizes[least] { i } else { least });
            sizes[least] = -sizes[least];
            signs ^= 1 << least;
        }
        let (rows, levels) = nearest.rows(&sizes);
        *code = Code { rows, signs, codes: levels | bits(signs) << sign_bit };
    }
}

/// Encodes levels of an IQ1 format in one direction, the better one for all of `values`.
pub(super) fn encode_shifted(nearest: &Nearest, values: &[f32], inv: f32, codes: &mut [Code]) {
    let mut least = f32::INFINITY;
    for (direction, shift) in DIRECTIONS.into_iter().enumerate() {
        let mut tried = [Code::default(); GROUPS];
        let mut error = 0.0;
        for (values, code) in values.chunks_exact(GROUP).zip(&mut tried) {
            let moved = std::array::from_fn(|i| values[i] * inv - shift);
            let (rows, levels) = nearest.rows(&moved);
            let codes = levels | (direction as u64 * 0x0404_0404_0404_0404);
            *code = Code { rows, signs: direction as u8, codes };
            for (value, code) in values.iter().zip(codes.to_le_bytes()) {
                let off = value * inv - f32::from(IQ1_LEVELS[usize::from(code)]);
                error += off * off;
            }
        }
        // The first direction also stands where nothing can be compared.
        if direction == 0 || error < least {
            least = error;
            codes.copy_from_slice(&tried[..codes.len()]);
        }
    }
}

/// The scale for which `values` are encoded with the least squared error of those tried.
fn fit_scale<B: Encode>(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
    let sizes = B::LEVELS.map(|level| f32::from(level.unsigned_abs()));
    let top = sizes.into_iter().fold(0.0, f32::max);
    let bottom = sizes.into_iter().filter(|s| *s > 0.0).fold(top, f32::min);
    let (mut best, mut most) = (0.0, 0.0);
    for range in RANGES.into_iter().chain([bottom / top]) {
        let mut codes = [Code::default(); GROUPS];
        let codes = &mut codes[..values.len() / GROUP];
        B::encode(values, inverse(largest / (top * range)), codes);
        let (mut xq, mut qq) = (0.0, 0.0);
        for (values, code) in values.chunks_exact(GROUP).zip(codes) {
            for (value, code) in values.iter().zip(code.codes.to_le_bytes()) {
                let level = f32::from(B::LEVELS[usize::from(code)]);
                xq += value * level;
                qq += level * level;
            }
        }
        // The error is |x|^2 less this.
        if xq > 0.0 && xq * xq / qq > most {
            (best, most) = (xq / qq, xq * xq / qq);
        }
    }
    best
}

/// Encodes a block of 256 values.
pub(super) fn fit_block<B: Encode>(values: &[f32]) -> B {
    let (rule, size) = (B::RULE, B::TYPE.block_elems() / B::SCALES);
    let mut fits = [0.0; 16];
    for (fit, values) in fits.iter_mut().zip(values.chunks_exact(size)) {
        *fit = fit_scale::<B>(values);
    }
    let largest = fits.into_iter().fold(0.0, f32::max);
    let d = f16::from_f32(largest / rule.scale(1.0, rule.max));
    let inv_step = inverse(d.to_f32() * rule.step * rule.factor);
    let (mut scales, mut codes) = ([0; 16], [Code::default(); GROUPS]);
    let parts = values.chunks_exact(size).zip(codes.chunks_exact_mut(size / GROUP));
    for ((scale, fit), (values, codes)) in scales.iter_mut().zip(fits).zip(parts) {
        let s = round_clamp(fit * inv_step - rule.offset / rule.step, 0, i32::from(rule.max));
        *scale = s as u8;
        B::encode(values, inverse(rule.scale(d.to_f32(), *scale)), codes);
    }
    B::build(d, &scales, &codes)
}

/// The first `2 N` of `scales`, two to a byte.
pub(super) fn pack_nibbles<const N: usize>(scales: &[u8; 16]) -> [u8; N] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}
