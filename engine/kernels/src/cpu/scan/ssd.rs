//! Mamba-2's recurrence, in blocks of tokens. Lanes run along the channels of a head. There the columns of
//! the state are independent, and nothing is summed over lanes. Some rows of the state stay in registers over
//! a block, while the outputs of the block add up in the first-level cache.
//!
//! Every element of state and output sees the same operations in the same order, whatever the block, the tile
//! or the cut. So all of them give the same bits. For each token, `S = fma(S, decay, B (delta x))`. Then `y =
//! fma(C, S, y)` over ascending rows, beginning with `y = d x`.

use crate::cpu::exp::{exp, softplus};
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::scan::FLUSH_EVERY;
use crate::tiles::scan::ssd::SsdTile;

/// Tokens of a block: their B and C (for a state of 128: 32 KiB) and one head's inputs and outputs
/// stay close. Divides [`FLUSH_EVERY`].
const BLOCK: usize = 32;
/// Rows of the state that are in registers at a time.
const ROWS: usize = 4;

/// Runs some heads over their part's rows.
pub(crate) fn ssd<S: Simd>(tile: SsdTile<'_>) {
    if const { S::TILE >= 8 } { run::<S, _>(Scan::<4>(tile)) } else { run::<S, _>(Scan::<1>(tile)) }
}

/// Tiles of `V` vectors of channels, and of one for what is left.
pub(super) struct Scan<'a, const V: usize>(pub(super) SsdTile<'a>);

impl<const V: usize> Op for Scan<'_, V> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let mut tile = self.0;
        let part = *tile.part;
        let shape = tile.ssd.shape;
        let mut work = Work::new(shape.n_state, shape.head_dim, part.n_rows.min(BLOCK));
        let mut row = 0;
        while row < part.n_rows {
            let pos = part.first_pos + row;
            let n = (BLOCK - pos % BLOCK).min(part.n_rows - row);
            let flush = (pos + n).is_multiple_of(FLUSH_EVERY);
            work.pack(&tile, part.first_row + row, n);
            for head in tile.heads.clone() {
                work.factors(s, &tile, head, part.first_row + row, n);
                work.channels(s, &tile, head, part.first_row + row, n);
                let start = (head - tile.heads.start) * shape.head_state();
                let state = &mut tile.state[start..start + shape.head_state()];
                work.head::<S, V>(s, state, n, flush);
                work.unpack(&mut tile, head, part.first_row + row, n);
            }
            row += n;
        }
    }
}

/// One block of tokens, laid out as the loops read it.
struct Work {
    head_dim: usize,
    n_state: usize,
    /// For each group of rows of the state and token: the rows' B, then their C.
    bc: Vec<f32>,
    /// `[n]`: decay of each token.
    decay: [f32; BLOCK],
    /// `[n]`: time step of each token.
    delta: [f32; BLOCK],
    /// `[channels / LANES, n, LANES]`: inputs times time steps.
    x: Vec<[f32; LANES]>,
    /// `[channels / LANES, n, LANES]`: outputs.
    y: Vec<[f32; LANES]>,
}

/// Operands of a group of rows and some vectors of channels, for `n` tokens.
struct Steps<'a> {
    decay: &'a [f32],
    /// `[n, 2, rows]`.
    bc: &'a [f32],
    /// `[vectors, n, LANES]`.
    x: &'a [[f32; LANES]],
    /// Whether the state is rid of subnormals after the last of them.
    flush: bool,
}

impl Work {
    fn new(n_state: usize, head_dim: usize, n: usize) -> Self {
        let vectors = vec![[0.0; LANES]; head_dim.div_ceil(LANES) * n];
        Self {
            head_dim,
            n_state,
            bc: vec![0.0; 2 * n_state * n],
            decay: [0.0; BLOCK],
            delta: [0.0; BLOCK],
            x: vectors.clone(),
            y: vectors,
        }
    }

    /// B and C of `n` rows: groups of [`ROWS`] state rows, single ones at the end.
    #[inline(always)]
    fn pack(&mut self, tile: &SsdTile<'_>, first_row: usize, n: usize) {
        let start = tile.group() * self.n_state;
        for t in 0..n {
            let b = tile.input.b.at(first_row + t, start, self.n_state);
            let c = tile.input.c.at(first_row + t, start, self.n_state);
            let (b, b_left) = b.as_chunks::<ROWS>();
            let (c, c_left) = c.as_chunks::<ROWS>();
            for (i, (b, c)) in b.iter().zip(c).enumerate() {
                let to = &mut self.bc[2 * ROWS * (i * n + t)..][..2 * ROWS];
                to[..ROWS].copy_from_slice(b);
                to[ROWS..].copy_from_slice(c);
            }
            let left = &mut self.bc[2 * ROWS * b.len() * n..];
            for (i, (b, c)) in b_left.iter().zip(c_left).enumerate() {
                left[2 * (i * n + t)..][..2].copy_from_slice(&[*b, *c]);
            }
        }
    }

    /// Time steps and decays of `n` rows, sixteen tokens at a time.
    #[inline(always)]
    fn factors<S: Simd>(&mut self, s: S, tile: &SsdTile<'_>, head: usize, row: usize, n: usize) {
        let (bias, a) = (s.splat(tile.ssd.dt_bias[head]), s.splat(tile.ssd.a[head]));
        for t in 0..n {
            self.delta[t] = tile.input.dt.at(row + t, head, 1)[0];
        }
        let delta = self.delta.as_chunks_mut::<LANES>().0;
        let decay = self.decay.as_chunks_mut::<LANES>().0;
        for (delta, decay) in delta.iter_mut().zip(decay).take(n.div_ceil(LANES)) {
            let step = softplus(s, s.add(s.load(delta), bias));
            s.store(step, delta);
            s.store(exp(s, s.mul(step, a)), decay);
        }
    }

    /// Inputs and outputs of a head before the state's part.
    #[inline(always)]
    fn channels<S: Simd>(&mut self, s: S, tile: &SsdTile<'_>, head: usize, row: usize, n: usize) {
        let d = s.splat(tile.ssd.d[head]);
        for start in (0..self.head_dim).step_by(LANES) {
            let width = (self.head_dim - start).min(LANES);
            let at = start / LANES * n;
            for t in 0..n {
                let x = tile.input.x.at(row + t, head * self.head_dim + start, width);
                let x = lanes(s, x);
                s.store(s.mul(x, s.splat(self.delta[t])), &mut self.x[at + t]);
                s.store(s.mul(x, d), &mut self.y[at + t]);
            }
        }
    }

    /// All rows and channels of a head's state, `[n_state, head_dim]`, over the block.
    #[inline(always)]
    fn head<S: Simd, const V: usize>(&mut self, s: S, state: &mut [f32], n: usize, flush: bool) {
        let whole = self.head_dim / (V * LANES) * V;
        let vectors = self.head_dim.div_ceil(LANES);
        if n == 1 {
            // Along the state as it lies in memory.
            for row in row_groups(self.n_state) {
                for v in (0..whole).step_by(V) {
                    self.rows::<S, V>(s, state, row.clone(), v, n, flush);
                }
                for v in whole..vectors {
                    self.rows::<S, 1>(s, state, row.clone(), v, n, flush);
                }
            }
            return;
        }
        for v in (0..whole).step_by(V) {
            for row in row_groups(self.n_state) {
                self.rows::<S, V>(s, state, row, v, n, flush);
            }
        }
        for v in whole..vectors {
            for row in row_groups(self.n_state) {
                self.rows::<S, 1>(s, state, row, v, n, flush);
            }
        }
    }

    /// A group of rows by `V` vectors of channels from vector `v` on.
    #[inline(always)]
    fn rows<S: Simd, const V: usize>(
        &mut self,
        s: S,
        state: &mut [f32],
        rows: std::ops::Range<usize>,
        v: usize,
        n: usize,
        flush: bool,
    ) {
        let bc = &self.bc[2 * rows.start * n..2 * rows.end * n];
        let steps = Steps { decay: &self.decay[..n], bc, x: &self.x[v * n..][..V * n], flush };
        let state = &mut state[rows.start * self.head_dim + v * LANES..];
        let y = &mut self.y[v * n..][..V * n];
        if rows.len() == ROWS {
            walk::<S, ROWS, V>(s, state, self.head_dim, v * LANES, &steps, y);
        } else {
            walk::<S, 1, V>(s, state, self.head_dim, v * LANES, &steps, y);
        }
    }

    /// The block's outputs to where they belong.
    #[inline(always)]
    fn unpack(&mut self, tile: &mut SsdTile<'_>, head: usize, row: usize, n: usize) {
        for start in (0..self.head_dim).step_by(LANES) {
            let width = (self.head_dim - start).min(LANES);
            for t in 0..n {
                let y = &self.y[start / LANES * n + t][..width];
                tile.out(row + t, head, start, width).copy_from_slice(y);
            }
        }
    }
}

/// Groups of [`ROWS`] rows, single ones at the end.
fn row_groups(n: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let whole = n / ROWS * ROWS;
    let groups = (0..whole).step_by(ROWS).map(|i| i..i + ROWS);
    groups.chain((whole..n).map(|i| i..i + 1))
}

/// `R` rows by `V` vectors of the state, in registers over all tokens of `steps`. `state` starts at
/// the first of them (channel `col` of a row), rows are `stride` apart; `y` is `[V, n, LANES]`.
#[inline(always)]
fn walk<S: Simd, const R: usize, const V: usize>(
    s: S,
    state: &mut [f32],
    stride: usize,
    col: usize,
    steps: &Steps<'_>,
    y: &mut [[f32; LANES]],
) {
    let n = steps.decay.len();
    let width = |v: usize| (stride - col - v * LANES).min(LANES);
    let mut values = [[s.zero(); V]; R];
    // Loops over rows and vectors go by index: adapters of iterators are not always inlined here.
    for r in 0..R {
        for v in 0..V {
            values[r][v] = lanes(s, &state[r * stride + v * LANES..][..width(v)]);
        }
    }
    let (bc, x, y) = (&steps.bc[..2 * R * n], &steps.x[..V * n], &mut y[..V * n]);
    for t in 0..n {
        let decay = s.splat(steps.decay[t]);
        let bc = &bc[2 * R * t..][..2 * R];
        let (mut xs, mut ys) = ([s.zero(); V], [s.zero(); V]);
        for v in 0..V {
            xs[v] = s.load(&x[v * n + t]);
            ys[v] = s.load(&y[v * n + t]);
        }
        for r in 0..R {
            let (b, c) = (s.splat(bc[r]), s.splat(bc[R + r]));
            for v in 0..V {
                values[r][v] = s.fma(values[r][v], decay, s.mul(b, xs[v]));
                ys[v] = s.fma(c, values[r][v], ys[v]);
            }
        }
        for v in 0..V {
            s.store(ys[v], &mut y[v * n + t]);
        }
    }
    for r in 0..R {
        for v in 0..V {
            let value = values[r][v];
            let value = if steps.flush { without_subnormals(s, value) } else { value };
            let to = &mut state[r * stride + v * LANES..][..width(v)];
            put(s, value, to);
        }
    }
}

/// Subnormal lanes replaced by zero.
#[inline(always)]
pub(super) fn without_subnormals<S: Simd>(s: S, x: S::F) -> S::F {
    let (low, high) = (s.splat(-f32::MIN_POSITIVE), s.splat(f32::MIN_POSITIVE));
    s.select_gt(high, x, s.select_gt(x, low, s.zero(), x), x)
}

/// Sixteen values, or fewer.
#[inline(always)]
pub(super) fn lanes<S: Simd>(s: S, x: &[f32]) -> S::F {
    match <&[f32; LANES]>::try_from(x) {
        Ok(whole) => s.load(whole),
        Err(_) => s.load(&padded(x)),
    }
}

/// Sixteen values to memory, or fewer.
#[inline(always)]
pub(super) fn put<S: Simd>(s: S, value: S::F, out: &mut [f32]) {
    match <&mut [f32; LANES]>::try_from(&mut *out) {
        Ok(whole) => s.store(value, whole),
        Err(_) => {
            let mut lanes = [0.0; LANES];
            s.store(value, &mut lanes);
            cut(&lanes, out);
        }
    }
}

/// Kept out of the loops around it, whose registers a copy of unknown length would empty.
#[cold]
#[inline(never)]
fn padded(x: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

/// The inverse of [`padded`].
#[cold]
#[inline(never)]
fn cut(lanes: &[f32; LANES], out: &mut [f32]) {
    out.copy_from_slice(&lanes[..out.len()]);
}
