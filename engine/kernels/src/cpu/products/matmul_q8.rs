//! Products with quantised weights: integers within a block of 32 columns, f32 between blocks.
//!
//! For each block and row there are eight four-byte dot products, which are exact. Their sum is converted
//! once, multiplied by the weight's scale, and added to the running sum with the activations' scale by one
//! fused step. A format with minima adds them by a second fused step, with the sum of the activations. Blocks
//! are taken in order, so a row's sum depends on nothing but its own length.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::arithmetic::{Arithmetic, ArithmeticVisitor, with_class};
use super::matmul_few::{PREFETCH, PanelRows, Tile};
use super::matmul_many::{AddTiles, SliceKind, Sliced, Sums, add_tiles};
use crate::ahead::asked;
use crate::format::{BLOCK, Offset, PanelFormat, Scales, VECTORS};
use crate::simd::Simd;
use crate::tiles::products::activations::{ActBlock, BlockSlice, SLICE};
use crate::tiles::products::column_slices::SlicedRows;
use crate::tiles::products::matmul::MatmulChunk;

/// Vectors of half a block.
const HALF: usize = VECTORS / 2;
const WHOLE: &str = "a block has two halves";

/// Tiles of weights of format `Q`.
pub(super) struct QuantTile<Q>(PhantomData<Q>);

impl<Q: PanelFormat> Tile for QuantTile<Q> {
    #[inline(always)]
    fn tiles<S: Simd, const T: usize, const N: usize>(s: S, of: &mut PanelRows<'_, '_>) {
        let mut scales = Scales::<S>::zero(s);
        let mut tiles = [[s.zero(); T]; N];
        let shift = const { Q::OFFSET.shift() };
        let cache = asked();
        // Records whose activations are looked up together. Where a record is one block, that is a whole
        // slice: a look-up for each block would cost a tenth of the time. Where a record has several blocks
        // it is one record, which loops best.
        let group = const { if Q::BLOCKS == 1 { SLICE_BLOCKS } else { 1 } };
        let blocks = of.chunk.x.blocks();
        for (g, records) in of.panel.chunks(group * Q::RECORD).enumerate() {
            let first = g * group * Q::BLOCKS;
            let x = slice_of(blocks, first / SLICE_BLOCKS, of.rows[0]);
            for (u, record) in records.chunks_exact(Q::RECORD).enumerate() {
                let (head, planes) = record.split_at(Q::HEAD);
                s.prefetch_into(cache, head, PREFETCH, Q::HEAD);
                Q::scales(s, head, &mut scales);
                for (b, planes) in planes.chunks_exact(Q::PLANES).enumerate() {
                    s.prefetch_into(cache, planes, PREFETCH, Q::PLANES);
                    let codes = Q::codes(s, planes);
                    let at = first % SLICE_BLOCKS + u * Q::BLOCKS + b;
                    let (codes, scales, tiles) = (&codes, &scales, &mut tiles);
                    with_class::<Q, _>(OneBlock { s, codes, x, at, scales, b, shift, tiles });
                }
            }
        }
        store_all(s, &tiles, of);
    }
}

/// Slice `slice` of the `N * T` rows from `first` on. Rows lie side by side: one address serves them all. What fills up a tile
/// is whatever lies behind the last one.
#[inline(always)]
fn slice_of<const T: usize, const N: usize>(
    blocks: &SlicedRows<BlockSlice>,
    slice: usize,
    first: usize,
) -> &[[BlockSlice; T]; N] {
    let (tiles, _) = blocks.slice_from(slice, first).as_chunks::<T>();
    tiles.first_chunk().expect("rows fill whole tiles")
}

/// Writes the sums of all tiles.
#[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
#[inline(always)]
fn store_all<S: Simd, const T: usize, const N: usize>(
    s: S,
    tiles: &[[S::F; T]; N],
    of: &mut PanelRows<'_, '_>,
) {
    for n in 0..N {
        of.store(s, &tiles[n], n * T);
    }
}

/// A block and the sums that it is added to: its code is compiled once for each class of arithmetic.
struct OneBlock<'a, S: Simd, const T: usize, const N: usize> {
    s: S,
    codes: &'a [S::I; VECTORS],
    x: &'a [[BlockSlice; T]; N],
    /// Number of the block in its slice.
    at: usize,
    scales: &'a Scales<S>,
    /// Number of the block in its record.
    b: usize,
    shift: u32,
    tiles: &'a mut [[S::F; T]; N],
}

impl<S: Simd, const T: usize, const N: usize> ArithmeticVisitor for OneBlock<'_, S, T, N> {
    type Out = ();
    #[inline(always)]
    fn visit<A: Arithmetic>(self) {
        let Self { s, codes, x, at, scales, b, shift, tiles } = self;
        for n in 0..N {
            let x = blocks_at(&x[n], at);
            tiles[n] = tile::<S, A, T, _>(s, codes, x, scales, b, shift, tiles[n]);
        }
    }
}

/// Blocks of a slice.
const SLICE_BLOCKS: usize = SLICE / BLOCK;

/// Unpacked columns of a panel.
pub(super) struct QuantSlice<S: Simd> {
    /// The number in [`Offset::Shift`].
    shift: u32,
    codes: [[S::I; VECTORS]; SLICE_BLOCKS],
    scales: Scales<S, { 2 * SLICE_BLOCKS }>,
}

impl<Q: PanelFormat> Sliced for QuantTile<Q> {
    type Kind = QuantSlices;
    const COLUMNS: usize = SLICE;

    #[inline(always)]
    fn empty<S: Simd>(s: S) -> QuantSlice<S> {
        let shift = const { Q::OFFSET.shift() };
        QuantSlice {
            shift,
            codes: [[s.splat_i(0); VECTORS]; SLICE_BLOCKS],
            scales: Scales::zero(s),
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, panel: &[u8], first: usize, slice: &mut QuantSlice<S>) {
        const { assert!(SLICE_BLOCKS.is_multiple_of(Q::BLOCKS)) };
        let n_scales = if Q::HALVES { 2 * Q::BLOCKS } else { Q::BLOCKS };
        let records = &panel[first / BLOCK / Q::BLOCKS * Q::RECORD..];
        let mut scales = Scales::<S>::zero(s);
        for (u, record) in
            records.chunks_exact(Q::RECORD).take(SLICE_BLOCKS / Q::BLOCKS).enumerate()
        {
            let (head, planes) = record.split_at(Q::HEAD);
            Q::scales(s, head, &mut scales);
            for i in 0..n_scales {
                slice.scales.scale[u * n_scales + i] = scales.scale[i];
                if Q::MINS {
                    slice.scales.min[u * n_scales + i] = scales.min[i];
                }
            }
            for (b, planes) in planes.chunks_exact(Q::PLANES).enumerate() {
                slice.codes[u * Q::BLOCKS + b] = Q::codes(s, planes);
            }
        }
    }

    fn add<S: Simd>() -> AddTiles<S, QuantSlices> {
        struct Add<S>(PhantomData<S>);
        impl<S: Simd> ArithmeticVisitor for Add<S> {
            type Out = AddTiles<S, QuantSlices>;
            fn visit<A: Arithmetic>(self) -> Self::Out {
                add_tiles::<S, QuantSums<A>>
            }
        }
        with_class::<Q, _>(Add(PhantomData))
    }
}

/// Unpacked codes, whatever their format was.
pub(super) struct QuantSlices;

impl SliceKind for QuantSlices {
    type Slice<S: Simd> = QuantSlice<S>;
    type Row = BlockSlice;

    fn rows<'a>(chunk: &'a MatmulChunk<'_>, slice: usize) -> &'a [BlockSlice] {
        chunk.x.blocks().slice_from(slice, chunk.rows.start)
    }
}

/// Sums over unpacked codes with the arithmetic `A`.
struct QuantSums<A>(PhantomData<A>);

impl<A: Arithmetic> Sums for QuantSums<A> {
    type Kind = QuantSlices;
    const TWO_PANELS_TILE: usize = if A::HALVES { 4 } else { 6 };

    #[inline(always)]
    fn add<S: Simd, const P: usize, const T: usize>(
        s: S,
        slices: &[QuantSlice<S>; P],
        columns: usize,
        rows: &[BlockSlice; T],
        mut sums: [[S::F; T]; P],
    ) -> [[S::F; T]; P] {
        let n_blocks = (columns / BLOCK).min(SLICE_BLOCKS);
        if const { S::INTEGERS_FIRST } {
            for p in 0..P {
                sums[p] = integers_first::<S, A, T>(s, &slices[p], n_blocks, rows, sums[p]);
            }
            return sums;
        }
        for b in 0..n_blocks {
            let x = blocks_at(rows, b);
            if const { P == 1 } {
                let [QuantSlice { shift, codes, scales }] = slices.first_chunk().expect("one");
                sums[0] = tile::<S, A, T, _>(s, &codes[b], x, scales, b, *shift, sums[0]);
            } else {
                sums = panels::<S, A, P, T>(s, slices, x, b, sums);
            }
        }
        sums
    }
}

/// `sums` of `T` rows plus the first blocks of a slice: all integers, then all floats. Either alone finds registers enough,
/// floats of [`FLOAT_ROWS`] rows at a time.
#[inline(always)]
fn integers_first<S: Simd, A: Arithmetic, const T: usize>(
    s: S,
    slice: &QuantSlice<S>,
    n_blocks: usize,
    rows: &[BlockSlice; T],
    mut sums: [S::F; T],
) -> [S::F; T] {
    let mut low = [MaybeUninit::uninit(); SLICE_BLOCKS];
    let mut high = [MaybeUninit::uninit(); SLICE_BLOCKS];
    for b in 0..n_blocks {
        let x = blocks_at(rows, b);
        let products = Products::<S, T>::of::<A>(s, &slice.codes[b], x, slice.shift);
        low[b].write(products.0[0]);
        if A::HALVES {
            high[b].write(products.0[1]);
        }
    }
    // SAFETY: the loop above wrote each of these blocks.
    let low = unsafe { written(&low[..n_blocks]) };
    // SAFETY: as above, where there are halves.
    let high = if A::HALVES { unsafe { written(&high[..n_blocks]) } } else { low };
    if const { T == 2 * FLOAT_ROWS } {
        floats::<S, A, T, FLOAT_ROWS>(s, slice, low, high, rows, 0, &mut sums);
        floats::<S, A, T, FLOAT_ROWS>(s, slice, low, high, rows, FLOAT_ROWS, &mut sums);
    } else {
        floats::<S, A, T, T>(s, slice, low, high, rows, 0, &mut sums);
    }
    sums
}

/// Values that were all written.
///
/// # Safety
/// They were.
#[inline(always)]
unsafe fn written<T>(values: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: the layouts are the same, and all are values (the caller's promise).
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) }
}

/// Rows of the highest tile whose floats are taken together: registers do not hold the sums of all six and what is added to them.
const FLOAT_ROWS: usize = 3;

const HIGH_ENOUGH: &str = "a tile has these rows";

/// Adds to the sums of `H` rows, from number `first` on, their products with the first blocks of a slice.
#[inline(always)]
fn floats<S: Simd, A: Arithmetic, const T: usize, const H: usize>(
    s: S,
    slice: &QuantSlice<S>,
    low: &[[S::I; T]],
    high: &[[S::I; T]],
    rows: &[BlockSlice; T],
    first: usize,
    sums: &mut [S::F; T],
) {
    let rows: &[BlockSlice; H] = rows[first..].first_chunk().expect(HIGH_ENOUGH);
    let sums: &mut [S::F; H] = sums[first..].first_chunk_mut().expect(HIGH_ENOUGH);
    let mut all = *sums;
    for (b, (low, high)) in low.iter().zip(high).enumerate() {
        let low = *low[first..].first_chunk().expect(HIGH_ENOUGH);
        let high = *high[first..].first_chunk().expect(HIGH_ENOUGH);
        let x = blocks_at(rows, b);
        all = Products([low, high]).scaled::<A, _>(s, x, &slice.scales, b, all);
    }
    *sums = all;
}

/// `sums` of `T` rows plus block `b` of each of `P` panels, which take each four of a row's values together.
#[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
#[inline(always)]
fn panels<S: Simd, A: Arithmetic, const P: usize, const T: usize>(
    s: S,
    slices: &[QuantSlice<S>; P],
    x: [&ActBlock; T],
    b: usize,
    mut sums: [[S::F; T]; P],
) -> [[S::F; T]; P] {
    let mut neg_sums = [[0; T]; 2];
    for t in 0..T {
        neg_sums[0][t] = if A::HALVES { x[t].neg_sum_half[0] } else { x[t].neg_sum };
        neg_sums[1][t] = x[t].neg_sum_half[1];
    }
    if !A::HALVES {
        let products = panel_dots::<S, A, P, T, VECTORS>(s, slices, x, b, 0, neg_sums[0]);
        for p in 0..P {
            let products = Products([products[p], [s.splat_i(0); T]]);
            sums[p] = products.scaled::<A, _>(s, x, &slices[p].scales, b, sums[p]);
        }
        return sums;
    }
    let low = panel_dots::<S, A, P, T, HALF>(s, slices, x, b, 0, neg_sums[0]);
    // The first half becomes floats here: registers do not hold the integers of both halves.
    let mut scaled = [[s.zero(); T]; P];
    for t in 0..T {
        for p in 0..P {
            scaled[p][t] = slices[p].scales.low_half(s, low[p][t], b);
        }
    }
    let high = panel_dots::<S, A, P, T, HALF>(s, slices, x, b, HALF, neg_sums[1]);
    for t in 0..T {
        for p in 0..P {
            let scales = &slices[p].scales;
            let both = scales.both_halves(s, scaled[p][t], high[p][t], b);
            sums[p][t] = scales.add_halves::<A>(s, x[t], both, b, sums[p][t]);
        }
    }
    sums
}

/// [`dots`] of `T` rows with block `b` of each of `P` panels, whose vectors are numbers `first ..` of the block.
#[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
#[inline(always)]
fn panel_dots<S: Simd, A: Arithmetic, const P: usize, const T: usize, const N: usize>(
    s: S,
    slices: &[QuantSlice<S>; P],
    x: [&ActBlock; T],
    b: usize,
    first: usize,
    neg_sums: [i32; T],
) -> [[S::I; T]; P] {
    let mut starts = [s.splat_i(0); T];
    for t in 0..T {
        // All panels are of one format.
        starts[t] = start::<S, A>(s, neg_sums[t], slices[0].shift);
    }
    let mut acc = [starts; P];
    for v in 0..N {
        for t in 0..T {
            let x = s.splat_bytes(&x[t].quads::<N>(first)[v]);
            for p in 0..P {
                let (acc, w) = (&mut acc[p][t], slices[p].codes[b][first + v]);
                *acc = match A::OFFSET {
                    Offset::Signed => s.dot4_signed(*acc, w, x),
                    Offset::None | Offset::Shift(_) => s.dot4(*acc, w, x),
                };
            }
        }
    }
    acc
}

/// Start of the sum of a row's products, which depends on the offset of the codes.
#[inline(always)]
fn start<S: Simd, A: Arithmetic>(s: S, neg_sum: i32, shift: u32) -> S::I {
    match A::OFFSET {
        Offset::None => s.splat_i(0),
        Offset::Shift(_) => s.shifted_start(neg_sum, shift),
        Offset::Signed => s.signed_start(neg_sum),
    }
}

/// Block `b` of each of the rows.
#[inline(always)]
fn blocks_at<const T: usize>(rows: &[BlockSlice; T], b: usize) -> [&ActBlock; T] {
    let mut blocks = [&rows[0][b]; T];
    for t in 1..T {
        blocks[t] = &rows[t][b];
    }
    blocks
}

/// `sums` of `T` rows plus block `b`, in the order that registers allow.
#[inline(always)]
fn tile<S: Simd, A: Arithmetic, const T: usize, const N: usize>(
    s: S,
    codes: &[S::I; VECTORS],
    x: [&ActBlock; T],
    scales: &Scales<S, N>,
    b: usize,
    shift: u32,
    mut sums: [S::F; T],
) -> [S::F; T] {
    if const { S::TOGETHER } {
        return block::<S, A, T, N>(s, codes, x, scales, b, shift, sums);
    }
    for t in 0..T {
        [sums[t]] = block::<S, A, 1, N>(s, codes, [x[t]], scales, b, shift, [sums[t]]);
    }
    sums
}

/// `sums` of `T` rows plus block `b`.
#[inline(always)]
fn block<S: Simd, A: Arithmetic, const T: usize, const N: usize>(
    s: S,
    codes: &[S::I; VECTORS],
    x: [&ActBlock; T],
    scales: &Scales<S, N>,
    b: usize,
    shift: u32,
    sums: [S::F; T],
) -> [S::F; T] {
    Products::of::<A>(s, codes, x, shift).scaled::<A, N>(s, x, scales, b, sums)
}

/// The integer products of a block with `T` rows, of each half or, where these have one scale, of the
/// whole in the first place.
#[derive(Clone, Copy)]
struct Products<S: Simd, const T: usize>([[S::I; T]; 2]);

impl<S: Simd, const T: usize> Products<S, T> {
    #[inline(always)]
    fn of<A: Arithmetic>(s: S, codes: &[S::I; VECTORS], x: [&ActBlock; T], shift: u32) -> Self {
        let mut neg_sums = [[0; T]; 2];
        for t in 0..T {
            if A::HALVES {
                neg_sums[0][t] = x[t].neg_sum_half[0];
                neg_sums[1][t] = x[t].neg_sum_half[1];
            } else {
                neg_sums[0][t] = x[t].neg_sum;
            }
        }
        if !A::HALVES {
            let whole = dots::<S, A, T, VECTORS>(s, codes, x, 0, neg_sums[0], shift);
            return Self([whole, [s.splat_i(0); T]]);
        }
        let (low, high) = codes.split_at(HALF);
        let (low, high) = (low.first_chunk().expect(WHOLE), high.first_chunk().expect(WHOLE));
        let low = dots::<S, A, T, HALF>(s, low, x, 0, neg_sums[0], shift);
        let high = dots::<S, A, T, HALF>(s, high, x, HALF, neg_sums[1], shift);
        Self([low, high])
    }

    /// `sums` plus these products of block `b`, scaled.
    #[inline(always)]
    fn scaled<A: Arithmetic, const N: usize>(
        &self,
        s: S,
        x: [&ActBlock; T],
        scales: &Scales<S, N>,
        b: usize,
        mut sums: [S::F; T],
    ) -> [S::F; T] {
        let Self([low, high]) = self;
        for t in 0..T {
            if !A::HALVES {
                if A::MINS {
                    sums[t] = s.fma(scales.min[b], s.splat(x[t].d_sum), sums[t]);
                }
                let dot = s.mul(s.to_f32(low[t]), scales.scale[b]);
                sums[t] = s.fma(dot, s.splat(x[t].d), sums[t]);
                continue;
            }
            let low = scales.low_half(s, low[t], b);
            let both = scales.both_halves(s, low, high[t], b);
            sums[t] = scales.add_halves::<A>(s, x[t], both, b, sums[t]);
        }
        sums
    }
}

impl<S: Simd, const N: usize> Scales<S, N> {
    /// The products of the first half of block `b`, scaled.
    #[inline(always)]
    fn low_half(&self, s: S, low: S::I, b: usize) -> S::F {
        s.mul(s.to_f32(low), self.scale[2 * b])
    }

    /// `low` plus the products of the second half of block `b`, scaled.
    #[inline(always)]
    fn both_halves(&self, s: S, low: S::F, high: S::I, b: usize) -> S::F {
        s.fma(s.to_f32(high), self.scale[2 * b + 1], low)
    }

    /// `sum` plus the minima of block `b` and the scaled products of both its halves with row `x`.
    #[inline(always)]
    fn add_halves<A: Arithmetic>(
        &self,
        s: S,
        x: &ActBlock,
        both: S::F,
        b: usize,
        mut sum: S::F,
    ) -> S::F {
        if A::MINS {
            sum = s.fma(self.min[2 * b], s.splat(x.d_sum_half[0]), sum);
            sum = s.fma(self.min[2 * b + 1], s.splat(x.d_sum_half[1]), sum);
        }
        s.fma(both, s.splat(x.d), sum)
    }
}

/// The integer products of `N` vectors of a block's codes with `T` rows. The vectors are numbers `first ..` of the
/// block. `neg_sums` are the negated sums of the rows' values there, and `shift` is the number in [`Offset::Shift`].
#[inline(always)]
fn dots<S: Simd, A: Arithmetic, const T: usize, const N: usize>(
    s: S,
    codes: &[S::I; N],
    x: [&ActBlock; T],
    first: usize,
    neg_sums: [i32; T],
    shift: u32,
) -> [S::I; T] {
    let mut acc = [s.splat_i(0); T];
    let mut quads = [&[[0; 4]; N]; T];
    // Plain loops: the closures of array functions are not always inlined, which costs every register.
    for t in 0..T {
        quads[t] = x[t].quads(first);
        acc[t] = start::<S, A>(s, neg_sums[t], shift);
    }
    match A::OFFSET {
        Offset::Signed => s.dots_signed(acc, codes, &quads),
        Offset::None | Offset::Shift(_) => s.dots(acc, codes, A::MAX_CODE, &quads),
    }
}
