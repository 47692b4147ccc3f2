//! Small products of f32 matrices that a cache holds: the inside of chunked scans. Lanes run along the
//! columns of the result, and four of its rows are in registers. Each element sums over `k` in ascending
//! order.

use super::ssd::{lanes, put};
use crate::kernels::simd::{LANES, Simd};

/// Rows of the result that are computed together.
const ROWS: usize = 4;

/// A matrix whose rows lie `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Lined<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

/// `out[m][n] += Σ_k a[m][k] b[k][n]`; rows of `out` lie `stride` apart.
#[inline(always)]
pub(super) fn add_product<S: Simd>(
    s: S,
    a: Lined<'_>,
    b: Lined<'_>,
    [m, n, k]: [usize; 3],
    out: &mut [f32],
    stride: usize,
) {
    let whole = m / ROWS * ROWS;
    for r in (0..whole).step_by(ROWS) {
        rows::<S, ROWS>(s, rows_of(a, r, k), b, n, (&mut out[r * stride..], stride));
    }
    for r in whole..m {
        rows::<S, 1>(s, rows_of(a, r, k), b, n, (&mut out[r * stride..], stride));
    }
}

/// `R` rows of `k` values from row `first` on.
#[inline(always)]
fn rows_of<const R: usize>(a: Lined<'_>, first: usize, k: usize) -> [&[f32]; R] {
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &a.data[(first + r) * a.stride..][..k];
    }
    rows
}

/// `R` rows of the result.
#[inline(always)]
fn rows<S: Simd, const R: usize>(
    s: S,
    a: [&[f32]; R],
    b: Lined<'_>,
    n: usize,
    (out, stride): (&mut [f32], usize),
) {
    let mut col = 0;
    if S::TILE >= 8 {
        while col + 4 * LANES <= n {
            tile::<S, R, 4>(s, a, b, col, (out, stride));
            col += 4 * LANES;
        }
    }
    while col + LANES <= n {
        tile::<S, R, 1>(s, a, b, col, (out, stride));
        col += LANES;
    }
    if col < n {
        edge(s, a, b, col..n, (out, stride));
    }
}

/// `R` rows by `V` whole vectors from column `col` on.
#[inline(always)]
fn tile<S: Simd, const R: usize, const V: usize>(
    s: S,
    a: [&[f32]; R],
    b: Lined<'_>,
    col: usize,
    (out, stride): (&mut [f32], usize),
) {
    let mut sums = [[s.zero(); V]; R];
    // By index: adapters of iterators are not always inlined here.
    for r in 0..R {
        let out = out[r * stride + col..][..V * LANES].as_chunks::<LANES>().0;
        let sums = &mut sums[r];
        for v in 0..V {
            sums[v] = s.load(&out[v]);
        }
    }
    for i in 0..a[0].len() {
        let line = b.data[i * b.stride + col..][..V * LANES].as_chunks::<LANES>().0;
        let mut values = [s.zero(); V];
        for v in 0..V {
            values[v] = s.load(&line[v]);
        }
        for r in 0..R {
            let (row, sums) = (a[r], &mut sums[r]);
            let factor = s.splat(row[i]);
            for v in 0..V {
                sums[v] = s.fma(factor, values[v], sums[v]);
            }
        }
    }
    for r in 0..R {
        let out = out[r * stride + col..][..V * LANES].as_chunks_mut::<LANES>().0;
        let sums = &sums[r];
        for v in 0..V {
            s.store(sums[v], &mut out[v]);
        }
    }
}

/// `R` rows of the last columns, fewer than a vector.
#[inline(always)]
fn edge<S: Simd, const R: usize>(
    s: S,
    a: [&[f32]; R],
    b: Lined<'_>,
    cols: std::ops::Range<usize>,
    (out, stride): (&mut [f32], usize),
) {
    for (r, a) in a.iter().enumerate() {
        let out = &mut out[r * stride..][cols.clone()];
        let mut sum = lanes(s, out);
        for (i, factor) in a.iter().enumerate() {
            sum = s.fma(s.splat(*factor), lanes(s, &b.data[i * b.stride..][cols.clone()]), sum);
        }
        put(s, sum, out);
    }
}
