//! The first of the greatest values of each row, or some of the greatest.

use bytemuck::{Pod, Zeroable};

use super::best::{Best, Line};
use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::milestone::Fetch;
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static SHADER: Shader = shader!("greatest");

/// Values of a row that a workgroup looks through.
const PIECE: usize = 4096;

/// Minus infinity, and infinity, ordered as numbers are.
const LOWEST: u32 = !f32::NEG_INFINITY.to_bits();
const HIGHEST: u32 = f32::INFINITY.to_bits() | 1 << 31;

/// Some values of a row with their places, which ascend.
pub type FewValues = Vec<(u32, f32)>;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    x: u64,
    result: u64,
    n_units: u32,
    d: u32,
    pieces: u32,
    piece: u32,
}

/// Where the greatest value of each row is: on its way to the host.
pub struct Greatest {
    /// A key that is ordered as values are, and the place, of each row.
    found: Fetch,
}

/// Some of the greatest values of each row: on their way to the host.
pub struct FewGreatest {
    k: usize,
    /// Of each row `k` places, and `k` values.
    found: Fetch,
    /// Tells which rows have numbers.
    greatest: Greatest,
}

impl Greatest {
    /// The place of the greatest value of each row, the first of equal ones; `None` of a row with a value that is no number or
    /// +inf, and of one that has only -inf. Waits for it.
    pub fn places(&self) -> Vec<Option<u32>> {
        let pairs: &[[u32; 2]] = bytemuck::cast_slice(self.found.bytes());
        let is_number = |key: u32| LOWEST < key && key < HIGHEST;
        pairs.iter().map(|&[key, place]| is_number(key).then_some(place)).collect()
    }
}

impl FewGreatest {
    /// The greatest values of each row with their places, which ascend; of equal ones the earlier. `None` of a row that
    /// [`Greatest::places`] gives none of. Waits for them.
    pub fn values(&self) -> Vec<Option<FewValues>> {
        let rows = bytemuck::cast_slice::<u8, u32>(self.found.bytes()).chunks_exact(2 * self.k);
        let few = |row: &[u32]| {
            let (places, values) = row.split_at(self.k);
            let values = values.iter().map(|bits| f32::from_bits(*bits));
            places.iter().copied().zip(values).collect()
        };
        let usable = self.greatest.places();
        rows.zip(usable).map(|(row, usable)| usable.map(|_| few(row))).collect()
    }
}

impl Gpu {
    /// Finds where the greatest value of each row of `x` (`[n, d]`) is.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    ///
    /// # Panics
    /// If `x` is not whole rows.
    pub fn greatest(&self, x: Span<'_>, d: usize) -> Result<Greatest, GpuError> {
        let n = x.values();
        assert!(d > 0 && n.is_multiple_of(d), "greatest: {n} values in rows of {d}");
        let (n_rows, pieces) = (n / d, d.div_ceil(PIECE));
        let mut of_pieces = self.buffer(8 * n_rows * pieces, Purpose::Activations)?;
        let mut found = self.buffer(8 * n_rows, Purpose::Results)?;
        self.greatest_of(false, x.address(), [n_rows, d, pieces], of_pieces.span_mut());
        let pairs = of_pieces.span().address();
        self.greatest_of(true, pairs, [n_rows, pieces, 1], found.span_mut());
        Ok(Greatest { found: Fetch::written(found) })
    }

    /// Finds the `k` greatest values of each row of `x` (`[n, d]`).
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    ///
    /// # Panics
    /// If `x` is not whole rows, or they have fewer than `k` values.
    pub fn greatest_few(&self, x: Span<'_>, d: usize, k: usize) -> Result<FewGreatest, GpuError> {
        let n_rows = x.values() / d;
        let mut found = self.buffer(n_rows * 2 * k * size_of::<u32>(), Purpose::Results)?;
        let best = Best {
            wanted: k,
            n_behind: 0,
            copies: 2,
            of_floats: true,
            as_floats: false,
            with_scores: true,
        };
        let line = |row: usize| Line { n: count(d), row: count(row), behind: 0 };
        let all: Vec<Line> = (0..n_rows).map(line).collect();
        self.best(best, &all, x, d, found.span_mut());
        let found = Fetch::written(found);
        Ok(FewGreatest { k, found, greatest: self.greatest(x, d)? })
    }

    /// The greatest of each of so many pieces of rows: values, or pairs of an earlier run.
    fn greatest_of(&self, pairs: bool, x: u64, [n_rows, d, pieces]: [usize; 3], to: SpanMut<'_>) {
        let push = Push {
            x,
            result: to.address(),
            n_units: count(n_rows * pieces),
            d: count(d),
            pieces: count(pieces),
            piece: count(d.div_ceil(pieces.max(1))),
        };
        let groups = lines(n_rows * pieces);
        // SAFETY: the kernel reads the rows at `x`, `d` values or pairs each, which the callers have, and writes a pair of `to` for
        // each piece, for which there is room.
        unsafe { self.dispatch(Order::After, &SHADER, &[u32::from(pairs)], &push, groups) };
    }
}
