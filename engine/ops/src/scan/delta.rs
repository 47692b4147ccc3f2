//! The gated delta rule: linear attention whose state decays, is corrected towards each new value, and is
//! read by the query. With one decay for each key channel it is KDA (Kimi Linear, arXiv 2510.26692). With one
//! decay for each head it is the gated delta net (arXiv 2412.06464).
//!
//! One head has the state `S [d_k, d_v]`, decay factors `a [d_k]` and the rate `beta`. Row by row: `S =
//! diag(a) S; e = beta (v - Sᵀk); S = S + k eᵀ; o = Sᵀq / sqrt(d_k)`.
//!
//! States lie in strips of sixteen values, `[d_v / 16][d_k][16]` for each head. Each column of `S`
//! is updated by itself. So a strip can stay in the first-level cache over all rows of a part, and no sum runs over lanes.

use brigade_shapes::DeltaShape;

use super::{Columns, ScanPart, check_columns};
use crate::carry::{carried, mapped};
use crate::place::Place;

/// Operands of a delta rule, one row for each token.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<V> {
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub q: Columns<V>,
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub k: Columns<V>,
    /// `[n, n_head, d_v]`.
    pub v: Columns<V>,
    /// Decay factors in 0..=1, `[n, n_head, d_k]` or `[n, n_head]`.
    pub decay: Columns<V>,
    /// `[n, n_head]`, in 0..=1.
    pub beta: Columns<V>,
}

/// The delta rule over the rows of `parts`.
pub struct DeltaScan<'a, P: Place> {
    /// Sizes of the heads.
    pub shape: &'a DeltaShape,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, shape.state_len()]`, which follow.
    pub states: P::Write<'a, f32>,
    /// Queries, keys, values, decays and rates.
    pub x: DeltaRows<P::Read<'a, f32>>,
    /// `[n, n_head, d_v]`.
    pub out: P::Write<'a, f32>,
}

mapped!(DeltaRows { q: rows, k: rows, v: rows, decay: rows, beta: rows });
carried!(DeltaScan { shape: same, parts: same, states: write, x: rows, out: write });

impl<P: Place> DeltaScan<'_, P> {
    /// Panics if shapes disagree, or two parts share a slot. Gives the number of rows.
    #[inline]
    pub fn check(&self) -> usize {
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = *self.shape;
        assert!(n_key_head > 0 && n_head.is_multiple_of(n_key_head), "delta: {:?}", self.shape);
        assert!(d_k > 0 && d_v > 0, "delta: {:?}", self.shape);
        let n_out = P::len_mut(&self.out);
        let n_rows = n_out / (n_head * d_v);
        assert_eq!(n_out, n_rows * n_head * d_v, "delta: length of out");
        let DeltaRows { q, k, v, decay, beta } = &self.x;
        check_columns::<P>(q, n_rows, n_key_head * d_k, "delta: q");
        check_columns::<P>(k, n_rows, n_key_head * d_k, "delta: k");
        check_columns::<P>(v, n_rows, n_head * d_v, "delta: v");
        check_columns::<P>(decay, n_rows, self.shape.decay_len(), "delta: decay");
        check_columns::<P>(beta, n_rows, n_head, "delta: beta");
        let n_slots = P::len_mut(&self.states) / self.shape.state_len();
        ScanPart::check(self.parts, n_rows, n_slots, "delta");
        n_rows
    }
}
