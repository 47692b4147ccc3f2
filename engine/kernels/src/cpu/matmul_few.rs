//! Products of few rows: panel by panel, and for each panel in tiles of rows.
//!
//! A tile of `T` rows keeps its `T` sums in registers while one panel streams past. The arithmetic of a row
//! does not depend on `T`; only the number of times that the panel is read does.

use std::marker::PhantomData;

use crate::simd::{LANES, Op, Simd};
use crate::tiles::matmul::MatmulChunk;

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

/// One chunk with weights of kind `K`.
pub(super) struct Panels<'a, 'b, K>(pub(super) &'a MatmulChunk<'b>, pub(super) PhantomData<K>);

impl<K: Tile> Op for Panels<'_, '_, K> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let chunk = self.0;
        for p in chunk.panels.clone() {
            let panel = chunk.w.panel(p);
            let mut row = chunk.rows.start;
            while row < chunk.rows.end {
                let left = (chunk.rows.end - row).min(S::TILE);
                match left {
                    5.. => put::<S, K, 8>(s, chunk, p, panel, row),
                    3.. => put::<S, K, 4>(s, chunk, p, panel, row),
                    2 => put::<S, K, 2>(s, chunk, p, panel, row),
                    _ => put::<S, K, 1>(s, chunk, p, panel, row),
                }
                row += left;
            }
        }
    }
}

/// Computes one tile and writes its rows, as many of the `T` as the chunk has: a tile filled up with
/// its last row costs less than the several smaller ones that would fit.
#[inline(always)]
fn put<S: Simd, K: Tile, const T: usize>(
    s: S,
    chunk: &MatmulChunk<'_>,
    p: usize,
    panel: &[u8],
    first: usize,
) {
    let rows = first..(first + T).min(chunk.rows.end);
    let mut x = [rows.end - 1; T];
    for (x, row) in x.iter_mut().zip(rows.clone()) {
        *x = row;
    }
    let sums = K::tile::<S, T>(s, chunk, panel, x);
    let scale = s.splat(chunk.w.scale());
    for (row, sum) in rows.zip(sums) {
        let mut values = [0.0; LANES];
        s.store(s.mul(sum, scale), &mut values);
        // SAFETY: chunks of a job differ in panels or rows, and this is the only thread of this one.
        unsafe { chunk.out.put(row, p, &values) };
    }
}
