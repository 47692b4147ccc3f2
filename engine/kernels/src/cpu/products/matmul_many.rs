//! The loop of products with many rows: it goes slice by slice of columns, and for each slice panel by
//! panel.
//!
//! The rows' values in a slice lie side by side ([`crate::tiles::products::column_slices`]), and stay in the
//! second-level cache while some panels pass. A slice of a panel is unpacked once, into memory that the
//! first-level cache holds. All rows of the chunk are then multiplied with it, tile by tile, and each tile asks for a part
//! of the weights that are unpacked next. Between slices, a row's sums wait in memory.
//!
//! A row's sum takes the same steps in the same order as in a tile of few rows ([`super::matmul_few`]). Neither
//! slices nor tiles show in it.

use std::ops::Range;

use crate::cpu::{align_stack, proof};
use crate::simd::{LANES, MAX_TILE, Op, Simd};
use crate::tiles::products::matmul::MatmulChunk;

/// Rows from which on unpacking a slice for all of them beats unpacking it for every tile.
pub const MANY_ROWS: usize = 24;

/// Bytes that memory is asked for at once.
const LINE: usize = 64;

/// Most panels that pass before the rows' next slice is taken: their sums share the second-level cache
/// with the rows.
const PANELS: usize = 16;

/// Weights that unpack to the same kind of slice, and how rows meet one.
pub(super) trait SliceKind: 'static {
    /// An unpacked slice: weights as they are multiplied.
    type Slice<S: Simd>;
    /// A row's values in a slice, as they are multiplied.
    type Row;

    /// Slice `slice` of the chunk's rows, and of what lies behind them.
    fn rows<'a>(chunk: &'a MatmulChunk<'_>, slice: usize) -> &'a [Self::Row];
}

/// The product of unpacked slices. It is compiled once for all weights that unpack to the same kind.
pub(super) trait Sums: 'static {
    /// The kind of the unpacked slices.
    type Kind: SliceKind;
    /// Most rows of a tile of two panels whose sums registers hold, on sets that have such.
    const TWO_PANELS_TILE: usize;

    /// `sums` of `T` rows plus their products with the first `columns` of a slice of each of `P` panels.
    fn add<S: Simd, const P: usize, const T: usize>(
        s: S,
        slices: &[Slice<Self, S>; P],
        columns: usize,
        rows: &[Row<Self>; T],
        sums: [[S::F; T]; P],
    ) -> [[S::F; T]; P];
}

/// A slice that `A` sums over.
pub(super) type Slice<A, S> = <<A as Sums>::Kind as SliceKind>::Slice<S>;
/// A row that `A` sums over.
pub(super) type Row<A> = <<A as Sums>::Kind as SliceKind>::Row;

/// The unpacking of a panel's slices.
pub(super) trait Sliced {
    /// The kind of the unpacked slices.
    type Kind: SliceKind;
    /// Columns of a slice; the last one of a panel may have fewer.
    const COLUMNS: usize;

    /// A slice of nothing.
    fn empty<S: Simd>(s: S) -> <Self::Kind as SliceKind>::Slice<S>;
    /// Unpacks the slice that begins at column `first` of `panel`.
    fn unpack<S: Simd>(
        s: S,
        panel: &[u8],
        first: usize,
        slice: &mut <Self::Kind as SliceKind>::Slice<S>,
    );
    /// The kernels that multiply such slices.
    fn add<S: Simd>() -> AddTiles<S, Self::Kind>;
}

/// Unpacks the slice that begins at a column of a panel.
type Unpack<S, D> = fn(&[u8], usize, &mut <D as SliceKind>::Slice<S>);

/// Adds to the sums of so many rows their products with the first columns of slices of one panel or two. The columns
/// of the second begin in the middle.
pub(super) type AddTiles<S, D> = fn(
    &[<D as SliceKind>::Slice<S>],
    usize,
    &[<D as SliceKind>::Row],
    usize,
    &mut [<S as Simd>::F],
    NextWeights<'_>,
);

/// Packed weights of the slices that are unpacked after those at hand; nothing where there are none.
pub(super) type NextWeights<'a> = [&'a [u8]; 2];

/// Computes one chunk of a product with weights of kind `K`, by slices.
pub(super) fn slices<S: Simd, K: Sliced>(chunk: &MatmulChunk<'_>) {
    let s = proof::<S>();
    let mut slices = [K::empty(s), K::empty(s)];
    s.run(Slices::<S, K::Kind> {
        s,
        chunk,
        columns: K::COLUMNS,
        slices: &mut slices,
        unpack: unpack::<S, K>,
        add: K::add::<S>(),
    });
}

/// [`Sliced::unpack`] on the instructions of `S`.
fn unpack<S: Simd, K: Sliced>(
    panel: &[u8],
    first: usize,
    slice: &mut <K::Kind as SliceKind>::Slice<S>,
) {
    struct One<'a, L: Simd, K: Sliced>(
        L,
        &'a [u8],
        usize,
        &'a mut <K::Kind as SliceKind>::Slice<L>,
    );
    impl<L: Simd, K: Sliced> Op for One<'_, L, K> {
        type Out = ();
        #[inline(always)]
        fn eval<S: Simd>(self, _: S) {
            K::unpack(self.0, self.1, self.2, self.3);
        }
    }
    let s = proof::<S>();
    s.run(One::<S, K>(s, panel, first, slice));
}

/// One chunk of a product over lanes `L`: what is the same for all weights that unpack to the same.
struct Slices<'a, 'b, L: Simd, D: SliceKind> {
    s: L,
    chunk: &'a MatmulChunk<'b>,
    columns: usize,
    slices: &'a mut [D::Slice<L>; 2],
    unpack: Unpack<L, D>,
    add: AddTiles<L, D>,
}

impl<L: Simd, D: SliceKind> Op for Slices<'_, '_, L, D> {
    type Out = ();
    /// Computes with the lanes that the slice is made of; those that it is given are the same.
    #[inline(always)]
    fn eval<S: Simd>(self, _: S) {
        let Self { s, chunk, columns: most, slices, unpack, add } = self;
        let cols = chunk.w.cols;
        // Room for a last tile that is not full, whose additional results are not read.
        let n_rows = chunk.rows.len() + MAX_TILE - 1;
        let scale = s.splat(chunk.w.scale);
        let mut sums = vec![s.zero(); n_rows * chunk.panels.len().min(PANELS)];
        for first_panel in chunk.panels.clone().step_by(PANELS) {
            let panels = first_panel..(first_panel + PANELS).min(chunk.panels.end);
            sums.fill(s.zero());
            for (i, first) in (0..cols).step_by(most).enumerate() {
                let (columns, rows) = (most.min(cols - first), D::rows(chunk, i));
                let sums = sums[..panels.len() * n_rows].chunks_mut(L::MANY_PANELS * n_rows);
                for (p, sums) in panels.clone().step_by(L::MANY_PANELS).zip(sums) {
                    let slices = &mut slices[..sums.len() / n_rows];
                    for (p, slice) in (p..).zip(slices.iter_mut()) {
                        unpack(chunk.w.panel(p), first, slice);
                    }
                    let next = if p + L::MANY_PANELS < panels.end {
                        packed_slices::<L>(chunk, p + L::MANY_PANELS, first, most)
                    } else if first + most < cols {
                        packed_slices::<L>(chunk, panels.start, first + most, most)
                    } else {
                        packed_slices::<L>(chunk, panels.end, 0, most)
                    };
                    add(slices, columns, rows, chunk.rows.len(), sums, next);
                }
            }
            // Row by row, so that what is written lies side by side.
            for (t, row) in chunk.rows.clone().enumerate() {
                // SAFETY: chunks of a job differ in panels or rows, and this is the only thread of this one.
                let out = unsafe { chunk.out.part(row, panels.clone()) };
                for (out, sums) in out.chunks_mut(LANES).zip(sums.chunks_exact(n_rows)) {
                    let values = s.mul(sums[t], scale);
                    if let Some(out) = out.first_chunk_mut() {
                        s.store(values, out);
                    } else {
                        s.store_part(values, out);
                    }
                }
            }
        }
    }
}

/// The packed weights of as many panels as are unpacked together, from number `p` on: their columns from `first` on, at
/// most `columns`.
fn packed_slices<'a, S: Simd>(
    chunk: &MatmulChunk<'a>,
    p: usize,
    first: usize,
    columns: usize,
) -> NextWeights<'a> {
    let w = chunk.w;
    let at = |column: usize| w.panel_bytes * column.min(w.cols) / w.cols;
    let mut slices: NextWeights<'a> = [&[]; 2];
    for (p, slice) in (p..chunk.panels.end).zip(slices.iter_mut().take(S::MANY_PANELS)) {
        *slice = &w.panel(p)[at(first)..at(first + columns)];
    }
    slices
}

/// Asks for the part of the next weights that falls to these rows of `n_rows`. Asked for at once, they would be waited for.
fn ask_for_rows<S: Simd>(s: S, next: &NextWeights<'_>, rows: Range<usize>, n_rows: usize) {
    for next in next {
        let n_lines = next.len().div_ceil(LINE);
        let (first, end) = (n_lines * rows.start / n_rows, n_lines * rows.end / n_rows);
        s.prefetch(next, first * LINE, (end - first) * LINE);
    }
}

/// Adds the products of the first `n_rows` of `rows` with slices to `sums`.
pub(super) fn add_tiles<S: Simd, A: Sums>(
    slices: &[Slice<A, S>],
    columns: usize,
    rows: &[Row<A>],
    n_rows: usize,
    sums: &mut [S::F],
    next: NextWeights<'_>,
) {
    let s = proof::<S>();
    if const { S::MANY_PANELS > 1 }
        && let Ok(slices) = slices.try_into()
    {
        let (low, high) = sums.split_at_mut(sums.len() / 2);
        let sums = [low, high];
        return s.run(Tiles::<S, A, 2> { s, slices, columns, rows, n_rows, sums, next });
    }
    let slices = slices.first_chunk().expect("at least one panel");
    s.run(Tiles::<S, A, 1> { s, slices, columns, rows, n_rows, sums: [sums], next });
}

/// Rows that meet one slice of each of `P` panels, over lanes `L`.
struct Tiles<'a, L: Simd, A: Sums, const P: usize> {
    s: L,
    slices: &'a [Slice<A, L>; P],
    columns: usize,
    rows: &'a [Row<A>],
    n_rows: usize,
    sums: [&'a mut [L::F]; P],
    next: NextWeights<'a>,
}

impl<L: Simd, A: Sums, const P: usize> Op for Tiles<'_, L, A, P> {
    type Out = ();
    /// Computes with the lanes that the slice is made of; those that it is given are the same.
    #[inline(always)]
    fn eval<S: Simd>(mut self, _: S) {
        align_stack();
        let mut first = 0;
        while first < self.n_rows {
            let left = self.n_rows - first;
            // Conditions that are constants come first: tiles that this set does not use are not compiled for it.
            let taken = if const { L::MANY_TILE > 6 && P == 1 } {
                self.tile::<8>(first)
            } else if const { L::MANY_TILE > 4 && (P == 1 || A::TWO_PANELS_TILE > 4) }
                && !matches!(left, 0..=4 | 7 | 8)
            {
                self.tile::<6>(first)
            } else if const { L::MANY_TILE > 1 } {
                self.tile::<4>(first)
            } else {
                self.tile::<1>(first)
            };
            let asked = first..self.n_rows.min(first + taken);
            ask_for_rows(self.s, &self.next, asked, self.n_rows);
            first += taken;
        }
    }
}

impl<L: Simd, A: Sums, const P: usize> Tiles<'_, L, A, P> {
    /// Adds the products of the `T` rows from `first` on. Returns `T`.
    #[allow(clippy::needless_range_loop, reason = "loops over constants unroll into registers")]
    #[inline(always)]
    fn tile<const T: usize>(&mut self, first: usize) -> usize {
        const WHOLE: &str = "rows and sums fill whole tiles";
        let rows = self.rows[first..].first_chunk::<T>().expect(WHOLE);
        let mut sums = [[self.s.zero(); T]; P];
        for p in 0..P {
            sums[p] = *self.sums[p][first..].first_chunk::<T>().expect(WHOLE);
        }
        let sums = A::add::<L, P, T>(self.s, self.slices, self.columns, rows, sums);
        for p in 0..P {
            *self.sums[p][first..].first_chunk_mut::<T>().expect(WHOLE) = sums[p];
        }
        T
    }
}
