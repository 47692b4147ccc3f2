//! The kernel of RWKV-7's time mixing. Sixteen values of a head lie side by side, and its keys are taken one
//! after the other.

use crate::FLUSH_EVERY;
use crate::cpu::exp::{exp, sigmoid};
use crate::cpu::{flush_subnormals, run};
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::wkv7::{Wkv7Head, Wkv7Tile};

/// `e^-½`, to the digits that models are trained with.
const DECAY_SCALE: f32 = 0.606_531;
/// Smallest length that a removal key is divided by.
const LEAST_LENGTH: f32 = 1e-12;

/// Runs one tile over its part's rows.
pub(crate) fn wkv7<S: Simd>(tile: &mut Wkv7Tile<'_>) {
    run::<S, _>(Scan(tile));
}

struct Scan<'t, 'a>(&'t mut Wkv7Tile<'a>);

impl Op for Scan<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let state = std::mem::take(&mut tile.state);
        for i in 0..tile.part.n_rows {
            let at = tile.part.first_row + i;
            let row = tile.row(at);
            let v = s.load(row.v);
            let mut known = s.zero();
            for (state, kappa) in state.iter().zip(row.kappa) {
                known = s.fma(s.load(state), s.splat(*kappa), known);
            }
            let forget = s.sub(s.zero(), known);
            let mut y = s.zero();
            let keys = row.w.iter().zip(row.k).zip(row.kappa_a).zip(row.r);
            for (state, (((w, k), kappa_a), r)) in state.iter_mut().zip(keys) {
                let learnt = s.fma(forget, s.splat(*kappa_a), s.mul(v, s.splat(*k)));
                let next = s.fma(s.load(state), s.splat(*w), learnt);
                s.store(next, state);
                y = s.fma(next, s.splat(*r), y);
            }
            s.store(y, tile.out(at));
            if (tile.part.first_pos + i) % FLUSH_EVERY == FLUSH_EVERY - 1 {
                flush_subnormals(s, state);
            }
        }
        tile.state = state;
    }
}

/// Makes one head of one row ready for the scan.
pub(crate) fn prepare<S: Simd>(head: &mut Wkv7Head<'_>) {
    run::<S, _>(Prepare(head));
}

struct Prepare<'t, 'a>(&'t mut Wkv7Head<'a>);

impl Op for Prepare<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let head = self.0;
        let [w0, a0, k_k, k_a] = head.weights.map(|x| x.as_chunks::<LANES>().0);
        let (w, k) = (head.w.as_chunks_mut().0, head.k.as_chunks_mut().0);
        let (a, kappa) = (head.a.as_chunks_mut().0, head.kappa.as_chunks_mut().0);
        let mut squares = s.zero();
        for ((kappa, k), k_k) in kappa.iter_mut().zip(&*k).zip(k_k) {
            let key = s.mul(s.load(k), s.load(k_k));
            squares = s.fma(key, key, squares);
            s.store(key, kappa);
        }
        let factor = s.splat(1.0 / s.sum(squares).sqrt().max(LEAST_LENGTH));
        for c in 0..w.len() {
            let normed = s.mul(s.load(&kappa[c]), factor);
            s.store(normed, &mut kappa[c]);
            let rate = sigmoid(s, s.add(s.load(&a[c]), s.load(&a0[c])));
            s.store(s.mul(normed, rate), &mut a[c]);
            let key = s.load(&k[c]);
            let share = s.mul(key, s.load(&k_a[c]));
            s.store(s.add(key, s.sub(s.mul(rate, share), share)), &mut k[c]);
            let decay = sigmoid(s, s.add(s.load(&w[c]), s.load(&w0[c])));
            s.store(exp(s, s.mul(decay, s.splat(-DECAY_SCALE))), &mut w[c]);
        }
    }
}

/// `out += v · Σ r · k · r_k` for one head of one row; `[r, k, v, r_k]`.
pub(crate) fn bonus<S: Simd>(out: &mut [f32], rows: [&[f32]; 4]) {
    run::<S, _>(Bonus(out, rows));
}

struct Bonus<'a>(&'a mut [f32], [&'a [f32]; 4]);

impl Op for Bonus<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let [r, k, v, r_k] = self.1.map(|x| x.as_chunks::<LANES>().0);
        let mut sum = s.zero();
        for ((r, k), r_k) in r.iter().zip(k).zip(r_k) {
            sum = s.fma(s.mul(s.load(r), s.load(k)), s.load(r_k), sum);
        }
        let sum = s.splat(s.sum(sum));
        for (out, v) in self.0.as_chunks_mut().0.iter_mut().zip(v) {
            s.store(s.fma(s.load(v), sum, s.load(out)), out);
        }
    }
}
