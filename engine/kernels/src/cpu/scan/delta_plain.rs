//! The delta rule as it is usually written: row by row. Lanes run along the keys of one value column, and
//! each prediction and each output is a sum over lanes. The bench compares [`super::delta`] with it.

use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::delta::DeltaTile;

/// Runs a whole head over its part's rows; its state is `[d_v, d_k]`, `d_k` a multiple of the lanes.
pub(crate) fn delta_plain<S: Simd>(tile: DeltaTile<'_>) {
    run::<S, _>(Plain(tile));
}

struct Plain<'a>(DeltaTile<'a>);

impl Op for Plain<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let mut tile = self.0;
        let state = std::mem::take(&mut tile.state);
        let scale = 1.0 / (tile.shape.d_k as f32).sqrt();
        for row in tile.part.first_row..tile.part.first_row + tile.part.n_rows {
            let (q, _) = tile.q(row).as_chunks::<LANES>();
            let (k, _) = tile.k(row).as_chunks::<LANES>();
            let (decay, beta) = (tile.decay(row), tile.beta(row));
            for (j, column) in state.chunks_exact_mut(tile.shape.d_k).enumerate() {
                let (column, _) = column.as_chunks_mut::<LANES>();
                let mut predicted = s.zero();
                for (i, (state, k)) in column.iter_mut().zip(k).enumerate() {
                    let factors = match decay {
                        [one] => s.splat(*one),
                        channels => s.load_part(&channels[i * LANES..][..LANES]),
                    };
                    let decayed = s.mul(s.load(state), factors);
                    s.store(decayed, state);
                    predicted = s.fma(decayed, s.load(k), predicted);
                }
                let error = s.splat(beta * (tile.v(row, j, 1)[0] - s.sum(predicted)));
                let mut read = s.zero();
                for ((state, k), q) in column.iter_mut().zip(k).zip(q) {
                    let updated = s.fma(s.load(k), error, s.load(state));
                    s.store(updated, state);
                    read = s.fma(updated, s.load(q), read);
                }
                tile.out(row, j, 1)[0] = s.sum(read) * scale;
            }
        }
    }
}
