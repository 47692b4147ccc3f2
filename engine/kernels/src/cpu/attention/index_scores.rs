//! Scores of an index.
//!
//! Where its keys are rows, lanes are heads: a query meets an element of a key in all heads at once, and only the sum over
//! heads crosses lanes. Keys are widened to f32 first, a few positions at a time.
//!
//! Where its keys lie across, lanes are positions, as in attention.

use std::marker::PhantomData;
use std::ops::Range;

use super::kv_pages::{Element, PageType, Q8};
use super::paged::{columns, fetch_next, products};
use crate::cpu::products::matmul_f32::{F16, F32, Float};
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd};
use crate::tiles::attention::block_index::ProductTile;
use crate::tiles::attention::index_scores::IndexTile;
use crate::tiles::attention::paged::TILE_QUERIES;
use brigade_shapes::KV_PAGE;
use brigade_shapes::KvType;

/// See [`Compute::choose`](crate::Compute::choose).
pub(crate) fn index_scores<S: Simd>(tile: &mut IndexTile<'_>) {
    match tile.layout.ty {
        KvType::F32 => run::<S, _>(Scores::<F32>(tile, PhantomData)),
        KvType::F16 => run::<S, _>(Scores::<F16>(tile, PhantomData)),
        KvType::Q8_0 => run::<S, _>(Scores::<Q8>(tile, PhantomData)),
    }
}

struct Scores<'a, 'b, T>(&'a mut IndexTile<'b>, PhantomData<T>);

impl<T: PageType> Op for Scores<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let dim = tile.columns.len() / tile.weights.len();
        let stride = dim.div_ceil(LANES);
        let mut keys = vec![[0.0; LANES]; KV_PAGE * stride];
        let mut wide = Vec::new();
        let row = Row { columns: tile.columns, weights: tile.weights, dim };
        let mut scored = 0;
        while scored < tile.out.len() {
            let first = tile.first + scored;
            let n = tile.n_in_page(first).min(tile.out.len() - scored);
            keys_in_page::<S, T>(s, tile, first..first + n, &mut wide, &mut keys, stride);
            let out = &mut tile.out[scored..scored + n];
            let mut at = 0;
            while at < n {
                let (keys, out) = (&keys[at * stride..], &mut out[at..]);
                // As many sums as the registers hold, with no effect on any.
                at += if const { S::TILE >= 8 } && out.len() >= 8 {
                    row.score::<S, 8>(s, keys, stride, out)
                } else if const { S::TILE > 1 } && out.len() >= 4 {
                    row.score::<S, 4>(s, keys, stride, out)
                } else {
                    row.score::<S, 1>(s, keys, stride, out)
                };
            }
            scored += n;
        }
    }
}

/// Widens the keys of pools that lie in one page, `stride` vectors each.
#[inline(always)]
fn keys_in_page<S: Simd, T: PageType>(
    s: S,
    tile: &IndexTile<'_>,
    pools: Range<usize>,
    wide: &mut Vec<[f32; LANES]>,
    keys: &mut [[f32; LANES]],
    stride: usize,
) {
    let shape = tile.layout.of_index();
    let page =
        tile.layout.index(tile.pool, tile.blocks[tile.key_of(pools.start) / KV_PAGE].0 as usize);
    let n_seen = tile.key_of(pools.end - 1) % KV_PAGE + 1;
    let rows = T::head(s, &shape, page, n_seen, wide).as_chunks().0;
    for (pool, key) in pools.zip(keys.chunks_exact_mut(stride)) {
        let row = &rows[tile.key_of(pool) % KV_PAGE * (shape.k_stride() / LANES)..];
        for (key, row) in key.iter_mut().zip(row) {
            s.store(<T::Read as Float>::load(s, row), key);
        }
    }
}

/// One row's queries and weights.
struct Row<'a> {
    /// `[dim][n_vectors]`.
    columns: &'a [[f32; LANES]],
    /// `[n_vectors]`.
    weights: &'a [[f32; LANES]],
    dim: usize,
}

impl Row<'_> {
    /// The scores of the first `P` keys, of `stride` vectors each. Returns `P`.
    #[inline(always)]
    fn score<S: Simd, const P: usize>(
        &self,
        s: S,
        keys: &[[f32; LANES]],
        stride: usize,
        out: &mut [f32],
    ) -> usize {
        let mut of_positions = [&[][..]; P];
        for (p, key) in of_positions.iter_mut().enumerate() {
            *key = &keys[p * stride..][..stride].as_flattened()[..self.dim];
        }
        let n = self.weights.len();
        let mut totals = [s.zero(); P];
        for (g, weight) in self.weights.iter().enumerate() {
            let mut sums = [s.zero(); P];
            for (j, column) in self.columns.chunks_exact(n).enumerate() {
                let q = s.load(&column[g]);
                for p in 0..P {
                    sums[p] = s.fma(q, s.splat(of_positions[p][j]), sums[p]);
                }
            }
            let weight = s.load(weight);
            for p in 0..P {
                totals[p] = s.fma(s.max(sums[p], s.zero()), weight, totals[p]);
            }
        }
        for p in 0..P {
            out[p] = s.sum(totals[p]);
        }
        P
    }
}

/// See [`Compute::choose_blocks`](crate::Compute::choose_blocks).
pub(crate) fn index_products<S: Simd>(tile: &mut ProductTile<'_>) {
    match tile.keys.ty {
        KvType::F32 => run::<S, _>(Products::<F32>(tile, PhantomData)),
        KvType::F16 => run::<S, _>(Products::<F16>(tile, PhantomData)),
        KvType::Q8_0 => run::<S, _>(Products::<Q8>(tile, PhantomData)),
    }
}

struct Products<'a, 'b, T>(&'a mut ProductTile<'b>, PhantomData<T>);

impl<T: PageType> Op for Products<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) {
        let tile = self.0;
        let q = columns(tile.queries.iter().copied(), tile.keys.head_dim_k);
        let width = tile.pages.len() * KV_PAGE;
        let mut wide = Vec::new();
        for (place, page) in tile.pages.iter().enumerate() {
            let ahead = fetch_next::<S, T>(s, page, tile.pages.get(place + 1).copied());
            let keys = T::head(s, tile.keys, page, KV_PAGE, &mut wide).as_chunks().0;
            let page = KeyPage::<T::Read> { q: &q, keys, ahead };
            let mut at = 0;
            while at < tile.queries.len() {
                let out = &mut tile.out[at * width + place * KV_PAGE..];
                // As many sums as the registers hold, with no effect on any.
                let queries_left = tile.queries.len() - at;
                at += if const { S::TILE >= 8 } {
                    match queries_left {
                        8.. => page.step::<S, 8, 2>(s, at, width, out),
                        4.. => page.step::<S, 4, 4>(s, at, width, out),
                        2.. => page.step::<S, 2, 4>(s, at, width, out),
                        _ => page.step::<S, 1, 4>(s, at, width, out),
                    }
                } else if const { S::TILE > 1 } {
                    match queries_left {
                        4.. => page.step::<S, 4, 1>(s, at, width, out),
                        2.. => page.step::<S, 2, 2>(s, at, width, out),
                        _ => page.step::<S, 1, 4>(s, at, width, out),
                    }
                } else {
                    page.step::<S, 1, 4>(s, at, width, out)
                };
            }
        }
    }
}

/// A page's keys of an index, and the queries that meet them.
struct KeyPage<'a, E: Float> {
    q: &'a [[f32; TILE_QUERIES]],
    keys: &'a [[E::Bits; LANES]],
    /// Bytes from here to the next page, which is asked for meanwhile; 0 where there is none.
    ahead: usize,
}

impl<E: Element> KeyPage<'_, E> {
    /// Products of the queries `at..at + R` with all keys, a query's `width` behind those of the one before. Returns `R`.
    #[inline(always)]
    fn step<S: Simd, const R: usize, const G: usize>(
        &self,
        s: S,
        at: usize,
        width: usize,
        out: &mut [f32],
    ) -> usize {
        let mut of_queries = [[0.0; KV_PAGE]; R];
        for g in (0..KV_PAGE / LANES).step_by(G) {
            products::<S, E, R, G>(s, self.keys, self.ahead, self.q, at, g, &mut of_queries);
        }
        for (out, products) in out.chunks_mut(width).zip(&of_queries) {
            out[..KV_PAGE].copy_from_slice(products);
        }
        R
    }
}
