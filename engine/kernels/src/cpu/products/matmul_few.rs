//! Products of few rows: panel by panel, and for each panel in tiles of rows.
//!
//! A tile of `T` rows keeps its `T` sums in registers while one panel streams past. The arithmetic of a row
//! does not depend on `T`; only the number of times that the panel is read does.

use std::marker::PhantomData;

use crate::cpu::run;
use crate::simd::{LANES, MAX_TILE, Op, Simd};
use crate::tiles::products::matmul::MatmulChunk;

/// Distance of prefetching, in bytes of weights. It is what memory delivers while one line is waited for, twice over, and well
/// within the first-level cache.
pub(super) const PREFETCH: usize = 12 << 10;

/// The product of one panel with `T` rows at once.
pub(super) trait Tile {
    /// The sixteen outputs of each of the rows `rows` with panel `panel`. Rows follow each other; those that only fill up the
    /// tile repeat the chunk's last one, and their outputs are not read.
    fn tile<S: Simd, const T: usize>(
        s: S,
        chunk: &MatmulChunk<'_>,
        panel: &[u8],
        rows: [usize; T],
    ) -> [S::F; T];
}

/// Computes one tile: the sums of some rows with a panel. It takes as many of `rows` as the tile is high.
type SumTile = fn(&MatmulChunk<'_>, &[u8], &[usize; MAX_TILE], &mut [[f32; LANES]; MAX_TILE]);

/// Tiles of 1, 2, 4 and 8 rows. Tiles that are higher than the set's are not compiled for it.
pub(super) struct Tiles {
    /// Most rows of one.
    height: usize,
    of_rows: [SumTile; 4],
}

impl Tiles {
    /// The tile kernels of weights of kind `K`.
    pub(super) const fn of<S: Simd, K: Tile>() -> Self {
        let mut of_rows: [SumTile; 4] = [sums::<S, K, 1>; 4];
        if const { S::TILE > 1 } {
            of_rows = [of_rows[0], sums::<S, K, 2>, sums::<S, K, 2>, sums::<S, K, 2>];
        }
        if const { S::TILE > 2 } {
            of_rows = [of_rows[0], of_rows[1], sums::<S, K, 4>, sums::<S, K, 4>];
        }
        if const { S::TILE > 4 } {
            of_rows = [of_rows[0], of_rows[1], of_rows[2], sums::<S, K, 8>];
        }
        Self { height: S::TILE, of_rows }
    }

    /// Computes a chunk. A tile filled up with the chunk's last row costs less than the several smaller ones that would fit.
    pub(super) fn run(&self, chunk: &MatmulChunk<'_>) {
        let mut sums = [[0.0; LANES]; MAX_TILE];
        for p in chunk.panels.clone() {
            let panel = chunk.w.panel(p);
            let mut first = chunk.rows.start;
            while first < chunk.rows.end {
                let left = (chunk.rows.end - first).min(self.height);
                let tile = match left {
                    5.. => 3,
                    3.. => 2,
                    2 => 1,
                    _ => 0,
                };
                let mut rows = [first; MAX_TILE];
                for (t, row) in rows.iter_mut().enumerate() {
                    *row = (first + t).min(chunk.rows.end - 1);
                }
                self.of_rows[tile](chunk, panel, &rows, &mut sums);
                write(chunk, p, first, &sums[..left]);
                first += left;
            }
        }
    }
}

/// The sums of a tile of `T` rows on the instructions of `S`.
fn sums<S: Simd, K: Tile, const T: usize>(
    chunk: &MatmulChunk<'_>,
    panel: &[u8],
    rows: &[usize; MAX_TILE],
    sums: &mut [[f32; LANES]; MAX_TILE],
) {
    run::<S, _>(OneTile::<K, T> { chunk, panel, rows, sums, kind: PhantomData });
}

/// The sums of one tile.
struct OneTile<'a, 'b, K, const T: usize> {
    chunk: &'a MatmulChunk<'b>,
    panel: &'a [u8],
    rows: &'a [usize; MAX_TILE],
    sums: &'a mut [[f32; LANES]; MAX_TILE],
    kind: PhantomData<K>,
}

impl<K: Tile, const T: usize> Op for OneTile<'_, '_, K, T> {
    type Out = ();
    #[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let rows = self.rows.first_chunk::<T>().expect("no tile is higher than the highest");
        let sums = K::tile::<S, T>(s, self.chunk, self.panel, *rows);
        for t in 0..T {
            s.store(sums[t], &mut self.sums[t]);
        }
    }
}

/// Writes the sums of rows from `first` on, scaled.
fn write(chunk: &MatmulChunk<'_>, p: usize, first: usize, sums: &[[f32; LANES]]) {
    let scale = chunk.w.scale;
    for (row, sums) in (first..).zip(sums) {
        let values = sums.map(|sum| sum * scale);
        // SAFETY: chunks of a job differ in panels or rows, and this is the only thread of this one.
        unsafe { chunk.out.put(row, p, &values) };
    }
}
