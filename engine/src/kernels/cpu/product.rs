//! Small products of f32 matrices that a cache holds: the inside of chunked scans. Lanes along the
//! columns of the result, four of its rows in registers; each element sums over `k` in ascending order.

use crate::kernels::simd::{LANES, Simd};

use super::ssd::lanes;

/// Rows of the result that are computed together.
const ROWS: usize = 4;

/// A matrix with any distance between neighbours.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    /// Element (r, c) stands at `r * row + c * col`.
    pub(super) data: &'a [f32],
    pub(super) row: usize,
    pub(super) col: usize,
}

impl Strided<'_> {
    /// The matrix without its first `r` rows.
    fn skip_rows(self, r: usize) -> Self {
        Self { data: &self.data[r * self.row..], ..self }
    }
}

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
    a: Strided<'_>,
    b: Lined<'_>,
    [m, n, k]: [usize; 3],
    out: &mut [f32],
    stride: usize,
) {
    let whole = m / ROWS * ROWS;
    for r in (0..whole).step_by(ROWS) {
        rows::<S, ROWS>(s, a.skip_rows(r), b, [n, k], &mut out[r * stride..], stride);
    }
    for r in whole..m {
        rows::<S, 1>(s, a.skip_rows(r), b, [n, k], &mut out[r * stride..], stride);
    }
}

/// `R` rows of the result.
#[inline(always)]
fn rows<S: Simd, const R: usize>(
    s: S,
    a: Strided<'_>,
    b: Lined<'_>,
    [n, k]: [usize; 2],
    out: &mut [f32],
    stride: usize,
) {
    let mut col = 0;
    if S::TILE >= 8 {
        while col + 4 * LANES <= n {
            tile::<S, R, 4>(s, a, b, [n, k], col, (out, stride));
            col += 4 * LANES;
        }
    }
    while col < n {
        tile::<S, R, 1>(s, a, b, [n, k], col, (out, stride));
        col += LANES;
    }
}

/// `R` rows by `V` vectors from column `col` on; the last vector may be a part.
#[inline(always)]
fn tile<S: Simd, const R: usize, const V: usize>(
    s: S,
    a: Strided<'_>,
    b: Lined<'_>,
    [n, k]: [usize; 2],
    col: usize,
    (out, stride): (&mut [f32], usize),
) {
    let span = |v: usize| col + v * LANES..(col + (v + 1) * LANES).min(n);
    let mut sums = [[s.zero(); V]; R];
    for (r, row) in sums.iter_mut().enumerate() {
        for (v, sum) in row.iter_mut().enumerate() {
            *sum = lanes(s, &out[r * stride..][span(v)]);
        }
    }
    for i in 0..k {
        let line = &b.data[i * b.stride..];
        let mut values = [s.zero(); V];
        for (v, value) in values.iter_mut().enumerate() {
            *value = lanes(s, &line[span(v)]);
        }
        for (r, row) in sums.iter_mut().enumerate() {
            let factor = s.splat(a.data[r * a.row + i * a.col]);
            for (sum, value) in row.iter_mut().zip(values) {
                *sum = s.fma(factor, value, *sum);
            }
        }
    }
    for (r, row) in sums.iter().enumerate() {
        for (v, sum) in row.iter().enumerate() {
            put(s, *sum, &mut out[r * stride..][span(v)]);
        }
    }
}

/// Sixteen values to memory, or fewer.
#[inline(always)]
pub(super) fn put<S: Simd>(s: S, value: S::F, out: &mut [f32]) {
    match <&mut [f32; LANES]>::try_from(&mut *out) {
        Ok(whole) => s.store(value, whole),
        Err(_) => s.store_part(value, out),
    }
}
