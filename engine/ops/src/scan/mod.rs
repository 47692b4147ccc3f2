//! Ops over recurrent states: which rows belong to which slot, and operands by columns.
//!
//! The states of a block are one slice, `n_slots` rows of the same length. A ubatch touches the states of its
//! parts. An op walks the rows of a part in order, begins with the state in one slot, and leaves the state behind
//! the last row in that slot or in another. Each element sees the same operations whatever the cut. So a prompt gives the same
//! bits in one piece or in many.

mod conv;
mod delta;
mod mamba;
mod part;
mod ssd;
mod wkv6;
mod wkv7;

pub use conv::{Conv, ConvRows};
pub use delta::{DeltaRows, DeltaScan};
pub use mamba::{MambaRows, MambaScan, MambaWeights};
pub use part::{FLUSH_EVERY, ScanPart, check_disjoint_rows};
pub use ssd::{Ssd, SsdInput, SsdScan};
pub use wkv6::{Wkv6, Wkv6Decay, Wkv6Rows};
pub use wkv7::{Wkv7, Wkv7Bonus, Wkv7Prepare, Wkv7Rows, Wkv7Weights};

use crate::carry::mapped;
use crate::place::Place;

/// Rows of a wider matrix: columns `first_col ..` of rows of `stride` values.
#[derive(Clone, Copy, Debug)]
pub struct Columns<V> {
    /// All rows of the matrix.
    pub values: V,
    /// Values in a row.
    pub stride: usize,
    /// First of the wanted columns.
    pub first_col: usize,
}

mapped!(Columns { values: read, stride: same, first_col: same });

impl<V> Columns<V> {
    /// Rows that are all of `values`, `stride` values each.
    #[inline]
    pub fn whole(values: V, stride: usize) -> Self {
        Self { values, stride, first_col: 0 }
    }
}

impl<'a> Columns<&'a [f32]> {
    /// `n` columns of `row` from column `start` on.
    #[inline(always)]
    pub fn at(&self, row: usize, start: usize, n: usize) -> &'a [f32] {
        &self.values[row * self.stride + self.first_col + start..][..n]
    }
}

/// Panics where there are not `n_rows` rows with `n` columns to take.
#[inline]
fn check_columns<P: Place>(x: &Columns<P::Read<'_, f32>>, n_rows: usize, n: usize, what: &str) {
    assert!(P::len(&x.values) >= n_rows * x.stride, "{what}: {n_rows} rows");
    assert!(x.first_col + n <= x.stride, "{what}: {n} columns of {}", x.stride);
}
