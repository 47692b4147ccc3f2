//! The frame of products with many rows: it goes slice by slice of columns, and for each slice panel by
//! panel.
//!
//! The rows' values in a slice lie side by side ([`crate::column_slices`]), and stay in the
//! second-level cache while some panels pass. A slice of a panel is unpacked once, into memory that the
//! first-level cache holds. All rows of the chunk are then multiplied with it, tile by tile. Between slices,
//! a row's sums wait in memory.
//!
//! A row's sum takes the same steps in the same order as in a tile of few rows ([`super::matmul_few`]). Neither
//! slices nor tiles show in it.

use std::marker::PhantomData;

use super::matmul_few::Tile;
use crate::simd::{LANES, MAX_TILE, Op, Simd};
use crate::tiles::matmul::MatmulChunk;

/// Rows from which on unpacking a slice for all of them beats unpacking it for every tile.
pub const MANY_ROWS: usize = 48;

/// Most panels that pass before the rows' next slice is taken: their sums share the second-level cache
/// with the rows.
const PANELS: usize = 16;

/// How a slice of a panel is unpacked and multiplied.
pub(super) trait Sliced: Tile {
    /// Columns of a slice; the last one of a panel may have fewer.
    const COLUMNS: usize;
    /// An unpacked slice: weights as they are multiplied.
    type Slice<S: Simd>;
    /// A row's values in a slice, as they are multiplied.
    type Row;

    /// A slice of nothing.
    fn empty<S: Simd>(s: S) -> Self::Slice<S>;
    /// Unpacks the slice that begins at column `first` of `panel`.
    fn unpack<S: Simd>(s: S, panel: &[u8], first: usize, slice: &mut Self::Slice<S>);
    /// Slice `slice` of the chunk's rows, and of what lies behind them.
    fn rows<'a>(chunk: &'a MatmulChunk<'_>, slice: usize) -> &'a [Self::Row];
    /// `sums` of `T` rows plus their products with the first `columns` of a slice.
    fn add<S: Simd, const T: usize>(
        s: S,
        slice: &Self::Slice<S>,
        columns: usize,
        rows: &[Self::Row; T],
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
        let cols = chunk.w.cols();
        // Room for a last tile that is not full, which computes what nobody reads.
        let n_rows = chunk.rows.len() + MAX_TILE - 1;
        let scale = s.splat(chunk.w.scale());
        let mut sums = vec![s.zero(); n_rows * chunk.panels.len().min(PANELS)];
        let mut slice = K::empty(s);
        for first_panel in chunk.panels.clone().step_by(PANELS) {
            let panels = first_panel..(first_panel + PANELS).min(chunk.panels.end);
            sums.fill(s.zero());
            for (i, first) in (0..cols).step_by(K::COLUMNS).enumerate() {
                let (columns, rows) = (K::COLUMNS.min(cols - first), K::rows(chunk, i));
                for (p, sums) in panels.clone().zip(sums.chunks_exact_mut(n_rows)) {
                    K::unpack(s, chunk.w.panel(p), first, &mut slice);
                    tiles::<S, K>(s, &slice, columns, rows, chunk.rows.len(), sums);
                }
            }
            for (p, sums) in panels.zip(sums.chunks_exact(n_rows)) {
                for (row, sum) in chunk.rows.clone().zip(sums) {
                    let mut values = [0.0; LANES];
                    s.store(s.mul(*sum, scale), &mut values);
                    // SAFETY: chunks of a job differ in panels or rows, and this is the only thread
                    // of this one.
                    unsafe { chunk.out.put(row, p, &values) };
                }
            }
        }
    }
}

/// Adds the products of the first `n_rows` of `rows` with a slice to `sums`.
#[inline(always)]
fn tiles<S: Simd, K: Sliced>(
    s: S,
    slice: &K::Slice<S>,
    columns: usize,
    rows: &[K::Row],
    n_rows: usize,
    sums: &mut [S::F],
) {
    let mut first = 0;
    while first < n_rows {
        let (rows, sums) = (&rows[first..], &mut sums[first..]);
        first += match S::MANY_TILE {
            7.. => tile::<S, K, 8>(s, slice, columns, rows, sums),
            5.. if n_rows - first > 4 => tile::<S, K, 6>(s, slice, columns, rows, sums),
            _ => tile::<S, K, 4>(s, slice, columns, rows, sums),
        };
    }
}

/// Adds the products of the first `T` rows. Returns `T`.
#[inline(always)]
fn tile<S: Simd, K: Sliced, const T: usize>(
    s: S,
    slice: &K::Slice<S>,
    columns: usize,
    rows: &[K::Row],
    sums: &mut [S::F],
) -> usize {
    const WHOLE: &str = "rows and sums fill whole tiles";
    let rows = rows.first_chunk::<T>().expect(WHOLE);
    let sums = sums.first_chunk_mut::<T>().expect(WHOLE);
    *sums = K::add::<S, T>(s, slice, columns, rows, *sums);
    T
}
