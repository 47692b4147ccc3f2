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

/// Products of one panel with few rows.
pub(super) trait Tile {
    /// The sixteen outputs of each of the rows `rows` with panel `panel`, of which `T` at a time lie in registers. Rows follow
    /// each other; those that only fill up the tiles repeat the chunk's last one, and their outputs are not read.
    fn tiles<S: Simd, const T: usize, const N: usize>(
        s: S,
        chunk: &MatmulChunk<'_>,
        panel: &[u8],
        rows: [[usize; T]; N],
    ) -> [[S::F; T]; N];
}

/// Computes the sums of some rows with a panel. It takes as many of `rows` as its tiles hold.
type SumTiles = fn(&MatmulChunk<'_>, &[u8], &[usize; MAX_TILE], &mut [[f32; LANES]; MAX_TILE]);

/// A step over rows.
#[derive(Clone, Copy)]
struct Step {
    /// Most rows that it takes.
    rows: usize,
    sums: SumTiles,
}

/// Steps of 1, 2, 3, 4 and 8 rows. Tiles that are higher than the set's are not compiled for it.
pub(super) struct Tiles {
    /// The step to take for each number of rows that are left.
    of_rows: [Step; MAX_TILE],
}

impl Tiles {
    /// The tile kernels of weights of kind `K`.
    pub(super) const fn of<S: Simd, K: Tile>() -> Self {
        let one = Step { rows: 1, sums: sums::<S, K, 1, 1> };
        let mut all = Self { of_rows: [one; MAX_TILE] };
        if const { S::TILE > 1 } {
            all = all.from(2, Step { rows: 2, sums: sums::<S, K, 2, 1> });
        }
        if const { S::TILE > 2 } {
            all = all.from(3, Step { rows: 3, sums: sums::<S, K, 3, 1> });
            all = all.from(4, Step { rows: 4, sums: sums::<S, K, 4, 1> });
        }
        // A tile filled up with the chunk's last row costs less than the smaller ones that would fit.
        if const { S::TILE > 4 } {
            all = all.from(5, Step { rows: 8, sums: sums::<S, K, 8, 1> });
        }
        // Two tiles in turn cost more than a tile of four and one of three.
        if const { S::TILES_A_BLOCK > 1 } {
            all = all.from(8, Step { rows: 8, sums: sums::<S, K, 4, 2> });
        }
        all
    }

    /// The same with `step` for `n_rows` rows and more.
    const fn from(mut self, n_rows: usize, step: Step) -> Self {
        let mut left = n_rows;
        while left <= MAX_TILE {
            self.of_rows[left - 1] = step;
            left += 1;
        }
        self
    }

    /// Computes a chunk.
    pub(super) fn run(&self, chunk: &MatmulChunk<'_>) {
        let mut sums = [[0.0; LANES]; MAX_TILE];
        for p in chunk.panels.clone() {
            let panel = chunk.w.panel(p);
            let mut first = chunk.rows.start;
            while first < chunk.rows.end {
                let left = (chunk.rows.end - first).min(MAX_TILE);
                let step = self.of_rows[left - 1];
                let mut rows = [first; MAX_TILE];
                for (t, row) in rows.iter_mut().enumerate() {
                    *row = (first + t).min(chunk.rows.end - 1);
                }
                (step.sums)(chunk, panel, &rows, &mut sums);
                let taken = step.rows.min(left);
                write(chunk, p, first, &sums[..taken]);
                first += taken;
            }
        }
    }
}

/// The sums of `N` tiles of `T` rows on the instructions of `S`.
fn sums<S: Simd, K: Tile, const T: usize, const N: usize>(
    chunk: &MatmulChunk<'_>,
    panel: &[u8],
    rows: &[usize; MAX_TILE],
    sums: &mut [[f32; LANES]; MAX_TILE],
) {
    run::<S, _>(SomeTiles::<K, T, N> { chunk, panel, rows, sums, kind: PhantomData });
}

/// The sums of `N` tiles of `T` rows.
struct SomeTiles<'a, 'b, K, const T: usize, const N: usize> {
    chunk: &'a MatmulChunk<'b>,
    panel: &'a [u8],
    rows: &'a [usize; MAX_TILE],
    sums: &'a mut [[f32; LANES]; MAX_TILE],
    kind: PhantomData<K>,
}

impl<K: Tile, const T: usize, const N: usize> Op for SomeTiles<'_, '_, K, T, N> {
    type Out = ();
    #[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let (rows, _) = self.rows.as_chunks::<T>();
        let rows = rows.first_chunk::<N>().expect("no tiles are higher than the highest");
        let sums = K::tiles::<S, T, N>(s, self.chunk, self.panel, *rows);
        for n in 0..N {
            for t in 0..T {
                s.store(sums[n][t], &mut self.sums[n * T + t]);
            }
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
