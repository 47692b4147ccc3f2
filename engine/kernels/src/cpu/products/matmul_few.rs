//! Products of few rows: panel by panel, and for each panel in tiles of rows.
//!
//! A tile of `T` rows keeps its `T` sums in registers while one panel streams past. The arithmetic of a row
//! does not depend on `T`; only the number of times that the panel is read does.

use std::marker::PhantomData;

use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::products::matmul::MatmulChunk;

/// How far ahead of its use a byte of weights is asked for: beyond what the hardware looks ahead by
/// itself, well within the first-level cache.
pub(super) const PREFETCH: usize = 4096;

/// How one panel is multiplied with `T` rows at once.
pub(super) trait Tile {
    /// The sixteen outputs of each of the rows `rows` with panel `panel`.
    fn tile<S: Simd, const T: usize>(
        s: S,
        chunk: &MatmulChunk<'_>,
        panel: &[u8],
        rows: [usize; T],
    ) -> [S::F; T];
}

/// Writes one tile: some rows from the given one on with one panel.
type PutTile = fn(&MatmulChunk<'_>, usize, usize);

/// Tiles of 1, 2, 4 and 8 rows. Those that are higher than the set's are not compiled for it.
pub(super) struct Tiles {
    /// Most rows of one.
    height: usize,
    of_rows: [PutTile; 4],
}

impl Tiles {
    /// Those of weights of kind `K`.
    pub(super) const fn of<S: Simd, K: Tile>() -> Self {
        let mut of_rows: [PutTile; 4] = [put::<S, K, 1>; 4];
        if const { S::TILE > 1 } {
            of_rows = [of_rows[0], put::<S, K, 2>, put::<S, K, 2>, put::<S, K, 2>];
        }
        if const { S::TILE > 2 } {
            of_rows = [of_rows[0], of_rows[1], put::<S, K, 4>, put::<S, K, 4>];
        }
        if const { S::TILE > 4 } {
            of_rows = [of_rows[0], of_rows[1], of_rows[2], put::<S, K, 8>];
        }
        Self { height: S::TILE, of_rows }
    }

    /// Computes a chunk.
    pub(super) fn run(&self, chunk: &MatmulChunk<'_>) {
        for p in chunk.panels.clone() {
            let mut row = chunk.rows.start;
            while row < chunk.rows.end {
                let left = (chunk.rows.end - row).min(self.height);
                let tile = match left {
                    5.. => 3,
                    3.. => 2,
                    2 => 1,
                    _ => 0,
                };
                self.of_rows[tile](chunk, p, row);
                row += left;
            }
        }
    }
}

/// Computes the tile of panel `p` that begins at row `first`, and writes its rows, as many of the `T` as the chunk has: a
/// tile filled up with its last row costs less than the several smaller ones that would fit.
fn put<S: Simd, K: Tile, const T: usize>(chunk: &MatmulChunk<'_>, p: usize, first: usize) {
    let mut values = [[0.0; LANES]; T];
    run::<S, _>(OneTile::<K, T> { chunk, p, first, values: &mut values, kind: PhantomData });
    write(chunk, p, first, &values);
}

/// The sums of one tile.
struct OneTile<'a, 'b, K, const T: usize> {
    chunk: &'a MatmulChunk<'b>,
    p: usize,
    first: usize,
    values: &'a mut [[f32; LANES]; T],
    kind: PhantomData<K>,
}

impl<K: Tile, const T: usize> Op for OneTile<'_, '_, K, T> {
    type Out = ();
    #[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let Self { chunk, p, first, values, .. } = self;
        let mut rows = [first; T];
        for t in 1..T {
            rows[t] = (first + t).min(chunk.rows.end - 1);
        }
        let sums = K::tile::<S, T>(s, chunk, chunk.w.panel(p), rows);
        for t in 0..T {
            s.store(sums[t], &mut values[t]);
        }
    }
}

/// Writes the sums of a tile's rows that the chunk has, scaled.
fn write(chunk: &MatmulChunk<'_>, p: usize, first: usize, sums: &[[f32; LANES]]) {
    let scale = chunk.w.scale;
    for (row, sums) in (first..chunk.rows.end).zip(sums) {
        let values = sums.map(|sum| sum * scale);
        // SAFETY: chunks of a job differ in panels or rows, and this is the only thread of this one.
        unsafe { chunk.out.put(row, p, &values) };
    }
}
