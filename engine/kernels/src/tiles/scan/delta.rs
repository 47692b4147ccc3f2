//! The tile that the kernel of the delta rule computes.

use brigade_shapes::{Decay, DeltaShape};

use super::ScanPart;
use crate::tiles::out_rows::Rows;

/// Operands of the delta rule, in the host's memory.
pub type DeltaRows<'a> = brigade_ops::DeltaRows<&'a [f32]>;

/// Strips of one head's state and the rows of one part.
pub(crate) struct DeltaTile<'a> {
    pub(crate) shape: &'a DeltaShape,
    pub(crate) part: &'a ScanPart,
    /// Number of the value head.
    pub(crate) head: usize,
    /// First value column within the head.
    pub(crate) start: usize,
    /// `[strips, d_k, 16]`, or one narrower strip.
    pub(crate) state: &'a mut [f32],
    pub(crate) x: DeltaRows<'a>,
    /// All values of the output, `[n, n_head, d_v]`.
    pub(crate) out: &'a Rows<'a, f32>,
}

impl<'a> DeltaTile<'a> {
    /// Query of a row.
    #[inline(always)]
    pub(crate) fn q(&self, row: usize) -> &'a [f32] {
        self.x.q.at(row, self.shape.key_head(self.head) * self.shape.d_k, self.shape.d_k)
    }

    /// Key of a row.
    #[inline(always)]
    pub(crate) fn k(&self, row: usize) -> &'a [f32] {
        self.x.k.at(row, self.shape.key_head(self.head) * self.shape.d_k, self.shape.d_k)
    }

    /// `n` values of a row from column `start` of the tile on.
    #[inline(always)]
    pub(crate) fn v(&self, row: usize, start: usize, n: usize) -> &'a [f32] {
        self.x.v.at(row, self.head * self.shape.d_v + self.start + start, n)
    }

    /// Decay factors of a row: `d_k` of them, or one.
    #[inline(always)]
    pub(crate) fn decay(&self, row: usize) -> &'a [f32] {
        match self.shape.decay {
            Decay::PerChannel => self.x.decay.at(row, self.head * self.shape.d_k, self.shape.d_k),
            Decay::PerHead => self.x.decay.at(row, self.head, 1),
        }
    }

    /// Correction rate of a row.
    #[inline(always)]
    pub(crate) fn beta(&self, row: usize) -> f32 {
        self.x.beta.at(row, self.head, 1)[0]
    }

    /// Outputs of `n` values of a row, from column `start` of the tile on.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize, start: usize, n: usize) -> &mut [f32] {
        let head = row * self.shape.n_head + self.head;
        let start = head * self.shape.d_v + self.start + start;
        // SAFETY: tiles have disjoint columns or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        unsafe { self.out.rows(start..start + n) }
    }
}
