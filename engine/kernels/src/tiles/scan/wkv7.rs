//! The tiles that the kernels of RWKV-7's time mixing compute.

use super::ScanPart;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;

/// Operands of the scan, in the host's memory.
pub type Wkv7Rows<'a> = brigade_ops::Wkv7Rows<&'a [f32]>;

/// [`LANES`] values of one head of one part.
pub(crate) struct Wkv7Tile<'a> {
    pub(crate) part: &'a ScanPart,
    /// `[d, LANES]`.
    pub(crate) state: &'a mut [[f32; LANES]],
    pub(crate) rows: Wkv7Rows<'a>,
    /// Width of a row and of a head.
    pub(crate) width: usize,
    pub(crate) d: usize,
    /// First column of the head.
    pub(crate) head: usize,
    /// First column of the tile's values.
    pub(crate) value: usize,
    pub(crate) out: &'a Rows<'a, f32>,
}

/// One row of a tile; all but `v` are `[d]`.
pub(crate) struct Wkv7Row<'a> {
    pub(crate) r: &'a [f32],
    pub(crate) w: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) kappa: &'a [f32],
    pub(crate) kappa_a: &'a [f32],
    pub(crate) v: &'a [f32; LANES],
}

impl Wkv7Tile<'_> {
    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> Wkv7Row<'_> {
        let head = |x| head_of(x, row * self.width + self.head, self.d);
        let v = &self.rows.v[row * self.width + self.value..];
        Wkv7Row {
            r: head(self.rows.r),
            w: head(self.rows.w),
            k: head(self.rows.k),
            kappa: head(self.rows.kappa),
            kappa_a: head(self.rows.kappa_a),
            v: v.first_chunk().expect("a head is whole tiles"),
        }
    }

    /// Outputs of row `row` of the tile.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize) -> &mut [f32; LANES] {
        let start = row * self.width + self.value;
        // SAFETY: tiles have disjoint columns or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        let out = unsafe { self.out.rows(start..start + LANES) };
        out.first_chunk_mut().expect("as long as asked for")
    }
}

#[inline(always)]
pub(crate) fn head_of(x: &[f32], start: usize, d: usize) -> &[f32] {
    &x[start..start + d]
}

/// One head of one row on its way to the scan.
pub(crate) struct Wkv7Head<'a> {
    /// In: before bias and sigmoid. Out: the decay.
    pub(crate) w: &'a mut [f32],
    /// In: projected keys. Out: scaled by the learning rate.
    pub(crate) k: &'a mut [f32],
    /// In: before bias and sigmoid. Out: `κ ⊙ a`.
    pub(crate) a: &'a mut [f32],
    /// Out: removal keys `κ`.
    pub(crate) kappa: &'a mut [f32],
    /// The weights of the head: `w0`, `a0`, `k_k`, `k_a`.
    pub(crate) weights: [&'a [f32]; 4],
}
