//! The delta rule as a blocked recurrence. Lanes run along the value index. A strip of the state (sixteen
//! columns of it) stays in the first-level cache while a block of rows passes over it.
//!
//! The block's keys, queries and decays are first copied side by side. In a ubatch they lie a power of two
//! apart, and at such distances a cache can hold only a few of them at once.
//!
//! For each row, one pass over the strip adds the update that the row before found (`S += k eᵀ`), applies the
//! decay, and sums `Sᵀk` and `Sᵀq`. Then `e = beta (v - Sᵀk)` is the row's own update, and `o = Sᵀq + (k·q)
//! e` its output. After the last row of a part the update is added in a pass of its own. Its operations are
//! the same, so a cut between two rows changes no bit.

#![allow(clippy::needless_range_loop, reason = "closures in iterators are not always inlined here")]

use super::ssd::{lanes, put};
use crate::cpu::exp::{exp, sigmoid, softplus};
use crate::cpu::{flush_subnormals, run};
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::FLUSH_EVERY;
use crate::tiles::scan::delta::DeltaTile;
use brigade_shapes::Decay;

/// Rows of a block: their keys, queries and decays (for keys of 128: 24 KiB) stay close. Divides
/// [`FLUSH_EVERY`].
const BLOCK: usize = 16;

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
        let part = *tile.part;
        let state = std::mem::take(&mut tile.state);
        let mut work = Work::new(&tile, state.len(), part.n_rows.min(BLOCK));
        let mut done = 0;
        while done < part.n_rows {
            let pos = part.first_pos + done;
            let n = (BLOCK - pos % BLOCK).min(part.n_rows - done);
            work.load(s, &tile, part.first_row + done, n);
            done += n;
            work.flush = (pos + n).is_multiple_of(FLUSH_EVERY);
            work.finish = work.flush || done == part.n_rows;
            work.strips(s, &mut tile, state);
            work.left = !work.finish;
        }
    }
}

/// One block of rows, laid out as the passes read it.
struct Work {
    d_k: usize,
    /// Rows of the block.
    n: usize,
    /// The first of them.
    first_row: usize,
    /// `[1 + n, d_k]`: keys, from the row before the block on.
    k: Vec<f32>,
    /// `[n, d_k]`.
    q: Vec<f32>,
    /// Decay factors of a row: `d_k`, or one.
    decay_len: usize,
    /// `[n, decay_len]`.
    decay: Vec<f32>,
    /// Rates of correction of the rows.
    beta: [f32; BLOCK],
    /// `k·q` of each row.
    kq: [f32; BLOCK],
    /// `[strips]`: corrections of the row before.
    errors: Vec<[f32; LANES]>,
    /// Whether the row before the block left its update to do.
    left: bool,
    /// Whether the block's last row does its own update.
    finish: bool,
    /// Whether the state is rid of subnormals after it.
    flush: bool,
}

impl Work {
    fn new(tile: &DeltaTile<'_>, state_len: usize, n: usize) -> Self {
        let d_k = tile.shape.d_k;
        let decay_len = if tile.shape.decay == Decay::PerChannel { d_k } else { 1 };
        Self {
            d_k,
            n: 0,
            first_row: 0,
            k: vec![0.0; (1 + n) * d_k],
            q: vec![0.0; n * d_k],
            decay_len,
            decay: vec![0.0; n * decay_len],
            beta: [0.0; BLOCK],
            kq: [0.0; BLOCK],
            errors: vec![[0.0; LANES]; (state_len / d_k).div_ceil(LANES)],
            left: false,
            finish: false,
            flush: false,
        }
    }

    /// Takes `n` rows from `first_row` on.
    #[inline(always)]
    fn load<S: Simd>(&mut self, s: S, tile: &DeltaTile<'_>, first_row: usize, n: usize) {
        let d = self.d_k;
        self.k.copy_within(self.n * d..(self.n + 1) * d, 0);
        (self.first_row, self.n) = (first_row, n);
        for t in 0..n {
            let (k, q, decay) =
                (tile.k(first_row + t), tile.q(first_row + t), tile.decay(first_row + t));
            self.k[(1 + t) * d..][..d].copy_from_slice(k);
            self.q[t * d..][..d].copy_from_slice(q);
            self.decay[t * decay.len()..][..decay.len()].copy_from_slice(decay);
            self.beta[t] = tile.beta(first_row + t);
            self.kq[t] = dot(s, k, q);
        }
    }

    /// The block's rows over all strips of the tile's state.
    #[inline(always)]
    fn strips<S: Simd>(&mut self, s: S, tile: &mut DeltaTile<'_>, mut state: &mut [f32]) {
        let (d_k, mut done) = (self.d_k, 0);
        // Two strips at once fill the registers of the sets that have many of them.
        while const { S::TILE > 4 } && state.len() >= 2 * LANES * d_k {
            let (pair, rest) = state.split_at_mut(2 * LANES * d_k);
            let (rows, _) = pair.as_chunks_mut::<LANES>();
            let (a, b) = rows.split_at_mut(d_k);
            self.walk(s, tile, done, LANES, [a, b]);
            done += 2 * LANES;
            state = rest;
        }
        for_strips(
            state,
            d_k,
            #[inline(always)]
            |strip, start, width| self.walk(s, tile, done + start, width, [strip]),
        );
    }

    /// The block's rows over `W` neighbouring strips, the first at column `start` of the tile and each
    /// `width` wide.
    #[inline(always)]
    fn walk<S: Simd, const W: usize>(
        &mut self,
        s: S,
        tile: &mut DeltaTile<'_>,
        start: usize,
        width: usize,
        mut strips: [&mut Strip; W],
    ) {
        let d = self.d_k;
        let scale = s.splat(1.0 / (d as f32).sqrt());
        let mut errors = [s.zero(); W];
        for w in 0..W {
            errors[w] = s.load(&self.errors[start / LANES + w]);
        }
        for t in 0..self.n {
            let (before, k) = self.k[t * d..][..2 * d].split_at(d);
            let decay = &self.decay[t * self.decay_len..][..self.decay_len];
            let (x, left) =
                (Row { q: &self.q[t * d..][..d], k, decay }, Left { k: before, errors });
            let sums = match (t > 0 || self.left, self.decay_len == d) {
                (true, true) => pass::<S, W, true, true>(s, &mut strips, x, left),
                (true, false) => pass::<S, W, true, false>(s, &mut strips, x, left),
                (false, true) => pass::<S, W, false, true>(s, &mut strips, x, left),
                (false, false) => pass::<S, W, false, false>(s, &mut strips, x, left),
            };
            let (beta, kq) = (s.splat(self.beta[t]), s.splat(self.kq[t]));
            let row = self.first_row + t;
            for w in 0..W {
                let v = lanes(s, tile.v(row, start + w * LANES, width));
                errors[w] = s.mul(beta, s.sub(v, sums.by_k[w]));
                let y = s.mul(s.fma(kq, errors[w], sums.by_q[w]), scale);
                put(s, y, tile.out(row, start + w * LANES, width));
            }
        }
        for w in 0..W {
            s.store(errors[w], &mut self.errors[start / LANES + w]);
        }
        for (w, strip) in strips.into_iter().enumerate() {
            if self.finish {
                finish(s, strip, &self.k[self.n * d..][..d], errors[w]);
            }
            if self.flush {
                flush_subnormals(s, strip);
            }
        }
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
    // Channels in turn go to one of two sums: a processor has several operations under way.
    let mut even = Sums { by_k: [s.zero(); W], by_q: [s.zero(); W] };
    let mut odd = Sums { by_k: [s.zero(); W], by_q: [s.zero(); W] };
    for i in (0..n / 2 * 2).step_by(2) {
        channel::<S, W, UPDATE, CHANNELS>(s, strips, i, &row, &left, &mut even);
        channel::<S, W, UPDATE, CHANNELS>(s, strips, i + 1, &row, &left, &mut odd);
    }
    if n % 2 == 1 {
        channel::<S, W, UPDATE, CHANNELS>(s, strips, n - 1, &row, &left, &mut even);
    }
    for w in 0..W {
        even.by_k[w] = s.add(even.by_k[w], odd.by_k[w]);
        even.by_q[w] = s.add(even.by_q[w], odd.by_q[w]);
    }
    even
}

/// Key channel `i` of [`pass`].
#[inline(always)]
fn channel<S: Simd, const W: usize, const UPDATE: bool, const CHANNELS: bool>(
    s: S,
    strips: &mut [&mut Strip; W],
    i: usize,
    row: &Row<'_>,
    left: &Left<'_, S::F, W>,
    sums: &mut Sums<S::F, W>,
) {
    let decay = s.splat(row.decay[if CHANNELS { i } else { 0 }]);
    let (k, q, before) = (s.splat(row.k[i]), s.splat(row.q[i]), s.splat(left.k[i]));
    // All loads before the first store: strips lie a multiple of 4 KiB apart, where a processor takes
    // a load for one of what was just stored.
    let mut state = [s.zero(); W];
    for w in 0..W {
        state[w] = s.load(&strips[w][i]);
    }
    for w in 0..W {
        if UPDATE {
            state[w] = s.fma(before, left.errors[w], state[w]);
        }
        state[w] = s.mul(state[w], decay);
        s.store(state[w], &mut strips[w][i]);
        sums.by_k[w] = s.fma(state[w], k, sums.by_k[w]);
        sums.by_q[w] = s.fma(state[w], q, sums.by_q[w]);
    }
}

/// The last update of a part, or the last before a flush: `S += k errorsᵀ`.
#[inline(always)]
fn finish<S: Simd>(s: S, strip: &mut Strip, k: &[f32], errors: S::F) {
    for (row, k) in strip.iter_mut().zip(k) {
        let state = s.fma(s.splat(*k), errors, s.load(row));
        s.store(state, row);
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
