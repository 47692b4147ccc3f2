//! The delta rule by chunks of a head's rows, as matrix products: what a chunk's keys are to each
//! other, a triangular solve for all its corrections at once, one product each with the state before
//! and for the state after (the WY form of arXiv 2406.06484, with decays as in arXiv 2510.26692).
//!
//! With `w(s, t)` the decay of each key channel from row `s` to row `t`, and `e` the corrections:
//! `A[t][s] = Σ k_t k_s w`, `P[t][s] = Σ q_t k_s w`, `(I + beta A) e = beta (v - (k w(start, t)) S)`,
//! `o = ((q w(start, t)) S + P e) / sqrt(d_k)`, `S = w(start, end) S + (k w(t, end))ᵀ e`.
//!
//! Decays are products of factors at most 1, never differences of sums: no overflow, no cancellation.
//! For a pair in different halves of a chunk the product is split at the border between them, so that
//! a block of `A` is one matrix product; halves are halved again down to sixteen rows.

use super::delta::{Walk, flush, for_strips};
use super::run;
use crate::kernels::delta::DeltaTile;
use crate::kernels::scan::{FLUSH_EVERY, ScanPart};
use crate::kernels::simd::{LANES, Op, Simd};

/// Rows of a chunk that are multiplied with the state at once.
const ROWS: usize = 2;
/// Key channels of the state that take a chunk's corrections at once.
const CHANNELS: usize = 4;

/// Runs a whole head over its part's rows: whole chunks at multiples of `chunk` rows of absolute
/// position, what is left before and after them row by row.
pub(crate) fn delta_chunked<S: Simd>(tile: DeltaTile<'_>, chunk: usize) {
    run::<S, _>(Chunks { tile, chunk });
}

struct Chunks<'a> {
    tile: DeltaTile<'a>,
    chunk: usize,
}

impl Op for Chunks<'_> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let Self { mut tile, chunk } = self;
        let all = *tile.part;
        let state = std::mem::take(&mut tile.state);
        let mut buffers = Buffers::new(chunk, tile.shape.d_k);
        let mut done = 0;
        while done < all.n_rows {
            let pos = all.first_pos + done;
            let n_rows = (chunk - pos % chunk).min(all.n_rows - done);
            let first_row = all.first_row + done;
            let piece = ScanPart { first_pos: pos, first_row, n_rows, ..all };
            if n_rows == chunk {
                buffers.load(&tile, first_row);
                buffers.scores(s);
                buffers.decay_ends(s);
                let flushed = (pos + chunk).is_multiple_of(FLUSH_EVERY);
                for_strips(
                    state,
                    tile.shape.d_k,
                    #[inline(always)]
                    |strip, start, width| {
                        buffers.strip(s, &mut tile, first_row, strip, (start, width));
                        if flushed {
                            flush(s, strip);
                        }
                    },
                );
            } else {
                Walk(tile.piece(&piece, state)).eval(s);
            }
            done += n_rows;
        }
    }
}

/// One chunk of one head; `n` rows, key channels padded to `d`, a multiple of the lanes.
struct Buffers {
    n: usize,
    d: usize,
    /// Keys, `[n, d]`.
    k: Vec<f32>,
    /// Queries, `[n, d]`.
    q: Vec<f32>,
    /// Decay factors, `[n, d]`.
    a: Vec<f32>,
    /// Rates of correction, `[n]`.
    beta: Vec<f32>,
    /// `A`, `[s, t]`; only `s < t` is meant.
    kk: Vec<f32>,
    /// `P`, `[s, t]`; only `s <= t` is meant.
    qk: Vec<f32>,
    /// Keys, queries after some decay, transposed: `[d, rows]`.
    turned: [Vec<f32>; 2],
    /// Keys before some decay, `[rows, d]`.
    before: Vec<f32>,
    /// Corrections of a strip, and its outputs, `[n, 16]`.
    errors: Vec<[f32; LANES]>,
    outputs: Vec<[f32; LANES]>,
}

/// Lanes `i .. i + 16` of a row.
#[inline(always)]
fn lanes(x: &mut [f32], i: usize) -> &mut [f32; LANES] {
    (&mut x[i..i + LANES]).try_into().expect("a slice of that length")
}

/// Lanes `i .. i + 16` of a row, loaded.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32], i: usize) -> S::F {
    s.load(x[i..i + LANES].try_into().expect("a slice of that length"))
}

impl Buffers {
    fn new(n: usize, d_k: usize) -> Self {
        let d = d_k.next_multiple_of(LANES);
        let rows = || vec![0.0; n * d];
        Self {
            n,
            d,
            k: rows(),
            q: rows(),
            a: rows(),
            beta: vec![0.0; n],
            kk: vec![0.0; n * n],
            qk: vec![0.0; n * n],
            turned: [rows(), rows()],
            before: rows(),
            errors: vec![[0.0; LANES]; n],
            outputs: vec![[0.0; LANES]; n],
        }
    }

    /// Takes the rows from `first_row` on; padding stays zero.
    fn load(&mut self, tile: &DeltaTile<'_>, first_row: usize) {
        for t in 0..self.n {
            let (k, q, decay) =
                (tile.k(first_row + t), tile.q(first_row + t), tile.decay(first_row + t));
            let row = t * self.d..t * self.d + k.len();
            self.k[row.clone()].copy_from_slice(k);
            self.q[row.clone()].copy_from_slice(q);
            match decay {
                [one] => self.a[row].fill(*one),
                channels => self.a[row].copy_from_slice(channels),
            }
            self.beta[t] = tile.beta(first_row + t);
        }
    }

    /// `A` and `P` of the chunk.
    #[inline(always)]
    fn scores<S: Simd>(&mut self, s: S) {
        let mut len = self.n;
        while len > LANES {
            for start in (0..self.n).step_by(len) {
                self.join(s, start, start + len / 2, start + len);
            }
            len /= 2;
        }
        for start in (0..self.n).step_by(LANES) {
            self.leaf(s, start);
        }
    }

    /// The block of rows `middle..end` against rows `start..middle`.
    #[inline(always)]
    fn join<S: Simd>(&mut self, s: S, start: usize, middle: usize, end: usize) {
        let (d, len) = (self.d, end - middle);
        for i in (0..d).step_by(LANES) {
            let mut decay = s.splat(1.0);
            for t in middle..end {
                decay = s.mul(decay, load(s, &self.a, t * d + i));
                for (x, turned) in [&self.k, &self.q].into_iter().zip(&mut self.turned) {
                    let mut column = [0.0; LANES];
                    s.store(s.mul(load(s, x, t * d + i), decay), &mut column);
                    for (j, value) in column.into_iter().enumerate() {
                        turned[(i + j) * len + t - middle] = value;
                    }
                }
            }
            let mut decay = s.splat(1.0);
            for t in (start..middle).rev() {
                let key = s.mul(load(s, &self.k, t * d + i), decay);
                s.store(key, lanes(&mut self.before, (t - start) * d + i));
                decay = s.mul(decay, load(s, &self.a, t * d + i));
            }
        }
        for row in start..middle {
            let key = &self.before[(row - start) * d..][..d];
            for t in (0..len).step_by(LANES) {
                let (mut kk, mut qk) = (s.zero(), s.zero());
                for (i, key) in key.iter().enumerate() {
                    let key = s.splat(*key);
                    kk = s.fma(key, load(s, &self.turned[0], i * len + t), kk);
                    qk = s.fma(key, load(s, &self.turned[1], i * len + t), qk);
                }
                s.store(kk, lanes(&mut self.kk, row * self.n + middle + t));
                s.store(qk, lanes(&mut self.qk, row * self.n + middle + t));
            }
        }
    }

    /// The sixteen rows from `start` on against each other: lanes are the later rows, and their decays
    /// grow by a factor as the earlier row walks down.
    #[inline(always)]
    fn leaf<S: Simd>(&mut self, s: S, start: usize) {
        let d = self.d;
        for row in start..start + LANES {
            lanes(&mut self.kk, row * self.n + start).fill(0.0);
            lanes(&mut self.qk, row * self.n + start).fill(0.0);
        }
        for i in 0..d {
            let (mut keys, mut queries) = ([0.0; LANES], [0.0; LANES]);
            for t in 0..LANES {
                keys[t] = self.k[(start + t) * d + i];
                queries[t] = self.q[(start + t) * d + i];
            }
            let (key_lanes, query_lanes) = (s.load(&keys), s.load(&queries));
            let mut decay = s.zero();
            for t in (0..LANES).rev() {
                let row = start + t;
                if t + 1 < LANES {
                    decay = s.mul(decay, s.splat(self.a[(row + 1) * d + i]));
                }
                decay = s.add(decay, s.load(&UNIT[t]));
                let by = s.mul(decay, s.splat(keys[t]));
                let kk = lanes(&mut self.kk, row * self.n + start);
                s.store(s.fma(by, key_lanes, s.load(kk)), kk);
                let qk = lanes(&mut self.qk, row * self.n + start);
                s.store(s.fma(by, query_lanes, s.load(qk)), qk);
            }
        }
    }

    /// Keys and queries as the state before the chunk meets them (`turned`, here `[n, d]`), keys as
    /// the state after it does (`before`), and the decay of the whole chunk (the last row of `a`).
    #[inline(always)]
    fn decay_ends<S: Simd>(&mut self, s: S) {
        let d = self.d;
        for i in (0..d).step_by(LANES) {
            let mut decay = s.splat(1.0);
            for at in (0..self.n).rev().map(|t| t * d + i) {
                s.store(s.mul(load(s, &self.k, at), decay), lanes(&mut self.before, at));
                decay = s.mul(decay, load(s, &self.a, at));
            }
            let mut decay = s.splat(1.0);
            for at in (0..self.n).map(|t| t * d + i) {
                decay = s.mul(decay, load(s, &self.a, at));
                let [keys, queries] = &mut self.turned;
                s.store(s.mul(load(s, &self.k, at), decay), lanes(keys, at));
                s.store(s.mul(load(s, &self.q, at), decay), lanes(queries, at));
            }
            s.store(decay, lanes(&mut self.a, (self.n - 1) * d + i));
        }
    }

    /// Corrections, outputs and the new state of one strip of value columns.
    #[inline(always)]
    fn strip<S: Simd>(
        &mut self,
        s: S,
        tile: &mut DeltaTile<'_>,
        first_row: usize,
        strip: &mut [[f32; LANES]],
        (start, width): (usize, usize),
    ) {
        self.meet_state(s, strip);
        let scale = s.splat(1.0 / (strip.len() as f32).sqrt());
        for row in 0..self.n {
            let v = s.load_part(tile.v(first_row + row, start, width));
            let met = s.load(&self.errors[row]);
            let error = s.mul(s.splat(self.beta[row]), s.sub(v, met));
            let (kk, qk) = (&self.kk[row * self.n..][..self.n], &self.qk[row * self.n..][..self.n]);
            for (later, kk) in self.errors.iter_mut().zip(kk).skip(row + 1) {
                s.store(s.fma(s.splat(*kk), error, s.load(later)), later);
            }
            for (later, qk) in self.outputs.iter_mut().zip(qk).skip(row) {
                s.store(s.fma(s.splat(*qk), error, s.load(later)), later);
            }
            s.store(error, &mut self.errors[row]);
            let y = s.mul(s.load(&self.outputs[row]), scale);
            s.store_part(y, tile.out(first_row + row, start, width));
        }
        self.move_state(s, strip);
    }

    /// What the state before the chunk gives to each key (`errors`) and each query (`outputs`).
    #[inline(always)]
    fn meet_state<S: Simd>(&mut self, s: S, strip: &[[f32; LANES]]) {
        let [keys, queries] = &self.turned;
        for t in (0..self.n).step_by(ROWS) {
            let mut by = [[s.zero(); 2]; ROWS];
            let rows: [_; ROWS] = std::array::from_fn(|r| {
                let row = (t + r) * self.d..(t + r) * self.d + strip.len();
                (&keys[row.clone()], &queries[row])
            });
            for (i, state) in strip.iter().enumerate() {
                let state = s.load(state);
                for (by, (keys, queries)) in by.iter_mut().zip(rows) {
                    by[0] = s.fma(s.splat(keys[i]), state, by[0]);
                    by[1] = s.fma(s.splat(queries[i]), state, by[1]);
                }
            }
            for (r, by) in by.into_iter().enumerate() {
                s.store(by[0], &mut self.errors[t + r]);
                s.store(by[1], &mut self.outputs[t + r]);
            }
        }
    }

    /// The state after the chunk.
    #[inline(always)]
    fn move_state<S: Simd>(&self, s: S, strip: &mut [[f32; LANES]]) {
        let (d, whole) = (self.d, &self.a[(self.n - 1) * self.d..]);
        for (block, rows) in strip.chunks_mut(CHANNELS).enumerate() {
            let first = block * CHANNELS;
            let mut sums = [s.zero(); CHANNELS];
            for (c, (sum, row)) in sums.iter_mut().zip(&*rows).enumerate() {
                *sum = s.mul(s.splat(whole[first + c]), s.load(row));
            }
            // Channels are padded beyond the strip's, so that whole blocks can be read.
            for (t, error) in self.errors.iter().enumerate() {
                let error = s.load(error);
                let keys = &self.before[t * d + first..][..CHANNELS];
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = s.fma(s.splat(*key), error, *sum);
                }
            }
            for (sum, row) in sums.into_iter().zip(rows) {
                s.store(sum, row);
            }
        }
    }
}

/// One in lane `t`, zero in the others.
const UNIT: [[f32; LANES]; LANES] = {
    let mut unit = [[0.0; LANES]; LANES];
    let mut t = 0;
    while t < LANES {
        unit[t][t] = 1.0;
        t += 1;
    }
    unit
};
