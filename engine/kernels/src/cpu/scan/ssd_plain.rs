//! Mamba-2's recurrence as it is usually written: token by token, with lanes along the state of one channel,
//! and a sum over lanes for each output. The bench compares [`super::ssd`] with it.

use super::ssd::{lanes, put, without_subnormals};
use crate::cpu::exp::{exp, softplus};
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::FLUSH_EVERY;
use crate::tiles::scan::ssd::SsdTile;

/// Runs some heads over their part's rows; a head's state is `[head_dim, n_state]`.
pub(crate) fn ssd_plain<S: Simd>(tile: SsdTile<'_>) {
    run::<S, _>(Plain(tile));
}

struct Plain<'a>(SsdTile<'a>);

impl Op for Plain<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let mut tile = self.0;
        let part = *tile.part;
        for t in 0..part.n_rows {
            let flush = (part.first_pos + t + 1).is_multiple_of(FLUSH_EVERY);
            for head in tile.heads.clone() {
                step(s, &mut tile, head, part.first_row + t, flush);
            }
        }
    }
}

/// One token of one head.
#[inline(always)]
fn step<S: Simd>(s: S, tile: &mut SsdTile<'_>, head: usize, row: usize, flush: bool) {
    let shape = tile.ssd.shape;
    let (dim, n_state) = (shape.head_dim, shape.n_state);
    let dt = tile.input.dt.at(row, head, 1)[0] + tile.ssd.dt_bias[head];
    let delta = softplus(s, s.splat(dt));
    let decay = exp(s, s.mul(delta, s.splat(tile.ssd.a[head])));
    let b = tile.input.b.at(row, tile.group() * n_state, n_state);
    let c = tile.input.c.at(row, tile.group() * n_state, n_state);
    let x = tile.input.x.at(row, head * dim, dim);
    for (p, &x) in x.iter().enumerate() {
        let start = ((head - tile.heads.start) * dim + p) * n_state;
        let state = &mut tile.state[start..start + n_state];
        let input = s.mul(s.splat(x), delta);
        let mut sum = s.zero();
        for i in (0..n_state).step_by(LANES) {
            let end = (i + LANES).min(n_state);
            let (state, b, c) = (&mut state[i..end], &b[i..end], &c[i..end]);
            let value = s.fma(lanes(s, state), decay, s.mul(lanes(s, b), input));
            sum = s.fma(value, lanes(s, c), sum);
            let value = if flush { without_subnormals(s, value) } else { value };
            put(s, value, state);
        }
        tile.out(row, head, p, 1)[0] = tile.ssd.d[head] * x + s.sum(sum);
    }
}
