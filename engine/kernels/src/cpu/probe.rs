//! Loops that do one thing as fast as the instruction set allows. They give the limits that kernels are
//! measured against.

use std::hint::black_box;

use super::run;
use crate::ahead::asked;
use crate::simd::{Op, Simd};

/// Bytes read in one turn of [`read`].
const STRIDE: usize = 64;
/// Independent chains: enough to cover the latency, few enough for the registers.
const CHAINS: usize = 12;
const CHAINS_OF_HALVES: usize = 5;
/// A tile of products: vectors of weights, rows, greatest code of four bits.
const VECTORS: usize = 8;
const ROWS: usize = 4;
const NARROW: u8 = 15;

/// Reads every byte once, and asks for those so many bytes `ahead` where that is not 0; returns something made of all.
pub(crate) fn read<S: Simd>(bytes: &[u8], ahead: usize) -> i32 {
    struct Read<'a>(&'a [u8], usize);
    impl Op for Read<'_> {
        type Out = i32;
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) -> i32 {
            let (lines, _) = self.0.as_chunks::<STRIDE>();
            let mut all = [s.splat_i(0); 4];
            let cache = asked();
            for lines in lines.as_chunks::<4>().0 {
                if self.1 > 0 {
                    s.prefetch_into(cache, lines.as_flattened(), self.1, 4 * STRIDE);
                }
                for (all, line) in all.iter_mut().zip(lines) {
                    *all = s.or_i(*all, s.load_bytes(line));
                }
            }
            all.into_iter().fold(0, |sum, v| sum ^ s.sum_i(v))
        }
    }
    run::<S, _>(Read(bytes, ahead))
}

/// Does `turns` rounds of four-byte dot products with codes of four bits; returns their number.
pub(crate) fn narrow_dots<S: Simd>(turns: usize) -> usize {
    run::<S, _>(Dots { turns, narrow: true })
}

/// The same with weights that fill the byte.
pub(crate) fn wide_dots<S: Simd>(turns: usize) -> usize {
    run::<S, _>(Dots { turns, narrow: false })
}

struct Dots {
    turns: usize,
    narrow: bool,
}

impl Op for Dots {
    type Out = usize;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> usize {
        if const { S::INTEGERS_FIRST && S::CHAINS == 1 } {
            dots_of_a_tile::<S>(s, self)
        } else if const { S::TILE >= 8 } {
            dot_chains::<S, CHAINS>(s, self.turns)
        } else {
            dot_chains::<S, CHAINS_OF_HALVES>(s, self.turns)
        }
    }
}

/// Independent chains of one instruction each: such sets do not care how wide a code is.
#[inline(always)]
fn dot_chains<S: Simd, const N: usize>(s: S, turns: usize) -> usize {
    let w = s.splat_i(black_box(0x0102_0304));
    let mut sums: [S::I; N] = std::array::from_fn(|i| s.splat_i(i as i32));
    for _ in 0..turns {
        for sum in &mut sums {
            // The sum is the activations too, so that nothing of the product can be kept.
            *sum = s.dot4(*sum, w, *sum);
        }
    }
    black_box(sums.into_iter().fold(0, |sum, v| sum ^ s.sum_i(v)));
    turns * N
}

/// The integers of a tile, where a product is several instructions: of narrow codes, some are added up before they are
/// widened. The weights are not known to the compiler, and no half of them is equal to the other.
#[inline(always)]
fn dots_of_a_tile<S: Simd>(s: S, Dots { turns, narrow }: Dots) -> usize {
    let bytes: [[u8; 64]; VECTORS] =
        std::array::from_fn(|v| std::array::from_fn(|i| ((v + i) % usize::from(NARROW)) as u8));
    let bytes = black_box(bytes);
    let x = black_box([[[1i8, -2, 3, -4]; VECTORS]; ROWS]);
    let mut sums = [s.splat_i(0); ROWS];
    for _ in 0..turns {
        let (bytes, x) = (black_box(&bytes), black_box(&x));
        let mut w = [s.splat_i(0); VECTORS];
        for v in 0..VECTORS {
            w[v] = s.load_bytes(&bytes[v]);
        }
        let x = [&x[0], &x[1], &x[2], &x[3]];
        sums = if narrow { s.dots(sums, &w, NARROW, &x) } else { s.dots_signed(sums, &w, &x) };
    }
    black_box(sums.into_iter().fold(0, |sum, v| sum ^ s.sum_i(v)));
    turns * VECTORS * ROWS
}

/// Does `turns` rounds of independent fused multiply-adds; returns their number.
pub(crate) fn fmas<S: Simd>(turns: usize) -> usize {
    struct Fmas(usize);
    impl Op for Fmas {
        type Out = usize;
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) -> usize {
            if const { S::TILE >= 8 } {
                fma_chains::<S, CHAINS>(s, self.0)
            } else {
                fma_chains::<S, CHAINS_OF_HALVES>(s, self.0)
            }
        }
    }
    run::<S, _>(Fmas(turns))
}

/// Does `turns` rounds of independent sums of pairs; returns their number.
pub(crate) fn pairs<S: Simd>(turns: usize) -> usize {
    struct Pairs(usize);
    impl Op for Pairs {
        type Out = usize;
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) -> usize {
            let half = s.splat(black_box(0.5));
            let w = s.pair(half, half);
            let mut sums: [S::F; CHAINS] = std::array::from_fn(|i| s.splat(i as f32));
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = s.dot_pairs(*sum, w, w);
                }
            }
            black_box(sums.into_iter().fold(0.0, |sum, v| sum + s.sum(v)));
            self.0 * CHAINS
        }
    }
    run::<S, _>(Pairs(turns))
}

#[inline(always)]
fn fma_chains<S: Simd, const N: usize>(s: S, turns: usize) -> usize {
    let (a, b) = (s.splat(black_box(0.5)), s.splat(black_box(1.5)));
    let mut sums: [S::F; N] = std::array::from_fn(|i| s.splat(i as f32));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = s.fma(*sum, a, b);
        }
    }
    black_box(sums.into_iter().fold(0.0, |sum, v| sum + s.sum(v)));
    turns * N
}
