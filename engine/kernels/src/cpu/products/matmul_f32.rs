//! Products with float weights: f32 activations, and one fused step for each column.
//!
//! Columns are summed in runs of [`RUN`], and then the sums of the runs in order. That makes chains of
//! roundings shorter, and is the same for every number of rows.

use std::marker::PhantomData;

use super::matmul_few::{PREFETCH, PanelRows, Tile};
use super::matmul_many::{AddTiles, SliceKind, Sliced, Sums, add_tiles};
use crate::ahead::asked;
use crate::simd::{LANES, Simd};
use crate::tiles::products::activations::{FLOAT_SLICE, FloatSlice};
use crate::tiles::products::matmul::MatmulChunk;

/// Columns summed on their own.
pub const RUN: usize = FLOAT_SLICE;

/// A float type of weights, or of keys and values.
pub(crate) trait Float {
    /// One value in memory.
    type Bits: bytemuck::Pod;
    /// Sixteen of them as f32.
    fn load<S: Simd>(s: S, x: &[Self::Bits; LANES]) -> S::F;
}

/// Weights as 32-bit floats.
pub(crate) struct F32;
impl Float for F32 {
    type Bits = f32;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; LANES]) -> S::F {
        s.load(x)
    }
}

/// Weights as IEEE 16-bit floats.
pub(crate) struct F16;
impl Float for F16 {
    type Bits = u16;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u16; LANES]) -> S::F {
        s.load_f16(x)
    }
}

/// Weights as bfloat16 values.
pub(super) struct Bf16;
impl Float for Bf16 {
    type Bits = u16;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u16; LANES]) -> S::F {
        s.load_bf16(x)
    }
}

/// Tiles of float weights.
pub(super) struct FloatTile<W>(PhantomData<W>);

impl<W: Float> Tile for FloatTile<W> {
    #[inline(always)]
    fn tiles<S: Simd, const T: usize, const N: usize>(s: S, of: &mut PanelRows<'_, '_>) {
        let (columns, _) = bytemuck::cast_slice::<u8, W::Bits>(of.panel).as_chunks::<LANES>();
        for n in 0..N {
            let rows = of.rows[n * T..].first_chunk().expect("no tiles hold more than the most");
            let sums = tile::<S, W, T>(s, of.chunk, columns, *rows);
            of.store(s, &sums, n * T);
        }
    }
}

/// The sums of `T` rows with the columns of a panel.
#[inline(always)]
fn tile<S: Simd, W: Float, const T: usize>(
    s: S,
    chunk: &MatmulChunk<'_>,
    columns: &[[W::Bits; LANES]],
    rows: [usize; T],
) -> [S::F; T] {
    let mut x = [&[][..]; T];
    for t in 0..T {
        x[t] = &chunk.x.row(rows[t])[..columns.len()];
    }
    let mut total = [s.zero(); T];
    let cache = asked();
    for (r, run) in columns.chunks(RUN).enumerate() {
        let mut of_run = [&[][..]; T];
        for t in 0..T {
            of_run[t] = &x[t][r * RUN..][..run.len()];
        }
        let mut sum = [s.zero(); T];
        for (k, w) in run.iter().enumerate() {
            s.prefetch_into(cache, bytemuck::bytes_of(w), PREFETCH, size_of_val(w));
            let w = W::load(s, w);
            for t in 0..T {
                sum[t] = s.fma(w, s.splat(of_run[t][k]), sum[t]);
            }
        }
        for t in 0..T {
            total[t] = s.add(total[t], sum[t]);
        }
    }
    total
}

impl<W: Float> Sliced for FloatTile<W> {
    type Kind = FloatSlices;
    const COLUMNS: usize = RUN;

    #[inline(always)]
    fn empty<S: Simd>(s: S) -> [S::F; RUN] {
        [s.zero(); RUN]
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, panel: &[u8], first: usize, slice: &mut [S::F; RUN]) {
        let (columns, _) = bytemuck::cast_slice::<u8, W::Bits>(panel).as_chunks::<LANES>();
        for (out, column) in slice.iter_mut().zip(&columns[first..]) {
            *out = W::load(s, column);
        }
    }

    fn add<S: Simd>() -> AddTiles<S, FloatSlices> {
        add_tiles::<S, FloatSums>
    }
}

/// Unpacked float weights, whatever their type was.
pub(super) struct FloatSlices;

impl SliceKind for FloatSlices {
    type Slice<S: Simd> = [S::F; RUN];
    type Row = FloatSlice;

    fn rows<'a>(chunk: &'a MatmulChunk<'_>, slice: usize) -> &'a [FloatSlice] {
        chunk.x.floats(slice, chunk.rows.start)
    }
}

/// Sums over slices of floats.
struct FloatSums;

impl Sums for FloatSums {
    type Kind = FloatSlices;
    const TWO_PANELS_TILE: usize = 6;

    #[inline(always)]
    fn add<S: Simd, const P: usize, const T: usize>(
        s: S,
        slices: &[[S::F; RUN]; P],
        columns: usize,
        rows: &[FloatSlice; T],
        mut sums: [[S::F; T]; P],
    ) -> [[S::F; T]; P] {
        let mut of_run = [[s.zero(); T]; P];
        for k in 0..columns.min(RUN) {
            for t in 0..T {
                let x = s.splat(rows[t][k]);
                for p in 0..P {
                    of_run[p][t] = s.fma(slices[p][k], x, of_run[p][t]);
                }
            }
        }
        for p in 0..P {
            for t in 0..T {
                sums[p][t] = s.add(sums[p][t], of_run[p][t]);
            }
        }
        sums
    }
}
