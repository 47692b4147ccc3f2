//! Products of few rows: panel by panel, and for each panel in tiles of rows.
//!
//! A tile of `T` rows keeps its `T` sums in registers while one panel streams past. The arithmetic of a row
//! does not depend on `T`; only the number of times that the panel is read does.

use std::marker::PhantomData;

use crate::ahead;
use crate::cpu::{align_stack, run};
use crate::simd::{LANES, MAX_TILE, Op, Simd};
use crate::tiles::products::matmul::MatmulChunk;

/// Distance of prefetching, in bytes of weights. It is what memory delivers while one line is waited for, twice over, and well
/// within the first-level cache.
pub(crate) const PREFETCH: usize = 12 << 10;

/// A panel and the few rows that it is multiplied with.
pub(super) struct PanelRows<'a, 'b> {
    pub(super) chunk: &'a MatmulChunk<'b>,
    pub(super) panel: &'a [u8],
    /// Numbers of the rows. They follow each other; those that only fill up the tiles repeat the chunk's last one.
    pub(super) rows: [usize; MAX_TILE],
    /// The sixteen outputs of each row. Those of rows that only fill up the tiles are not read.
    pub(super) sums: [[f32; LANES]; MAX_TILE],
}

impl PanelRows<'_, '_> {
    /// Writes the sums of a tile, of which the first is number `first`.
    #[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
    #[inline(always)]
    pub(super) fn store<S: Simd, const T: usize>(&mut self, s: S, tile: &[S::F; T], first: usize) {
        for t in 0..T {
            s.store(tile[t], &mut self.sums[first + t]);
        }
    }
}

/// Products of one panel with few rows.
pub(super) trait Tile {
    /// Computes the sums of the first `N * T` rows, of which `T` at a time lie in registers.
    fn tiles<S: Simd, const T: usize, const N: usize>(s: S, of: &mut PanelRows<'_, '_>);
}

/// Computes the sums of as many rows as its tiles hold.
type SumTiles = fn(&mut PanelRows<'_, '_>);

/// A step over rows.
#[derive(Clone, Copy)]
struct Step {
    /// Most rows that it takes.
    rows: usize,
    sums: SumTiles,
}

/// Steps of 1, 2, 3, 4, 6 and 8 rows. Tiles that are higher than the set's are not compiled for it.
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
            all = all.with_step(2, Step { rows: 2, sums: sums::<S, K, 2, 1> });
        }
        if const { S::TILE > 2 } {
            all = all.with_step(3, Step { rows: 4, sums: sums::<S, K, 4, 1> });
        }
        // With 512 bits, memory hides what a row more costs.
        if const { S::TILE == 4 && S::BETWEEN } {
            all.of_rows[2] = Step { rows: 3, sums: sums::<S, K, 3, 1> };
        }
        // A tile that is filled up costs less than the smaller ones that would fit.
        if const { S::TILE > 4 } {
            all = all.with_step(5, Step { rows: 8, sums: sums::<S, K, 8, 1> });
        }
        if const { S::TILE > 4 && S::BETWEEN } {
            let six = Step { rows: 6, sums: sums::<S, K, 6, 1> };
            (all.of_rows[4], all.of_rows[5]) = (six, six);
        }
        // Two tiles in turn cost more than a tile of four and one of three.
        if const { S::TILES_A_BLOCK > 1 } {
            all = all.with_step(8, Step { rows: 8, sums: sums::<S, K, 4, 2> });
        }
        all
    }

    /// The same with `step` for `n_rows` rows and more.
    const fn with_step(mut self, n_rows: usize, step: Step) -> Self {
        let mut left = n_rows;
        while left <= MAX_TILE {
            self.of_rows[left - 1] = step;
            left += 1;
        }
        self
    }

    /// Computes a chunk.
    pub(super) fn run(&self, chunk: &MatmulChunk<'_>) {
        if chunk.rows.len() <= MAX_TILE {
            let bytes = chunk.panels.len() * chunk.w.panel_bytes;
            return ahead::CHOICE.run(bytes, || self.all(chunk));
        }
        self.all(chunk);
    }

    fn all(&self, chunk: &MatmulChunk<'_>) {
        let (rows, sums) = ([0; MAX_TILE], [[0.0; LANES]; MAX_TILE]);
        for p in chunk.panels.clone() {
            let mut of = PanelRows { chunk, panel: chunk.w.panel(p), rows, sums };
            let mut first = chunk.rows.start;
            while first < chunk.rows.end {
                let left = (chunk.rows.end - first).min(MAX_TILE);
                let step = self.of_rows[left - 1];
                for (t, row) in of.rows.iter_mut().enumerate() {
                    *row = (first + t).min(chunk.rows.end - 1);
                }
                (step.sums)(&mut of);
                let taken = step.rows.min(left);
                write(chunk, p, first, &of.sums[..taken]);
                first += taken;
            }
        }
    }
}

/// The sums of `N` tiles of `T` rows on the instructions of `S`.
fn sums<S: Simd, K: Tile, const T: usize, const N: usize>(of: &mut PanelRows<'_, '_>) {
    run::<S, _>(SomeTiles::<K, T, N>(of, PhantomData));
}

/// The sums of `N` tiles of `T` rows.
struct SomeTiles<'a, 'b, 'c, K, const T: usize, const N: usize>(
    &'a mut PanelRows<'b, 'c>,
    PhantomData<K>,
);

impl<K: Tile, const T: usize, const N: usize> Op for SomeTiles<'_, '_, '_, K, T, N> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        align_stack();
        K::tiles::<S, T, N>(s, self.0);
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
