//! The delta rule by chunks of a head's rows, as matrix products (the WY form of arXiv 2406.06484, with
//! decays as in arXiv 2510.26692).
//!
//! Within a chunk it computes what the keys are to each other. A triangular solve then gives the corrections
//! of all rows at once. One product brings in the state before the chunk, and one makes the state behind it.
//!
//! Let `w(s, t)` be the decay of each key channel from row `s` to row `t`, and `e` the corrections:
//!
//! - `A[t][s] = Σ k_t k_s w` and `P[t][s] = Σ q_t k_s w`
//! - `(I + beta A) e = beta (v - (k w(start, t)) S)`
//! - `o = ((q w(start, t)) S + P e) / sqrt(d_k)`
//! - `S = w(start, end) S + (k w(t, end))ᵀ e`
//!
//! Decays are products of factors that are at most 1, never differences of sums. So nothing overflows or
//! cancels. For a pair of rows in different halves of a chunk, the product of decays is split at the border
//! between the halves. A block of `A` is then one matrix product. Halves are halved again, down to sixteen
//! rows.

#![allow(clippy::needless_range_loop, reason = "closures in iterators are not always inlined here")]

use super::delta::{Walk, for_strips};
use super::ssd::{lanes as lanes_of, put};
use super::{flush_subnormals, run};
use crate::kernels::delta::DeltaTile;
use crate::kernels::scan::{FLUSH_EVERY, ScanPart};
use crate::kernels::simd::{LANES, Op, Simd};

/// Runs a whole head over its part's rows: whole chunks at multiples of `chunk` rows of absolute
/// position, what is left before and after them row by row.
pub(crate) fn delta_chunked<S: Simd>(tile: DeltaTile<'_>, chunk: usize) {
    // As many sums at once as hide an addition's latency: each row has two, of one register or more.
    if S::TILE >= 8 {
        run::<S, _>(Chunks::<4> { tile, chunk });
    } else {
        run::<S, _>(Chunks::<2> { tile, chunk });
    }
}

/// `R` rows are multiplied at once.
struct Chunks<'a, const R: usize> {
    tile: DeltaTile<'a>,
    chunk: usize,
}

impl<const R: usize> Op for Chunks<'_, R> {
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
                buffers.scores::<S, R>(s);
                buffers.decay_ends(s);
                let flushed = (pos + chunk).is_multiple_of(FLUSH_EVERY);
                for_strips(
                    state,
                    tile.shape.d_k,
                    #[inline(always)]
                    |strip, start, width| {
                        buffers.strip::<S, R>(s, &mut tile, first_row, strip, (start, width));
                        if flushed {
                            flush_subnormals(s, strip);
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
    /// Corrections of a strip, `[n, 16]`.
    errors: Vec<[f32; LANES]>,
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
    fn scores<S: Simd, const R: usize>(&mut self, s: S) {
        let mut len = self.n;
        while len > LANES {
            for start in (0..self.n).step_by(len) {
                self.join::<S, R>(s, start, start + len / 2, start + len);
            }
            len /= 2;
        }
        for start in (0..self.n).step_by(LANES) {
            self.leaf(s, start);
        }
    }

    /// The block of rows `middle..end` against rows `start..middle`.
    #[inline(always)]
    fn join<S: Simd, const R: usize>(&mut self, s: S, start: usize, middle: usize, end: usize) {
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
        for row in (start..middle).step_by(R) {
            let keys: [&[f32]; R] = rows_of(&self.before[(row - start) * d..], d);
            for t in (0..len).step_by(LANES) {
                let mut sums = [[s.zero(); 2]; R];
                for i in 0..d {
                    let later = [0, 1].map(
                        #[inline(always)]
                        |x| load(s, &self.turned[x], i * len + t),
                    );
                    for r in 0..R {
                        let key = s.splat(keys[r][i]);
                        sums[r][0] = s.fma(key, later[0], sums[r][0]);
                        sums[r][1] = s.fma(key, later[1], sums[r][1]);
                    }
                }
                for r in 0..R {
                    s.store(sums[r][0], lanes(&mut self.kk, (row + r) * self.n + middle + t));
                    s.store(sums[r][1], lanes(&mut self.qk, (row + r) * self.n + middle + t));
                }
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
                let factor = if t + 1 < LANES { self.a[(row + 1) * d + i] } else { 0.0 };
                decay = s.fma(decay, s.splat(factor), s.load(&UNIT[t]));
                let by = s.mul(decay, s.splat(keys[t]));
                let kk = lanes(&mut self.kk, row * self.n + start);
                s.store(s.fma(by, key_lanes, s.load(kk)), kk);
                let qk = lanes(&mut self.qk, row * self.n + start);
                s.store(s.fma(by, query_lanes, s.load(qk)), qk);
            }
        }
    }

    /// Computes keys and queries as the state before the chunk meets them (`turned`, here `[n, d]`), and keys
    /// as the state after it does (`before`). The last row of `a` becomes the decay of the whole chunk.
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
    fn strip<S: Simd, const R: usize>(
        &mut self,
        s: S,
        tile: &mut DeltaTile<'_>,
        first_row: usize,
        strip: &mut [[f32; LANES]],
        (start, width): (usize, usize),
    ) {
        let scale = s.splat(1.0 / (strip.len() as f32).sqrt());
        for row in (0..self.n).step_by(R) {
            let mut met = self.meet::<S, R>(s, strip, row);
            for r in 0..R {
                let v = lanes_of(s, tile.v(first_row + row + r, start, width));
                let error = s.mul(s.splat(self.beta[row + r]), s.sub(v, met[r][0]));
                let at = (row + r) * self.n + row;
                for later in r..R {
                    let kk = s.splat(self.kk[at + later]);
                    let qk = s.splat(self.qk[at + later]);
                    met[later][0] = s.fma(kk, error, met[later][0]);
                    met[later][1] = s.fma(qk, error, met[later][1]);
                }
                s.store(error, &mut self.errors[row + r]);
                put(s, s.mul(met[r][1], scale), tile.out(first_row + row + r, start, width));
            }
        }
        if S::TILE >= 8 {
            self.move_state::<S, 8>(s, strip);
        } else {
            self.move_state::<S, 4>(s, strip);
        }
    }

    /// What the state before the chunk and the corrections of the rows before `row` give to the keys
    /// and the queries of `R` rows from there on.
    #[inline(always)]
    fn meet<S: Simd, const R: usize>(
        &self,
        s: S,
        strip: &[[f32; LANES]],
        row: usize,
    ) -> [[S::F; 2]; R] {
        let (n, d) = (self.n, self.d);
        let keys: [&[f32]; R] = rows_of(&self.turned[0][row * d..], d);
        let queries: [&[f32]; R] = rows_of(&self.turned[1][row * d..], d);
        let mut met = [[s.zero(); 2]; R];
        for i in 0..strip.len() {
            let state = s.load(&strip[i]);
            for r in 0..R {
                met[r][0] = s.fma(s.splat(keys[r][i]), state, met[r][0]);
                met[r][1] = s.fma(s.splat(queries[r][i]), state, met[r][1]);
            }
        }
        for before in 0..row {
            let error = s.load(&self.errors[before]);
            let kk = &self.kk[before * n + row..][..R];
            let qk = &self.qk[before * n + row..][..R];
            for r in 0..R {
                met[r][0] = s.fma(s.splat(kk[r]), error, met[r][0]);
                met[r][1] = s.fma(s.splat(qk[r]), error, met[r][1]);
            }
        }
        met
    }

    /// The state after the chunk, `C` key channels at once.
    #[inline(always)]
    fn move_state<S: Simd, const C: usize>(&self, s: S, strip: &mut [[f32; LANES]]) {
        let (d, whole) = (self.d, &self.a[(self.n - 1) * self.d..]);
        for first in (0..strip.len()).step_by(C) {
            let rows = strip.len().min(first + C) - first;
            let mut sums = [s.zero(); C];
            for c in 0..rows {
                sums[c] = s.mul(s.splat(whole[first + c]), s.load(&strip[first + c]));
            }
            // Channels are padded beyond the strip's, so that whole blocks can be read.
            for t in 0..self.n {
                let error = s.load(&self.errors[t]);
                let keys = &self.before[t * d + first..][..C];
                for c in 0..C {
                    sums[c] = s.fma(s.splat(keys[c]), error, sums[c]);
                }
            }
            for c in 0..rows {
                s.store(sums[c], &mut strip[first + c]);
            }
        }
    }
}

/// `R` rows of `d` values.
#[inline(always)]
fn rows_of<const R: usize>(x: &[f32], d: usize) -> [&[f32]; R] {
    let mut rows: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r * d..][..d];
    }
    rows
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
