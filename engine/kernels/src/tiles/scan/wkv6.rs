//! The tile that the kernel of RWKV-6's time mixing computes.

use super::ScanPart;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;

/// Operands of the scan, in the host's memory.
pub type Wkv6Rows<'a> = brigade_ops::Wkv6Rows<&'a [f32]>;

/// [`LANES`] values of one head of one part.
pub(crate) struct Wkv6Tile<'a> {
    pub(crate) part: &'a ScanPart,
    /// `[d, LANES]`.
    pub(crate) state: &'a mut [[f32; LANES]],
    pub(crate) rows: Wkv6Rows<'a>,
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
pub(crate) struct Wkv6Row<'a> {
    pub(crate) r: &'a [f32],
    pub(crate) w: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32; LANES],
}

impl<'a> Wkv6Tile<'a> {
    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> Wkv6Row<'a> {
        let start = row * self.width + self.head;
        let Wkv6Rows { r, w, k, v, .. } = self.rows;
        let [r, w, k] = [r, w, k].map(|x| &x[start..start + self.d]);
        let v = v[row * self.width + self.value..].first_chunk();
        Wkv6Row { r, w, k, v: v.expect("a head is whole tiles") }
    }

    /// Share of a row's own key that is read, `[d]`.
    #[inline]
    pub(crate) fn own(&self) -> Option<&'a [f32]> {
        self.rows.own.map(|own| &own[self.head..self.head + self.d])
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
