//! Products of many rows with weights of F16 and BF16 in pairs of bfloat16 values, for tables of
//! [`NUMERICS_PAIRS`](crate::NUMERICS_PAIRS): half the bits of a value, and twice as many products an instruction.
//!
//! Weights of BF16 are exact, those of F16 and the activations are rounded to nearest even; what is subnormal may become zero.
//! Columns are summed in runs of
//! [`RUN`], as in [`super::matmul_f32`], and two at a time within a run ([`Simd::dot_pairs`]). Few rows are bound by memory,
//! and are multiplied in f32.

use std::marker::PhantomData;

use super::matmul_f32::{Bf16, F16, Float, RUN};
use super::matmul_many::{AddTiles, SliceKind, Sliced, Sums, add_tiles, slices};
use crate::cpu::probe::pairs;
use crate::cpu::run;
use crate::simd::{LANES, Op, Simd, bf16_pair};
use crate::tiles::products::activations::PairSlice;
use crate::tiles::products::matmul::MatmulChunk;

/// Vectors of sums that are looked at before a table is used.
const STATED_SUMS: usize = 64;

/// Pairs of a slice.
const PAIRS: usize = RUN / 2;

/// Rounds the values of a row's slice, which may have fewer columns than others.
pub(crate) type Round = fn(&[f32], &mut PairSlice);

/// The kernels of products in pairs.
#[derive(Clone, Copy)]
pub(crate) struct PairProducts {
    pub(crate) round: Round,
    pub(crate) probe: fn(usize) -> usize,
    pub(crate) is_as_stated: fn() -> bool,
    pub(crate) of_f16: fn(&MatmulChunk<'_>),
    pub(crate) of_bf16: fn(&MatmulChunk<'_>),
}

impl PairProducts {
    /// The kernels compiled for the instructions of `S`.
    pub(crate) const fn of<S: Simd>() -> Self {
        Self {
            round: round::<S>,
            probe: pairs::<S>,
            is_as_stated: is_as_stated::<S>,
            of_f16: slices::<S, PairTile<F16>>,
            of_bf16: slices::<S, PairTile<Bf16>>,
        }
    }
}

/// Sums of pairs whose values bfloat16 has, beside the same sums step by step.
fn is_as_stated<S: Simd>() -> bool {
    struct Sums;
    impl Op for Sums {
        type Out = bool;
        #[inline(always)]
        fn eval<S: Simd>(self, s: S) -> bool {
            let value = |i: usize| (i * 37 % 255) as f32 - 127.0;
            (0..STATED_SUMS).all(|turn| {
                let [w0, w1, x0, x1, acc] = [0, 1, 2, 3, 4].map(|operand| {
                    let mut lanes = [0.0; LANES];
                    for (i, lane) in lanes.iter_mut().enumerate() {
                        *lane = value((turn * 5 + operand) * LANES + i);
                    }
                    lanes
                });
                let acc = acc.map(|v| v / 3.0);
                let w = s.pair(s.load(&w0), s.load(&w1));
                let x = s.pair(s.load(&x0), s.load(&x1));
                let mut sums = [0.0; LANES];
                s.store(s.dot_pairs(s.load(&acc), w, x), &mut sums);
                (0..LANES).all(|i| sums[i] == acc[i] + w1[i] * x1[i] + w0[i] * x0[i])
            })
        }
    }
    run::<S, _>(Sums)
}

/// [`Round`] on the instructions of `S`.
fn round<S: Simd>(x: &[f32], out: &mut PairSlice) {
    struct Rounded<'a>(&'a [f32], &'a mut PairSlice);
    impl Op for Rounded<'_> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, _: S) {
            let (pairs, last) = self.0.as_chunks::<2>();
            for (out, [first, second]) in self.1.iter_mut().zip(pairs) {
                *out = bf16_pair(*first, *second);
            }
            if let [value] = last {
                self.1[pairs.len()] = bf16_pair(*value, 0.0);
            }
        }
    }
    run::<S, _>(Rounded(x, out));
}

/// Weights of type `W` in pairs.
struct PairTile<W>(PhantomData<W>);

impl<W: Float> Sliced for PairTile<W> {
    type Kind = PairSlices;
    const COLUMNS: usize = RUN;

    #[inline(always)]
    fn empty<S: Simd>(s: S) -> [S::I; PAIRS] {
        [s.splat_i(0); PAIRS]
    }

    #[inline(always)]
    fn unpack<S: Simd>(s: S, panel: &[u8], first: usize, slice: &mut [S::I; PAIRS]) {
        let (columns, _) = bytemuck::cast_slice::<u8, W::Bits>(panel).as_chunks::<LANES>();
        for (out, columns) in slice.iter_mut().zip(columns[first..].chunks(2)) {
            let second = columns.get(1).map_or(s.zero(), |column| W::load(s, column));
            *out = s.pair(W::load(s, &columns[0]), second);
        }
    }

    fn add<S: Simd>() -> AddTiles<S, PairSlices> {
        add_tiles::<S, PairSums>
    }
}

/// Unpacked pairs, whatever the type of the weights was.
struct PairSlices;

impl SliceKind for PairSlices {
    type Slice<S: Simd> = [S::I; PAIRS];
    type Row = PairSlice;

    fn rows<'a>(chunk: &'a MatmulChunk<'_>, slice: usize) -> &'a [PairSlice] {
        chunk.x.pairs(slice, chunk.rows.start)
    }
}

/// Sums over slices of pairs.
struct PairSums;

impl Sums for PairSums {
    type Kind = PairSlices;
    const TWO_PANELS_TILE: usize = 6;

    #[inline(always)]
    fn add<S: Simd, const P: usize, const T: usize>(
        s: S,
        slices: &[[S::I; PAIRS]; P],
        columns: usize,
        rows: &[PairSlice; T],
        mut sums: [[S::F; T]; P],
    ) -> [[S::F; T]; P] {
        let mut of_run = [[s.zero(); T]; P];
        for k in 0..columns.div_ceil(2).min(PAIRS) {
            for t in 0..T {
                let x = s.splat_bytes(&bytemuck::cast(rows[t][k]));
                for p in 0..P {
                    of_run[p][t] = s.dot_pairs(of_run[p][t], slices[p][k], x);
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
