//! The delta rule as a blocked recurrence: lanes along the value index, a strip of the state in the
//! first cache over all rows of a part.
//!
//! A row's pass over a strip does what the row before left to do (`S += k eᵀ`), decays, and sums
//! `Sᵀk` and `Sᵀq`; then `e = beta (v - Sᵀk)` and `o = Sᵀq + (k·q) e`. The last update of a part is
//! made by itself: the same operations, so a cut changes nothing.

use super::exp::{exp, sigmoid, softplus};
use super::run;
use crate::kernels::delta::DeltaTile;
use crate::kernels::scan::FLUSH_EVERY;
use crate::kernels::simd::{LANES, Op, Simd};

/// Sixteen columns of a state, a row for each key channel.
pub(super) type Strip = [[f32; LANES]];

/// Runs one tile over its part's rows.
pub(crate) fn delta<S: Simd>(tile: DeltaTile<'_>) {
    run::<S, _>(Walk(tile));
}

/// All rows of a tile's part.
pub(super) struct Walk<'a>(pub(super) DeltaTile<'a>);

impl Op for Walk<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let mut tile = self.0;
        let d_k = tile.shape.d_k;
        let mut state = std::mem::take(&mut tile.state);
        let mut done = 0;
        // Two strips at once fill the registers of the sets that have many of them.
        while S::TILE > 4 && state.len() >= 2 * LANES * d_k {
            let (pair, rest) = state.split_at_mut(2 * LANES * d_k);
            let (rows, _) = pair.as_chunks_mut::<LANES>();
            let (a, b) = rows.split_at_mut(d_k);
            walk(s, &mut tile, done, LANES, [a, b]);
            done += 2 * LANES;
            state = rest;
        }
        for_strips(
            state,
            d_k,
            #[inline(always)]
            |strip, start, width| walk(s, &mut tile, done + start, width, [strip]),
        );
    }
}

/// Runs `task(strip, first column, columns)` on each strip of a state; the last may be narrower and is
/// then given a wide copy.
#[inline(always)]
pub(super) fn for_strips(
    state: &mut [f32],
    d_k: usize,
    mut task: impl FnMut(&mut Strip, usize, usize),
) {
    let columns = state.len() / d_k;
    let (whole, tail) = state.split_at_mut(columns / LANES * LANES * d_k);
    let (rows, _) = whole.as_chunks_mut::<LANES>();
    for (i, strip) in rows.chunks_exact_mut(d_k).enumerate() {
        task(strip, i * LANES, LANES);
    }
    let rest = columns % LANES;
    if rest > 0 {
        let mut strip = vec![[0.0; LANES]; d_k];
        for (row, part) in strip.iter_mut().zip(tail.chunks_exact(rest)) {
            row[..rest].copy_from_slice(part);
        }
        task(&mut strip, columns - rest, rest);
        for (row, part) in strip.iter().zip(tail.chunks_exact_mut(rest)) {
            part.copy_from_slice(&row[..rest]);
        }
    }
}

/// A row's operands for one head.
#[derive(Clone, Copy)]
struct Row<'a> {
    q: &'a [f32],
    k: &'a [f32],
    decay: &'a [f32],
}

/// The update that a row leaves to the next one's pass: `S += k errorsᵀ`.
#[derive(Clone, Copy)]
struct Left<'a, F, const W: usize> {
    k: &'a [f32],
    errors: [F; W],
}

/// `Sᵀk` and `Sᵀq` of a row.
struct Sums<F, const W: usize> {
    by_k: [F; W],
    by_q: [F; W],
}

/// All rows of the part over `W` neighbouring strips, the first at column `start` of the tile and
/// each `width` wide.
#[inline(always)]
fn walk<S: Simd, const W: usize>(
    s: S,
    tile: &mut DeltaTile<'_>,
    start: usize,
    width: usize,
    mut strips: [&mut Strip; W],
) {
    let part = *tile.part;
    let scale = s.splat(1.0 / (tile.shape.d_k as f32).sqrt());
    let mut left: Option<Left<'_, S::F, W>> = None;
    for row in part.first_row..part.first_row + part.n_rows {
        let x = Row { q: tile.q(row), k: tile.k(row), decay: tile.decay(row) };
        let none = Left { k: x.k, errors: [s.zero(); W] };
        let sums = match (left, x.decay.len() == x.k.len()) {
            (Some(left), true) => pass::<S, W, true, true>(s, &mut strips, x, left),
            (Some(left), false) => pass::<S, W, true, false>(s, &mut strips, x, left),
            (None, true) => pass::<S, W, false, true>(s, &mut strips, x, none),
            (None, false) => pass::<S, W, false, false>(s, &mut strips, x, none),
        };
        let (beta, kq) = (s.splat(tile.beta(row)), s.splat(dot(s, x.k, x.q)));
        let mut errors = [s.zero(); W];
        for (w, error) in errors.iter_mut().enumerate() {
            let v = s.load_part(tile.v(row, start + w * LANES, width));
            *error = s.mul(beta, s.sub(v, sums.by_k[w]));
            let y = s.mul(s.fma(kq, *error, sums.by_q[w]), scale);
            s.store_part(y, tile.out(row, start + w * LANES, width));
        }
        left = Some(Left { k: x.k, errors });
        let pos = part.first_pos + (row - part.first_row);
        if pos % FLUSH_EVERY == FLUSH_EVERY - 1 {
            finish(s, &mut strips, left.take());
            strips.iter_mut().for_each(|strip| flush(s, strip));
        }
    }
    finish(s, &mut strips, left);
}

/// One row over `W` neighbouring strips: what the row before left to do (with `UPDATE`), decay (one
/// factor for each channel with `CHANNELS`), and the sums `Sᵀk` and `Sᵀq`.
#[inline(always)]
fn pass<S: Simd, const W: usize, const UPDATE: bool, const CHANNELS: bool>(
    s: S,
    strips: &mut [&mut Strip; W],
    row: Row<'_>,
    left: Left<'_, S::F, W>,
) -> Sums<S::F, W> {
    let n = row.k.len();
    assert!(row.q.len() == n && left.k.len() == n && (!CHANNELS || row.decay.len() == n));
    assert!(strips.iter().all(|strip| strip.len() == n), "strips of {n} channels");
    let mut sums = Sums { by_k: [s.zero(); W], by_q: [s.zero(); W] };
    let mut decay = s.splat(row.decay[0]);
    for i in 0..n {
        if CHANNELS {
            decay = s.splat(row.decay[i]);
        }
        let (k, q, before) = (s.splat(row.k[i]), s.splat(row.q[i]), s.splat(left.k[i]));
        for (w, strip) in strips.iter_mut().enumerate() {
            let mut state = s.load(&strip[i]);
            if UPDATE {
                state = s.fma(before, left.errors[w], state);
            }
            state = s.mul(state, decay);
            s.store(state, &mut strip[i]);
            sums.by_k[w] = s.fma(state, k, sums.by_k[w]);
            sums.by_q[w] = s.fma(state, q, sums.by_q[w]);
        }
    }
    sums
}

/// The last update of a part, or the last before a flush.
#[inline(always)]
fn finish<S: Simd, const W: usize>(
    s: S,
    strips: &mut [&mut Strip; W],
    left: Option<Left<'_, S::F, W>>,
) {
    let Some(left) = left else { return };
    for (strip, e) in strips.iter_mut().zip(left.errors) {
        for (row, k) in strip.iter_mut().zip(left.k) {
            let state = s.fma(s.splat(*k), e, s.load(row));
            s.store(state, row);
        }
    }
}

/// Subnormal values become zero.
#[inline(always)]
pub(super) fn flush<S: Simd>(s: S, strip: &mut Strip) {
    let least = s.splat(f32::MIN_POSITIVE);
    for row in strip {
        let x = s.load(row);
        let size = s.max(x, s.sub(s.zero(), x));
        s.store(s.select_gt(least, size, s.zero(), x), row);
    }
}

/// `Σ a b`, by the fixed tree.
#[inline(always)]
fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let mut sum = s.zero();
    for (a, b) in a.iter().zip(b) {
        sum = s.fma(s.load(a), s.load(b), sum);
    }
    s.sum(s.fma(s.load_part(a_tail), s.load_part(b_tail), sum))
}

/// `x = exp(rates * softplus(x + bias))`.
pub(crate) fn decay_factors<S: Simd>(x: &mut [f32], bias: &[f32], rates: &[f32]) {
    run::<S, _>(Factors { x, bias, rates });
}

struct Factors<'a> {
    x: &'a mut [f32],
    bias: &'a [f32],
    rates: &'a [f32],
}

/// `x = exp(bound * sigmoid(-rates * (x + bias)))`.
pub(crate) fn bounded_decay_factors<S: Simd>(
    x: &mut [f32],
    bias: &[f32],
    rates: &[f32],
    bound: f32,
) {
    run::<S, _>(BoundedFactors { factors: Factors { x, bias, rates }, bound });
}

struct BoundedFactors<'a> {
    factors: Factors<'a>,
    bound: f32,
}

impl Op for BoundedFactors<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let Factors { x, bias, rates } = self.factors;
        let operands = bias.chunks(LANES).zip(rates.chunks(LANES));
        for (x, (bias, rates)) in x.chunks_mut(LANES).zip(operands) {
            let gate = s.add(s.load_part(x), s.load_part(bias));
            let rate = s.sub(s.zero(), s.load_part(rates));
            let log = s.mul(s.splat(self.bound), sigmoid(s, s.mul(rate, gate)));
            s.store_part(exp(s, log), x);
        }
    }
}

impl Op for Factors<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let operands = self.bias.chunks(LANES).zip(self.rates.chunks(LANES));
        for (x, (bias, rates)) in self.x.chunks_mut(LANES).zip(operands) {
            let gate = s.add(s.load_part(x), s.load_part(bias));
            let log = s.mul(s.load_part(rates), softplus(s, gate));
            s.store_part(exp(s, log), x);
        }
    }
}
