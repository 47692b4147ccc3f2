//! Mamba-2's recurrence by chunks of tokens, as matrix products (arXiv 2405.21060, section 6). Within a chunk
//! every token meets the earlier ones directly. The state enters once and leaves once.
//!
//! The decay between two tokens is a running product of the tokens' factors, which are at most 1. The
//! difference of their summed logarithms would lose digits. Tokens that do not fill a chunk go through the
//! recurrence.

use super::exp::{exp, softplus};
use super::product::{Lined, add_product};
use super::run;
use super::ssd::{Scan, lanes, put, without_subnormals};
use crate::kernels::scan::{FLUSH_EVERY, ScanPart};
use crate::kernels::simd::{LANES, Op, Simd};
use crate::kernels::ssd::SsdTile;

/// Rows of a triangle that are multiplied as one rectangle.
const BAND: usize = LANES;

/// Runs some heads over their part's rows in chunks of `chunk`, at multiples of it.
pub(crate) fn ssd_chunked<S: Simd>(tile: SsdTile<'_>, chunk: usize) {
    if S::TILE >= 8 {
        run::<S, _>(Chunked::<4> { tile, chunk });
    } else {
        run::<S, _>(Chunked::<1> { tile, chunk });
    }
}

struct Chunked<'a, const V: usize> {
    tile: SsdTile<'a>,
    chunk: usize,
}

impl<const V: usize> Op for Chunked<'_, V> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let (mut tile, chunk) = (self.tile, self.chunk);
        let part = *tile.part;
        let mut work = Work::new(&tile, chunk);
        let mut row = 0;
        while row < part.n_rows {
            let (pos, first_row) = (part.first_pos + row, part.first_row + row);
            let n = (chunk - pos % chunk).min(part.n_rows - row);
            if n == chunk {
                work.scores(s, &tile, first_row);
                for head in tile.heads.clone() {
                    work.head(s, &mut tile, head, first_row, pos);
                }
            } else {
                let part = ScanPart { first_pos: pos, first_row, n_rows: n, ..part };
                let state = &mut *tile.state;
                let heads = tile.heads.clone();
                Scan::<V>(SsdTile { part: &part, state, heads, ..tile }).eval(s);
            }
            row += n;
        }
    }
}

/// Buffers of one chunk of `n` tokens.
struct Work {
    n: usize,
    /// B transposed, `[n_state, n]`.
    b: Vec<f32>,
    /// C·B of every two tokens, `[n, n]`; whole in its lower triangle.
    scores: Vec<f32>,
    /// The same times the decay between the two tokens.
    decayed: Vec<f32>,
    /// `[n]`: time steps; decays from the start to and with a token; from after it to the end.
    delta: Vec<f32>,
    from_start: Vec<f32>,
    to_end: Vec<f32>,
    /// `[n, head_dim]`: inputs times time steps, outputs.
    x: Vec<f32>,
    y: Vec<f32>,
}

impl Work {
    fn new(tile: &SsdTile<'_>, n: usize) -> Self {
        let shape = &tile.ssd.shape;
        let values = |n: usize| vec![0.0; n];
        Self {
            n,
            b: values(shape.n_state * n),
            scores: values(n * n),
            decayed: values(n * n),
            delta: values(n),
            from_start: values(n),
            to_end: values(n),
            x: values(n * shape.head_dim),
            y: values(n * shape.head_dim),
        }
    }

    /// What the heads of a group share.
    #[inline(always)]
    fn scores<S: Simd>(&mut self, s: S, tile: &SsdTile<'_>, row: usize) {
        let n_state = tile.ssd.shape.n_state;
        let start = tile.group() * n_state;
        for t in 0..self.n {
            for (i, b) in tile.input.b.at(row + t, start, n_state).iter().enumerate() {
                self.b[i * self.n + t] = *b;
            }
        }
        let c = tile.input.c;
        let b = Lined { data: &self.b, stride: self.n };
        self.scores.fill(0.0);
        for band in (0..self.n).step_by(BAND) {
            let data = &c.data[(row + band) * c.stride + c.first_col + start..];
            let c = Lined { data, stride: c.stride };
            let out = &mut self.scores[band * self.n..];
            add_product(s, c, b, [BAND, band + BAND, n_state], out, self.n);
        }
    }

    /// One head's outputs and its state after the chunk.
    #[inline(always)]
    fn head<S: Simd>(&mut self, s: S, tile: &mut SsdTile<'_>, head: usize, row: usize, pos: usize) {
        let shape = tile.ssd.shape;
        let (n, dim, n_state) = (self.n, shape.head_dim, shape.n_state);
        self.decays(s, tile, head, row);
        let start = (head - tile.heads.start) * shape.head_state();
        let input = tile.input;
        let c_start = input.c.first_col + tile.group() * n_state;
        let c = &input.c.data[row * input.c.stride + c_start..];
        let c = Lined { data: c, stride: input.c.stride };
        let state = &mut tile.state[start..start + shape.head_state()];
        self.y.fill(0.0);
        let before = Lined { data: state, stride: dim };
        add_product(s, c, before, [n, dim, n_state], &mut self.y, dim);
        let d = s.splat(tile.ssd.d[head]);
        for t in 0..n {
            let (decay, delta) = (s.splat(self.from_start[t]), s.splat(self.delta[t]));
            for p in (0..dim).step_by(LANES) {
                let width = (dim - p).min(LANES);
                let x = lanes(s, input.x.at(row + t, head * dim + p, width));
                put(s, s.mul(x, delta), &mut self.x[t * dim + p..][..width]);
                let y = &mut self.y[t * dim + p..][..width];
                put(s, s.fma(lanes(s, y), decay, s.mul(x, d)), y);
            }
        }
        let x = Lined { data: &self.x, stride: dim };
        for band in (0..n).step_by(BAND) {
            let decayed = Lined { data: &self.decayed[band * n..], stride: n };
            let out = &mut self.y[band * dim..];
            add_product(s, decayed, x, [BAND, dim, band + BAND], out, dim);
        }
        scale_rows(s, &mut self.x, &self.to_end, dim);
        scale_rows(s, state, &self.from_start[n - 1..], n_state * dim);
        let b = Lined { data: &self.b, stride: n };
        let x = Lined { data: &self.x, stride: dim };
        add_product(s, b, x, [n_state, dim, n], state, dim);
        if (pos + n).is_multiple_of(FLUSH_EVERY) {
            for values in state.chunks_mut(LANES) {
                put(s, without_subnormals(s, lanes(s, values)), values);
            }
        }
        for t in 0..n {
            tile.out(row + t, head, 0, dim).copy_from_slice(&self.y[t * dim..][..dim]);
        }
    }

    /// Time steps of a head, the decays that follow from them and the decayed scores.
    #[inline(always)]
    fn decays<S: Simd>(&mut self, s: S, tile: &SsdTile<'_>, head: usize, row: usize) {
        let n = self.n;
        let (bias, a) = (s.splat(tile.ssd.dt_bias[head]), s.splat(tile.ssd.a[head]));
        for t in 0..n {
            self.delta[t] = tile.input.dt.at(row + t, head, 1)[0];
        }
        let mut from_start = 1.0;
        // Decays from after each earlier token to and with token `t`.
        self.to_end.fill(0.0);
        for t in 0..n {
            if t.is_multiple_of(LANES) {
                let delta = &mut self.delta[t..t + LANES];
                let step = softplus(s, s.add(lanes(s, delta), bias));
                put(s, step, delta);
                put(s, exp(s, s.mul(step, a)), &mut self.from_start[t..t + LANES]);
            }
            let decay = self.from_start[t];
            from_start *= decay;
            if from_start < f32::MIN_POSITIVE {
                from_start = 0.0;
            }
            self.from_start[t] = from_start;
            let decay = s.splat(decay);
            for values in self.to_end[..t.next_multiple_of(LANES)].as_chunks_mut::<LANES>().0 {
                s.store(without_subnormals(s, s.mul(s.load(values), decay)), values);
            }
            self.to_end[t] = 1.0;
            let end = (t + 1).next_multiple_of(BAND);
            let scores = self.scores[t * n..][..end].as_chunks::<LANES>().0;
            let decayed = self.decayed[t * n..][..end].as_chunks_mut::<LANES>().0;
            let decays = self.to_end[..end].as_chunks::<LANES>().0;
            for i in 0..decayed.len() {
                s.store(s.mul(s.load(&scores[i]), s.load(&decays[i])), &mut decayed[i]);
            }
        }
    }
}

/// Multiplies rows of `dim` values by a factor each.
#[inline(always)]
fn scale_rows<S: Simd>(s: S, rows: &mut [f32], factors: &[f32], dim: usize) {
    for (row, factor) in rows.chunks_exact_mut(dim).zip(factors) {
        let factor = s.splat(*factor);
        let (whole, tail) = row.as_chunks_mut::<LANES>();
        for values in whole {
            s.store(s.mul(s.load(values), factor), values);
        }
        put(s, s.mul(lanes(s, tail), factor), tail);
    }
}
