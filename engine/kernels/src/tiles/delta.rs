//! The gated delta rule: linear attention whose state decays, is corrected towards each new value, and is
//! read by the query. With one decay for each key channel it is KDA (Kimi Linear, arXiv 2510.26692). With one
//! decay for each head it is the gated delta net (arXiv 2412.06464).
//!
//! One head has the state `S [d_k, d_v]`, decay factors `a [d_k]` and the rate `beta`. Row by row: `S =
//! diag(a) S; e = beta (v - Sᵀk); S = S + k eᵀ; o = Sᵀq / sqrt(d_k)`.
//!
//! States lie in strips of sixteen values, `[d_v / 16][d_k][16]` for each head. Columns of `S` never meet. So
//! a strip can stay in the first-level cache over all rows of a part, and no sum runs over lanes.

use super::conv::Columns;
use super::out_rows::Rows;
use super::scan::ScanPart;

use brigade_shapes::{Decay, DeltaShape};

/// The operands of a delta rule, a row a token.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<'a> {
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub q: Columns<'a>,
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub k: Columns<'a>,
    /// `[n, n_head, d_v]`.
    pub v: Columns<'a>,
    /// Decay factors in 0..=1, `[n, n_head, d_k]` or `[n, n_head]`.
    pub decay: Columns<'a>,
    /// `[n, n_head]`, in 0..=1.
    pub beta: Columns<'a>,
}

impl DeltaRows<'_> {
    /// Panics where they are not `n_rows` rows of this shape.
    #[inline]
    pub(crate) fn check(&self, shape: &DeltaShape, n_rows: usize) {
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = *shape;
        assert!(n_key_head > 0 && n_head.is_multiple_of(n_key_head), "delta: {shape:?}");
        assert!(d_k > 0 && d_v > 0, "delta: {shape:?}");
        self.q.check(n_rows, n_key_head * d_k, "delta: q");
        self.k.check(n_rows, n_key_head * d_k, "delta: k");
        self.v.check(n_rows, n_head * d_v, "delta: v");
        self.decay.check(n_rows, shape.decay_len(), "delta: decay");
        self.beta.check(n_rows, n_head, "delta: beta");
    }
}

/// Strips of one head's state and the rows of one part.
pub(crate) struct DeltaTile<'a> {
    pub(crate) shape: &'a DeltaShape,
    pub(crate) part: &'a ScanPart,
    /// Value head.
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

    /// Where `n` values of a row from column `start` of the tile on go.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize, start: usize, n: usize) -> &mut [f32] {
        let head = row * self.shape.n_head + self.head;
        let start = head * self.shape.d_v + self.start + start;
        // SAFETY: tiles have disjoint columns or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        unsafe { self.out.rows(start..start + n) }
    }
}
