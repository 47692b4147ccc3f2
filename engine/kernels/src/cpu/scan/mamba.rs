//! The kernel of Mamba-1's selective scan. Sixteen channels lie side by side, and state indices are taken one
//! after the other. So each lane sums over the state in a fixed order.

use super::conv::lanes;
use crate::FLUSH_EVERY;
use crate::cpu::exp::{exp, silu, softplus};
use crate::cpu::{flush_subnormals, run};
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::mamba::MambaTile;

/// Runs one tile of channels over its part's rows.
pub(crate) fn mamba_scan<S: Simd>(tile: &mut MambaTile<'_>) {
    run::<S, _>(Scan(tile));
}

struct Scan<'t, 'a>(&'t mut MambaTile<'a>);

impl Op for Scan<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let (dt_bias, d) = (s.load(tile.dt_bias()), s.load(tile.d()));
        let state = std::mem::take(&mut tile.state);
        for i in 0..tile.part.n_rows {
            let at = tile.part.first_row + i;
            let row = tile.row(at);
            let u = lanes(s, row.u);
            let dt = softplus(s, s.add(lanes(s, row.dt), dt_bias));
            let step = s.mul(dt, u);
            let mut y = s.zero();
            for (((state, a), b), c) in state.iter_mut().zip(tile.a()).zip(row.b).zip(row.c) {
                let decay = exp(s, s.mul(dt, s.load(a)));
                let next = s.fma(s.load(state), decay, s.mul(s.splat(*b), step));
                s.store(next, state);
                y = s.fma(next, s.splat(*c), y);
            }
            let y = s.mul(s.fma(d, u, y), silu(s, lanes(s, row.gate)));
            match <&mut [f32; LANES]>::try_from(tile.out(at)) {
                Ok(out) => s.store(y, out),
                Err(_) => s.store_part(y, tile.out(at)),
            }
            if (tile.part.first_pos + i) % FLUSH_EVERY == FLUSH_EVERY - 1 {
                flush_subnormals(s, state);
            }
        }
        tile.state = state;
    }
}
