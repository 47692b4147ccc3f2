//! The kernel of causal depthwise convolution. Sixteen channels lie side by side, and the last rows stay in
//! registers.

use crate::cpu::exp::silu;
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::conv::ConvTile;

/// Runs one tile of channels over its part's rows.
pub(crate) fn conv<S: Simd>(tile: &mut ConvTile<'_>) {
    match tile.taps() {
        2 => run::<S, _>(Taps::<2, 1>(tile)),
        3 => run::<S, _>(Taps::<3, 2>(tile)),
        4 => run::<S, _>(Taps::<4, 3>(tile)),
        5 => run::<S, _>(Taps::<5, 4>(tile)),
        6 => run::<S, _>(Taps::<6, 5>(tile)),
        7 => run::<S, _>(Taps::<7, 6>(tile)),
        8 => run::<S, _>(Taps::<8, 7>(tile)),
        n => unreachable!("Conv::new takes no {n} taps"),
    }
}

/// A convolution of `K` taps, `B = K - 1` of them on earlier rows.
struct Taps<'t, 'a, const K: usize, const B: usize>(&'t mut ConvTile<'a>);

impl<const K: usize, const B: usize> Op for Taps<'_, '_, K, B> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let width = tile.width();
        let mut weight = [s.zero(); K];
        for (j, w) in weight.iter_mut().enumerate() {
            *w = s.load_part(tile.weight(j));
        }
        let bias = s.load_part(tile.bias());
        let mut before = [s.zero(); B];
        for (row, state) in before.iter_mut().zip(tile.state.chunks_exact(width)) {
            *row = s.load_part(state);
        }
        for row in tile.part.first_row..tile.part.first_row + tile.part.n_rows {
            let x = lanes(s, tile.x.at(row, tile.start, width));
            let mut y = s.zero();
            for j in 0..B {
                y = s.fma(weight[j], before[j], y);
            }
            y = s.add(s.fma(weight[B], x, y), bias);
            if tile.silu() {
                y = silu(s, y);
            }
            for j in 1..B {
                before[j - 1] = before[j];
            }
            before[B - 1] = x;
            match <&mut [f32; LANES]>::try_from(tile.out(row)) {
                Ok(out) => s.store(y, out),
                Err(_) => s.store_part(y, tile.out(row)),
            }
        }
        for (row, state) in before.iter().zip(tile.state.chunks_exact_mut(width)) {
            s.store_part(*row, state);
        }
    }
}

/// Sixteen values, or fewer.
#[inline(always)]
pub(super) fn lanes<S: Simd>(s: S, x: &[f32]) -> S::F {
    match <&[f32; LANES]>::try_from(x) {
        Ok(whole) => s.load(whole),
        Err(_) => s.load_part(x),
    }
}
