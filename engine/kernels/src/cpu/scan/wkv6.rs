//! The kernel of RWKV-6's time mixing. Sixteen values of a head lie side by side, and its keys are taken one
//! after the other.

use crate::FLUSH_EVERY;
use crate::cpu::exp::exp;
use crate::cpu::{flush_subnormals, run};
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::wkv6::Wkv6Tile;

/// Runs one tile over its part's rows.
pub(crate) fn wkv6<S: Simd>(tile: &mut Wkv6Tile<'_>) {
    run::<S, _>(Scan(tile));
}

struct Scan<'t, 'a>(&'t mut Wkv6Tile<'a>);

impl Op for Scan<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let state = std::mem::take(&mut tile.state);
        let own = tile.own();
        for i in 0..tile.part.n_rows {
            let at = tile.part.first_row + i;
            let row = tile.row(at);
            let v = s.load(row.v);
            let mut y = s.zero();
            let keys = row.w.iter().zip(row.k).zip(row.r).enumerate();
            for (state, (j, ((w, k), r))) in state.iter_mut().zip(keys) {
                let old = s.load(state);
                let learnt = s.mul(v, s.splat(*k));
                let next = s.fma(old, s.splat(*w), learnt);
                s.store(next, state);
                let seen = match own {
                    Some(own) => s.fma(learnt, s.splat(own[j]), old),
                    None => next,
                };
                y = s.fma(seen, s.splat(*r), y);
            }
            s.store(y, tile.out(at));
            if (tile.part.first_pos + i) % FLUSH_EVERY == FLUSH_EVERY - 1 {
                flush_subnormals(s, state);
            }
        }
        tile.state = state;
    }
}

/// `w = exp(-exp(w + bias))` for a row of whole vectors.
pub(crate) fn decay<S: Simd>(w: &mut [f32], bias: &[f32]) {
    run::<S, _>(Decay(w, bias));
}

struct Decay<'a>(&'a mut [f32], &'a [f32]);

impl Op for Decay<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let bias = self.1.as_chunks::<LANES>().0;
        for (w, bias) in self.0.as_chunks_mut().0.iter_mut().zip(bias) {
            let rate = exp(s, s.add(s.load(w), s.load(bias)));
            s.store(exp(s, s.sub(s.zero(), rate)), w);
        }
    }
}
