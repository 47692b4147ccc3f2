//! The frame of products with many rows: panel by panel, and in a panel slice by slice of columns.
//! A slice is unpacked once, into memory that the first-level cache holds, and all rows of the chunk
//! are multiplied with it, tile by tile; between slices a row's sum waits in memory.
//!
//! A row's sum takes the same steps in the same order as in a tile of few rows
//! ([`super::matmul`]): neither slices nor tiles show in it.

use std::marker::PhantomData;

use super::matmul::Tile;
use crate::kernels::matmul::{MAX_GROUP_ROWS, MatmulChunk};
use crate::kernels::simd::{LANES, Op, Simd};

/// Rows from which on unpacking a slice for all of them beats unpacking it for every tile.
pub(crate) const MANY_ROWS: usize = 48;

/// How a slice of a panel is unpacked and multiplied.
pub(super) trait Sliced: Tile {
    /// Columns of a slice; the last one of a panel may have fewer.
    const COLUMNS: usize;
    /// An unpacked slice: weights as they are multiplied.
    type Slice<S: Simd>;

    /// A slice of zeros.
    fn empty<S: Simd>(s: S) -> Self::Slice<S>;
    /// Unpacks the slice that begins at column `first` of `panel`.
    fn unpack<S: Simd>(s: S, panel: &[u8], first: usize, slice: &mut Self::Slice<S>);
    /// `sums` of the rows `rows` plus their products with the slice of the columns `first..end`.
    fn add<S: Simd, const T: usize>(
        s: S,
        chunk: &MatmulChunk<'_>,
        slice: &Self::Slice<S>,
        columns: (usize, usize),
        rows: [usize; T],
        sums: [S::F; T],
    ) -> [S::F; T];
}

/// One chunk of a product, by slices.
pub(super) struct Slices<'a, 'b, K>(pub(super) &'a MatmulChunk<'b>, pub(super) PhantomData<K>);

impl<K: Sliced> Op for Slices<'_, '_, K> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let chunk = self.0;
        let (n_rows, cols) = (chunk.rows.len(), chunk.w.cols());
        let mut slice = K::empty(s);
        let mut sums = [s.zero(); MAX_GROUP_ROWS];
        let sums = &mut sums[..n_rows];
        for p in chunk.panels.clone() {
            let panel = chunk.w.panel(p);
            sums.fill(s.zero());
            for first in (0..cols).step_by(K::COLUMNS) {
                K::unpack(s, panel, first, &mut slice);
                let columns = (first, (first + K::COLUMNS).min(cols));
                tiles::<S, K>(s, chunk, &slice, columns, sums);
            }
            for (row, sum) in chunk.rows.clone().zip(sums.iter()) {
                let mut values = [0.0; LANES];
                s.store(*sum, &mut values);
                // SAFETY: chunks of a job differ in panels or rows, and this is the only thread of
                // this one.
                unsafe { chunk.out.put(row, p, &values) };
            }
        }
    }
}

/// Adds the products of all rows with a slice to `sums`.
#[inline(always)]
fn tiles<S: Simd, K: Sliced>(
    s: S,
    chunk: &MatmulChunk<'_>,
    slice: &K::Slice<S>,
    columns: (usize, usize),
    sums: &mut [S::F],
) {
    let mut first = 0;
    while first < sums.len() {
        let left = sums.len() - first;
        first += match S::MANY_TILE {
            7.. => tile::<S, K, 8>(s, chunk, slice, columns, sums, first),
            5.. if left > 4 => tile::<S, K, 6>(s, chunk, slice, columns, sums, first),
            _ => tile::<S, K, 4>(s, chunk, slice, columns, sums, first),
        };
    }
}

/// Adds the products of `T` rows from `first` on, or of as many as there are: a tile is filled up with
/// the last row. Returns `T`.
#[inline(always)]
fn tile<S: Simd, K: Sliced, const T: usize>(
    s: S,
    chunk: &MatmulChunk<'_>,
    slice: &K::Slice<S>,
    columns: (usize, usize),
    sums: &mut [S::F],
    first: usize,
) -> usize {
    let last = sums.len() - 1;
    let (mut rows, mut tile) = ([0; T], [s.zero(); T]);
    for t in 0..T {
        let i = (first + t).min(last);
        rows[t] = chunk.rows.start + i;
        tile[t] = sums[i];
    }
    let tile = K::add::<S, T>(s, chunk, slice, columns, rows, tile);
    for t in 0..T {
        sums[(first + t).min(last)] = tile[t];
    }
    T
}
